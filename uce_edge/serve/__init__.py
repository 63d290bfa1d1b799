"""An HTTP server of model files: the Open Inference Protocol, version 2, of KServe and Triton.

`protocol` reads requests and writes responses, `request_batching` batches them, `model_host` holds the models,
`drift_monitor` monitors their answers, `app` is the ASGI application, and `server` runs it; `ray_app` runs it on many
machines. An answer does not depend on the other images of its batch, so batching is exact. `page_server` serves the
page of `uce-edge web`.
"""

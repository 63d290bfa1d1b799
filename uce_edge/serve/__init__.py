"""Serving model files over HTTP, by the Open Inference Protocol (version 2, as KServe and Triton speak it).

`protocol` reads and writes the protocol, `request_batching` puts requests together, `model_host` holds the models,
`drift_monitor` is a monitor beside them, `app` is the application, and `server` starts it; `ray_app` does so on many
machines. An answer never depends on what else is in its batch, so batching is exact.
"""

"""Serving model files over HTTP, by the Open Inference Protocol (version 2, as KServe and Triton speak it).

`tensors` reads and writes the protocol, `batching` puts requests together, `hosting` holds the models, `watching` is a
monitor beside them, `app` is the application, and `run` starts it; `ray_app` does so on many machines. An answer
never depends on what else is in its batch, so batching is exact.
"""

"""The application on many machines, with Ray Serve.

    serve run uce_edge.serve.ray_app:build model=photos.onnx reject=auto replicas=8

Every replica has its own models and queue. All replicas give the same answers.
"""

import os
from pathlib import Path

# Before the import of Ray: switches its usage statistics off.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
from ray import serve
from starlette.applications import Starlette

from uce_edge.errors import UsageError, expected
from uce_edge.runtime.device_choice import Device
from uce_edge.serve import access
from uce_edge.serve.app import Service
from uce_edge.serve.model_host import Limits, Named, parse_reject
from uce_edge.serve.prometheus_metrics import Gauges
from uce_edge.serve.server import load

_NUMBERS = {"replicas": 1, "threads": 1, "max_batch": 32, "max_samples": 256}


def build(settings: dict[str, str]) -> serve.Application:
    """Build the application for `serve run` and `serve deploy`.

    Args:
        settings: `model` has the files in the form of `uce-edge serve`, separated by commas; each must exist on every
            machine. `reject` is a threshold or auto. `replicas` is the number of servers, `threads` the processors of
            each; `max_batch` and `max_samples` are those of `uce-edge serve`. If `UCE_EDGE_TOKEN` is set, clients must
            send it.

    Raises:
        UsageError: A setting is wrong. Nothing is started.
    """
    unknown = set(settings) - {"model", "reject", *_NUMBERS}
    if unknown or not settings.get("model"):
        rule = f"model=PATH and some of reject, {', '.join(_NUMBERS)}"
        remedy = "For example: model=photos.onnx reject=auto"
        raise UsageError(expected("the settings", rule, dict(settings), remedy), "argument.settings")
    numbers = {name: _number(name, settings.get(name, str(default))) for name, default in _NUMBERS.items()}
    named = [_absolute(Named.parse(text)) for text in settings["model"].split(",")]
    reject = parse_reject(settings["reject"]) if settings.get("reject") else None
    limits = Limits(max_batch=numbers["max_batch"], max_samples=numbers["max_samples"])
    threads, token = numbers["threads"], access.token()

    def application() -> Starlette:
        gauges = Gauges()
        hosts = load(named, limits, gauges, Device.CPU, threads, reject)
        return Service(hosts, limits, gauges).application(token)

    application()  # fails here rather than in every replica
    deployment = serve.deployment(
        serve.ingress(application)(),
        name="uce-edge",
        num_replicas=numbers["replicas"],
        ray_actor_options={"num_cpus": threads},
        max_ongoing_requests=limits.max_queue,
    )
    return deployment.bind()


def _absolute(named: Named) -> Named:
    return Named(named.name, named.version, Path(named.path).absolute())


def _number(name: str, text: str) -> int:
    if not (str(text).isdecimal() and 1 <= int(text) <= 100_000):
        raise UsageError(expected(f"`{name}`", "a whole number, at least 1", text, f"For example: {name}=2"))
    return int(text)

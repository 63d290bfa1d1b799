"""`uce-edge serve`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from uce_edge import models as box
from uce_edge.cli.extras import need_server
from uce_edge.cli.messages import alarm, say
from uce_edge.cli.shared_options import (
    DeviceOption,
    ThreadsOption,
    choose_model,
    parse_threshold,
    reject_option,
    variable,
)
from uce_edge.errors import UsageError, expected
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.providers import check_threads

_LIMITS = "Limits"
_ACCESS = "Access"


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Model files as PATH, NAME=PATH or NAME:VERSION=PATH, or bundled models by name (see `uce-edge "
            f"models`). Default: ${variable('model')}, or {box.DEFAULT_NAME}."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="The port to listen on. 0 chooses a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on. 0.0.0.0 admits other machines.")] = "127.0.0.1",
    reject: Annotated[
        str | None, reject_option("The threshold of /answer (0 to 1, or auto) for requests that give none.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(help="Append every decision of /answer as a line of JSON to this log, written to disk at once."),
    ] = None,
    monitor: Annotated[
        Path | None,
        typer.Option(help="Monitor the answers of /answer. This file keeps the state; /metrics shows the evidence."),
    ] = None,
    device: DeviceOption = Device.AUTO,
    threads: ThreadsOption = None,
    max_batch: Annotated[
        int, typer.Option(help="The largest number of images in one call of a model.", rich_help_panel=_LIMITS)
    ] = 32,
    batch_delay: Annotated[
        float,
        typer.Option(help="Milliseconds to wait for more images before a call of a model.", rich_help_panel=_LIMITS),
    ] = 0.0,
    max_queue: Annotated[
        int,
        typer.Option(
            help="The largest number of waiting images. Further ones are refused with 503.", rich_help_panel=_LIMITS
        ),
    ] = 256,
    max_samples: Annotated[
        int, typer.Option(help="The largest number of passes that a request may ask for.", rich_help_panel=_LIMITS)
    ] = 256,
    max_body: Annotated[
        int, typer.Option(help="The largest size of a request, in megabytes.", rich_help_panel=_LIMITS)
    ] = 32,
    max_connections: Annotated[
        int, typer.Option(help="The largest number of open connections.", rich_help_panel=_LIMITS)
    ] = 256,
    timeout: Annotated[
        float, typer.Option(help="Seconds until a request times out with 504.", rich_help_panel=_LIMITS)
    ] = 30,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further host name that clients use for this server, if it has no token. May be repeated.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The certificate (PEM) for https. Needs --tls-key.", rich_help_panel=_ACCESS)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The private key (PEM) of --tls-cert.", rich_help_panel=_ACCESS)
    ] = None,
) -> None:
    """Serve model files over HTTP with the Open Inference Protocol, for clients of Triton and KServe.

    POST /v2/models/NAME/answer takes an encoded image and returns the JSON of `predict`. /metrics is for Prometheus.
    Requests that arrive together share one call of the model, which changes no answer. If UCE_EDGE_TOKEN is set,
    clients must send that token.

    Example: uce-edge serve photos.onnx --reject auto --port 8000

    Example: uce-edge serve photos.onnx --reject auto --audit decisions.jsonl --monitor state.json

    Example: uce-edge serve photos:1=old.onnx photos:2=new.onnx xray=xray.onnx

    Example: curl --data-binary @photo.jpg "http://127.0.0.1:8000/v2/models/photos/answer?reject=0.3"
    """
    if not 0 <= port <= 65535:
        raise UsageError(expected("`port`", "between 0 and 65535", port, "For example: --port 8000"))
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("A certificate needs its key: give both --tls-cert and --tls-key.", "server.tls-key")
    for name, path in (("tls_cert", tls_cert), ("tls_key", tls_key)):
        if path is not None and not path.is_file():
            raise UsageError(expected(f"`{name}`", "a file", str(path), "Check the path"))
    if max_connections < 1:
        raise UsageError(expected("`max_connections`", "at least 1", max_connections, "Leave it out for 256"))
    if (audit or monitor) and len(models or ()) > 1:
        option = "--audit" if monitor is None else "--monitor"
        message = f"{option} works with one model only: leave it out, or start a server for each model."
        raise UsageError(message, "server.several-models", option=option)
    threshold = parse_threshold(reject)
    check_threads(threads)
    need_server()
    from uce_edge.output.destinations import Destinations
    from uce_edge.serve import access
    from uce_edge.serve.model_host import Limits, Named
    from uce_edge.serve.prometheus_metrics import Gauges
    from uce_edge.serve.server import Address, load
    from uce_edge.serve.server import serve as run

    token = access.token()
    named = [Named.parse(_file(text)) for text in models or [os.environ.get(variable("model")) or box.DEFAULT_NAME]]
    limits = Limits(max_batch, max_queue, max_samples, batch_delay / 1000, timeout, max_body * 2**20)
    if len(named) == 1:
        Destinations(audit=audit, monitor=monitor).check(named[0].path, [])
    gauges = Gauges()
    hosts = load(named, limits, gauges, device, threads, threshold)
    if token is None and host not in ("127.0.0.1", "localhost", "::1"):
        say(f"note: anyone who can reach {host} can use this server. To require a token, set {access.TOKEN}.")

    def announce(address: str) -> None:
        for hosted in hosts:
            say(f"{address}/v2/models/{hosted.named.name}/versions/{hosted.named.version}: {hosted.named.path}")
        say("Stop with Ctrl+C. Requests under way are answered first.")

    address = Address(host, port, tls_cert, tls_key, token, max_connections, tuple(allow_host or ()))
    run(hosts, limits, gauges, address, audit, announce, monitor, alarm)


def _file(text: str) -> str:
    """Replace the name of a bundled model by NAME=PATH."""
    return f"{text}={choose_model(Path(text))}" if text in box.names() and not Path(text).is_file() else text

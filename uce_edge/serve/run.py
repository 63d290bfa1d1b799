"""Starting a server and stopping it without a lost request."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import uvicorn
from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

from uce_edge.audit import Audit
from uce_edge.errors import UceEdgeError, naming_options
from uce_edge.model import Model
from uce_edge.providers import Device
from uce_edge.serve.app import Service
from uce_edge.serve.gauges import Gauges
from uce_edge.serve.hosting import Hosted, Hosts, Limits, Named
from uce_edge.serve.watching import Watching

_HEAD_SECONDS = 10
"""How long a client may take to send the first byte of a request on a new connection."""


@dataclass(frozen=True)
class Address:
    """Where a server listens, and who may ask it."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    """TLS, with the next; None for plain HTTP."""
    key: Path | None = None
    token: str | None = None
    max_connections: int = 256


class _Impatient(H11Protocol):
    """Closes a connection on which nobody speaks: uvicorn's own clock starts after the first request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(_HEAD_SECONDS, self.timeout_keep_alive_handler)


def _concerns_us(record: logging.LogRecord) -> bool:
    """Whether a line is logged. A client whose body breaks HTTP was told so, and cannot be answered once more."""
    return record.exc_info is None or not isinstance(record.exc_info[1], LocalProtocolError)


class _Server(uvicorn.Server):
    """Ends with success when it is told to stop: uvicorn's own kills the process by the signal it got."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def load(
    models: list[Named],
    limits: Limits,
    gauges: Gauges,
    device: Device = Device.AUTO,
    threads: int | None = None,
    reject: float | Literal["auto"] | None = None,
) -> Hosts:
    """Load model files; one that has no stored threshold is refused when `reject` is auto."""
    hosted = []
    for named in models:
        model = Model(named.path, device, threads=threads, spin=False)
        model.limits(reject)
        taken = Hosted(named, model, limits, gauges)
        taken.reject = reject
        hosted.append(taken)
    return Hosts(hosted)


def listen(address: Address) -> socket.socket:
    """The socket, before anything is said of it: a port that is taken is told in a sentence."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((address.host, address.port))
        server.listen()  # who connects now waits until the server runs
    except OSError as error:
        server.close()
        reason = error.strerror or str(error)
        raise UceEdgeError(
            f"Cannot listen on {address.host}, port {address.port}: {reason}. Choose another with --port."
        ) from None
    return server


def serve(
    hosts: Hosts,
    limits: Limits,
    gauges: Gauges,
    address: Address,
    audit: Path | None = None,
    announce: Callable[[str], None] = lambda _: None,
    monitor: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer until SIGINT or SIGTERM; requests that have begun are answered first.

    Args:
        hosts: From `load`, like the next two.
        limits: What is taken.
        gauges: What is counted.
        address: Where to listen.
        audit: A file that gets a line for every decision of `/answer`; it goes with one model.
        announce: Is told the address once it is known.
        monitor: The state of a monitor that bets on the answers of `/answer`; it goes with one model, too.
        tell: Is told the sentence of an alarm.
    """
    with ExitStack() as stack:
        log = watching = None
        if monitor is not None:
            (hosted,) = hosts
            watching = Watching(monitor, hosted, gauges, tell)
            stack.callback(watching.close)
        if audit is not None:
            (hosted,) = hosts
            log = Audit(audit, hosted.model)
            stack.callback(log.close)
        application = Service(hosts, limits, gauges, log, watching).application(address.token)
        config = uvicorn.Config(
            application,
            http=_Impatient,
            ws="none",
            log_level="error",  # a line for every damaged request would let strangers fill the log
            access_log=False,
            server_header=False,
            limit_concurrency=address.max_connections,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(limits.timeout) + 5,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )
        logging.getLogger("uvicorn.error").addFilter(_concerns_us)
        listening = stack.enter_context(listen(address))
        scheme = "http" if address.certificate is None else "https"
        host = f"[{address.host}]" if ":" in address.host else address.host
        announce(f"{scheme}://{host}:{listening.getsockname()[1]}")
        with naming_options(False):  # clients write samples=25, as Python does
            _Server(config).run(sockets=[listening])

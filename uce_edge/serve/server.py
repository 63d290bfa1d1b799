"""Starting a server and stopping it without a lost request."""

import asyncio
import ctypes
import logging
import math
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Literal

import uvicorn
from h11 import LocalProtocolError

from uce_edge.audit.decision_log import Audit
from uce_edge.errors import UceEdgeError, UceEdgeWarning, naming_options
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import Device
from uce_edge.serve import stderr
from uce_edge.serve.access import HostNames
from uce_edge.serve.app import Service
from uce_edge.serve.connections import IDLE_SECONDS, Connection
from uce_edge.serve.drift_monitor import Watching
from uce_edge.serve.model_host import Hosted, Hosts, Limits, Named
from uce_edge.serve.prometheus_metrics import Gauges

_M_MMAP_THRESHOLD = -3  # of malloc.h
_GRACE = 5
"""Seconds that a server which is told to stop has beside those of a request, and once more for what it writes."""


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
    allowed: tuple[str, ...] = ()
    """Further names under which clients may ask."""


def _concerns_us(record: logging.LogRecord) -> bool:
    """Whether a line is logged: not of a client that breaks HTTP, or did not take its answer before the end."""
    return record.exc_info is None or not isinstance(record.exc_info[1], LocalProtocolError | asyncio.CancelledError)


class _Server(uvicorn.Server):
    """Ends with success when it is told to stop: uvicorn's own kills the process by the signal it got."""

    def __init__(self, config: uvicorn.Config, watchdog: threading.Timer) -> None:
        super().__init__(config)
        self._watchdog = watchdog

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Inside the block, SIGINT and SIGTERM stop the server, also before it runs."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._watchdog.start()
        super().handle_exit(sig, frame)


def _watchdog(seconds: float, tell: Callable[[str], None]) -> threading.Timer:
    """What ends the process when a thread does not: Python would wait for it without end."""

    def give_up() -> None:
        tell(f"Some work has not ended within {seconds:g} s of the order to stop, and is given up.")
        time.sleep(0.2)  # for the sentence to be written
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    return timer


def _return_memory() -> None:
    """Have glibc give large blocks back when they are freed: it keeps them once some were, in every thread."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


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
        model.reject_rule(reject)
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
    _return_memory()
    grace = math.ceil(limits.timeout) + _GRACE
    with ExitStack() as stack:
        stack.enter_context(stderr.detached())
        watchdog = _watchdog(grace + _GRACE, tell)
        stack.callback(watchdog.cancel)
        log = watching = None
        if monitor is not None:
            (hosted,) = hosts
            watching = Watching(monitor, hosted, gauges, tell)
            stack.callback(watching.close)
        if audit is not None:
            (hosted,) = hosts
            log = Audit(audit, hosted.model)
            stack.callback(log.close)
        service = Service(hosts, limits, gauges, log, watching)
        stack.callback(service.close)
        most = address.max_connections
        config = uvicorn.Config(
            service.application(address.token, HostNames(address.host, address.allowed)),
            http=partial(Connection, most=most, seconds=limits.timeout),  # type: ignore[arg-type]
            ws="none",
            log_level="error",  # a line for every damaged request would let strangers fill the log
            access_log=False,
            server_header=False,
            limit_concurrency=most + 1,  # of requests: some go on when their client has gone
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=grace,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )
        logging.getLogger("uvicorn.error").addFilter(_concerns_us)
        listening = stack.enter_context(listen(address))
        scheme = "http" if address.certificate is None else "https"
        host = f"[{address.host}]" if ":" in address.host else address.host
        # Clients choose passes, so they could fill a log with what these warnings say.
        stack.enter_context(warnings.catch_warnings(action="ignore", category=UceEdgeWarning))
        server = _Server(config, watchdog)
        with naming_options(False), server.stoppable():  # clients write samples=25, as Python does
            announce(f"{scheme}://{host}:{listening.getsockname()[1]}")
            server.run(sockets=[listening])

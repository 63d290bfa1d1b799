"""Start a server, and stop it without losing a request."""

import asyncio
import ctypes
import logging
import math
import os
import signal
import socket
import sys
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
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.model import Model
from uce_edge.serve import stderr
from uce_edge.serve.access import HostNames
from uce_edge.serve.app import Service
from uce_edge.serve.connections import IDLE_SECONDS, Connection
from uce_edge.serve.drift_monitor import DriftMonitor
from uce_edge.serve.model_host import Hosted, Hosts, Limits, Named
from uce_edge.serve.prometheus_metrics import Gauges

_M_MMAP_THRESHOLD = -3  # of malloc.h
_GRACE = 5
"""Seconds to stop, added to the time limit of a request; the same again for the last writes."""


@dataclass(frozen=True)
class Address:
    """Where a server listens, and whom it serves."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    """For TLS, with `key`; None for plain HTTP."""
    key: Path | None = None
    token: str | None = None
    max_connections: int = 256
    allowed: tuple[str, ...] = ()
    """Further accepted host names."""


def _is_server_fault(record: logging.LogRecord) -> bool:
    """Whether to log a record: not for malformed HTTP or a client that left."""
    return record.exc_info is None or not isinstance(record.exc_info[1], LocalProtocolError | asyncio.CancelledError)


class _Server(uvicorn.Server):
    """A uvicorn server that exits with 0 after SIGTERM instead of raising the signal again."""

    def __init__(self, config: uvicorn.Config, watchdog: threading.Timer) -> None:
        super().__init__(config)
        self._watchdog = watchdog

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Inside the block, SIGINT and SIGTERM stop the server, even before it runs."""
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
        first = not self.should_exit
        super().handle_exit(sig, frame)
        if first:  # a second signal may arrive at any line
            self._watchdog.start()


def _watchdog(seconds: float, report: Callable[[str], None]) -> threading.Timer:
    """End the process if a thread does not end: Python would wait for it forever."""

    def give_up() -> None:
        report(f"Some work did not end within {seconds:g} s of the signal to stop. It is abandoned.")
        time.sleep(0.2)  # for the message to be written
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    return timer


def _return_memory() -> None:
    """Make glibc return large blocks when they are freed; by default every thread keeps them."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def load(
    models: list[Named],
    limits: Limits,
    gauges: Gauges,
    device: str = Device.AUTO,
    threads: int | None = None,
    reject: float | Literal["auto"] | None = None,
) -> Hosts:
    """Load model files. With `reject` auto, each must have a stored rule."""
    hosted = []
    for named in models:
        model = Model(named.path, device, threads=threads, spin=False)
        model.reject_rule(reject)
        hosted.append(Hosted(named, model, limits, gauges, reject))
    return Hosts(hosted)


def listen(address: Address) -> socket.socket:
    """Open the listening socket.

    Raises:
        UceEdgeError: The port cannot be opened.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((address.host, address.port))
        server.listen()  # early clients wait until the server runs
    except OSError as error:
        server.close()
        reason = error.strerror or str(error)
        raise UceEdgeError(
            f"Cannot listen on {address.host}, port {address.port}: {reason}. Choose another with --port.",
            "server.port",
            host=address.host,
            port=address.port,
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
    alarm: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests under way are answered first.

    Args:
        hosts: The models, from `load`.
        limits: The largest accepted requests, as given to `load`.
        gauges: The metrics, as given to `load`.
        address: Where to listen.
        audit: A log of the decisions of `/answer`, for one model.
        announce: Called with the URL of the server.
        monitor: The state file of a drift monitor of `/answer`, for one model.
        alarm: Called with the message of an alarm.
    """
    _return_memory()
    grace = math.ceil(limits.timeout) + _GRACE
    with ExitStack() as stack:
        stack.enter_context(stderr.detached())
        watchdog = _watchdog(grace + _GRACE, alarm)
        stack.callback(watchdog.cancel)
        log = drift = None
        if monitor is not None:
            (hosted,) = hosts
            drift = DriftMonitor(monitor, hosted, gauges, alarm)
            stack.callback(drift.close)
        if audit is not None:
            (hosted,) = hosts
            log = Audit(audit, hosted.model)
            stack.callback(log.close)
        service = Service(hosts, limits, gauges, log, drift)
        stack.callback(service.close)
        most = address.max_connections
        config = uvicorn.Config(
            service.application(address.token, HostNames(address.host, address.allowed)),
            http=partial(Connection, most=most, seconds=limits.timeout),  # type: ignore[arg-type]
            ws="none",
            log_level="error",  # a line per malformed request would let clients fill the log
            access_log=False,
            server_header=False,
            limit_concurrency=most + 1,  # requests: some continue after their client has left
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=grace,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )
        logging.getLogger("uvicorn.error").addFilter(_is_server_fault)
        listening = stack.enter_context(listen(address))
        scheme = "http" if address.certificate is None else "https"
        host = f"[{address.host}]" if ":" in address.host else address.host
        # Clients choose the number of passes, so they could fill a log with these warnings.
        stack.enter_context(warnings.catch_warnings(action="ignore", category=UceEdgeWarning))
        server = _Server(config, watchdog)
        with naming_options(False), server.stoppable():  # clients write samples=25, like Python
            announce(f"{scheme}://{host}:{listening.getsockname()[1]}")
            server.run(sockets=[listening])
    if service.busy:
        # Only calls remain whose clients were answered with 504. Python would wait for their threads at exit.
        sys.stdout.flush()
        os._exit(0)

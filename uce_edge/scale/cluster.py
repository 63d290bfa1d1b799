"""Ray: started on this machine for one job, or joined where a cluster runs."""

import ipaddress
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

# Before Ray is imported: it would report its use to its makers, and hide the graphics cards of tasks that ask for none.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Nor are its own records of tasks and events needed: every process would write them as long as a job lasts.
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
os.environ.setdefault("RAY_enable_metrics_collection", "0")
os.environ.setdefault("RAY_event_stats", "0")
import ray
from ray._private import ray_constants
from ray.exceptions import RayError

from uce_edge.errors import UceEdgeError

_HERE = "local"  # without it Ray would join whatever cluster runs on this machine
_FOLDER = "uce-ray-"
_NEW = 60
"""Seconds in which a folder may be that of a job that is about to hold it."""
_LONGEST = 20
"""Characters of the path of a temporary folder: that of a socket below it may have 103, of which Ray takes 67."""


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Join a cluster, or start Ray on this machine; whoever has started Ray already is left alone.

    A Ray that is started here listens on the loopback address alone and asks for a secret of its own (if it can: 2.60
    and later). Its files are in a folder that nobody else can read, and that is removed at the end.

    Args:
        address: Of a cluster; None starts Ray.

    Raises:
        UceEdgeError: Ray did not start.
        OSError: There is no such cluster.
    """
    if ray.is_initialized():
        yield
        return
    if address is not None:
        _reach(address)
        try:
            _init(address=address)
            yield
        finally:
            ray.shutdown()
        return
    with _ending_by_signals(), _private_folder() as folder, _environment(folder):
        try:
            _init(address=_HERE, _temp_dir=str(folder / "r"), _node_ip_address="127.0.0.1")  # which it opens to all
            _check_loopback()
            with _ending_by_signals():  # Ray has set its own handlers
                yield
        finally:
            ray.shutdown()


@contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """What Ray and its workers find in their environment: the loopback address, a secret, a temporary folder."""
    given = {
        # Ray's switch for machines without clusters: without it, a loopback address is replaced by a public one.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # without it, Ray keeps one in the home folder
        "TMPDIR": str(folder),
    }
    before, enabled = {name: os.environ.get(name) for name in given}, ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(given)
    ray_constants.ENABLE_RAY_CLUSTER = False  # it was read when Ray was imported
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _check_loopback() -> None:
    """Refuse to go on with a Ray that others can reach: its switch is not documented."""
    for node in ray.nodes():
        if not ipaddress.ip_address(node["NodeManagerAddress"]).is_loopback:
            said = f"Ray {ray.__version__} listens on {node['NodeManagerAddress']}, where others can reach it."
            raise UceEdgeError(f"{said} Start a cluster that only you can reach, and name it with --address.")


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder for this job alone; removes those of jobs that were killed, too."""
    place = tempfile.gettempdir()
    if len(place) > _LONGEST and Path("/tmp").is_dir():
        place = "/tmp"
    for left in Path(place).glob(f"{_FOLDER}*"):
        with suppress(OSError), _held(left):
            if time.time() - left.stat().st_mtime > _NEW:
                shutil.rmtree(left, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=place))
    except OSError as error:
        raise UceEdgeError(f"Ray needs a temporary folder: {error.strerror}. Set TMPDIR to another place.") from None
    try:
        with _held(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder of one's own; raises OSError if a job that runs holds it, or if it belongs to somebody else."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _ending_by_signals() -> Iterator[None]:
    """Let the signals that end a process end it in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _init(address: str, **settings: Any) -> None:
    try:
        ray.init(address, log_to_driver=False, include_dashboard=False, logging_level="error", **settings)
    except Exception as error:  # Ray raises bare ones: for a raylet that is not there in time, for one
        if isinstance(error, OSError | RayError) and address != _HERE:
            raise
        said = str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
        raise UceEdgeError(f"Ray did not start ({said}). If the machine is busy, start it again later.") from None


def _reach(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        with socket.create_connection((host, int(port)), timeout=5):
            pass

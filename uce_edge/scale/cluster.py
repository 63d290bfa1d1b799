"""Start Ray on this machine for one job, or join a cluster."""

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

# Before the import of Ray: no usage statistics, and GPUs stay visible to tasks that request none.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# No records of tasks and events: every process would write them during the whole job.
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
os.environ.setdefault("RAY_enable_metrics_collection", "0")
os.environ.setdefault("RAY_event_stats", "0")
import ray
from ray._private import ray_constants
from ray.exceptions import RayError

from uce_edge.errors import UceEdgeError

_HERE = "local"  # without it Ray would join any cluster that runs on this machine
_FOLDER = "uce-ray-"
_NEW = 60
"""Seconds in which a folder may belong to a job that has not locked it yet."""
_LONGEST = 20
"""Characters of the temporary folder: a socket path has at most 103, and Ray needs 67."""


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Join a cluster, or start Ray here; a Ray that already runs in this process is used.

    A Ray that is started here listens on the loopback address only and needs a token (2.60 and later). Its files are in
    a private folder that is removed at the end.

    Args:
        address: The address of a cluster; None starts Ray.

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
            _init(address=_HERE, _temp_dir=str(folder / "r"), _node_ip_address="127.0.0.1")  # else on all
            _check_loopback()
            with _ending_by_signals():  # Ray has set its own handlers
                yield
        finally:
            ray.shutdown()


@contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """Set the environment of Ray and its workers: loopback address, token, temporary folder."""
    variables = {
        # Ray's switch for machines without clusters: without it, a loopback address is replaced by a public one.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # without it, Ray keeps one in the home folder
        "TMPDIR": str(folder),
    }
    before, enabled = {name: os.environ.get(name) for name in variables}, ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(variables)
    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray read it when it was imported
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
    """Raise an error if others can reach Ray: its switch is not documented."""
    for node in ray.nodes():
        if not ipaddress.ip_address(node["NodeManagerAddress"]).is_loopback:
            raise UceEdgeError(
                f"Ray {ray.__version__} listens on {node['NodeManagerAddress']}, where others can reach it. Start a "
                "private cluster and give its address with --address.",
                "ray.exposed",
            )


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Make a folder for this job, and remove those of killed jobs."""
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
        message = f"Ray needs a temporary folder: {error.strerror}. Set TMPDIR to another place."
        raise UceEdgeError(message, "ray.no-folder") from None
    try:
        with _held(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder; raises OSError if a running job has locked it, or another user owns it."""
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
    """Turn SIGTERM and SIGHUP into SystemExit, so that Ray is shut down."""
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
    except Exception as error:  # Ray raises bare exceptions, for example for a raylet that starts too late
        if isinstance(error, OSError | RayError) and address != _HERE:
            raise
        reason = str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
        message = f"Ray did not start ({reason}). If the machine is busy, try again later."
        raise UceEdgeError(message, "ray.not-started", reason=reason) from None


def _reach(address: str) -> None:
    """Raise an error at once if nothing listens at the address: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        with socket.create_connection((host, int(port)), timeout=5):
            pass

"""File systems of inputs and answers: local folders and buckets."""

import errno
import heapq
import os
import stat
import subprocess
import sys
import time
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.fs as pa_fs

from uce_edge.errors import UsageError

_PATIENCE = 60
"""Seconds to wait for a bucket, and to cache that it is unreachable."""
_SLOW = ("abfs", "abfss", "gcs", "gs", "hdfs", "s3", "viewfs")
# Without credentials, pyarrow ends the process for Azure and retries for 15 minutes for Google.
_PROBE = """
import sys, pyarrow.fs as fs
system, place = fs.FileSystem.from_uri(sys.argv[1])
system.get_file_info(place)
"""


class File(NamedTuple):
    """One file of a listing."""

    path: str
    stamp: str
    """Size and modification time, which change with the content; empty if unknown."""


class Local:
    """The local file system, with names of any bytes and files of any type."""

    prefix = ""

    def is_folder(self, place: str) -> bool:
        """Whether the path is a folder; raises OSError if it does not exist."""
        return stat.S_ISDIR(os.stat(place).st_mode)  # noqa: PTH116 - Path refuses some names

    def stamp(self, place: str) -> str:
        """The stamp of `File`."""
        try:
            info = os.stat(place)  # noqa: PTH116
        except (OSError, ValueError):
            return ""
        return f"{info.st_size}:{info.st_mtime_ns}"

    def below(self, place: str) -> list[File]:
        """List all files by name. Every folder is listed once, whatever links to it.

        A folder that cannot be listed is in the result, with a slash at its end.
        """
        found, seen = list[File](), set[tuple[int, int]]()
        folders, linked = [place], list[str]()
        while folders or linked:
            folder = folders.pop() if folders else heapq.heappop(linked)
            try:
                info = os.stat(folder)  # noqa: PTH116
                if (info.st_dev, info.st_ino) in seen:
                    continue
                seen.add((info.st_dev, info.st_ino))
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if not _leads_to_folder(entry):
                            found.append(File(entry.path, self.stamp(entry.path)))
                        elif entry.is_symlink():
                            heapq.heappush(linked, entry.path)
                        else:
                            folders.append(entry.path)
            except OSError:
                if folder == place:
                    raise
                found.append(File(f"{folder}/", ""))
        return sorted(found)

    def open(self, place: str) -> BinaryIO:
        """Open a regular file; others raise OSError, because they may block or be endless."""
        _require_regular(os.stat(place).st_mode)  # noqa: PTH116 - opening a device may already do something
        descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        file = os.fdopen(descriptor, "rb")
        try:
            _require_regular(os.fstat(descriptor).st_mode)
        except OSError:
            file.close()
            raise
        return file


class Bucket:
    """A file system of pyarrow."""

    def __init__(self, system: Any, scheme: str) -> None:
        """Wrap a file system; `scheme` starts its addresses."""
        self.system, self.prefix = system, f"{scheme}://"

    def is_folder(self, place: str) -> bool:
        """As `Local.is_folder`."""
        kind = self.system.get_file_info(place).type
        if kind is pa_fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return kind is pa_fs.FileType.Directory

    def stamp(self, place: str) -> str:
        """The stamp of `File`."""
        return _stamp(self.system.get_file_info(place))

    def below(self, place: str) -> list[File]:
        """List all files by name."""
        found = self.system.get_file_info(pa_fs.FileSelector(place, recursive=True))
        return sorted(File(info.path, _stamp(info)) for info in found if info.type is pa_fs.FileType.File)

    def open(self, place: str) -> BinaryIO:
        """Open a seekable file."""
        file: BinaryIO = self.system.open_input_file(place)
        return file


def is_far(address: str) -> bool:
    """Whether an address is in a bucket."""
    return "://" in address and not address.startswith("file://")


def reached(address: str) -> tuple[Local | Bucket, str]:
    """Find the file system of an address, and the path in it.

    Raises:
        UsageError: The file system is unknown or unreachable.
    """
    scheme, sign, rest = address.partition("://")
    if not sign:
        return Local(), os.path.abspath(address)  # noqa: PTH100 - a pattern or a link stays what it is
    if scheme == "file":
        return Local(), _from_uri(address)[1]
    bucket, _, key = rest.partition("/")
    system, base = _bucket(f"{scheme}://{bucket}")
    return Bucket(system, scheme), f"{base.rstrip('/')}/{key}" if key else base


_reachable: dict[str, tuple[Any, str]] = {}
_unreachable: dict[str, tuple[float, str]] = {}


def _bucket(address: str) -> tuple[Any, str]:
    """Open a bucket. The result is cached; a failure is cached for `_PATIENCE` seconds."""
    if address not in _reachable:
        since, message = _unreachable.get(address, (-_PATIENCE, ""))
        if time.monotonic() - since < _PATIENCE:
            raise UsageError(message, "bucket.unreachable")
        try:
            if address.partition("://")[0] in _SLOW:
                _probe(address)
            _reachable[address] = _from_uri(address)
        except UsageError as error:
            _unreachable[address] = time.monotonic(), str(error)
            raise
    return _reachable[address]


def _probe(address: str) -> None:
    """Try a bucket in another process, because pyarrow may crash or wait for minutes."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", _PROBE, address], capture_output=True, timeout=_PATIENCE, check=False
        )
    except (subprocess.TimeoutExpired, ValueError):  # ValueError: a NUL or a lone surrogate
        result = None
    if result is None or result.returncode < 0:
        message = f"{address} cannot be reached: it does not answer. Check the address and your credentials."
        raise UsageError(message, "bucket.unreachable")


def _from_uri(address: str) -> tuple[Any, str]:
    try:
        system, place = pa_fs.FileSystem.from_uri(address)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"{address} cannot be reached: {reason(error)}. Check the address."
        raise UsageError(message, "bucket.unreachable") from None
    return system, place


def reason(error: Exception) -> str:
    """The reason of an error, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__


def _stamp(info: Any) -> str:
    return f"{info.size}:{info.mtime_ns}"


def _leads_to_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _require_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device")

"""Where inputs and answers lie: folders of this machine, and buckets."""

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
"""Seconds to wait for a bucket, and to remember that it cannot be reached."""
_SLOW = ("abfs", "abfss", "gcs", "gs", "hdfs", "s3", "viewfs")
# pyarrow ends the process where Azure has no credentials, and tries for a quarter of an hour where Google has none.
_PROBE = """
import sys, pyarrow.fs as fs
system, place = fs.FileSystem.from_uri(sys.argv[1])
system.get_file_info(place)
"""


class File(NamedTuple):
    """One file of a listing."""

    path: str
    stamp: str
    """Its size and time of change: another stamp means another content. Empty where it is not known."""


class Local:
    """The file system of this machine. Names may be any bytes, and files may be anything that has a name."""

    prefix = ""

    def is_folder(self, place: str) -> bool:
        """Whether it is a folder; raises OSError if there is nothing."""
        return stat.S_ISDIR(os.stat(place).st_mode)  # noqa: PTH116 - Path refuses some names

    def stamp(self, place: str) -> str:
        """As of `File`."""
        try:
            info = os.stat(place)  # noqa: PTH116
        except (OSError, ValueError):
            return ""
        return f"{info.st_size}:{info.st_mtime_ns}"

    def below(self, place: str) -> list[File]:
        """All files, by name. Every folder is listed once, whatever links to it; first by its own name.

        A folder that cannot be listed is in the list, with a slash at its end.
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
        """Open a regular file. Others are refused: they may block, or have no end."""
        _refuse_odd(os.stat(place).st_mode)  # noqa: PTH116 - opening a device may already do something
        descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        file = os.fdopen(descriptor, "rb")
        try:
            _refuse_odd(os.fstat(descriptor).st_mode)
        except OSError:
            file.close()
            raise
        return file


class Bucket:
    """A file system of pyarrow."""

    def __init__(self, system: Any, scheme: str) -> None:
        """`scheme` makes an address of a place."""
        self.system, self.prefix = system, f"{scheme}://"

    def is_folder(self, place: str) -> bool:
        """As `Local.is_folder`."""
        kind = self.system.get_file_info(place).type
        if kind is pa_fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return kind is pa_fs.FileType.Directory

    def stamp(self, place: str) -> str:
        """As `File`."""
        return _stamp(self.system.get_file_info(place))

    def below(self, place: str) -> list[File]:
        """All files, by name."""
        found = self.system.get_file_info(pa_fs.FileSelector(place, recursive=True))
        return sorted(File(info.path, _stamp(info)) for info in found if info.type is pa_fs.FileType.File)

    def open(self, place: str) -> BinaryIO:
        """Open a file that can be rewound."""
        file: BinaryIO = self.system.open_input_file(place)
        return file


def is_far(address: str) -> bool:
    """Whether an address is that of a bucket."""
    return "://" in address and not address.startswith("file://")


def reached(address: str) -> tuple[Local | Bucket, str]:
    """The file system of an address, and the place in it.

    Raises:
        UsageError: There is no such file system, or it cannot be reached.
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
    """A bucket and its name; it is asked for its region once, and one that fails is left alone for a while."""
    if address not in _reachable:
        since, said = _unreachable.get(address, (-_PATIENCE, ""))
        if time.monotonic() - since < _PATIENCE:
            raise UsageError(said)
        try:
            if address.partition("://")[0] in _SLOW:
                _probe(address)
            _reachable[address] = _from_uri(address)
        except UsageError as error:
            _unreachable[address] = time.monotonic(), str(error)
            raise
    return _reachable[address]


def _probe(address: str) -> None:
    """Refuse a bucket that ends a process, or keeps it waiting. What it merely refuses is told by its own words."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, address], capture_output=True, timeout=_PATIENCE, check=False
        )
    except (subprocess.TimeoutExpired, ValueError):  # ValueError: a NUL or a lone surrogate
        done = None
    if done is None or done.returncode < 0:
        raise UsageError(f"{address} cannot be reached: it does not answer. Check the address and your credentials.")


def _from_uri(address: str) -> tuple[Any, str]:
    try:
        system, place = pa_fs.FileSystem.from_uri(address)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{address} cannot be reached: {reason(error)}. Check the address.") from None
    return system, place


def reason(error: Exception) -> str:
    """What is wrong, in a line."""
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


def _refuse_odd(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file")

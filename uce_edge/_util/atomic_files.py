"""Atomic writes, locks, and reads of regular files."""

import errno
import functools
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uce_edge.errors import UceEdgeError, argument

_PREFIX = ".uce-edge-"
_TEMPORARY = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{16}(\..*)?")
_ABANDONED_AFTER = 24 * 3600
"""Seconds after which an unchanged temporary file is left over from a killed process."""
_IRREGULAR = "it is not a regular file"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def writable_folder(folder: str | Path, option: str = "--out") -> None:
    """Check that a folder can be written to.

    `option` is as in `replacing`.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise UceEdgeError(
            f"Cannot write to {folder}: it is a file, not a folder. Choose a folder with {_named(option)}.",
            "folder.unwritable",
        ) from None
    except OSError as error:
        raise UceEdgeError(
            f"Cannot write to {folder}: {error.strerror}. Choose another place with {_named(option)}.",
            "folder.unwritable",
        ) from None


@contextmanager
def replacing(target: str | Path, option: str = "--out") -> Iterator[Path]:
    """Replace a file atomically when the block succeeds.

    The block writes to a temporary path beside the target.

    Args:
        target: The file to write.
        option: The command-line option for another place.

    Raises:
        UceEdgeError: The file cannot be written. Other errors of the block pass unchanged.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(target)
        temporary = _reserve(target)
    except OSError as error:
        raise UceEdgeError(
            f"Cannot write {target}: {error.strerror}. Choose another place with {_named(option)}.", "file.unwritable"
        ) from None
    _remove_abandoned(target.parent.absolute())
    try:
        try:
            yield temporary
        except OSError as error:
            if not _is_about(error, temporary):
                raise
            raise _refused(target, error) from None
        try:
            _publish(temporary, target)
        except OSError as error:
            raise _refused(target, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def read_regular(path: str | Path, most: int | None = None) -> bytes:
    """Read a regular file; reject pipes and devices.

    Args:
        path: The file.
        most: Bytes that it may have; None for any number.

    Raises:
        OSError: It cannot be read, is no regular file, or is too large.
    """
    with open(path, "rb", opener=_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, _IRREGULAR, str(path))
        if most is not None and status.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return file.read()


def lock(file: int) -> None:
    """Lock an open file until the process ends.

    Systems and network disks without `flock` have no lock.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise


@contextmanager
def sole_writer(target: str | Path, option: str = "--out") -> Iterator[Path]:
    """Lock a file that is read and replaced.

    What is replaced cannot carry a lock itself, so a hidden file beside it does. It is removed at the end; one that a
    killed process left does not lock. Gives the file behind all links, which is the one to replace.

    Args:
        target: The file that is read and replaced.
        option: The command-line option for another place.

    Raises:
        UceEdgeError: Another process is writing it, or the folder cannot be written to.
    """
    place = Path(os.path.realpath(target))  # the same for every link to it
    beside = place.with_name(f".{place.name}.uce-edge-lock")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(place)
        file = _locked(beside)
    except BlockingIOError:
        raise UceEdgeError(
            f"Another process is writing {target}, which only one process may do. "
            f"Choose another place with {_named(option)}.",
            "file.locked",
        ) from None
    except OSError as error:
        raise UceEdgeError(
            f"Cannot write {target}: {error.strerror}. Choose another place with {_named(option)}.", "file.unwritable"
        ) from None
    try:
        yield place
    finally:
        with suppress(OSError):
            beside.unlink()  # while it is locked: a waiting process sees that it is gone
        os.close(file)


@contextmanager
def removable(file: Path) -> Iterator[Callable[[], None]]:
    """Give a function that removes a file.

    When the block fails after that, the file comes back.
    """
    aside, is_away = _reserve(file), False

    def remove() -> None:
        nonlocal is_away
        try:
            file.replace(aside)
            is_away = True
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _refused(file, error) from None

    try:
        yield remove
    except BaseException:
        if is_away:
            aside.replace(file)
        raise
    finally:
        aside.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk.

    Windows and some network drives cannot.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _named(option: str) -> str:
    """The option, or its argument in Python."""
    return argument(option.removeprefix("--").replace("-", "_"))


def _at_once(path: str, flags: int) -> int:
    """Open without waiting for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _locked(path: Path) -> int:
    """Create and lock a file."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        file = os.open(path, flags, 0o666)
        try:
            lock(file)
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except FileNotFoundError:  # its owner removed it meanwhile
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _check_replaceable(target: Path) -> None:
    """Reject a pipe or a device as a target."""
    with suppress(FileNotFoundError):
        mode = target.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, _IRREGULAR, str(target))


def _refused(target: Path, error: OSError) -> UceEdgeError:
    return UceEdgeError(
        f"Cannot write {target}: {error.strerror or error}. The old file, if any, is intact.", "file.unwritable"
    )


def _reserve(target: Path) -> Path:
    """Create an empty file in the same folder.

    It has the permissions that the user's umask gives.
    """
    temporary = target.with_name(f"{_PREFIX}{secrets.token_hex(8)}{target.suffix}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return temporary


def _publish(temporary: Path, target: Path) -> None:
    """Flush and rename, safely against a power cut."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(target)
    flush_folder(target.parent)


def _is_about(error: OSError, temporary: Path) -> bool:
    """Whether an error is about writing this file.

    It names the file, or the disk is full.
    """
    named = {str(name) for name in (error.filename, error.filename2) if name is not None}
    return str(temporary) in named or (not named and error.errno in _FULL)


@functools.cache  # once a process: a folder may take thousands of files
def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files of killed processes."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _TEMPORARY.fullmatch(path.name) and time.time() - path.stat().st_mtime > _ABANDONED_AFTER:
                path.unlink(missing_ok=True)

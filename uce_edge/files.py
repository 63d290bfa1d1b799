"""Writing files so that nothing half-written ever stays on disk."""

import errno
import functools
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uce_edge.errors import UceEdgeError, argument

_PREFIX = ".uce-edge-"
_TEMPORARY = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{16}(\..*)?")
_ABANDONED_AFTER = 24 * 3600
"""Seconds without a write after which a temporary file belongs to a process that was killed."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def writable_folder(folder: str | Path, option: str = "--out") -> None:
    """Refuse early a folder that cannot be made or written to; `option` is as in `replacing`."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise UceEdgeError(
            f"Cannot write to {folder}: it is a file, not a folder. Choose a folder with {_named(option)}."
        ) from None
    except OSError as error:
        raise UceEdgeError(
            f"Cannot write to {folder}: {error.strerror}. Choose another place with {_named(option)}."
        ) from None


@contextmanager
def replacing(target: str | Path, option: str = "--out") -> Iterator[Path]:
    """Give a temporary path beside `target`; it takes the target's place only if the block succeeds.

    Args:
        target: The file to write.
        option: What names another place, as the command line spells it.

    Raises:
        UceEdgeError: The file cannot be written. What else goes wrong inside the block is passed on as it is.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _reserve(target)
    except OSError as error:
        raise UceEdgeError(
            f"Cannot write {target}: {error.strerror}. Choose another place with {_named(option)}."
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


@contextmanager
def removable(file: Path) -> Iterator[Callable[[], None]]:
    """Give a function that takes a file away, if there is one; when the block fails after that, it comes back."""
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
    """Put the names in a folder on the disk. Windows and some network drives cannot flush one."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _named(option: str) -> str:
    """The option, or its argument in Python."""
    return argument(option.removeprefix("--").replace("-", "_"))


def _refused(target: Path, error: OSError) -> UceEdgeError:
    return UceEdgeError(f"Cannot write {target}: {error.strerror or error}. The old file, if any, is intact.")


def _reserve(target: Path) -> Path:
    """A new empty file in the same folder, with the permissions that the user's umask leaves to any other file."""
    temporary = target.with_name(f"{_PREFIX}{secrets.token_hex(8)}{target.suffix}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return temporary


def _publish(temporary: Path, target: Path) -> None:
    """Rename, in an order that a power cut leaves either the old content or all of the new."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(target)
    flush_folder(target.parent)


def _is_about(error: OSError, temporary: Path) -> bool:
    """Whether an error is about writing this file: it names it, or the disk is full."""
    named = {str(name) for name in (error.filename, error.filename2) if name is not None}
    return str(temporary) in named or (not named and error.errno in _FULL)


@functools.cache  # once a process: a folder may take thousands of files
def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left in a folder."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _TEMPORARY.fullmatch(path.name) and time.time() - path.stat().st_mtime > _ABANDONED_AFTER:
                path.unlink(missing_ok=True)

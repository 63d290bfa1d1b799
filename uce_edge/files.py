"""Writing files so that nothing half-written ever stays on disk."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from uce_edge.errors import UceEdgeError


def writable_folder(folder: str | Path, option: str = "--out") -> None:
    """Refuse early a folder that cannot be made or written to; `option` is as in `replacing`."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise UceEdgeError(
            f"Cannot write to {folder}: it is a file, not a folder. Choose a folder with {option}."
        ) from None
    except OSError as error:
        raise UceEdgeError(f"Cannot write to {folder}: {error.strerror}. Choose another place with {option}.") from None


@contextmanager
def replacing(target: str | Path, option: str = "--out") -> Iterator[Path]:
    """Give a temporary path beside `target`; it takes the target's place only if the block succeeds.

    Args:
        target: The file to write.
        option: What names another place on the command line.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=target.suffix)
    except OSError as error:
        raise UceEdgeError(f"Cannot write {target}: {error.strerror}. Choose another place with {option}.") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp is private (0600); a published file follows the user's umask like any other.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        raise UceEdgeError(
            f"Cannot write {target}: {error.strerror or error}. The old file, if any, is intact."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)

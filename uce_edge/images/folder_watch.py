"""Images that arrive in a folder."""

import time
from collections.abc import Iterator
from pathlib import Path

from uce_edge.errors import ImageError
from uce_edge.images.loader import is_image

INTERVAL = 0.3
"""Seconds between two checks. A file that did not change between them is complete."""


def arrivals(folder: str | Path) -> Iterator[list[str]]:
    """Yield lists of new images in a folder, forever.

    An image that is written again is listed again. A list may be empty.

    Raises:
        ImageError: The folder does not exist, or was removed.
    """
    given: dict[Path, tuple[int, int]] = {}
    before: dict[Path, tuple[int, int]] = {}
    while True:
        now = _states(Path(folder))
        ready = sorted(path for path, state in now.items() if before.get(path) == state != given.get(path))
        given = {path: state for path, state in given.items() if path in now} | {path: now[path] for path in ready}
        before = now
        yield [str(path) for path in ready]
        time.sleep(INTERVAL)


def list_images(folder: Path) -> list[Path]:
    """List the images in a folder."""
    try:
        return [path for path in folder.iterdir() if is_image(path)]
    except OSError as error:
        raise ImageError(
            f"The folder {folder} cannot be watched: {error.strerror}. Check its name.", "folder.unreadable"
        ) from None


def _states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Time and size of every image."""
    states = {}
    for path in list_images(folder):
        try:
            status = path.stat()
        except OSError:  # gone again
            continue
        states[path] = (status.st_mtime_ns, status.st_size)
    return states

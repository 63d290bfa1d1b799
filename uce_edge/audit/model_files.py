"""Find model files by the hash of their content."""

import hashlib
from contextlib import suppress
from pathlib import Path


def sha256(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ModelFiles:
    """Model files by their hashes."""

    def __init__(self, known: list[Path]) -> None:
        """Start from some files; a log may name others."""
        self._known = {sha256(path): path for path in known}
        self._tried: set[str] = set()

    def find(self, digest: str, logged: str) -> Path | None:
        """The file with this digest, or None.

        A known file, or the logged one if its content still matches.
        """
        path = Path(logged)
        if digest not in self._known and logged not in self._tried:
            self._tried.add(logged)  # a log of many lines names it in each
            with suppress(OSError, ValueError):
                if path.is_file():
                    self._known.setdefault(sha256(path), path)
        return self._known.get(digest)

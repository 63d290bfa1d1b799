"""A log of decisions that survives a power cut: one JSON line each, on the disk before the next image is read."""

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from uce_edge import __version__
from uce_edge.answers import Answer
from uce_edge.errors import UceEdgeError


class Audit:
    """Appends to a file; lines that are there stay."""

    def __init__(self, path: Path, model: Path, provider: str) -> None:
        """Open the log.

        Args:
            path: The file; it is made when it is not there.
            model: The model file.
            provider: What it really runs on.
        """
        self._path = path
        self._same = {
            "model": str(model),
            "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
            "provider": provider,
            "uce_edge": __version__,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A line that a power cut tore is closed, so that it spoils no other.
            self._file = path.open("a+b")
            if self._file.tell() > 0:
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":
                    self._file.write(b"\n")
        except OSError as error:
            raise self._failed(error) from None

    def add(self, answer: Answer) -> None:
        """Log one decision; the hash is that of the bytes that the answer has kept, null if they could not be read."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "sha256": None if answer.content is None else hashlib.sha256(answer.content).hexdigest(),
        }
        try:
            self._file.write((json.dumps(line | self._same | answer.as_dict(), allow_nan=False) + "\n").encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from None

    def close(self) -> None:
        """Nothing more will be logged."""
        self._file.close()

    def _failed(self, error: OSError) -> UceEdgeError:
        return UceEdgeError(
            f"Cannot write the log {self._path}: {error.strerror or error}. Choose another place with --audit."
        )

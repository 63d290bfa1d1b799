"""Monte Carlo logits of many images, in blocks of images."""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from uce_edge._util.progress import progress
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metrics.argument_checks import array

_AT_ONCE = 32  # images between two steps of a progress bar
_BLOCK = 2**22  # numbers in a block: 16 MB in float32

Block = npt.NDArray[Any]


class Logits(ABC):
    """Logits [samples, images, classes] as a sequence of blocks of images."""

    samples: int
    images: int
    classes: int

    @abstractmethod
    def __iter__(self) -> Iterator[Block]:
        """The blocks [samples, some images, classes], in order."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of blocks."""


class ArrayLogits(Logits):
    """Logits in memory."""

    def __init__(self, logits: npt.ArrayLike) -> None:
        values = array("`logits`", logits, "iuf", "real numbers", "Give the network's output before the softmax")
        if values.ndim != 3 or 0 in values.shape:
            rule = "[samples, images, classes] with at least one image"
            raise UsageError(expected("`logits`", rule, values.shape, "Add images"))
        self.samples, self.images, self.classes = values.shape
        step = images_per_block(self.images, self.samples, self.classes)
        self._blocks: list[Block] = [values[:, start : start + step] for start in range(0, self.images, step)]

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)


class StoredLogits(Logits):
    """Logits in a temporary file of float32, deleted with the object.

    The file is read, not mapped: the pages of a mapped file count as memory of the process.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._sizes: list[int] = []
        self._file = tempfile.TemporaryFile(prefix="uce-edge-logits-")  # noqa: SIM115 (it lives as long as the object)
        try:
            for block in blocks:
                self.samples, count, self.classes = block.shape
                self._sizes.append(count)
                self._file.write(np.ascontiguousarray(block, np.float32).data)
            self._file.flush()
        except OSError as error:
            raise UceEdgeError(
                f"The logits cannot be stored in {tempfile.gettempdir()}: {error.strerror}. "
                "Set the environment variable TMPDIR to a folder with more space.",
                "file.unwritable",
            ) from None
        self.images = sum(self._sizes)
        if not self.images:
            raise UsageError(expected("`logits`", "those of at least one image", "none", "Add images"))

    def __del__(self) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Block]:
        place = 0
        for count in self._sizes:
            shape = (self.samples, count, self.classes)
            self._file.seek(place)
            values = np.fromfile(self._file, np.float32, int(np.prod(shape)))
            place = self._file.tell()
            yield values.reshape(shape)

    def __len__(self) -> int:
        return len(self._sizes)


class Drawing(Protocol):
    """An object that computes logits, such as a `Model`."""

    @property
    def classes(self) -> Sequence[str]:
        """Their names."""

    def logits(self, images: Any, samples: int | None = None, seed: int = 0) -> Block:
        """[samples, images, classes]."""


def logits_of(
    model: Drawing,
    images: npt.NDArray[Any],
    samples: int,
    seed: int,
    members: int = 1,
    task: str = "calibrating",
) -> StoredLogits:
    """Compute the logits of a model, or of an ensemble of so many members."""
    step = images_per_block(len(images), samples * members, len(model.classes))
    with progress(task, len(images), unit="images") as advance:

        def block(some: npt.NDArray[Any]) -> Block:
            parts = []
            for start in range(0, len(some), _AT_ONCE):
                parts.append(model.logits(some[start : start + _AT_ONCE], samples, seed))
                advance(parts[-1].shape[1])
            return np.concatenate(parts, axis=1)

        return StoredLogits(block(images[start : start + step]) for start in range(0, len(images), step))


def images_per_block(images: int, samples: int, classes: int) -> int:
    """The number of images per block; blocks are about equal.

    A fit may take one step per block.
    """
    blocks = max(1, -(-images * samples * classes // _BLOCK))
    return max(1, -(-images // blocks))

"""Read MNIST's idx files, gzipped or not."""

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge.datasets.sources import Part, Source, check_labels, make_part
from uce_edge.errors import UsageError

SIGN = "train-labels-idx1-ubyte*"


def read(folder: Path, class_names: tuple[str, ...]) -> Source:
    """Read the training and test images."""
    parts = {"train": _part(folder, "train"), "test": _part(folder, "t10k")}
    check_labels(parts, class_names, folder)
    return Source(parts, class_names)


def _part(folder: Path, prefix: str) -> Part:
    images, labels = (_array(folder, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    return make_part(images, labels, f"the labels in {folder}")


def _array(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    plain, packed = folder / name, folder / f"{name}.gz"
    content = plain.read_bytes() if plain.is_file() else gzip.decompress(packed.read_bytes())
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, 4)
    if content[:3] != b"\x00\x00\x08" or len(content) != 4 + 4 * rank + int(np.prod(shape)):
        raise UsageError(
            f"{plain} is not an idx file of bytes, or is damaged. Download it again.", "dataset.damaged", path=plain
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)

"""Read CIFAR's binary files: labels and pixels, image by image."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from uce_edge.datasets.sources import Part, Source, check_labels
from uce_edge.errors import UsageError

ADDRESS = "https://www.cs.toronto.edu/~kriz/"

_PIXELS = 3 * 32 * 32


def read(folder: Path, train: Sequence[str], test: Sequence[str], names: str, labels: int) -> Source:
    """Read the training and test images.

    Args:
        folder: The folder of the files.
        train: The files of the training images.
        test: The files of the test images.
        names: The file of the class names.
        labels: How many labels each image has; the last one counts.
    """

    def part(files: Sequence[str]) -> Part:
        rows = [np.frombuffer((folder / file).read_bytes(), np.uint8) for file in files]
        if any(row.size % (_PIXELS + labels) for row in rows):
            raise UsageError(
                f"The files in {folder} have a wrong length. Download them again.", "dataset.damaged", path=folder
            )
        table = np.concatenate(rows).reshape(-1, _PIXELS + labels)
        pixels = table[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), table[:, labels - 1].astype(np.int64)

    class_names = tuple(line.strip() for line in (folder / names).read_text().splitlines() if line.strip())
    parts = {"train": part(train), "test": part(test)}
    check_labels(parts, class_names, folder)
    return Source(parts, class_names)

"""Read .npz archives, without pickle.

The arrays are x and y, or {train,val,test}_images and _labels (MedMNIST), or x_train, y_train and so on, with optional
class_names.
"""

from pathlib import Path

import numpy as np

from uce_edge.datasets.sources import (
    Format,
    Part,
    ReaderOptions,
    Source,
    check_labels,
    check_names,
    make_part,
    numbered,
)
from uce_edge.errors import UsageError, argument, expected

_KEYS = {
    "all": [("x", "y")],
    "train": [("train_images", "train_labels"), ("x_train", "y_train")],
    "val": [("val_images", "val_labels"), ("x_val", "y_val")],
    "test": [("test_images", "test_labels"), ("x_test", "y_test")],
}


def read(path: Path, options: ReaderOptions) -> Source:
    """Read all parts of an archive."""
    if not path.is_file():
        raise UsageError(
            f"There is no file {path}. Check the path given to {argument('data')}.", "dataset.missing", path=path
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            parts = _parts(archive, path)
            stored = tuple(map(str, archive["class_names"].ravel())) if "class_names" in archive.files else None
    except UsageError:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise exceptions of many classes
        raise UsageError(
            f"{path} cannot be read as an .npz archive ({error}).", "dataset.unreadable", path=path
        ) from None
    if not options.labels:
        return Source({name: (pixels, np.zeros_like(labels)) for name, (pixels, labels) in parts.items()}, ("",))
    if stored is not None:
        check_names(stored, path)
    names = stored if stored is not None else options.classes
    names = numbered(parts, path) if names is None else tuple(names)
    check_labels(parts, names, path)
    return Source(parts, names)


def _parts(archive: "np.lib.npyio.NpzFile", path: Path) -> dict[str, Part]:
    parts = {}
    for name, pairs in _KEYS.items():
        for pixels, labels in pairs:
            if pixels in archive.files and labels in archive.files:
                parts[name] = make_part(archive[pixels], archive[labels], f"{labels} of {path}")
    if not parts:
        known = ", ".join("/".join(pair) for pairs in _KEYS.values() for pair in pairs)
        rule, remedy = f"an archive with one of the pairs {known}", "Save it with: np.savez(path, x=images, y=labels)"
        raise UsageError(expected(f"{path}", rule, ", ".join(archive.files), remedy), "dataset.arrays", path=path)
    return parts


FORMAT = Format("an .npz file", lambda path: path.suffix == ".npz", read)

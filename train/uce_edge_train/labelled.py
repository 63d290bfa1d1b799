"""Labelled images for a model that exists already: matched to its classes, resized as it takes them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from uce_edge import images
from uce_edge.errors import UsageError, expected
from uce_edge.metadata import ImageSpec
from uce_edge_train import sources
from uce_edge_train.data import Split, digits

# Held-out images come first; images a model may have been trained on are never taken.
_PREFERRED = ("all", "val", "test")


def load(source: str, spec: ImageSpec, classes: Sequence[str]) -> Split:
    """Labelled images from a user's disk.

    Args:
        source: A folder with one sub-folder per class, an .npz file, or `digits` (its calibration images).
        spec: What the model takes as an image.
        classes: The model's class names; sub-folders and `class_names` are matched by name.
    """
    path = Path(source)
    if source == "digits":
        part, names = digits().splits["calibration"], tuple(classes)
        found = sources.Source({"all": (part.images, part.labels)}, names)
        sources.check_labels(found.parts, names, path)
    elif path.is_dir():
        found = sources.read_folder(path, spec)
    elif path.suffix == ".npz":
        found = sources.read_npz(path, classes)
    else:
        rule = "a folder with one sub-folder per class, or an .npz file"
        raise UsageError(expected("`data`", rule, source, "Check the path given to --data"))
    name = next((name for name in _PREFERRED if name in found.parts), None)
    if name is None:
        raise UsageError(f"{source} has training images only. Calibration needs images the model has not seen.")
    pixels, labels = found.parts[name]
    unknown = [name for name in found.class_names if name not in classes]
    if unknown:
        rule = f"among the model's ({', '.join(list(classes)[:5])}, ...)"
        raise UsageError(
            expected(f"the classes of {source}", rule, ", ".join(unknown), "Rename them, or export with --classes")
        )
    index = np.array([list(classes).index(name) for name in found.class_names])
    wanted = (spec.height, spec.width, spec.channels)
    if pixels.shape[1:] != wanted or str(pixels.dtype) != spec.dtype:
        pixels = np.stack([images.fit(image, spec) for image in pixels])
    return Split(pixels, index[labels])

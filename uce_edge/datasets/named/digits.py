"""The 1,797 handwritten digits of scikit-learn, 8x8, gray."""

from pathlib import Path

import numpy as np

from uce_edge.datasets.sources import Named, ReaderOptions, Source, check_labels
from uce_edge.errors import MissingPartError


def read(_: Path, options: ReaderOptions) -> Source:
    """Read all digits as one part; match a model's classes by number."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingPartError("The digits dataset", "scikit-learn", "train") from None
    bunch = load_digits()
    # 0..16 in the source; stretched to the full range of an ordinary gray image.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    parts = {"all": (images, bunch.target.astype(np.int64))}
    names = tuple(map(str, bunch.target_names)) if options.classes is None else tuple(options.classes)
    check_labels(parts, names, "digits")
    return Source(parts, names, held_out=0.15)


DATASET = Named(read)

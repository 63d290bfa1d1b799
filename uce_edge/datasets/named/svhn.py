"""House numbers, 32x32: SVHN's cropped digits, in MATLAB's files."""

from pathlib import Path

import numpy as np

from uce_edge.datasets.downloads import Public
from uce_edge.datasets.sources import Named, Part, ReaderOptions, Source
from uce_edge.errors import MissingPartError

_TRAIN, _TEST = "train_32x32.mat", "test_32x32.mat"


def read(folder: Path, _: ReaderOptions) -> Source:
    """Both parts; the label 10 means 0."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise MissingPartError("The dataset svhn", "scipy", "train") from None

    def part(file: str) -> Part:
        content = loadmat(folder / file)
        return np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2)), content["y"].ravel().astype(np.int64) % 10

    return Source({"train": part(_TRAIN), "test": part(_TEST)}, tuple(map(str, range(10))))


DATASET = Named(
    read=read,
    sign=_TRAIN,
    public=Public(
        folder="svhn",
        address="http://ufldl.stanford.edu/housenumbers/",
        files={_TRAIN: "e26dedcc434d2e4c54c9b2d4a06d8373", _TEST: "eb5a983be6a315427106f1b164d9cef3"},
    ),
)

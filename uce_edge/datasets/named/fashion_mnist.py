"""Clothes, 28x28, gray."""

from uce_edge.datasets.downloads import Public
from uce_edge.datasets.named import _idx
from uce_edge.datasets.sources import Named

_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

DATASET = Named(
    read=lambda folder, _: _idx.read(folder, _CLASSES),
    sign=_idx.SIGN,
    public=Public(
        folder="fashion-mnist",
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
)

"""Handwritten digits, 28x28, gray."""

from uce_edge.datasets.downloads import Public
from uce_edge.datasets.named import _idx
from uce_edge.datasets.sources import Named

DATASET = Named(
    read=lambda folder, _: _idx.read(folder, tuple(map(str, range(10)))),
    sign=_idx.SIGN,
    public=Public(
        folder="mnist",
        address="https://ossci-datasets.s3.amazonaws.com/mnist/",  # a mirror of yann.lecun.com/exdb/mnist/
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
)

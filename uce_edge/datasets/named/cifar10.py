"""Photos of ten kinds of things, 32x32."""

from uce_edge.datasets.downloads import Public
from uce_edge.datasets.named import _cifar
from uce_edge.datasets.sources import Named

_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
_TEST, _NAMES = "test_batch.bin", "batches.meta.txt"

DATASET = Named(
    read=lambda folder, _: _cifar.read(folder, _TRAIN, [_TEST], _NAMES, labels=1),
    sign=_TRAIN[0],
    public=Public(
        folder="cifar-10-batches-bin",
        address=_cifar.ADDRESS,
        files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        contents={**dict.fromkeys([*_TRAIN, _TEST], 30_730_000), _NAMES: None},
    ),
)

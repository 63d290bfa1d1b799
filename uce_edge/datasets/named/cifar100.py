"""Photos of a hundred kinds of things, 32x32; of the two labels of an image, the fine one."""

from uce_edge.datasets.downloads import Public
from uce_edge.datasets.named import _cifar
from uce_edge.datasets.sources import Named

DATASET = Named(
    read=lambda folder, _: _cifar.read(folder, ["train.bin"], ["test.bin"], "fine_label_names.txt", labels=2),
    sign="train.bin",
    public=Public(
        folder="cifar-100-binary",
        address=_cifar.ADDRESS,
        files={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        contents={"train.bin": 153_700_000, "test.bin": 30_740_000, "fine_label_names.txt": None},
    ),
)

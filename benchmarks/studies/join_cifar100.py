"""Join training and test images of CIFAR-100 that lie in two files: cifar100.npz for `--root`.

    python benchmarks/studies/join_cifar100.py data/cifar100_train_10k.npz data/cifar100_test.npz data/cifar100.npz

The parts have the arrays x, y and class_names.
"""

import argparse
from pathlib import Path

import numpy as np

from uce_edge._util.atomic_files import replacing


def join(train: Path, test: Path, out: Path) -> None:
    """Write one file with both parts; their classes must agree."""
    with np.load(train, allow_pickle=False) as own, np.load(test, allow_pickle=False) as other:
        if own["class_names"].tolist() != other["class_names"].tolist():
            raise SystemExit(f"{train} and {test} have different class_names")
        arrays = {
            "x_train": own["x"], "y_train": own["y"], "x_test": other["x"], "y_test": other["y"],
            "class_names": own["class_names"],
        }  # fmt: skip
    with replacing(out) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)
    print(f"{out}: {len(arrays['x_train']):,} training and {len(arrays['x_test']):,} test images")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "test", "out"):
        parser.add_argument(name, type=Path)
    join(**vars(parser.parse_args()))

"""Labelled images and their fixed splits."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.errors import MissingPartError, UsageError, expected

SPLITS = ("train", "calibration", "guarantee", "test")
_SPLIT_SEED = 20200713  # fixed: a run, its calibration and its evaluation must agree on who is who


@dataclass(frozen=True)
class Split:
    """Some images [n, height, width, channels], uint8 as a rule, and their labels [n]."""

    images: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def sha256(self) -> str:
        """A fingerprint of pixels and labels, to prove later what a model was fitted on."""
        digest = hashlib.sha256(np.ascontiguousarray(self.images).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A dataset with its four disjoint splits.

    `calibration` fits the calibration map; `guarantee` fits nothing and serves promises about the error rate.
    """

    name: str
    class_names: tuple[str, ...]
    splits: dict[str, Split] = field(repr=False)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.splits["train"].images.shape[1:]
        return height, width, channels

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every split."""
        return {name: split.sha256() for name, split in self.splits.items()}


def load(name: str) -> Dataset:
    """The dataset of that name."""
    if name != "digits":
        raise UsageError(expected("`data`", "the embedded dataset 'digits'", name, "Use: --data digits"))
    return digits()


def digits() -> Dataset:
    """The 1,797 handwritten digits of scikit-learn, 8x8, gray."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingPartError("The digits dataset", "scikit-learn", "train") from None
    bunch = load_digits()
    # 0..16 in the source; stretched to the full range of an ordinary gray image.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    return Dataset(
        "digits",
        tuple(str(name) for name in bunch.target_names),
        split(images, bunch.target.astype(np.int64), {"calibration": 0.15, "guarantee": 0.15, "test": 0.2}),
    )


def split(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], fractions: dict[str, float]
) -> dict[str, Split]:
    """Cut labelled images into disjoint parts in a fixed order; `train` is what the fractions leave."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    parts = {}
    start = 0
    for name, fraction in fractions.items():
        stop = start + round(fraction * len(labels))
        parts[name] = order[start:stop]
        start = stop
    parts["train"] = order[start:]
    return {name: Split(images[parts[name]], labels[parts[name]]) for name in SPLITS}

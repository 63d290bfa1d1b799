"""Correct a calibration for another mix of classes."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from uce_edge.calibration import maps
from uce_edge.calibration.class_prior import ClassPrior, Mix, estimated, log_ratio, rare, shares_of, subset
from uce_edge.calibration.likelihood import Labelled
from uce_edge.calibration.logits import Logits, StoredLogits
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Calibration


@dataclass(frozen=True)
class Images:
    """The labelled images of a calibration."""

    data: Split
    """Those that fit the map."""
    counted: Split | None
    """Those that nothing is fitted on."""
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Corrected:
    """A map for another mix, and the images that have this mix."""

    calibration: Calibration
    mix: Mix
    data: Split
    counted: Split | None


def correct(
    calibration: Calibration, logits: Logits, prior: ClassPrior, unlabelled: Logits | None, images: Images
) -> Corrected:
    """Shift the classes of a fitted map to new shares, which are given or estimated.

    Args:
        calibration: The map, fitted to all of `images.data`.
        logits: Those of `images.data`.
        prior: The new shares, if they are given.
        unlabelled: The logits of unlabelled images with the new shares; None if they are given.
        images: The labelled images.
    """
    data, counted, classes = images.data, images.counted, images.classes
    old = shares_of(data.labels, len(classes))
    counted = None if counted is None else counted.one_per_group()
    bias = maps.fit_shift(calibration, logits, data.labels)
    named: Collection[str] = prior.named
    if unlabelled is None:
        shares = prior.shares(classes, old)
    else:
        unbiased = maps.shifted(calibration, bias, logits, data.labels)
        parts = [part.labels for part in (data, counted) if part is not None]
        together = rare(np.min([np.bincount(labels, minlength=len(classes)) for labels in parts], axis=0))
        shares = estimated(maps.probabilities(unbiased, unlabelled), old, together)
        named = [name for name, joint in zip(classes, together, strict=True) if not joint]
    kept = subset(data.labels, shares, classes, named)
    chosen = np.isin(np.arange(len(data)), kept)
    blocks = StoredLogits(block for block, _ in Labelled(logits, data.labels).blocks(chosen))
    shift = maps.fit_shift(calibration, blocks, data.labels[chosen], around=bias + log_ratio(shares, old))
    fitted = maps.shifted(calibration, shift, blocks, data.labels[chosen])
    mix = Mix(tuple(shares.tolist()), tuple(old.tolist()), len(kept), 0 if unlabelled is None else unlabelled.images)
    if counted is not None:
        counted = counted.take(subset(counted.labels, shares, classes, named))
    return Corrected(replace(fitted, class_shares=mix.shares), mix, data.take(kept), counted)

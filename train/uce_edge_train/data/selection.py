"""Selection images: a part of the training images, which chooses epoch, rate and layers.

The calibration images must not choose these: the error of the chosen weights is too low on the images that chose them,
and a calibration map that is fitted on the same images makes the network overconfident.
"""

from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UsageError

_SHARE = 1 / 6  # as many as the calibration images, where a dataset is divided by the defaults
_MOST = 5000


class Rows:
    """Some rows of an array, read when they are needed."""

    def __init__(self, values: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> None:
        self._values, self._rows = values, rows

    @overload
    def __getitem__(self, key: int) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, key: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]: ...
    def __getitem__(self, key: int | slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._values[self._rows[key]]
        return found


@dataclass(frozen=True)
class Parts:
    """The training images in two parts, by number."""

    fitted: npt.NDArray[np.int64]
    """Those that weights are fitted on."""
    watched: npt.NDArray[np.int64] | None
    """Those that choose; None where nothing is chosen."""

    def whole(self) -> "Parts":
        """The same, with the images that choose among those that are fitted."""
        assert self.watched is not None
        return replace(self, fitted=np.sort(np.concatenate([self.fitted, self.watched])))

    def summary(self) -> str:
        """One sentence about them."""
        watched = 0 if self.watched is None else len(self.watched)
        total = watched + len(self.fitted)
        return f"{watched:,} of the {total:,} training images choose epoch, rate or layers: the selection images."

    def held_out(self, dataset: Dataset) -> Split:
        """The images that are watched; the calibration images where nothing is chosen."""
        return dataset.splits["calibration"] if self.watched is None else dataset.splits["train"].take(self.watched)


def part(train: Split, *, selects: bool) -> Parts:
    """Divide the training images; no group is in both parts.

    Args:
        train: The training images.
        selects: Whether any image has to choose.
    """
    if not selects:
        return Parts(np.arange(len(train)), None)
    watched, fitted = train.parted_rows(min(_SHARE, _MOST / len(train)))
    lost = np.isin(train.labels[watched], np.setdiff1d(train.labels[watched], train.labels[fitted]))
    if lost.any():  # a class whose images are all of one group
        units = train.units()
        back = lost if units is None else np.isin(units[watched], units[watched[lost]])
        watched, fitted = watched[~back], np.concatenate([fitted, watched[back]])
    if not len(fitted) or not len(watched):
        few = "image" if train.groups is None else "group"
        raise UsageError(
            f"One training {few} is too few: a part of them chooses epoch and rate. Add images, or train a fixed "
            "number of epochs without --backbone.",
            "dataset.too-small",
        )
    return Parts(np.sort(fitted), np.sort(watched))

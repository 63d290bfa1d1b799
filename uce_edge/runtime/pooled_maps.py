"""Heatmaps of one image over several calls: mean and deviation of all passes.

A call shows the places that speak for the class that its own passes predict. Calls that predict the same class are
merged by sums; where they differ, the image is marked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.contract import CLASS_ID, HEATMAP, HEATMAP_SPREAD

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class PooledMaps:
    """Sums over passes, with one entry per image."""

    class_id: Array
    """The class of the first call."""
    agree: npt.NDArray[np.bool_]
    """Whether all calls predict it."""
    passes: Array
    total: Array
    """[images, height, width], of the maps."""
    squares: Array | None
    """Of their squares; None without a spread."""

    @classmethod
    def of(cls, call: Mapping[str, Array], passes: int) -> "PooledMaps":
        """The sums of one call."""
        mean, spread = call[HEATMAP].astype(np.float64), call.get(HEATMAP_SPREAD)
        squares = None if spread is None else passes * (mean**2 + spread.astype(np.float64) ** 2)
        images = len(mean)
        return cls(call[CLASS_ID], np.full(images, True), np.full(images, passes), passes * mean, squares)

    @classmethod
    def side_by_side(cls, parts: "Sequence[PooledMaps]") -> "PooledMaps":
        """The sums of several groups of images."""
        columns: dict[str, Any] = {
            name: None if first is None else np.concatenate([vars(part)[name] for part in parts])
            for name, first in vars(parts[0]).items()
        }
        return cls(**columns)

    def plus(self, other: "PooledMaps | None") -> "PooledMaps":
        """With more passes of the same images."""
        if other is None:
            return self
        agree = self.agree & other.agree & (self.class_id == other.class_id)
        squares = None if self.squares is None or other.squares is None else self.squares + other.squares
        return PooledMaps(self.class_id, agree, self.passes + other.passes, self.total + other.total, squares)

    def chosen(self, images: Array) -> "PooledMaps":
        """The sums of some images."""
        columns: dict[str, Any] = {
            name: None if column is None else column[images] for name, column in vars(self).items()
        }
        return PooledMaps(**columns)

    def merged(self) -> dict[str, npt.NDArray[np.float32]]:
        """The outputs; NaN without passes."""
        with np.errstate(invalid="ignore"):
            mean = self.total / self.passes[:, None, None]
            maps = {HEATMAP: mean}
            if self.squares is not None:
                maps[HEATMAP_SPREAD] = np.sqrt(np.maximum(self.squares / self.passes[:, None, None] - mean**2, 0))
        return {name: values.astype(np.float32) for name, values in maps.items()}

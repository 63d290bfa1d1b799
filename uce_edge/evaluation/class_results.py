"""Results by class: confusion and clinical rates."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.metrics import ClassRates, Probabilities

MOST = 20
"""The most classes of a confusion matrix, and the most listed pairs of more classes."""


@dataclass(frozen=True)
class Confused:
    """The images of one class with another predicted label."""

    truth: str
    label: str
    count: int
    share: float
    """The share of the images of the true class."""


@dataclass(frozen=True)
class OneClass(ClassRates):
    """The name and rates of a class."""

    name: str


@dataclass(frozen=True, eq=False)
class Classes:
    """The results of an evaluation by class."""

    interval: str
    """The kind of the rates' intervals."""
    rates: tuple[OneClass, ...]
    """By class, in the order of the model."""
    confusion: npt.NDArray[np.int64] | None
    """Images by true class (row) and predicted label (column); None for more than `MOST` classes."""
    confused: tuple[Confused, ...]
    """The pairs with the most images, in descending order, at most `MOST`."""

    @property
    def shown(self) -> tuple[OneClass, ...]:
        """All classes, or the `MOST` with the lowest sensitivity."""
        if len(self.rates) <= MOST:
            return self.rates
        seen = [one for one in self.rates if one.images]
        return tuple(sorted(seen, key=lambda one: one.sensitivity.value)[:MOST])


def measure(table: Probabilities, truth: npt.NDArray[np.int64], names: Sequence[str]) -> Classes:
    """Measure every class; the arguments are as in the metrics."""
    matrix = metrics.confusion_matrix(table, truth)
    return Classes(
        interval="Wilson, 95 %",
        rates=tuple(
            OneClass(**vars(rates), name=name)
            for name, rates in zip(names, metrics.class_rates(table, truth), strict=True)
        ),
        confusion=matrix if len(names) <= MOST else None,
        confused=_confused(matrix, names),
    )


def _confused(matrix: npt.NDArray[np.int64], names: Sequence[str]) -> tuple[Confused, ...]:
    wrong = matrix - np.diag(matrix.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST]
    pairs = [(int(at) // len(names), int(at) % len(names)) for at in order]
    return tuple(
        Confused(names[true], names[label], int(wrong[true, label]), float(wrong[true, label] / matrix[true].sum()))
        for true, label in pairs
        if wrong[true, label]
    )

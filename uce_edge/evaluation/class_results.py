"""How each class fares: which ones are confused, and the rates that a clinician asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.metrics import ClassRates, Probabilities

MOST = 20
"""Classes whose confusion is shown as a matrix, and pairs that are shown of more."""


@dataclass(frozen=True)
class Confused:
    """Images of one class that are labelled as another."""

    truth: str
    label: str
    count: int
    share: float
    """Of the images of the true class."""


@dataclass(frozen=True)
class OneClass(ClassRates):
    """The rates of a class, and what it is called."""

    name: str


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes of an evaluation, one by one."""

    interval: str
    """Which intervals the rates have."""
    rates: tuple[OneClass, ...]
    """Of every class, in the order of the model."""
    confusion: npt.NDArray[np.int64] | None
    """Images of every true class (row) by label (column), in the order of `rates`; None for more than `MOST`."""
    confused: tuple[Confused, ...]
    """The pairs with most images, the largest first, `MOST` at most."""

    @property
    def shown(self) -> tuple[OneClass, ...]:
        """All in their order, or of many the `MOST` that have images and the lowest sensitivity."""
        if len(self.rates) <= MOST:
            return self.rates
        seen = [one for one in self.rates if one.images]
        return tuple(sorted(seen, key=lambda one: one.sensitivity.value)[:MOST])


def measure(table: Probabilities, truth: npt.NDArray[np.int64], names: Sequence[str]) -> Classes:
    """Count it all; arguments as in the metrics, and what the classes are called."""
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
        Confused(names[true], names[said], int(wrong[true, said]), float(wrong[true, said] / matrix[true].sum()))
        for true, said in pairs
        if wrong[true, said]
    )

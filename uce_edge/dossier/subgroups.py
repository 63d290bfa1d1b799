"""Results by subgroup: the values of a manifest's column."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge.datasets.formats import manifest
from uce_edge.errors import UsageError, expected
from uce_edge.evaluation import Evaluation
from uce_edge.metrics.binned import wilson
from uce_edge.rejection.guarantee import upper_bound
from uce_edge.rejection.rule import RejectRule

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Subgroup:
    """The results of the images with one value of a column."""

    value: str
    images: int
    accuracy: float
    accuracy_low: float
    """The lower end of the 95 % Wilson interval."""
    accuracy_high: float
    accepted: int
    """By the model's own rule; all images without one."""
    errors: int
    """Wrong labels among the accepted images."""
    error_bound: float | None
    """The 95 % upper bound of the error of accepted images; None if there are none."""


def values_of(data: str, column: str, names: Sequence[str] | None) -> list[str]:
    """The value of a column for every image, by its name.

    Raises:
        UsageError: The data are no manifest, or have no such column.
    """
    path = Path(data)
    if names is None or not manifest.FORMAT.takes(path):
        raise UsageError(
            expected("`by`", "a column of a manifest", column, "Give --data a .csv with path, label and this column"),
            "dossier.no-manifest",
        )
    known = manifest.column(path, column)
    return [known[name] for name in names]


def measure(evaluation: Evaluation, rule: RejectRule | None, values: Sequence[str]) -> list[Subgroup]:
    """The results of every value, in alphabetical order."""
    answers, group = evaluation.answers, np.array(values)
    wrong = answers.table.predicted != evaluation.truth
    accepted = np.ones(len(wrong), np.bool_)
    if rule is not None:
        accepted = rule.decide(answers.uncertainty, answers.probabilities, answers.novelty) == 0
    return [_subgroup(value, wrong[group == value], accepted[group == value]) for value in sorted(set(values))]


def _subgroup(value: str, wrong: npt.NDArray[np.bool_], accepted: npt.NDArray[np.bool_]) -> Subgroup:
    rate = np.array([1 - wrong.mean()])
    low, high = wilson(rate, np.array([float(len(wrong))]))
    taken, errors = int(accepted.sum()), int((accepted & wrong).sum())
    bound = upper_bound(errors, taken, _CONFIDENCE) if taken else None
    ends = min(float(low[0]), float(rate[0])), max(float(high[0]), float(rate[0]))  # where rounding crosses them
    return Subgroup(value, len(wrong), float(rate[0]), *ends, taken, errors, bound)

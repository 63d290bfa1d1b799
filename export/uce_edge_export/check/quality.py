"""Quality of a cheaper form of a file."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.datasets.splits import Split
from uce_edge.errors import UceEdgeError
from uce_edge.metrics import Interval
from uce_edge_export.check.held_out_rejection import predicted
from uce_edge_export.publish.draft import Draft

BOUNDS = {"nll": 0.02, "uce": 0.02, "aurc": 0.01}
"""How much more a form may have of each metric before it is refused."""
_METRICS = {"nll": metrics.nll, "uce": metrics.uce, "aurc": metrics.aurc}
_JUDGED = 1000  # images

Probabilities = npt.NDArray[Any]


class QualityError(UceEdgeError):
    """A cheaper form costs too much quality."""


@dataclass(frozen=True)
class Change:
    """One metric of both forms, on the same images."""

    before: float
    after: float
    difference: Interval
    """After less before, with its interval over redrawn images."""

    def __str__(self) -> str:
        low, high = self.difference.low, self.difference.high
        return f"{self.before:.4f} -> {self.after:.4f} ({low:+.4f} to {high:+.4f})"


@dataclass(frozen=True)
class Judgement:
    """The change of every metric of `BOUNDS`."""

    changes: dict[str, Change]

    def __str__(self) -> str:
        return ", ".join(f"{name.upper()} {change}" for name, change in self.changes.items())


def answers(draft: Draft, data: Split, form: str) -> Probabilities:
    """The probabilities of the images that judge a file.

    Args:
        draft: The file.
        data: The images.
        form: The name of its form, for the progress.
    """
    return predicted(draft, data.at_most(_JUDGED).images, f"measuring {form}").probabilities


def judge(before: Probabilities, after: Probabilities, data: Split, form: str, remedy: str) -> Judgement:
    """Compare the answers of two forms.

    Args:
        before: Those of the old form.
        after: Those of the new form.
        data: The images, with labels.
        form: The name of the new form, for messages.
        remedy: The alternative for the user.

    Raises:
        QualityError: One metric has grown by more than its bound.
    """
    labels = data.at_most(_JUDGED).labels
    if not np.isfinite(after).all():
        raise QualityError(
            f"{form} gives answers that are no numbers. Nothing was written. {remedy}", "quality.not-finite"
        )
    changes = {
        name: Change(
            metric(before, labels),
            metric(after, labels),
            metrics.bootstrap_difference(metric, after, before, labels),
        )
        for name, metric in _METRICS.items()
    }
    judgement = Judgement(changes)
    if any(not change.difference.value <= BOUNDS[name] for name, change in changes.items()):
        bounds = ", ".join(f"{name.upper()} {bound}" for name, bound in BOUNDS.items())
        raise QualityError(
            f"{form} changes {judgement} on the calibration images. Allowed is at most: {bounds}. "
            f"Nothing was written. {remedy}",
            "quality.worse",
        )
    return judgement

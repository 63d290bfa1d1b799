"""AUROC and FPR at 95 % of errors and of out-of-distribution images."""

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import Floats, vector
from uce_edge.metrics.selection import uncertain_and_wrong


def auroc(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, score: npt.ArrayLike = "uncertainty") -> float:
    """The AUROC of errors: P(score of a wrong image > a right one).

    A tie counts half. `score` is as in `risk_coverage`. Undefined if all images are right or all are wrong.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> auroc(probabilities, labels)
        1.0
    """
    return _auroc(*right_and_wrong(probabilities, labels, score))


def fpr_at_95(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, score: npt.ArrayLike = "uncertainty") -> float:
    """The share of wrong images accepted at 95 % of the right ones.

    `score` is as in `risk_coverage`. Undefined if all images are right or all are wrong.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> fpr_at_95(probabilities, labels)
        0.0
    """
    return _fpr_at_95(*right_and_wrong(probabilities, labels, score))


def ood_auroc(inside: npt.ArrayLike, outside: npt.ArrayLike) -> float:
    """The AUROC of out-of-distribution images; a tie counts half.

    Args:
        inside: The uncertainty of each in-distribution image.
        outside: The uncertainty of each out-of-distribution image.

    Example:
        >>> ood_auroc([0.1, 0.2, 0.6], [0.5, 0.9])
        0.8333333333333334
    """
    return _auroc(_scores("inside", inside), _scores("outside", outside))


def ood_fpr_at_95(inside: npt.ArrayLike, outside: npt.ArrayLike) -> float:
    """The share of out-of-distribution images accepted at 95 % of the others.

    Args:
        inside: The uncertainty of each in-distribution image.
        outside: The uncertainty of each out-of-distribution image.

    Example:
        >>> ood_fpr_at_95([0.1, 0.2, 0.6], [0.5, 0.9])
        0.5
    """
    return _fpr_at_95(_scores("inside", inside), _scores("outside", outside))


def _scores(name: str, values: npt.ArrayLike) -> Floats:
    return vector(name, values, "Give one uncertainty per image.")


def right_and_wrong(probabilities: npt.ArrayLike, labels: npt.ArrayLike, score: npt.ArrayLike) -> tuple[Floats, Floats]:
    """The scores of right and of wrong images; refuse an empty set."""
    ranks, wrong = uncertain_and_wrong(probabilities, labels, score)
    errors = int(wrong.sum())
    if errors in (0, len(wrong)):
        rule, given = "wrong for some images and right for others", f"{errors} of {len(wrong)} wrong"
        raise UsageError(
            expected("the predictions", rule, given, "Give more images; aurc is defined without both."),
            "metric.undefined",
        )
    return ranks[~wrong], ranks[wrong]


def _auroc(low: Floats, high: Floats) -> float:
    """The Mann-Whitney statistic: a smaller score counts 1, an equal one 1/2."""
    ordered = np.sort(low)
    below, not_above = (np.searchsorted(ordered, high, side=side).sum() for side in ("left", "right"))
    return float(below + not_above) / 2 / len(low) / len(high)


def _fpr_at_95(low: Floats, high: Floats) -> float:
    needed = -(-95 * len(low) // 100)  # in integers: 0.95 * n can round past the image it means
    return float(np.mean(high <= np.sort(low)[needed - 1]))

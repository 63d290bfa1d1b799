"""Early stopping: draw passes until the outcome of an image is clear.

The outcome is a rejection, or an accepted label. For every image, the probability that all N passes would give another
outcome is at most the chosen error.

After n = 5, 10, 15, ... passes an image is done when two distances are large enough: that of its uncertainty from the
threshold, and the mean margin between its two likeliest classes. Both must exceed what the other N - n passes can
change: a multiple of s sqrt(1/n - 1/N), by Student's t. Each check spends an equal part of the error, half of it on
each distance. A rejected image needs no label. Without a threshold, only the label counts. Where every class has its
own threshold, an image above all of them needs no label.

The entropy of a mean of few passes is too small, by about (1/2n) sum_c var_c / p_c. The distance must exceed this bias
too, or an image would be accepted because it had few passes.
"""

import math
import sys

import numpy as np
import numpy.typing as npt

from uce_edge.contract import RuleScore
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.prediction import summarise

STEP = 5
_TINY = 1e-30


def looks(most: int) -> list[int]:
    """The numbers of passes after which images are checked.

    They are 5, 10, ..., 50, then a quarter more each time, and the largest.
    """
    counts, count = [], STEP
    while count < most:
        counts.append(count)
        count += max(STEP, count // 4) if count >= 10 * STEP else STEP
    return [*counts, most]


def settled(passes: npt.NDArray[np.float32], applied: RejectRule, error: float, most: int) -> npt.NDArray[np.bool_]:
    """A mask of the images with a clear outcome.

    Args:
        passes: Calibrated probabilities [passes so far, images, classes], two passes at least.
        applied: The reject rule; without limits only the label counts.
        error: The probability, over all checks, that more passes would change the outcome.
        most: The largest number of passes.
    """
    n = len(passes)
    chances = max(len(looks(most)) - 1, 1)  # the last check has all passes
    limit = student(max(error / (2 * chances), sys.float_info.min), n - 1)  # the division may underflow to 0
    remaining = math.sqrt(max(1 / n - 1 / most, 0))
    values = passes.astype(np.float64)
    mean = values.mean(axis=0)
    order = np.argsort(mean, axis=-1)
    first, second = (np.take_along_axis(values, order[None, :, k, None], -1)[..., 0] for k in (-1, -2))
    margin = first - second
    done: npt.NDArray[np.bool_] = margin.mean(0) > limit * margin.std(0, ddof=1) * remaining
    if applied.limits is None:
        return done
    limits = np.array(applied.limits, np.float64)
    own, loosest = limits[order[:, -1] if applied.by_class else 0], limits.max()
    if applied.score is RuleScore.CONFIDENCE:
        score, bias = 1 - first.mean(0), 0.0
        needed = limit * first.std(0, ddof=1) * remaining
    else:
        summary = summarise(passes)
        spread = (values.var(axis=0, ddof=1) / np.maximum(mean, _TINY)).sum(-1) / math.log(mean.shape[-1])
        score, bias = summary.uncertainty.astype(np.float64), spread / 2 * (1 / n - 1 / most)
        needed = limit * summary.standard_error * math.sqrt(n) * remaining
    apart = (score - own > needed) | (score - own < -needed - bias)
    done = (score - loosest > needed) | (done & apart)
    return done


def student(tail: float, freedom: int) -> float:
    """The quantile of Student's t for a small tail.

    An expansion around the normal distribution.
    """
    from statistics import NormalDist  # takes 8 ms; most predictions do not need it

    z = -NormalDist().inv_cdf(tail)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(sum(term / freedom**power for power, term in enumerate(terms)))

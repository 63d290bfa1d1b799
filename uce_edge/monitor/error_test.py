"""Test a promised error on labelled images, valid after every label.

A bet against "the error is at most r" multiplies its wealth by q/r for a wrong label and by (1 - q)/(1 - r) for a right
one, with q > r. If every image is wrong with a probability of at most r, given all images before it, the wealth is a
supermartingale and ever reaches 1/alpha with a probability of at most alpha (Ville). A bet with q < r is against "the
error is at least r". Several q share the wealth.
"""

import math
from collections.abc import Iterable

from uce_edge.errors import UsageError, expected
from uce_edge.monitor.state import LabelCheck

_GRID = 16


def log_evidence(wrong: int, images: int, rate: float, *, above: bool) -> float:
    """The log wealth of the bets on an error above a rate, or below it."""
    if above:
        rates = [rate ** (1 - step / (_GRID + 1)) for step in range(1, _GRID + 1)]
    else:
        rates = [rate * step / _GRID for step in range(_GRID)]
    logs = [_log_gain(wrong, images - wrong, q, rate) for q in rates]
    top = max(logs)
    return top + math.log(sum(math.exp(value - top) for value in logs) / len(logs)) if top > -math.inf else -math.inf


def check(wrong: Iterable[bool], target_error: float, time: str) -> LabelCheck:
    """Test a promised error on accepted images, in the order of labelling.

    Args:
        wrong: Whether the predicted label was wrong.
        target_error: The promised error.
        time: The time of the test.
    """
    if not 0 < target_error < 1:
        rule = "strictly between 0 and 1"
        raise UsageError(expected("`target_error`", rule, target_error, "For example: 0.05"))
    images = errors = 0
    broken = kept = 0.0
    for is_wrong in wrong:
        images, errors = images + 1, errors + bool(is_wrong)
        broken = max(broken, log_evidence(errors, images, target_error, above=True))
        kept = max(kept, log_evidence(errors, images, target_error, above=False))
    return LabelCheck(target_error, images, errors, broken, kept, time)


def _log_gain(wrong: int, right: int, q: float, rate: float) -> float:
    if q == 0 and wrong:
        return -math.inf
    won = wrong * math.log(q / rate) if wrong else 0.0
    return won + right * (math.log1p(-q) - math.log1p(-rate))

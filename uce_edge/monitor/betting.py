"""A test martingale against "no drift": conformal p-values, and bets on them.

All functions take arrays with any leading axes, so that one stream and thousands of simulated ones run the same code.
docs/science.md has the proof. tests/golden/monitor.json holds the C++ and JavaScript ports to the same results.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

POWERS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Bets e p^(e - 1): they win most where a few p-values are tiny, as of single out-of-distribution images."""
SLOPES = (1.0, 1.8)
"""Bets 1 + s (1/2 - p): they win most where all p-values are a little smaller."""
BETS = 2 * (len(POWERS) + len(SLOPES))
"""The first half bets on rising scores (small p), the other half on falling ones (p near 1)."""
NOTHING = -1e9
"""The logarithm of zero wealth, which a bet has before the first image, as a number that JSON allows."""


def bins(edges: npt.ArrayLike, scores: npt.ArrayLike) -> Integers:
    """The bin of each score: the number of smaller edges, in float32."""
    placed: Integers = np.searchsorted(np.asarray(edges, np.float32), np.asarray(scores, np.float32)).astype(np.int64)
    return placed


def uniform(seed: npt.ArrayLike, step: npt.ArrayLike, statistic: int) -> Floats:
    """Reproducible random numbers strictly between 0 and 1, to break ties.

    Args:
        seed: The seed of the stream, below 2^32.
        step: The number of the bet, from 1.
        statistic: The number of the score, from 0.
    """
    with np.errstate(over="ignore"):
        word = _mixed(np.asarray(seed, np.uint32) ^ np.uint32(0x9E3779B9))
        word = _mixed(word + np.asarray(step).astype(np.uint32) * np.uint32(0x9E3779B1))
        word = _mixed(word ^ (np.uint32(statistic + 1) * np.uint32(0x85EBCA6B)))
    return (word.astype(np.float64) + 0.5) / 2.0**32


def _mixed(word: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A permutation of 32 bits (Wellons, lowbias32)."""
    word = (word ^ (word >> np.uint32(16))) * np.uint32(0x7FEB352D)
    word = (word ^ (word >> np.uint32(15))) * np.uint32(0x846CA68B)
    return word ^ (word >> np.uint32(16))


def p_values(counts: npt.ArrayLike, place: npt.ArrayLike, u: npt.ArrayLike) -> tuple[Floats, Floats]:
    """The smoothed conformal p-value of a score, and one minus it.

    Args:
        counts: [..., bins], the reference without this score.
        place: [...], the bin of the score.
        u: [...], its random number.

    Returns:
        p = (#larger + u (#equal + 1)) / (n + 1), small for a large score; and
        1 - p = (#smaller + (1 - u) (#equal + 1)) / (n + 1).
    """
    numbers, where = np.asarray(counts, np.float64), np.asarray(place, np.int64)[..., None]
    random = np.asarray(u, np.float64)
    up_to = np.take_along_axis(numbers.cumsum(axis=-1), where, -1)[..., 0]
    equal = np.take_along_axis(numbers, where, -1)[..., 0]
    total = numbers.sum(axis=-1)
    p = (total - up_to + random * (equal + 1)) / (total + 1)
    rest = (up_to - equal + (1 - random) * (equal + 1)) / (total + 1)
    return p, rest


def log_gains(p: npt.ArrayLike, rest: npt.ArrayLike) -> Floats:
    """The log of each bet's gain, [..., BETS]; the mean gain is 1 for a uniform p."""
    powers, slopes = np.array(POWERS), np.array(SLOPES)
    sides = []
    for side in (p, rest):
        value = np.asarray(side, np.float64)[..., None]
        sides += [np.log(powers) + (powers - 1) * np.log(value), np.log1p(slopes * (0.5 - value))]
    return np.concatenate(sides, axis=-1)


def reserve(step: int) -> float:
    """The share of the wealth that starts to bet after this step: from 1 towards 0."""
    return 1 / float(np.log2(step + 2))


def bet(wealth: npt.ArrayLike, gains: npt.ArrayLike, step: int) -> Floats:
    """The log wealth of each bet after a step.

    Each bet stakes its wealth and the reserve of this step.

    Args:
        wealth: [..., BETS] logarithms; `NOTHING` before the first step.
        gains: [..., BETS] of `log_gains`.
        step: From 1.
    """
    fresh = np.log(reserve(step - 1) - reserve(step))
    after: Floats = np.logaddexp(np.asarray(wealth, np.float64), fresh) + np.asarray(gains, np.float64)
    return after


def log_evidence(wealth: npt.ArrayLike, step: int) -> Floats:
    """The log of a statistic's total wealth, which starts at 0."""
    if step == 0:
        return np.zeros(np.asarray(wealth).shape[:-1])
    values = np.asarray(wealth, np.float64)
    top = values.max(axis=-1)
    mean = top + np.log(np.exp(values - top[..., None]).mean(axis=-1))
    total: Floats = np.logaddexp(mean, np.log(reserve(step)))
    return total

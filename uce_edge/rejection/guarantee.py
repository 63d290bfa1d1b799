"""Find the threshold on the uncertainty that keeps a promised error rate.

A promise holds for images from the distribution of the guarantee set, and for the same model file, seed and number of
passes. Nothing else may be fitted to the guarantee set.
"""

import math
from bisect import bisect_left
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metrics.argument_checks import Booleans, Floats, Integers, array, vector, whole
from uce_edge.rejection.promises import STEPS, Counts, Guarantee, Promise, RejectBy
from uce_edge.rejection.rule import within

__all__ = [
    "Counts",
    "Guarantee",
    "NoGuaranteeError",
    "check_possible",
    "count",
    "counted_error_at",
    "curve",
    "error_at",
    "find",
    "images_needed",
    "search",
    "upper_bound",
]

_BLOCK = 2**18  # 2 MiB of float64 at a time
_ALLOWED = (1, 4)  # errors at the starts of the search; more starts cost more confidence than they gain coverage
_PERCENTS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50)
TARGETS = tuple(percent / 100 for percent in _PERCENTS)
"""The errors of a curve."""
_ROWS = 6  # of a curve: the errors next to the requested one

Uncertainties = npt.NDArray[np.float32]


class NoGuaranteeError(UceEdgeError):
    """These images cannot prove the promise at any threshold."""

    def __init__(
        self,
        message: str,
        curve: tuple[Guarantee, ...] = (),
        score: RejectBy = RejectBy.UNCERTAINTY,
        code: str = "promise.unprovable",
        **fields: object,
    ) -> None:
        super().__init__(message, code, **fields)
        self.curve = curve
        """The promises that the images can prove, as in `curve`."""
        self.score = score
        """The score of the thresholds: the uncertainty, or 1 - confidence."""


def count(uncertainty: npt.ArrayLike, wrong: npt.ArrayLike) -> Counts:
    """Count accepted images and errors at every threshold of `Counts`."""
    values, flags = _inputs(uncertainty, wrong)
    accepted = [within(values, step / STEPS) for step in range(STEPS + 1)]
    return Counts(tuple(int(some.sum()) for some in accepted), tuple(int(flags[some].sum()) for some in accepted))


def counted_error_at(counts: Counts, threshold: float, confidence: float) -> Guarantee:
    """As `error_at`, from counts, for a threshold with two decimals."""
    step = round(_between("threshold", threshold, 0, 1, "For example: 0.3", ends=True) * STEPS)
    if abs(step - threshold * STEPS) > 1e-6:
        remedy = "`uce-edge evaluate --reject` measures any other threshold on your images"
        raise UsageError(expected("`reject`", "a number with at most two decimals", threshold, remedy))
    errors, accepted = counts.errors[step], counts.accepted[step]
    bound = _upper_bound(errors, accepted, 1 - _confidence(confidence))
    return _guarantee(threshold, None, confidence, bound, errors, accepted, counts.accepted[-1])


def upper_bound(errors: int, images: int, confidence: float) -> float:
    """The exact one-sided upper bound (Clopper-Pearson) of an error rate.

    Args:
        errors: The number of wrong images.
        images: The number of images; the bound of 0 images is 1.
        confidence: The probability that the true rate is at most the bound.

    Returns:
        The rate at which so few errors have the probability 1 - confidence.
    """
    images = whole("images", images, 0, "Give the number of images.")
    errors = whole("errors", errors, 0, "Give the number of wrong images.")
    if errors > images:
        raise UsageError(expected("errors", f"at most {images}, the images", errors, "Count each image once."))
    return _upper_bound(errors, images, 1 - _confidence(confidence))


def images_needed(target_error: float, confidence: float) -> int:
    """The size of the smallest error-free guarantee set that proves this target."""
    log_right, log_risk = math.log1p(-_target(target_error)), math.log(1 - _confidence(confidence))
    needed = max(1, math.floor(log_risk / log_right))
    return needed if needed * log_right <= log_risk else needed + 1  # the division may round either way


def find(uncertainty: npt.ArrayLike, wrong: npt.ArrayLike, target_error: float, confidence: float) -> Guarantee:
    """Find the loosest threshold that keeps the target error.

    "The k most certain images" is tested for k upwards from three starts: the smallest k that may have 1 error, the
    smallest that may have 4, and n/2. Each start has an equal part of the risk 1 - confidence. A test that passes hands
    its risk to the next, and a failure stops until the next start (Wiens' fallback procedure). The share of the
    possible coverage that this finds depends on n: in simulations with targets of 5 and 10 %, 82 to 100 % at n = 2,500,
    61 to 100 % at 1,000, 36 to 100 % at 600 and 1 to 100 % at 300, least where few images are certain.

    The candidates are ranks, which do not depend on the labels. Given the (k+1)-th smallest uncertainty, the k images
    below it are independent draws from below it, so their errors are binomial, although the data chose the value. If
    many uncertainties are equal, the proof also needs an error that does not fall as the uncertainty rises.

    Args:
        uncertainty: H of each image of the guarantee set, in [0, 1]; equal ones are accepted or rejected together.
        wrong: Whether its label is wrong.
        target_error: The promised error rate of accepted images.
        confidence: The probability, over the draw of the guarantee set, that the promise holds.

    Returns:
        The guarantee. Its threshold is the last float32 below the first rejected uncertainty, or 1 if none is rejected.

    Raises:
        NoGuaranteeError: No threshold has a proof.
    """
    candidates = _candidates(*_inputs(uncertainty, wrong))
    _, accepted, errors = candidates
    n, target, confidence = int(accepted[-1]), _target(target_error), _confidence(confidence)
    found = _loosest(candidates, target, confidence)
    if found is not None:
        return found
    instead, promise = _curve(candidates, confidence, target), _spelled(target, confidence)
    needed = images_needed(target, confidence)
    if n < needed:
        raise NoGuaranteeError(
            f"{n} images cannot promise {promise}: that takes at least {needed}, even if none is wrong. "
            "Give more guarantee images, a larger target or less confidence.",
            instead,
            code="promise.too-few-images",
            images=n,
            needed=needed,
        )
    start = np.searchsorted(accepted, _starts(n, target, confidence)[0])
    raise NoGuaranteeError(
        f"No threshold can promise {promise}: of the {accepted[start]} most certain of {n} images, "
        f"{errors[start]} are wrong. A promise needs {needed} images without an error, or more images with a few "
        "errors. Give more guarantee images, a larger target or a better model.",
        instead,
        needed=needed,
        accepted=int(accepted[start]),
        errors=int(errors[start]),
    )


def search(
    uncertainty: npt.ArrayLike, wrong: npt.ArrayLike, target_error: float, confidence: float
) -> Guarantee | None:
    """As `find`, but None if no threshold has a proof."""
    return _loosest(_candidates(*_inputs(uncertainty, wrong)), _target(target_error), _confidence(confidence))


def curve(
    uncertainty: npt.ArrayLike, wrong: npt.ArrayLike, confidence: float, above: float = 0.0
) -> tuple[Guarantee, ...]:
    """The promises that these images can prove, from small errors to large.

    Each row holds with the confidence by itself. Choosing the best row is one more search, which the confidence does
    not cover.

    Args:
        uncertainty: As in `find`.
        wrong: As in `find`.
        confidence: As in `find`.
        above: Only larger errors than this.

    Returns:
        The first rows of `TARGETS` with a proof, up to the one that accepts every image; empty if no error has one.
    """
    return _curve(_candidates(*_inputs(uncertainty, wrong)), _confidence(confidence), above)


def check_possible(images: int, promise: Promise, given: int | None = None, *, grouped: bool = False) -> None:
    """Refuse a promise that so few images cannot prove without an error.

    Args:
        images: The number of guarantee images.
        promise: The requested promise.
        given: The number of all given images, if some of them have another use.
        grouped: Whether the guarantee images are one of each group.
    """
    target = promise.easiest
    needed = images_needed(target, promise.confidence)
    if images >= needed:
        return
    whole = ""
    if given is not None and given > images > 0 and not grouped:
        whole = f" (of {math.ceil(needed * given / images)} in all, as {images} of the given {given} serve the proof)"
    what, more = ("groups", "images of more groups") if grouped else ("images", "more images")
    remedy = f"Give {more}, or leave the promise out"
    if images:
        least = math.ceil(upper_bound(0, images, promise.confidence) * 1000) / 1000
        remedy += f"; {images} could promise {least:g} at best"
    raise UsageError(
        f"{images} guarantee {what} cannot promise {_spelled(target, promise.confidence)}, even if none "
        f"is wrong: that takes at least {needed}{whole}. Nothing was computed. {remedy}."
        + (" Only one image of each group counts." if grouped else ""),
        "promise.too-few-images",
        images=images,
        needed=needed,
    )


def error_at(uncertainty: npt.ArrayLike, wrong: npt.ArrayLike, threshold: float, confidence: float) -> Guarantee:
    """The error of the images that a threshold accepts, with its upper bound.

    The threshold must not depend on these labels: there is no search, so the bound does not account for one.

    Args:
        uncertainty: H of each image of the guarantee set, in [0, 1].
        wrong: Whether its label is wrong.
        threshold: H_max, such as the 0.3 of `--reject 0.3`.
        confidence: The probability that the true error rate is at most the bound.
    """
    values, flags = _inputs(uncertainty, wrong)
    threshold = _between("threshold", threshold, 0, 1, "For example: 0.3", ends=True)
    confidence = _confidence(confidence)
    among = flags[within(values, threshold)]
    errors, accepted = int(among.sum()), len(among)
    bound = _upper_bound(errors, accepted, 1 - confidence)
    return _guarantee(threshold, None, confidence, bound, errors, accepted, len(values))


_Candidates = tuple[Uncertainties, Integers, Integers]


def _curve(candidates: _Candidates, confidence: float, above: float) -> tuple[Guarantee, ...]:
    rows: list[Guarantee] = []
    for target in TARGETS:
        found = _loosest(candidates, target, confidence) if target > above else None
        if found is not None:
            rows.append(found)
        if len(rows) == _ROWS or (found is not None and found.coverage == 1):
            break
    return tuple(rows)


def _loosest(candidates: _Candidates, target: float, confidence: float) -> Guarantee | None:
    """The result of `find`; None if no threshold has a proof."""
    values, accepted, errors = candidates
    n = int(accepted[-1])
    if n < images_needed(target, confidence):
        return None
    starts = np.searchsorted(accepted, _starts(n, target, confidence)).tolist()
    parts, risk, best = 0, 0.0, -1
    for start, stop in pairwise([*starts, len(accepted)]):
        parts += 1
        level = (1 - confidence) * parts / len(starts)
        passed = _passed(errors[start:stop], accepted[start:stop], target, level)
        if passed:
            risk, best = level, start + passed - 1
        if passed < stop - start:
            parts = 0
    if best < 0:
        return None
    k, count = int(errors[best]), int(accepted[best])
    threshold = _below(values[best + 1]) if count < n else 1.0
    # The test and its inversion may differ in the last digit.
    return _guarantee(threshold, target, confidence, min(target, _upper_bound(k, count, risk)), k, count, n)


def _spelled(target: float, confidence: float) -> str:
    return f"an error of at most {target} with confidence {confidence}"


def _guarantee(
    threshold: float, target: float | None, confidence: float, bound: float, errors: int, accepted: int, images: int
) -> Guarantee:
    return Guarantee(
        threshold=threshold,
        target_error=target,
        confidence=confidence,
        error_bound=bound,
        error=errors / accepted if accepted else None,
        coverage=accepted / images,
        accepted=accepted,
        images=images,
    )


def _inputs(uncertainty: npt.ArrayLike, wrong: npt.ArrayLike) -> tuple[Uncertainties, Booleans]:
    remedy = "Give the uncertainty of each image, as a model predicts it."
    # float32 first: a model compares in float32, where uncertainties may be equal that differ in float64.
    values = vector("uncertainty", uncertainty, remedy).astype(np.float32)
    outside = ~((values >= 0) & (values <= 1))
    if outside.any():
        index = int(np.argmax(outside))
        raise UsageError(
            expected(f"uncertainty[{index}]", "between 0 and 1", float(values[index]), remedy), "argument.uncertainty"
        )
    remedy = "Give one boolean per uncertainty: predicted != labels."
    flags = array("wrong", wrong, "b", "booleans", remedy).astype(np.bool_)
    if flags.shape != values.shape:
        raise UsageError(expected("the shape of wrong", f"{values.shape}", flags.shape, remedy), "argument.wrong")
    return values, flags


def _candidates(values: Uncertainties, wrong: Booleans) -> tuple[Uncertainties, Integers, Integers]:
    """The sorted distinct uncertainties, with accepted images and errors at each."""
    distinct, place = np.unique(values, return_inverse=True)
    accepted = np.cumsum(np.bincount(place))
    errors = np.cumsum(np.bincount(place[wrong], minlength=len(distinct)))
    return distinct, accepted, errors


def _starts(images: int, target: float, confidence: float) -> list[int]:
    """The ranks at which tests start: `_ALLOWED` errors, and half of the images."""
    half = max(images // 2, images_needed(target, confidence))
    risk = (1 - confidence) / (len(_ALLOWED) + 1)
    allowing = (bisect_left(range(half), True, key=lambda k: _allows(k, errors, target, risk)) for errors in _ALLOWED)
    return [*(rank for rank in allowing if rank < half), half]


def _allows(images: int, errors: int, target: float, risk: float) -> bool:
    """Whether so many errors still prove the target."""
    return images > errors and _upper_bound(errors, images, risk) <= target


def _passed(errors: Integers, images: Integers, target: float, level: float) -> int:
    """Count the candidates that pass before the first that fails."""
    # Only an error can fail a test that its predecessor has passed.
    tested = np.flatnonzero(np.diff(errors, prepend=-1))
    # At the expected number of errors and above, the tail is at least one half.
    hopeless = np.flatnonzero(errors[tested] >= target * images[tested])
    failed = int(tested[hopeless[0]]) if hopeless.size else len(errors)
    tested = tested[tested < failed]
    rows = max(1, _BLOCK // _terms(int(images.max(initial=0)), target))
    for first in range(0, len(tested), rows):
        block = tested[first : first + rows]
        tail, _ = _log_tail(errors[block], images[block], math.log1p(-target))
        above = np.flatnonzero(tail > math.log(level))
        if above.size:
            return int(block[above[0]])
    return failed


def _upper_bound(errors: int, images: int, risk: float) -> float:
    if errors == images:
        return 1.0
    k, n = np.array([errors]), np.array([images])
    # Newton in y = log(1 - rate), in which the log of the tail is concave and rising: it converges from anywhere.
    y = math.log1p(-(errors + 1) / (images + 1))
    for _ in range(100):
        tail, terms = _log_tail(k, n, y)
        step = float((tail[0] - math.log(risk)) * terms[0]) / (images - errors)
        y -= step
        if abs(step) <= 1e-13 * abs(y):
            break
    return -math.expm1(y)


def _log_tail(errors: Integers, images: Integers, log_right: float) -> tuple[Floats, Floats]:
    """The log of P(at most so many errors), and P over its last term.

    Each term of the sum is the one before times a ratio below 1, so that nothing cancels and nothing underflows.
    """
    rate, right = -math.expm1(log_right), math.exp(log_right)
    k, n = errors[:, None].astype(np.float64), images[:, None].astype(np.float64)
    down = np.arange(min(int(errors.max()), _terms(int(images.max()), rate)))
    ratios = (k - down) * right / ((n - k + 1 + down) * rate)
    sums: Floats = 1 + np.cumprod(ratios, axis=1).sum(axis=1)
    ways = _log_factorial(images) - _log_factorial(errors) - _log_factorial(images - errors)
    return ways + errors * math.log(rate) + (images - errors) * log_right + np.log(sums), sums


def _terms(images: int, rate: float) -> int:
    """The number of terms above exp(-40): term j is below exp(-j (j - 1) / (2 n rate))."""
    return int(9 * math.sqrt(images * rate)) + 10


def _log_factorial(numbers: Integers) -> Floats:
    return np.array([math.lgamma(number + 1) for number in numbers.tolist()])


def _below(value: np.float32) -> float:
    """The last float32 below a value, in its shortest decimal form."""
    return float(str(np.nextafter(value, np.float32(0))))


def _target(value: float) -> float:
    return _between("target_error", value, 0, 1, "For example 0.01: one wrong answer in a hundred.")


def _confidence(value: float) -> float:
    return _between("confidence", value, 0.5, 1, "For example: 0.95")


def _between(name: str, value: object, low: float, high: float, remedy: str, *, ends: bool = False) -> float:
    number = float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan
    if not (low < number < high or (ends and number in (low, high))):  # also catches NaN
        rule = f"{'between' if ends else 'strictly between'} {low} and {high}"
        raise UsageError(expected(name, rule, value, remedy))
    return number

"""Argument checks and array types of all metrics."""

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.generic]


def array(name: str, value: npt.ArrayLike, kinds: str, rule: str, remedy: str) -> Numbers:
    """Convert to an array whose dtype is one of these kinds."""
    try:
        result = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise UsageError(expected(name, "a rectangular array", type(value).__name__, remedy)) from error
    if result.dtype.kind not in kinds:
        raise UsageError(expected(name, f"an array of {rule}", str(result.dtype), remedy))
    return result


def vector(name: str, value: npt.ArrayLike, remedy: str, length: int | None = None) -> Floats:
    """Convert to a vector of at least one number, without NaN."""
    result = array(name, value, "biuf", "real numbers", remedy).astype(np.float64, copy=False)
    if result.ndim != 1 or not result.size or length not in (None, result.size):
        rule = "(number,) with at least one number" if length is None else f"({length},)"
        raise UsageError(expected(f"the shape of {name}", rule, result.shape, remedy), f"argument.{name}")
    unknown = np.isnan(result)
    if unknown.any():
        raise UsageError(
            expected(f"{name}[{int(np.argmax(unknown))}]", "a number", float("nan"), remedy), f"argument.{name}"
        )
    return result


def whole(name: str, value: object, least: int, remedy: str) -> int:
    """Check an integer of at least `least`; refuse booleans."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(expected(name, f"an integer of at least {least}", value, remedy))
    return int(value)


def bin_count(bins: object) -> int:
    """Check the number of bins."""
    return whole("bins", bins, 1, "15 is the usual choice.")


def choice(name: str, value: object, options: tuple[str, ...], remedy: str) -> None:
    """Refuse a word that is not among the options."""
    if not (isinstance(value, str) and value in options):
        raise UsageError(expected(name, f"one of {', '.join(options)}", value, remedy))

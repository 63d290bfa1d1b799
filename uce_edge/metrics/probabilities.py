"""A table of probabilities, checked and reduced once, in blocks of rows."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import Floats, Integers, Numbers, array

BLOCK_ELEMENTS = 2**18  # 2 MiB of float64: one block and its temporaries stay near the processor
SUM_TOLERANCE = 1e-3  # passes a float16 softmax, refuses logits
SOFTMAX = "If these are logits, pass their softmax."


class Probabilities:
    """A table (images, classes) that several metrics share.

    Every metric accepts one instead of an array. It checks the array once, and computes the top class and the entropy
    once. The array must not change meanwhile.
    """

    def __init__(self, probabilities: npt.ArrayLike) -> None:
        self._table = _table(probabilities)
        self._sound = False

    @classmethod
    def of(cls, probabilities: npt.ArrayLike) -> "Probabilities":
        """Convert probabilities to a table; return a table unchanged."""
        return probabilities if isinstance(probabilities, Probabilities) else cls(probabilities)

    def __len__(self) -> int:
        return len(self._table)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Numbers:
        values = np.asarray(self._read(slice(None)), dtype=dtype)
        return values.copy() if copy else values  # numpy 1 knows no copy=None

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self._table.shape[1])

    @property
    def predicted(self) -> Integers:
        """The most probable class of each image; the first wins a tie."""
        return self._top[0]

    @property
    def confidence(self) -> Floats:
        """The probability of that class."""
        return self._top[1]

    @cached_property
    def uncertainty(self) -> Floats:
        """The normalised entropy H of each image."""
        result = np.empty(len(self))
        for rows, block in self.blocks():
            result[rows] = _entropy(block)
        return result

    @cached_property
    def _top(self) -> tuple[Integers, Floats]:
        predicted, confidence = np.empty(len(self), dtype=np.int64), np.empty(len(self))
        for rows, block in self.blocks():
            predicted[rows] = block.argmax(axis=1)
            confidence[rows] = np.minimum(block[np.arange(len(block)), predicted[rows]], 1.0)
        return predicted, confidence

    def blocks(self, size: int | None = None) -> Iterator[tuple[slice, Floats]]:
        """The rows in checked float64 blocks, each with its slice."""
        step = size or max(1, BLOCK_ELEMENTS // self.classes)
        for start in range(0, len(self), step):
            rows = slice(start, min(start + step, len(self)))
            block = np.asarray(self._read(rows), dtype=np.float64)
            if not self._sound:
                _check(block, start)
            yield rows, block
        self._sound = True

    def take(self, rows: Integers) -> "Probabilities":
        """Select images, in any order and with repeats; reuse computed values."""
        if not self._sound:  # an error must name the row in this table
            for _ in self.blocks():
                pass
        return _Taken(self, rows)

    def _read(self, rows: slice | Integers) -> Numbers:
        return self._table[rows]


class _Taken(Probabilities):
    def __init__(self, origin: Probabilities, rows: Integers) -> None:
        self._origin, self._rows = origin, rows
        self._table, self._sound = origin._table, True

    def __len__(self) -> int:
        return len(self._rows)

    def _read(self, rows: slice | Integers) -> Numbers:
        return self._origin._read(self._rows[rows])

    @cached_property
    def _top(self) -> tuple[Integers, Floats]:
        return self._origin.predicted[self._rows], self._origin.confidence[self._rows]

    @cached_property
    def uncertainty(self) -> Floats:
        return self._origin.uncertainty[self._rows]


def normalized_entropy(probabilities: npt.ArrayLike) -> Floats:
    """The uncertainty H in [0, 1]: entropy / log(classes).

    Example:
        >>> normalized_entropy([[0.5, 0.5], [1.0, 0.0]]).tolist()
        [1.0, 0.0]
    """
    table = array("probabilities", probabilities, "biuf", "real numbers", REMEDY)
    rows = table.reshape(-1, table.shape[-1]) if table.ndim and table.size else table
    return Probabilities(rows).uncertainty.reshape(table.shape[:-1])


def inputs(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Probabilities, Integers]:
    """Check shapes and labels, before the pass over the probabilities."""
    table, remedy = Probabilities.of(probabilities), "Give the true class of each image as an index."
    truth = array("labels", labels, "iu", "integers", remedy).astype(np.int64, copy=False)
    if truth.shape != (len(table),):
        raise UsageError(expected("the shape of labels", f"({len(table)},)", truth.shape, remedy), "argument.labels")
    outside = (truth < 0) | (truth >= table.classes)
    if outside.any():
        at = int(np.argmax(outside))
        rule = f"from 0 to {table.classes - 1}"
        raise UsageError(expected(f"labels[{at}]", rule, int(truth[at]), remedy), "argument.labels")
    return table, truth


REMEDY = "Give one row per image; a binary classifier gives [1 - p, p]."


def _table(probabilities: npt.ArrayLike) -> Numbers:
    table = array("probabilities", probabilities, "biuf", "real numbers", REMEDY)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2:
        rule = "(images, classes) with at least one image and two classes"
        raise UsageError(expected("the shape of probabilities", rule, table.shape, REMEDY), "argument.probabilities")
    return table


def _entropy(block: Floats) -> Floats:
    # The floor only touches terms that are 0 or vanish beside the others: 0 log 0 counts as 0.
    logs = np.maximum(block, np.finfo(np.float64).tiny)
    np.log(logs, out=logs)  # one temporary less: more of them make the heap shrink and grow with every block
    nats = np.einsum("ij,ij->i", block, logs)
    entropy: Floats = np.clip(0.0 - nats / np.log(block.shape[1]), 0.0, 1.0)
    return entropy


def _check(block: Floats, start: int) -> None:
    """Refuse rows that are not probabilities; name the first."""
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf fail the comparison below
        sums = block.sum(axis=1)
        if block.min() >= 0 and (np.abs(sums - 1) <= SUM_TOLERANCE).all():
            return
    for bad, rule, remedy in (
        (~np.isfinite(block), "finite", "Look for an overflow in the model or its softmax."),
        (block < 0, "at least 0", SOFTMAX),
    ):
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            name = f"probabilities[{start + row}, {column}]"
            raise UsageError(expected(name, rule, float(block[row, column]), remedy), "argument.probabilities")
    row = int(np.argmax(np.abs(sums - 1) > SUM_TOLERANCE))
    name = f"the sum of probabilities[{start + row}]"
    raise UsageError(expected(name, f"1 within {SUM_TOLERANCE}", float(sums[row]), SOFTMAX), "argument.probabilities")

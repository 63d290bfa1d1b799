"""The likelihood of averaged predictions and its derivatives.

The negative log-likelihood (NLL) is that of the *averaged* prediction, which is the output of the model file:
-(logsumexp_i log_softmax(R(z_i))[y] - log N). Its derivative by R(z_i) is w_i (softmax(R(z_i)) - onehot(y)), where w is
the softmax of log_softmax(R(z_i))[y] over the passes i.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from uce_edge._util.prefetch import cores
from uce_edge.calibration.logits import Block, Logits
from uce_edge.errors import UsageError, expected
from uce_edge.metrics.argument_checks import Booleans, Floats, Integers, array

_TILE = 2**16  # numbers, 512 kB in float64: a tile and its temporaries stay in or near the processor's cache
_THREADS = min(8, cores())  # numpy computes outside the interpreter's lock

Result = TypeVar("Result")


class Labelled:
    """Checked logits and labels, read in blocks."""

    def __init__(self, logits: Logits, labels: npt.ArrayLike) -> None:
        remedy = "Check the data file"
        truth = array("`labels`", labels, "iu", "integers", remedy).astype(np.int64)
        if truth.shape != (logits.images,):
            raise UsageError(expected("`labels`", f"one per image ({logits.images})", truth.shape, remedy))
        outside = truth[(truth < 0) | (truth >= logits.classes)]
        if len(outside):
            rule = f"between 0 and {logits.classes - 1}"
            raise UsageError(expected("`labels`", rule, int(outside[0]), "Labels count from 0; check the data file"))
        if not all(np.isfinite(block).all() for block in logits):
            raise UsageError(
                "The logits hold NaN or infinity: the model is broken. Train it again with a smaller learning rate.",
                "model.not-finite",
            )
        self._logits, self._labels = logits, truth
        self.images, self.classes = logits.images, logits.classes

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._logits)

    def blocks(self, chosen: Booleans | None = None) -> Iterator[tuple[Block, Integers]]:
        """The blocks with their labels; optionally of the chosen images only."""
        start = 0
        for block in self._logits:
            here = slice(start, start + block.shape[1])
            start = here.stop
            if chosen is None:
                yield block, self._labels[here]
            elif chosen[here].any():
                yield block[:, chosen[here]], self._labels[here][chosen[here]]


def over_tiles(work: Callable[[Block, Integers], Result], blocks: Iterable[tuple[Block, Integers]]) -> Iterator[Result]:
    """Map `work` over all tiles, in order, in threads.

    The order makes sums independent of the number of threads. Threads share the tiles of one block, so memory does not
    grow with the number of blocks.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        for block, labels in blocks:
            here = list(tiles(block))
            spread = pool.map if len(here) > 1 else map
            yield from spread(work, (block[:, part] for part in here), (labels[part] for part in here))


def tiles(block: Block) -> Iterator[slice]:
    """The images of each tile of a block."""
    samples, images, classes = block.shape
    step = max(1, _TILE // (samples * classes))
    for start in range(0, images, step):
        yield slice(start, start + step)


def class_first(logits: Block) -> Floats:
    """Logits as float64 [classes, samples, images], which makes sums fast."""
    return np.ascontiguousarray(np.moveaxis(logits, -1, 0), np.float64)


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of the true classes under averaged predictions."""

    exponentials: Floats
    """The softmax of every pass times its total, [classes, samples, images]."""
    totals: Floats
    """[samples, images]."""
    weights: Floats
    """The share of each pass in the probability of the true class, [samples, images]: w in the derivative."""
    nll: Floats
    """Of each image."""

    @classmethod
    def of(cls, mapped: Floats, labels: Integers) -> "Likelihood":
        """From mapped logits [classes, samples, images], which are overwritten."""
        log_true = true_class(mapped, labels)
        largest, totals = _exponentiate(mapped)
        log_true -= largest + np.log(totals)
        best = log_true.max(axis=0)
        weights = np.exp(log_true - best)
        total = weights.sum(axis=0)
        return cls(mapped, totals, weights / total, math.log(len(weights)) - best - np.log(total))

    def probabilities(self) -> Floats:
        """The averaged prediction [images, classes]."""
        return _average(self.exponentials, self.totals)

    def derivative(self, labels: Integers) -> Floats:
        """The derivative of the summed NLL by the mapped logits.

        Its shape is [classes, samples, images]. It overwrites the exponentials.
        """
        derivative = np.multiply(self.exponentials, self.weights / self.totals, out=self.exponentials)
        derivative[labels, :, np.arange(len(labels))] -= self.weights.T
        return derivative


def averaged_softmax(mapped: Floats) -> Floats:
    """The averaged prediction [images, classes]; overwrites the mapped logits."""
    _, totals = _exponentiate(mapped)
    return _average(mapped, totals)


def true_class(values: Floats, labels: Integers) -> Floats:
    """The entries of the true classes, [samples, images] of [classes, samples, images]."""
    return np.ascontiguousarray(values[labels, :, np.arange(len(labels))].T)


def _exponentiate(mapped: Floats) -> tuple[Floats, Floats]:
    """Replace logits by exp(logit - largest of its pass); return largest and totals."""
    largest: Floats = mapped.max(axis=0)
    mapped -= largest
    np.exp(mapped, out=mapped)
    return largest, mapped.sum(axis=0)


def _average(exponentials: Floats, totals: Floats) -> Floats:
    average: Floats = np.einsum("csi,si->ic", exponentials, 1 / (totals * len(totals)))
    return average

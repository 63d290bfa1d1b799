"""The noise of a Monte Carlo pass: standard normals that depend on (seed, layer, position) alone.

A constant table holds `ROWS` rows of `WIDTH` normals. A layer's noise in one pass is a sequence of rows; the
row of block k (k = 1, 2, ...) is

    row(k) = (a + b*k + c*k^2) mod ROWS,    ROWS prime

with a, b, c hashed from the pass's seed and the layer's lane. Over random (a, b, c) any three rows of a lane are
independent and uniform, and the table's columns have mean 0, variance 1 and no correlation. So the noise has
exactly the first two moments of white noise within a lane, whatever the table; between lanes, layers and
passes it has them as far as the hash is good, which the tests measure.

The hash is a Feistel network in float32 on integers below 2^24. Every intermediate value is an exact integer or
dyadic fraction, so all runtimes, with or without fused multiply-add, compute the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.contract import SEED_SPACE
from uce_edge_export.builder import Builder

ROWS = 1021
WIDTH = 256
ROUNDS = 6
HALF = 4096  # a seed is two 12-bit halves

_TABLE_SEED = 2020
_KEY_SEED = 713

FloatArray = npt.NDArray[np.float32]


@cache
def table() -> FloatArray:
    """The [ROWS, WIDTH] table: Gaussian marginals, and exactly zero mean and unit covariance of its columns."""
    rng = np.random.default_rng(_TABLE_SEED)
    values = rng.standard_normal((ROWS, WIDTH))
    quantiles = _normal_quantiles(ROWS)
    for _ in range(6):  # alternate: exact marginals, then exact covariance; both hold to 1e-3 after a few turns
        ranks = values.argsort(axis=0).argsort(axis=0)
        values = quantiles[ranks]
        covariance = values.T @ values / ROWS
        eigenvalues, vectors = np.linalg.eigh(covariance)
        values = values @ (vectors / np.sqrt(eigenvalues)) @ vectors.T
        values -= values.mean(axis=0)
    return values.astype(np.float32)


def _normal_quantiles(count: int) -> npt.NDArray[np.float64]:
    from statistics import NormalDist

    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])


@dataclass(frozen=True)
class Plan:
    """Which lane and block every row of a model's noise belongs to.

    A layer of `size` outputs takes ceil(size / WIDTH) rows. A lane holds at most ROWS - 1 rows, so that the
    polynomial never repeats; larger layers take several lanes.
    """

    sizes: tuple[int, ...]

    @property
    def blocks(self) -> list[int]:
        """Rows per layer."""
        return [-(-size // WIDTH) for size in self.sizes]

    def lanes(self) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """For every row of the model, in layer order: its lane, and its k within the lane."""
        lane_of, k_of = [], []
        lane = 0
        for blocks in self.blocks:
            for start in range(0, blocks, ROWS - 1):
                count = min(ROWS - 1, blocks - start)
                lane_of.append(np.full(count, lane))
                k_of.append(np.arange(1, count + 1))
                lane += 1
        return np.concatenate(lane_of), np.concatenate(k_of).astype(np.float32)

    @property
    def lane_count(self) -> int:
        """Number of lanes of the whole model."""
        return sum(-(-blocks // (ROWS - 1)) for blocks in self.blocks)


def keys(lanes: int) -> FloatArray:
    """Round keys [ROUNDS, 2 * lanes], integers below 2^12.

    Every lane has two independent networks (a lane needs three words, a network gives two). The keys of a lane
    do not depend on how many lanes there are.
    """
    # Column by column from one stream: network i is [i] of a longer draw too.
    drawn = np.random.Generator(np.random.Philox(_KEY_SEED)).integers(0, HALF, (2 * lanes, ROUNDS))
    return drawn.T.astype(np.float32)


def rows(seeds: npt.NDArray[np.int64] | range, plan: Plan) -> npt.NDArray[np.int64]:
    """The table rows [len(seeds), all blocks] of some passes: the reference the graph is checked against."""
    lanes = plan.lane_count
    key = keys(lanes)
    seed = (np.asarray(seeds, np.int64) % SEED_SPACE).astype(np.float32)[:, None]
    left = np.floor(seed / np.float32(HALF))
    right = seed - left * np.float32(HALF)
    for r in range(ROUNDS):
        mixed = left + np.floor(right * right * np.float32(1 / 64)) + key[r]
        left, right = right, mixed - np.floor(mixed * np.float32(1 / HALF)) * np.float32(HALF)
    words = [_modulo(word) for word in (left[:, 0::2], right[:, 0::2], left[:, 1::2])]
    lane_of, k = plan.lanes()
    a, b, c = (word[:, lane_of] for word in words)
    return _modulo(a + b * k + c * _square(k)).astype(np.int64)


def _modulo(x: FloatArray) -> FloatArray:
    """X mod ROWS. The half keeps the quotient several ulp away from an integer: sloppy division is safe too."""
    quotient: FloatArray = np.floor((x + np.float32(0.5)) * np.float32(1 / ROWS))
    return x - quotient * np.float32(ROWS)


def _square(k: FloatArray) -> FloatArray:
    """k^2 mod ROWS, so that a + b*k + c*k^2 stays below 2^24."""
    return (k.astype(np.int64) ** 2 % ROWS).astype(np.float32)


def layer_noise(seeds: npt.NDArray[np.int64] | range, plan: Plan) -> list[FloatArray]:
    """The noise of every layer, [len(seeds), size] each, by plain indexing."""
    index = rows(seeds, plan)
    result = []
    start = 0
    for size, blocks in zip(plan.sizes, plan.blocks, strict=True):
        values = table()[index[:, start : start + blocks]]
        result.append(values.reshape(len(index), -1)[:, :size])
        start += blocks
    return result


def emit(
    g: Builder, seeds: ir.Value, batch: ir.Value, plan: Plan, repeated: Sequence[bool] | None = None
) -> list[ir.Value]:
    """The same computation as nodes of a graph.

    Args:
        g: Where the nodes go.
        seeds: int32 [samples].
        batch: int64 [1], the number of images.
        plan: The layers' sizes.
        repeated: Whether each layer gets its noise for every image; None for all.

    Returns:
        Per layer the noise [samples * batch, size], equal for all images of a pass; passes are the outer index. What is
        not repeated is [samples, size].
    """
    lanes = plan.lane_count
    key = keys(lanes)
    seed = g.Cast(g.Mod(seeds, g.constant(np.int32(SEED_SPACE))), to=ir.DataType.FLOAT)
    seed = g.Unsqueeze(seed, g.constant(np.array([1])))
    left = g.Floor(g.Mul(seed, g.constant(np.float32(1 / HALF))))
    right = g.Sub(seed, g.Mul(left, g.constant(np.float32(HALF))))
    for r in range(ROUNDS):
        squared = g.Floor(g.Mul(g.Mul(right, right), g.constant(np.float32(1 / 64))))
        mixed = g.Add(g.Add(left, squared), g.constant(key[r : r + 1]))
        quotient = g.Floor(g.Mul(mixed, g.constant(np.float32(1 / HALF))))
        left, right = right, g.Sub(mixed, g.Mul(quotient, g.constant(np.float32(HALF))))
    # One network gives two words; a lane takes both of its first and one of its second. Passes are the last index
    # here, because a Gather of whole rows is ten times faster than one of single elements.
    words = g.Transpose(_emit_modulo(g, g.Concat(left, right, axis=1)), perm=[1, 0])
    lane_of, k = plan.lanes()
    first, second = 2 * lane_of, 2 * lane_of + 1
    a, b, c = (g.Gather(words, g.constant(word), axis=0) for word in (first, 2 * lanes + first, second))
    polynomial = g.Add(a, g.Add(g.Mul(b, g.constant(k[:, None])), g.Mul(c, g.constant(_square(k)[:, None]))))
    index = g.Cast(g.Transpose(_emit_modulo(g, polynomial), perm=[1, 0]), to=ir.DataType.INT32)
    parts = _index_parts(g, index, batch, plan, repeated)
    normals = g.constant(table(), "noise.table")
    result = []
    for size, blocks, part in zip(plan.sizes, plan.blocks, parts, strict=True):
        values = g.Reshape(g.Gather(normals, part, axis=0), g.constant(np.array([-1, blocks * WIDTH])))
        if blocks * WIDTH != size:
            start, stop, axis = (g.constant(np.array([bound])) for bound in (0, size, 1))
            values = g.Slice(values, start, stop, axis)
        result.append(values)
    return result


def _index_parts(
    g: Builder, index: ir.Value, batch: ir.Value, plan: Plan, repeated: Sequence[bool] | None
) -> list[ir.Value]:
    """The rows of every layer, for every image or once."""
    alike = repeated is None or all(repeated)
    whole = emit_repeat(g, index, batch, sum(plan.blocks)) if alike else index
    parts = g.split(whole, plan.blocks, axis=1)
    if alike or repeated is None:
        return parts
    each = zip(parts, plan.blocks, repeated, strict=True)
    return [emit_repeat(g, part, batch, blocks) if many else part for part, blocks, many in each]


def emit_repeat(g: Builder, values: ir.Value, batch: ir.Value, width: int) -> ir.Value:
    """[samples, width] -> [samples * batch, width]: the images of a pass share its noise."""
    one = g.constant(np.array([1]))
    repeated = g.Expand(g.Unsqueeze(values, one), g.Concat(one, batch, one, axis=0))
    return g.Reshape(repeated, g.constant(np.array([-1, width])))


def _emit_modulo(g: Builder, x: ir.Value) -> ir.Value:
    quotient = g.Floor(g.Mul(g.Add(x, g.constant(np.float32(0.5))), g.constant(np.float32(1 / ROWS))))
    return g.Sub(x, g.Mul(quotient, g.constant(np.float32(ROWS))))

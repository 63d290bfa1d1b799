"""Table noise: standard normals by seed, layer and position.

A constant table holds `ROWS` rows of `WIDTH` normals, and a pass is a sequence of rows: block b of a model's noise is
`WIDTH` of its values. Four blocks share a Feistel network on the seed, with keys of its own. It gives two numbers u and
v below `ROWS`, and

    row(4 i + j) = (u_i + j v_i) mod ROWS,    j = 0, 1, 2, 3

Over all seeds (u, v) takes every pair of values once, so every row of a block is equally frequent, and neighbouring
blocks have independent rows. Any two columns of the table are independent in `LEVELS` x `LEVELS` cells, because it is
made from an orthogonal array, and have no correlation at all. So the noise has the first two moments of white noise
wherever one network reaches; between networks, layers and passes as far as the hash is good, which the tests measure.

The hash computes in int32, which no engine lowers to half precision: a float16 number has 11 bits, and the hash needs
24. All values are below 2^24 and are not negative, so a runtime that divides integers as float32 gets the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.contract import SEED_SPACE
from uce_edge_export.graph.builder import Builder

LEVELS = 64
ROWS = LEVELS**2
WIDTH = 64
ROUNDS = 7
"""Six leave a trace between consecutive passes."""
STEPS = 4
"""Blocks that share a network."""

_TABLE_SEED = 2020
_KEY_SEED = 713
_LOW_DIGITS = 64  # x^2 divided by this begins with the middle digits of x^2
_FIELD = 0b1000011  # x^6 + x + 1, irreducible over two elements: the field of 64 elements

FloatArray = npt.NDArray[np.float32]


@cache
def table() -> FloatArray:
    """The [ROWS, WIDTH] table of uncorrelated Gaussian columns.

    Row (u, v) of the orthogonal array has the level u + c v in column c, over the field of `LEVELS` elements: two
    columns have every pair of levels once. A permutation of each column's levels takes the pattern out of whole rows.
    The quantiles of a level are dealt at random to the rows that have it.
    """
    rng = np.random.default_rng(_TABLE_SEED)
    u, v = np.divmod(rng.permutation(ROWS), LEVELS)
    levels = u[:, None] ^ _products()[v, :WIDTH]
    levels = np.stack([rng.permutation(LEVELS)[column] for column in levels.T], axis=1)
    ranks = (levels + rng.random(levels.shape)).argsort(axis=0).argsort(axis=0)
    values = _normal_quantiles(ROWS)[ranks]
    eigenvalues, vectors = np.linalg.eigh(values.T @ values / ROWS)
    values = values @ (vectors / np.sqrt(eigenvalues)) @ vectors.T
    values -= values.mean(axis=0)
    normals: FloatArray = values.astype(np.float32)
    return normals


def _products() -> npt.NDArray[np.int64]:
    """All products in the field of `LEVELS` elements."""
    a, b = np.ogrid[:LEVELS, :LEVELS]
    product = np.zeros((LEVELS, LEVELS), np.int64)
    for bit in range(6):
        product ^= np.where((b >> bit) & 1, a << bit, 0)
    for bit in range(10, 5, -1):
        product = np.where((product >> bit) & 1, product ^ (_FIELD << (bit - 6)), product)
    return product


def _normal_quantiles(count: int) -> npt.NDArray[np.float64]:
    from statistics import NormalDist

    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])


@dataclass(frozen=True)
class Plan:
    """How many rows of the table every layer takes."""

    sizes: tuple[int, ...]
    """Values of noise per layer."""

    @property
    def blocks(self) -> list[int]:
        """Rows per layer."""
        return [-(-size // WIDTH) for size in self.sizes]

    @property
    def networks(self) -> int:
        """Number of Feistel networks of the whole model."""
        return -(-sum(self.blocks) // STEPS)


def keys(networks: int) -> npt.NDArray[np.int32]:
    """Round keys [ROUNDS, networks], below ROWS."""
    drawn = np.random.Generator(np.random.Philox(_KEY_SEED)).integers(0, ROWS, (networks, ROUNDS))
    return np.ascontiguousarray(drawn.T, np.int32)


def rows(seeds: npt.NDArray[np.int64] | range, plan: Plan) -> npt.NDArray[np.int64]:
    """Table rows [len(seeds), blocks] of some passes, in integers."""
    key = keys(plan.networks).astype(np.int64)
    left, right = np.divmod(np.asarray(seeds, np.int64)[:, None] % SEED_SPACE, ROWS)
    for r in range(ROUNDS):
        left, right = right, (left + right * right // _LOW_DIGITS + key[r]) % ROWS
    index = (left[..., None] + np.arange(STEPS) * right[..., None]) % ROWS
    return index.reshape(len(index), -1)[:, : sum(plan.blocks)]


def layer_noise(seeds: npt.NDArray[np.int64] | range, plan: Plan) -> list[FloatArray]:
    """The noise of every layer, [len(seeds), size], by indexing."""
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
    parts = _index_parts(g, _emit_rows(g, seeds, plan), batch, plan, repeated)
    normals = g.constant(table(), "noise.table")
    result = []
    for size, blocks, part in zip(plan.sizes, plan.blocks, parts, strict=True):
        values = g.Reshape(g.Gather(normals, part, axis=0), g.constant(np.array([-1, blocks * WIDTH])))
        result.append(values if blocks * WIDTH == size else _first(g, values, size))
    return result


def _emit_rows(g: Builder, seeds: ir.Value, plan: Plan) -> ir.Value:
    """The rows of all blocks, int32 [samples, blocks]."""
    key, rows, low = keys(plan.networks), g.constant(np.int32(ROWS)), g.constant(np.int32(_LOW_DIGITS))

    def divided(x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Quotient and remainder of a division by `ROWS`; Mod is slower."""
        quotient = g.Div(x, rows)
        return quotient, g.Sub(x, g.Mul(quotient, rows))

    seed = g.Mod(seeds, g.constant(np.int32(SEED_SPACE)))
    left, right = divided(g.Unsqueeze(seed, g.constant(np.array([1]))))
    for r in range(ROUNDS):
        middle = g.Div(g.Mul(right, right), low)
        _, mixed = divided(g.Add(g.Add(left, middle), g.constant(key[r : r + 1])))
        left, right = right, mixed
    # The steps come before the networks, then change places: ONNX Runtime is slow where the last dimension is short.
    inner = g.constant(np.array([1]))
    steps = g.Mul(g.Unsqueeze(right, inner), g.constant(np.arange(STEPS, dtype=np.int32)[:, None]))
    _, index = divided(g.Add(g.Unsqueeze(left, inner), steps))
    index = g.Transpose(index, perm=[0, 2, 1])
    index = g.Reshape(index, g.constant(np.array([-1, STEPS * plan.networks])))
    blocks = sum(plan.blocks)
    return index if blocks == STEPS * plan.networks else _first(g, index, blocks)


def _first(g: Builder, values: ir.Value, count: int) -> ir.Value:
    """The first columns."""
    start, stop, axis = (g.constant(np.array([bound])) for bound in (0, count, 1))
    return g.Slice(values, start, stop, axis)


def _index_parts(
    g: Builder, index: ir.Value, batch: ir.Value, plan: Plan, repeated: Sequence[bool] | None
) -> list[ir.Value]:
    """The rows of every layer, for every image or once."""
    if repeated is None or all(repeated):
        return g.split(emit_repeat(g, index, batch, sum(plan.blocks)), plan.blocks, axis=1)
    parts = g.split(index, plan.blocks, axis=1)
    chosen = [number for number, many in enumerate(repeated) if many]
    if chosen:
        sizes = [plan.blocks[number] for number in chosen]
        joined = g.Concat(*(parts[number] for number in chosen), axis=1) if len(chosen) > 1 else parts[chosen[0]]
        for number, part in zip(chosen, g.split(emit_repeat(g, joined, batch, sum(sizes)), sizes, axis=1), strict=True):
            parts[number] = part
    return parts


def emit_repeat(g: Builder, values: ir.Value, batch: ir.Value, width: int) -> ir.Value:
    """Repeat [samples, width] for the images of a batch."""
    one = g.constant(np.array([1]))
    repeated = g.Expand(g.Unsqueeze(values, one), g.Concat(one, batch, one, axis=0))
    return g.Reshape(repeated, g.constant(np.array([-1, width])))

"""The noise table and its hash: the graph equals the reference, and the noise is white."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.node_evaluator import evaluate
from uce_edge_export.noise import noise_table
from uce_edge_export.noise.perturbations.bernoulli import threshold

PLAN = noise_table.Plan((10, 64, 700, 64 * 4096 + 5))  # smaller than a row, one row, several, more than there are


def run_graph(
    plan: noise_table.Plan, seeds: np.ndarray, batch: int, repeated: list[bool] | None = None
) -> list[np.ndarray]:
    g = Builder()
    inputs = [ir.val("seeds", ir.DataType.INT32, ("samples",)), ir.val("batch", ir.DataType.INT64, (1,))]
    outputs = noise_table.emit(g, *inputs, plan, repeated)
    for value in outputs:
        value.dtype = ir.DataType.FLOAT
    graph = ir.Graph(inputs, outputs, nodes=g.nodes, initializers=g.initializers, opset_imports={"": 18}, name="n")
    model = ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"seeds": seeds.astype(np.int32), "batch": np.array([batch])})


def test_the_graph_draws_exactly_the_reference_noise() -> None:
    seeds = np.array([0, 1, 4095, 4096, 2**24 - 1])
    for ours, reference in zip(run_graph(PLAN, seeds, 1), noise_table.layer_noise(seeds, PLAN), strict=True):
        assert np.array_equal(ours, reference)


def test_seeds_count_modulo_2_to_the_24() -> None:
    seeds = np.array([2**24 + 5, -3])
    for ours, reference in zip(
        run_graph(PLAN, seeds, 1), noise_table.layer_noise(np.array([5, 2**24 - 3]), PLAN), strict=True
    ):
        assert np.array_equal(ours, reference)


def test_all_images_of_a_pass_share_their_noise() -> None:
    seeds = np.array([3, 9])
    for many, one in zip(run_graph(PLAN, seeds, 3), run_graph(PLAN, seeds, 1), strict=True):
        assert np.array_equal(many, np.repeat(one, 3, axis=0))


@pytest.mark.parametrize(
    "repeated",
    [[False, True, True, True], [True, False, False, True], [False, False, False, True], [False] * 4, [True] * 4],
)
def test_some_noise_comes_once_a_pass(repeated: list[bool]) -> None:
    seeds = np.array([3, 9])
    one = run_graph(PLAN, seeds, 1)
    for many, alone, found in zip(repeated, one, run_graph(PLAN, seeds, 3, repeated), strict=True):
        assert np.array_equal(found, np.repeat(alone, 3, axis=0) if many else alone)


def test_a_layer_keeps_its_noise_when_layers_are_added_behind_it() -> None:
    longer = noise_table.Plan((*PLAN.sizes, 99))
    for short, long in zip(
        noise_table.layer_noise(range(4), PLAN), noise_table.layer_noise(range(4), longer), strict=False
    ):
        assert np.array_equal(short, long)


def test_the_table_is_white_and_gaussian() -> None:
    table = noise_table.table().astype(np.float64)
    assert np.abs(table.mean(0)).max() < 1e-6
    assert np.abs(table.T @ table / len(table) - np.eye(noise_table.WIDTH)).max() < 1e-5
    assert np.abs((table**3).mean(0)).max() < 0.01
    assert np.abs((table**4).mean(0) - 3).max() < 0.05


@pytest.mark.parametrize("p", [0.05, 0.1, 0.2, 0.5])
def test_masks_of_one_block_are_as_good_as_independent(p: float) -> None:
    kept = (noise_table.table() > threshold(p)).astype(np.float64)
    assert np.abs(kept.mean(axis=0) - (1 - p)).max() < 0.003
    correlation = np.corrcoef(kept.T)[np.triu_indices(noise_table.WIDTH, 1)]
    assert np.sqrt((correlation**2).mean()) < 0.008  # 4096 random rows: 0.016


def test_rows_are_uniform_and_uncorrelated_between_seeds_and_blocks() -> None:
    passes, layers = 40000, 24
    rows = noise_table.rows(range(passes), noise_table.Plan((10,) * layers))
    expected = passes / noise_table.ROWS
    for block in rows.T:
        chi2 = ((np.bincount(block, minlength=noise_table.ROWS) - expected) ** 2 / expected).sum()
        assert abs(chi2 - noise_table.ROWS) < 5 * np.sqrt(2 * noise_table.ROWS)
    u = (rows - rows.mean(0)) / rows.std(0)
    between_blocks = u.T @ u / np.sqrt(passes)
    np.fill_diagonal(between_blocks, 0)
    assert np.abs(between_blocks).max() < 5  # 276 standard normal values
    for lag in (1, 2, 64, 4096):
        assert np.abs(u[lag:].T @ u[:-lag] / np.sqrt(passes - lag)).max() < 5.5  # 576 values each


def test_any_two_blocks_are_uncorrelated() -> None:
    passes, blocks = 3000, 40
    values = noise_table.layer_noise(range(passes), noise_table.Plan((blocks * noise_table.WIDTH,)))[0]
    for column in (
        0,
        100,
        noise_table.WIDTH - 1,
    ):  # the same column of different rows is where a short table would show
        block = values[:, column :: noise_table.WIDTH]
        correlation = block.T @ block / np.sqrt(passes)
        np.fill_diagonal(correlation, 0)
        assert np.abs(correlation).max() < 5


@pytest.mark.parametrize("group", [64, 4096])
def test_sums_over_a_large_layer_have_the_variance_of_independent_noise(group: int) -> None:
    passes = 500
    values = noise_table.layer_noise(range(passes), noise_table.Plan((65536,)))[0].astype(np.float64)
    sums = values.reshape(passes, -1, group).sum(-1) / np.sqrt(group)
    spread = sums.var(0).mean()
    assert abs(spread - 1) < 6 * np.sqrt(2 / passes)
    assert abs(sums.mean()) < 6 / np.sqrt(sums.size)


def test_sums_over_a_large_layer_have_the_tails_of_a_normal() -> None:
    """The same column of all blocks, with the same weight: what a row that comes back adds up in."""
    passes, size = 2000, 65536
    rows = noise_table.rows(range(passes), noise_table.Plan((size,)))
    table = noise_table.table().astype(np.float64)
    copies = np.stack([np.bincount(row, minlength=noise_table.ROWS) for row in rows])
    z = copies @ table / np.sqrt(size / noise_table.WIDTH)
    assert abs((z**4).mean() / (z**2).mean() ** 2 - 3) < 0.06  # at a quadratic index, rows come back mirrored: 0.30
    assert abs((np.abs(z) > 3).mean() - 0.0027) < 0.0006  # 0.0048
    assert abs((z**2).mean() - 1) < 0.02


def half(value: np.ndarray) -> np.ndarray:
    """What an engine computes with that lowers float32 to half precision."""
    return value.astype(np.float16).astype(np.float32) if value.dtype == np.float32 else value


def walk(g: Builder, given: dict[ir.Value, np.ndarray], change: Callable[[np.ndarray], np.ndarray]) -> dict:
    """The values of a graph, node by node; `change` is what an engine makes of each."""
    values = dict(given)
    for number, node in enumerate(g.nodes):
        for value in node.inputs:
            if value is not None and value not in values:
                assert value.const_value is not None
                values[value] = change(value.const_value.numpy())
        for value in node.outputs:
            value.name = value.name or f"value.{number}"
        computed = evaluate(node, [None if value is None else values[value] for value in node.inputs])
        values |= {value: change(np.asarray(one)) for value, one in zip(node.outputs, computed, strict=True)}
    return values


def rows_by_fractions(seeds: np.ndarray, plan: noise_table.Plan, kind: type) -> np.ndarray:
    """The rows as files up to version 0.3 compute them, in float32."""
    rows, key = kind(noise_table.ROWS), (noise_table.keys(plan.networks) / noise_table.ROWS).astype(kind)
    with np.errstate(all="ignore"):
        seed = (seeds.astype(kind) / rows)[:, None]
        left, right = np.floor(seed) / rows, seed - np.floor(seed)
        for r in range(noise_table.ROUNDS):
            mixed = left + np.floor(right * right * kind(2**18)) / rows + key[r : r + 1]
            left, right = right, mixed - np.floor(mixed)
        index = left[..., None] + np.arange(noise_table.STEPS, dtype=kind) * right[..., None]
        index = ((index - np.floor(index)) * rows).astype(np.float64)
    return index.reshape(len(seeds), -1)[:, : sum(plan.blocks)]


def test_rows_survive_an_engine_of_half_precision() -> None:
    seeds, plan = np.array([0, 1, 4095, 4096, 2**24 - 1]), noise_table.Plan((700, 64 * 300))
    expected = noise_table.rows(seeds, plan)
    assert np.array_equal(rows_by_fractions(seeds, plan, np.float32), expected)
    assert (rows_by_fractions(seeds, plan, np.float16) != expected).mean() > 0.9  # why fractions had to go
    g, value = Builder(), ir.val("seeds", ir.DataType.INT32, ("samples",))
    index = noise_table._emit_rows(g, value, plan)
    assert np.array_equal(walk(g, {value: seeds.astype(np.int32)}, half)[index], expected)


def test_no_value_of_the_hash_needs_more_than_24_bits() -> None:
    g, value = Builder(), ir.val("seeds", ir.DataType.INT32, ("samples",))
    noise_table._emit_rows(g, value, noise_table.Plan((64 * 4000,)))
    values = walk(g, {value: np.arange(2**24 - 64, 2**24, dtype=np.int32)}, lambda one: one)
    largest = max(int(np.abs(one).max()) for one in values.values())
    assert largest <= 2**24, "a runtime that divides integers as float32 would round"
    assert min(int(one.min()) for one in values.values()) >= -1  # -1 is a shape; runtimes divide negatives differently

"""Novelty inside a graph: features without noise, score and p-value as numpy has them, and nothing else moved."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from conftest import GOLDEN
from helpers.errors import raises
from helpers.nets import MEAN, STD, Net, export
from onnx import helper

from uce_edge import contract
from uce_edge.calibration import novelty
from uce_edge.calibration.novelty import NoveltyError
from uce_edge.contract import Inference, NoiseKind, Sigma
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Metadata
from uce_edge.rejection.promises import NoveltyGuarantee
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.model import Model
from uce_edge_export.graph import decision, novelty_score
from uce_edge_export.options import Expand, Options
from uce_edge_export.publish.draft import Draft
from uce_edge_export.transform.feature_extraction import emit_all_features, probe

FILES = [GOLDEN / f"digits-{kind}.onnx" for kind in ("minor-0", "moments")]


def save(model: ir.Model, metadata: Metadata, path: Path) -> Path:
    path.write_bytes(Draft.of(model, metadata).content())
    return path


@pytest.fixture(scope="module")
def calibration() -> Split:
    return splits.load("digits").splits["calibration"]


@pytest.fixture(scope="module")
def test_images() -> np.ndarray:
    return splits.load("digits").splits["test"].images[:40]


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def gated(request: pytest.FixtureRequest, calibration: Split, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """An old file, what was fitted, and the new file."""
    old = ir.load(request.param)
    fitted = novelty_score.fit(old, calibration)
    model, metadata = novelty_score.attach(old, Model(request.param, "cpu").metadata, fitted)
    return request.param, fitted, save(model, metadata, tmp_path_factory.mktemp("gated") / request.param.name)


def test_score_and_p_are_those_of_numpy(gated: tuple, test_images: np.ndarray) -> None:
    old, fitted, new = gated
    said = Model(new, "cpu").predict(test_images)
    exact = fitted.distances[0](probe(ir.load(old), test_images, emit_all_features)[0])
    np.testing.assert_allclose(said.novelty_score, exact, rtol=1e-5)
    np.testing.assert_array_equal(said.novelty, fitted.reference(said.novelty_score))
    assert said[0].novelty == pytest.approx(float(said.novelty[0]))
    assert said[0].novelty_score == pytest.approx(float(said.novelty_score[0]))


def test_a_subspace_in_the_graph_is_smaller_and_that_of_numpy(
    calibration: Split, test_images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, metadata = ir.load(FILES[0]), Model(FILES[0], "cpu").metadata
    full = save(*novelty_score.attach(old, metadata, novelty_score.fit(old, calibration)), tmp_path / "full.onnx")
    monkeypatch.setattr(novelty, "RANK", 16)
    fitted = novelty_score.fit(old, calibration)
    assert fitted.distances[0].whitening.shape == (64, 16)
    model, described = novelty_score.attach(old, metadata, fitted)
    new = save(model, described, tmp_path / "small.onnx")
    exact = fitted.distances[0](probe(old, test_images, emit_all_features)[0])
    np.testing.assert_allclose(Model(new, "cpu").predict(test_images).novelty_score, exact, rtol=1e-5)
    assert new.stat().st_size < full.stat().st_size - 4 * 64 * 64 + 2 * 16 * 64 + 3000
    _, detached = novelty_score.detach(model, described)
    assert detached.costs == metadata.costs


def test_every_other_answer_stays_to_the_bit(gated: tuple, test_images: np.ndarray) -> None:
    old, _, new = gated
    before, after = Model(old, "cpu"), Model(new, "cpu")
    assert np.array_equal(before.logits(test_images), after.logits(test_images))
    theirs, ours = before.predict(test_images), after.predict(test_images)
    for name in ("probabilities", "uncertainty", "model_uncertainty", "standard_error", "error_probability"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    assert theirs.novelty is None
    assert theirs[0].novelty is None


def test_the_file_says_what_it_has_and_what_it_costs(gated: tuple) -> None:
    old, fitted, new = gated
    proto = onnx.load(new)
    onnx.checker.check_model(proto, full_check=True)
    listed = contract.outputs_of((contract.NOVELTY, contract.NOVELTY_SCORE))
    assert [output.name for output in proto.graph.output] == [output.name for output in listed]
    before, after = Model(old, "cpu").metadata, Model(new, "cpu").metadata
    assert (after.minor, after.outputs) == (contract.MINOR, ("novelty", "novelty_score"))
    grown = new.stat().st_size - old.stat().st_size
    assert grown < 4 * (64 * 64 + 10 * 64 + 2 * fitted.reference.images) + 8000
    more = after.costs.macs_once - before.costs.macs_once
    plain = 0 if after.inference is Inference.MOMENTS else before.costs.macs_per_pass // 2
    assert 64 * 64 < more <= 64 * 64 + 10 * 64 + plain
    assert after.costs.macs_per_pass == before.costs.macs_per_pass


@pytest.mark.filterwarnings("ignore::uce_edge.runtime.model.SamplesWarning")
def test_an_image_has_the_same_novelty_alone_and_among_others_whatever_the_passes(
    gated: tuple, test_images: np.ndarray
) -> None:
    model = Model(gated[2], "cpu")
    together = model.predict(test_images)
    for index in range(3):
        for samples, seed in ((1, 0), (7, 3), (100, 1)):
            alone = model.predict(test_images[index : index + 1], samples, seed)
            assert alone.novelty_score[0] == together.novelty_score[index]
            assert alone.novelty[0] == together.novelty[index]


@pytest.mark.filterwarnings("ignore::uce_edge.runtime.model.SamplesWarning")
def test_passes_that_stop_early_have_it_too(calibration: Split, test_images: np.ndarray, tmp_path: Path) -> None:
    old = ir.load(FILES[0])
    model, metadata = novelty_score.attach(old, Model(FILES[0], "cpu").metadata, novelty_score.fit(old, calibration))
    fresh = Model(save(model, metadata, tmp_path / "m.onnx"), "cpu")
    early = fresh.predict(test_images, reject=0.3, adaptive=0.1)
    assert np.array_equal(early.novelty, fresh.predict(test_images).novelty)


def test_a_score_that_is_not_a_number_is_out_of_distribution(gated: tuple, test_images: np.ndarray) -> None:
    proto = onnx.load(gated[2])
    for tensor in proto.graph.initializer:
        if tensor.name == "novelty.means":
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[:] = np.nan
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    said = Model(Draft(proto.SerializeToString(), Model(gated[2], "cpu").metadata).content(), "cpu").predict(
        test_images[:3]
    )
    assert np.isnan(said.novelty_score).all()
    assert said.novelty.tolist() == [0, 0, 0]
    rule = RejectRule(cutoff=0.001, gate=NoveltyGuarantee(0.01, 0.95, 300, ""))
    assert not rule.accept(said.uncertainty, said.probabilities, said.novelty).any()


def test_attached_again_it_takes_the_place_of_the_old_one(gated: tuple, calibration: Split) -> None:
    once = ir.load(gated[2])
    metadata = Model(gated[2], "cpu").metadata
    fitted = novelty_score.fit(once, calibration)
    np.testing.assert_array_equal(fitted.reference.scores, gated[1].reference.scores)
    twice, described = novelty_score.attach(once, metadata, fitted)
    assert replace(described, digests=None) == replace(metadata.without_promises(), digests=None)
    assert [node.op_type for node in twice.graph] == [node.op_type for node in once.graph]
    assert set(twice.graph.initializers) == set(once.graph.initializers)


def test_detached_nothing_of_it_is_left(gated: tuple) -> None:
    left, metadata = novelty_score.detach(ir.load(gated[2]), Model(gated[2], "cpu").metadata)
    old, before = decision.upgrade(ir.load(gated[0]), Model(gated[0], "cpu").metadata)
    assert (metadata.outputs, metadata.costs) == ((), before.costs)
    assert [node.op_type for node in left.graph] == [node.op_type for node in old.graph]
    assert set(left.graph.initializers) == set(old.graph.initializers)


def pooled(net: Net) -> tuple[onnx.ModelProto, str, Callable[[np.ndarray], np.ndarray]]:
    x = net.Relu(net.conv(net.Relu(net.conv(net.stem(), 6, 6)), 6, 8))
    flat = net.pool(x)
    return net.model(net.Gemm(flat, net.weight(8, 4), net.weight(4))), flat, lambda f: f


def residual(net: Net) -> tuple[onnx.ModelProto, str, Callable[[np.ndarray], np.ndarray]]:
    x = net.stem()
    x = net.Relu(net.Add(x, net.conv(net.Relu(net.conv(x, 6, 6)), 6, 6)))
    flat = net.pool(net.norm(net.Relu(x), 6))
    return net.model(net.MatMul(flat, net.weight(6, 4))), flat, lambda f: f


def last_is_conv(net: Net) -> tuple[onnx.ModelProto, str, Callable[[np.ndarray], np.ndarray]]:
    x = net.Relu(net.conv(net.stem(), 6, 6))
    return net.model(net.pool(net.conv(x, 6, 4, kernel=1))), x, lambda f: f.mean(axis=(2, 3))


def tokens(net: Net) -> tuple[onnx.ModelProto, str, Callable[[np.ndarray], np.ndarray]]:
    x = net.Reshape(net.Relu(net.conv(net.stem(), 6, 6)), net.constant(np.array([0, 6, 64])))
    x = net.Relu(net.MatMul(net.Transpose(x, perm=[0, 2, 1]), net.weight(6, 5)))
    logits = net.ReduceMean(net.MatMul(x, net.weight(5, 4)), net.constant(np.array([1])), keepdims=0)
    return net.model(logits), x, lambda f: f.mean(axis=1)


NETS = [pooled, residual, last_is_conv, tokens]
HOW: dict[str, tuple[dict, Options]] = {
    "mc": ({}, Options()),
    "early": ({}, Options(expand=Expand.EARLY)),
    "from the second layer": ({}, Options(from_layer="1")),
    "baked": ({"samples": 3}, Options(bake=True)),
    "randn": ({"noise": NoiseKind.RANDN}, Options()),
    "factored": ({}, Options(sigma=Sigma.FACTORED)),
    "deterministic": ({"inference": Inference.DETERMINISTIC}, Options()),
}


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.__name__)
@pytest.mark.parametrize("how", HOW)
def test_features_are_what_the_last_layer_of_the_original_takes(
    net: Callable[[Net], tuple], how: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    proto, name, mean = net(Net(opset=18))
    given, options = HOW[how]
    _, done = export(proto, tmp_path, options=options, **given)
    images = rng.integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    original = onnx.ModelProto()
    original.CopyFrom(proto)
    original.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(original.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = ((images / 255 - np.array(MEAN)) / np.array(STD)).transpose(0, 3, 1, 2).astype(np.float32)
    wanted = mean(session.run([name], {"image": pixels})[0])
    (ours,) = probe(ir.load(done.path), images, emit_all_features)
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("start", ["1", None])
def test_a_moments_file_has_the_means_of_its_features_already(
    start: str | None, tmp_path: Path, rng: np.random.Generator
) -> None:
    proto, _, _ = pooled(Net(opset=18))
    options = Options(sample_from=start)
    _, done = export(proto, tmp_path, p=("0.001",), options=options, inference=Inference.MOMENTS)
    (tmp_path / "exact").mkdir()
    _, exact = export(proto, tmp_path / "exact", inference=Inference.DETERMINISTIC)
    images = rng.integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    # With nearly no noise, means are the noise-free values.
    ours, theirs = (probe(ir.load(file.path), images, emit_all_features)[0] for file in (done, exact))
    np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.max()))


def test_too_many_features_are_refused_with_the_size_they_would_take(
    calibration: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(novelty_score, "MOST", 32)
    with raises("novelty.features", NoveltyError):
        novelty_score.fit(ir.load(FILES[0]), calibration)


def test_the_description_has_the_outputs(gated: tuple) -> None:
    document = json.loads(Model(gated[2], "cpu").metadata.to_json())
    assert document["outputs"] == ["novelty", "novelty_score"]

"""Files that draw their last layer: the network once, N draws of the logits, and everything after as ever."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from conftest import Call, Digits
from helpers.errors import raises

from uce_edge import Model, contract
from uce_edge.calibration.laplace_posterior import LaplaceError
from uce_edge.contract import Inference, NoiseKind, Posterior, PriorFrom
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge_export.graph import laplace_draws
from uce_edge_export.noise import noise_table
from uce_edge_export.publish.draft import Draft
from uce_edge_export.recalibration import recalibrate

PASSES = 100


@pytest.fixture(scope="module")
def labelled(digits: Digits) -> Split:
    """More images than one split has, none of them of the training."""
    parts = [digits.dataset.splits[name] for name in ("calibration", "guarantee")]
    return Split(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


@pytest.fixture(scope="module")
def drawn(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> laplace_draws.Drawn:
    splits = digits.dataset.splits
    prior = PriorFrom.HELD_OUT_NLL
    return laplace_draws.Drawn(
        *laplace_draws.fit(ir.load(digits.deterministic), splits["train"], splits["calibration"], prior)
    )


@pytest.fixture(scope="module")
def file(digits: Digits, drawn: laplace_draws.Drawn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deterministic digits file with its posterior."""
    path = tmp_path_factory.mktemp("laplace") / "laplace.onnx"
    add(digits, drawn, path)
    return path


def add(digits: Digits, drawn: laplace_draws.Drawn, path: Path) -> None:
    draft = Draft(digits.deterministic.read_bytes(), Model(digits.deterministic, "cpu").metadata)
    laplace_draws.add(draft, drawn, digits.dataset.splits["test"].images[:3])
    path.write_bytes(draft.content())


def test_the_file_draws_what_numpy_draws_from_the_same_seeds(
    digits: Digits, drawn: laplace_draws.Drawn, file: Path
) -> None:
    images = digits.dataset.splits["test"].images[:20]
    seen = laplace_draws.evaluate(ir.load(digits.deterministic), images)
    seeds = contract.pass_seeds(PASSES, 3)
    (normals,) = noise_table.layer_noise(seeds, noise_table.Plan((9,)))
    expected = drawn.posterior.draw(seen.logits, seen.features, normals)
    np.testing.assert_allclose(Model(file, "cpu").logits(images, PASSES, 3), expected, atol=1e-4 * expected.std())


def test_it_says_what_it_is_and_keeps_labels_of_one_pass(digits: Digits, file: Path) -> None:
    model, plain = Model(file, "cpu"), Model(digits.deterministic, "cpu")
    metadata, test = model.metadata, digits.dataset.splits["test"]
    assert (metadata.inference, metadata.posterior, metadata.samples) == (Inference.MC, Posterior.LAPLACE, PASSES)
    assert metadata.takes_seeds
    assert metadata.laplace is not None
    assert metadata.laplace.images == len(digits.dataset.splits["train"])
    assert metadata.costs is not None
    assert plain.metadata.costs is not None
    assert metadata.costs.macs_per_pass == 9 * 10
    assert metadata.costs.macs_once < 1.2 * plain.metadata.costs.macs_once
    with pytest.warns(UserWarning, match="calibrated at 1"):
        ours = model.predict(test.images)
    accuracy, of_one = ((said.class_ids == test.labels).mean() for said in (ours, plain.predict(test.images)))
    assert accuracy >= of_one - 0.01
    assert ours.model_uncertainty.max() > 0.01


def test_all_passes_are_in_one_call_and_none_can_be_saved(file: Path, digits: Digits, monkeypatch) -> None:
    model = Model(file, "cpu")
    calls = []
    run = model._calls._runner.run
    monkeypatch.setattr(model._calls._runner, "run", lambda names, feed: calls.append(feed) or run(names, feed))
    model.logits(digits.dataset.splits["test"].images[:8], PASSES)
    assert [len(feed[contract.SEEDS]) for feed in calls] == [PASSES]
    with pytest.raises(UsageError, match="nothing to stop early"):
        model.predict(digits.dataset.splits["test"].images[:1], samples=1, adaptive=0.1)


@pytest.mark.parametrize("noise", [NoiseKind.RANDN, NoiseKind.INPUT])
def test_other_sources_of_noise_pass_the_gate(
    digits: Digits, drawn: laplace_draws.Drawn, noise: NoiseKind, tmp_path: Path
) -> None:
    add(digits, replace(drawn, noise=noise), tmp_path / "other.onnx")
    graph = onnx.load(tmp_path / "other.onnx").graph
    assert ("noise.0" in [value.name for value in graph.input]) == (noise is NoiseKind.INPUT)
    assert ("RandomNormalLike" in [node.op_type for node in graph.node]) == (noise is NoiseKind.RANDN)


def test_a_wrong_posterior_does_not_pass_the_gate(
    digits: Digits, drawn: laplace_draws.Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted = laplace_draws._emit_deviations
    monkeypatch.setattr(laplace_draws, "_emit_deviations", lambda g, *rest: g.Abs(g.Neg(g.Exp(emitted(g, *rest)))))
    with raises("parity.logits"):
        add(digits, drawn, tmp_path / "wrong.onnx")


def test_it_is_recalibrated_and_told_what_is_foreign_like_any_other_file(
    file: Path, digits: Digits, labelled: Split, tmp_path: Path
) -> None:
    from uce_edge.rejection.promises import NoveltyPromise, Promise

    out = tmp_path / "again.onnx"
    done = recalibrate(
        file, out, labelled, contract.Method.TEMPERATURE, promise=Promise(0.05), novelty=NoveltyPromise()
    )
    assert done.metadata.posterior is Posterior.LAPLACE
    assert done.metadata.calibration.samples == PASSES
    assert done.metadata.rule is not None
    image = digits.dataset.splits["test"].images[:1]
    np.testing.assert_array_equal(Model(out, "cpu").logits(image), Model(file, "cpu").logits(image))
    # Novelty is that of the network without draws.
    by_itself = recalibrate(digits.deterministic, tmp_path / "det.onnx", labelled, contract.Method.TEMPERATURE,
                            promise=Promise(0.05), novelty=NoveltyPromise())  # fmt: skip
    scores = [Model(path, "cpu").predict(image).novelty_score for path in (out, by_itself.path)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)


def test_a_run_is_given_a_posterior_and_exported(digits: Digits, call: Call, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "laplace.onnx"
    shutil.copytree(digits.run, run)
    said = call("calibrate", run, "--posterior", "laplace", "--prior", "held-out-nll", "--samples", 20)
    assert said.code == 0, said.err
    assert "Fitted the posterior of the last layer to 898 images" in said.err
    said = call("export", run, "--out", out, "--bake-samples", 20)
    assert said.code == 0, said.err
    assert "the gaussian dropout of its training is not in it" in said.err
    metadata = Model(out, "cpu").metadata
    assert (metadata.posterior, metadata.baked, metadata.samples) == (Posterior.LAPLACE, True, 20)
    assert "draws of the last layer" in call("info", out).out
    said = call("export", run, "--out", tmp_path / "m.onnx", "--inference", "moments")
    assert said.code != 0
    assert "--inference moments cannot be combined with a Laplace posterior" in said.err
    (run / "laplace.safetensors").unlink()
    said = call("export", run, "--out", tmp_path / "x.onnx")
    assert "--posterior laplace" in said.err
    assert not (tmp_path / "x.onnx").exists()


def third_party(path: Path, rng: np.random.Generator, *, relu: bool = False) -> Path:
    """A small classifier as somebody else would write it: 10 classes of 8 x 8 pixels, from their sums."""
    helper, tensor = onnx.helper, onnx.numpy_helper.from_array
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w1", "b1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["features"]),
        helper.make_node("Gemm", ["features", "w2", "b2"], ["logits"], transB=1),
        *([helper.make_node("Relu", ["logits"], ["scores"])] if relu else []),
    ]
    weights = {"w1": (64, 12), "b1": (12,), "w2": (10, 12), "b2": (10,)}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("scores" if relu else "logits", onnx.TensorProto.FLOAT, ["n", 10])],
        [tensor(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def folder(labelled: Split, tmp_path: Path) -> Path:
    path = tmp_path / "labelled.npz"
    np.savez(path, x=labelled.images[:240], y=labelled.labels[:240])
    return path


def test_somebody_elses_file_is_given_a_posterior_in_one_command(
    folder: Path, call: Call, tmp_path: Path, rng: np.random.Generator
) -> None:
    out = tmp_path / "bayes.onnx"
    said = call(
        "export", "--from", third_party(tmp_path / "net.onnx", rng), "--posterior", "laplace", "--data", folder,
        "--out", out, "--samples", 50,
    )  # fmt: skip
    assert said.code == 0, said.err
    model = Model(out, "cpu")
    assert (model.metadata.posterior, model.metadata.samples) == (Posterior.LAPLACE, 50)
    assert model.metadata.calibration.samples == 50
    assert model.metadata.laplace is not None
    assert model.metadata.laplace.images == 80  # a third; the others calibrate
    assert model.metadata.calibration.outcome.images == 160


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--p", "0.1"], "--p cannot be combined with a Laplace posterior"),
        (["--sigma", "factored", "--dropout", "keep"], "--dropout and --sigma cannot be combined"),
        (["--inference", "moments"], "--inference moments cannot be combined"),
        ([], "add --data FOLDER"),
    ],
)
def test_what_does_not_go_with_a_posterior_is_refused(
    options: list[str], words: str, call: Call, tmp_path: Path, rng: np.random.Generator
) -> None:
    source = third_party(tmp_path / "net.onnx", rng)
    said = call("export", "--from", source, "--posterior", "laplace", "--out", tmp_path / "out.onnx", *options)
    assert said.code != 0
    assert words in said.err
    assert not (tmp_path / "out.onnx").exists()


def test_other_commands_say_where_the_posterior_belongs(digits: Digits, call: Call, folder: Path) -> None:
    assert "uce-edge calibrate RUN --posterior laplace" in call("export", digits.run, "--posterior", "laplace").err
    assert (
        "has noise (its inference is mc)"
        in call("calibrate", digits.model, "--posterior", "laplace", "--data", folder).err
    )
    assert "add --posterior laplace" in call("calibrate", digits.run, "--prior", "held-out-nll").err


def test_a_network_without_a_last_linear_layer_and_too_few_images_are_refused(
    digits: Digits, labelled: Split, tmp_path: Path, rng: np.random.Generator
) -> None:
    from uce_edge_export.pipeline import export_third_party
    from uce_edge_export.source import third_party as reader

    source = third_party(tmp_path / "net.onnx", rng, relu=True)
    read = reader.load(source)
    metadata = reader.metadata(read, source, inference=Inference.DETERMINISTIC)
    export_third_party(read, metadata, tmp_path / "det.onnx", [])
    with raises("laplace.nonlinear"):
        laplace_draws.give(Model(tmp_path / "det.onnx", "cpu"), labelled)
    with pytest.raises(LaplaceError, match="too few"):
        laplace_draws.give(Model(digits.deterministic, "cpu"), Split(labelled.images[:20], labelled.labels[:20]))

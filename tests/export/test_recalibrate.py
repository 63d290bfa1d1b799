"""A model file calibrated anew: the network to the bit as it was, the map as fitted, the old file untouched."""

import hashlib
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from conftest import GOLDEN, Digits
from helpers.errors import raises
from helpers.nets import Net, export, wide
from helpers.progress_lines import every_line, shown
from PIL import Image

from uce_edge import contract
from uce_edge.calibration import early_look
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import Inference, Method, NoiseKind
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Split
from uce_edge.errors import ModelFileError, UceEdgeError
from uce_edge.metrics import nll
from uce_edge.rejection.promises import ErrorPromise
from uce_edge.rejection.rule import NO_LIMIT, RejectRule
from uce_edge.runtime.model import Model
from uce_edge_export import recalibration as module
from uce_edge_export.check.held_out_rejection import Known
from uce_edge_export.publish.draft import Draft
from uce_edge_export.recalibration import recalibrate


def some(digits: Digits, count: int = 40) -> Split:
    split = digits.dataset.splits["calibration"]
    return Split(split.images[:count], split.labels[:count])


def initializers(path: Path) -> dict[str, np.ndarray]:
    """The constants that belong to the map, every name of which must be there once."""
    tensors = [tensor for tensor in onnx.load(path).graph.initializer if "calibration" in tensor.name]
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}


def is_contract(path: Path) -> None:
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert [output.name for output in proto.graph.output] == [output.name for output in contract.outputs_of(())]
    assert (proto.ir_version, [(entry.domain, entry.version) for entry in proto.opset_import]) == (9, [("", 18)])
    names = [name for node in proto.graph.node for name in node.output]
    assert len(names) == len(set(names))
    used = {name for node in proto.graph.node for name in node.input}
    assert {tensor.name for tensor in proto.graph.initializer} <= used
    assert not [name for name in (*names, *used) if name.endswith(".old")]


PARAMETERS = {
    Method.NONE: set(),
    Method.TEMPERATURE: {"calibration.temperature"},
    Method.VECTOR: {"calibration.vector"},
    Method.AUX: {f"calibration.{name}" for name in ("temperature", "aux.w1", "aux.b1", "aux.w2", "aux.b2")},
}


def follows(old: Path, new: Path, data: Split) -> None:
    """The logits are the old ones to the bit, and the probabilities follow from them by the map."""
    is_contract(new)
    fresh = Model(new, "cpu")
    fitted = fresh.metadata.calibration
    logits = fresh.logits(data.images)
    assert np.array_equal(logits, Model(old, "cpu").logits(data.images, len(logits)))
    kept = {contract.VARIANCE_SCALE} if fresh.metadata.inference is Inference.MOMENTS else set()
    assert set(initializers(new)) == PARAMETERS[fitted.method] | {"calibration.confidence_error"} | kept
    assert np.allclose(fresh.predict(data.images).probabilities, probabilities(fitted, ArrayLogits(logits)), atol=1e-5)


def test_a_new_temperature(digits: Digits, tmp_path: Path) -> None:
    before = digits.model.read_bytes()
    data, out = digits.dataset.splits["calibration"], tmp_path / "new.onnx"
    done = recalibrate(digits.model, out, data, Method.TEMPERATURE)
    assert digits.model.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.json", "new.onnx"]
    follows(digits.model, out, data)
    old, new = Model(digits.model, "cpu"), Model(out, "cpu")
    assert new.metadata == done.metadata
    assert new.metadata.calibration == fit_map(Method.TEMPERATURE, old.logits(data.images), data.labels)
    temperature = new.metadata.calibration.parameters["temperature"]
    assert initializers(out)["calibration.temperature"] == pytest.approx(temperature)
    logits = old.logits(data.images).astype(np.float64) / temperature[0]
    passes = np.exp(logits - logits.max(-1, keepdims=True))
    passes /= passes.sum(-1, keepdims=True)
    assert np.allclose(new.predict(data.images).probabilities, passes.mean(0), atol=1e-5)
    assert done.file_nll == pytest.approx(nll(passes.mean(0), data.labels), abs=1e-4)


def test_all_passes_over_the_images_report(digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, sizes, logits, predict = every_line(monkeypatch), [], Model.logits, Model.predict

    def counted(call):
        return lambda model, images, *rest: (sizes.append(len(images)), call(model, images, *rest))[1]

    monkeypatch.setattr(early_look, "_LONG", 0)
    monkeypatch.setattr(Model, "logits", counted(logits))
    monkeypatch.setattr(Model, "predict", counted(predict))
    data = digits.dataset.splits["calibration"]
    recalibrate(digits.model, tmp_path / "new.onnx", data, Method.TEMPERATURE, seed=3)
    assert "96 of 100 images" in shown(lines, "early look")
    assert f"16 of {len(data)} images" in shown(lines, "checking the likelihood")
    assert max(sizes) <= 32


@pytest.mark.parametrize("kind", ["novelty", "ensemble", "heatmap", "bernoulli"])
def test_answers_follow_from_the_passes_of_the_map(digits: Digits, kind: str) -> None:
    model, data = Model(GOLDEN / f"digits-{kind}.onnx", "cpu"), some(digits)
    draft = Draft(model.content(), model.metadata)
    ours = Known.of_passes(draft, data, ArrayLogits(model.logits(data.images))).prediction
    theirs = Known.of(draft, data).prediction
    for name in ("probabilities", *contract.NUMBERS):
        if getattr(theirs, name) is not None:
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=2e-6, err_msg=name)
    np.testing.assert_array_equal(ours.class_ids, theirs.class_ids)
    np.testing.assert_array_equal(ours.drawn, theirs.drawn)
    assert (ours.labels, ours.samples, ours.seed) == (theirs.labels, theirs.samples, theirs.seed)
    assert (ours.novelty is None) == (kind in ("heatmap",))


def test_the_passes_over_calibration_images_are_drawn_once(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, predict, data = [0], Model.predict, digits.dataset.splits["calibration"]

    def counted(model: Model, images: np.ndarray, samples: int | None = None, seed: int = 0):
        drawn[0] += len(images) * (samples or model.metadata.samples)
        return predict(model, images, samples, seed)

    monkeypatch.setattr(Model, "predict", counted)
    recalibrate(digits.model, tmp_path / "new.onnx", data, Method.TEMPERATURE)
    assert drawn[0] <= len(data) + 16 * 25  # one pass for novelty; 16 images are compared


def test_the_metadata_says_what_changed_and_keeps_the_rest(digits: Digits, tmp_path: Path) -> None:
    data, out = some(digits), tmp_path / "new.onnx"
    recalibrate(digits.model, out, data, Method.VECTOR, samples=7, seed=3)
    document = json.loads(out.with_suffix(".json").read_text())
    old = json.loads(digits.model.with_suffix(".json").read_text())
    assert document == json.loads(Model(out, "cpu").metadata.to_json())
    assert (document["calibration"]["method"], document["calibration"]["samples"], document["samples"]) == (
        "vector",
        7,
        7,
    )
    assert document["calibration"]["report"]["images"] == 40
    pixels = hashlib.sha256(data.images.tobytes())
    pixels.update(data.labels.tobytes())
    assert document["hashes"] == old["hashes"] | {"calibration_data": pixels.hexdigest()}
    assert "monitor" not in document  # all images fitted the map, so none can say what is usual
    changed = {"calibration", "samples", "hashes", "held_out", "monitor", "probe", "digests"}
    assert {key: value for key, value in document.items() if key not in changed} == {
        key: value for key, value in old.items() if key not in changed
    }


def test_a_stored_threshold_is_dropped_with_the_map_it_was_made_for(digits: Digits, tmp_path: Path) -> None:
    promise = ErrorPromise(0.05, 0.95, 0.04, 0.03, 0.8, 80, 100, samples=25, seed=0, data="")
    stored = RejectRule(limits=(0.2,), promise=promise)
    draft = Draft(digits.model.read_bytes(), replace(Model(digits.model, "cpu").metadata, rule=stored))
    (tmp_path / "old.onnx").write_bytes(draft.content())
    recalibrate(tmp_path / "old.onnx", tmp_path / "new.onnx", some(digits), Method.TEMPERATURE)
    assert Model(tmp_path / "old.onnx", "cpu").metadata.rule == stored
    new = Model(tmp_path / "new.onnx", "cpu")
    assert new.metadata.rule is None
    limits = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(new.path).graph.initializer}
    assert (limits[contract.LIMITS] == NO_LIMIT).all()


@pytest.mark.parametrize("first", Method)
@pytest.mark.parametrize("second", Method)
def test_every_map_replaces_every_other(digits: Digits, first: Method, second: Method, tmp_path: Path) -> None:
    data, middle, last = some(digits), tmp_path / "1.onnx", tmp_path / "2.onnx"
    recalibrate(digits.model, middle, data, first, samples=5)
    recalibrate(middle, last, data, second)
    follows(digits.model, last, data)
    fitted = fit_map(second, Model(digits.model, "cpu").logits(data.images, 5), data.labels)
    assert Model(last, "cpu").metadata.calibration == fitted


@pytest.mark.parametrize("method", Method)
def test_the_deterministic_twin(digits: Digits, method: Method, tmp_path: Path) -> None:
    data = some(digits)
    done = recalibrate(digits.deterministic, tmp_path / "new.onnx", data, method)
    follows(digits.deterministic, done.path, data)
    assert (done.metadata.samples, done.metadata.inference) == (1, Inference.DETERMINISTIC)
    with raises("argument.samples"):
        recalibrate(digits.deterministic, tmp_path / "other.onnx", data, method, samples=25)


@pytest.mark.parametrize("inference", Inference)
@pytest.mark.parametrize("method", [Method.TEMPERATURE, Method.AUX])
def test_a_third_party_network(inference: Inference, method: Method, tmp_path: Path) -> None:
    _, exported = export(wide(), tmp_path, inference=inference, samples=6)
    rng = np.random.default_rng(0)
    data = Split(rng.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8), rng.integers(0, 4, 30))
    done = recalibrate(exported.path, tmp_path / "new.onnx", data, method)
    follows(exported.path, done.path, data)
    assert done.metadata.hashes.source == exported.metadata.hashes.source
    assert done.metadata.calibration.outcome.nll_after <= done.metadata.calibration.outcome.nll_before


def test_weights_named_like_parameters_survive(tmp_path: Path) -> None:
    net = Net()
    weight = net.weight(6, 4, name="calibration.temperature")
    _, exported = export(net.model(net.MatMul(net.pool(net.stem()), weight)), tmp_path, samples=3)
    rng = np.random.default_rng(0)
    data = Split(rng.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8), rng.integers(0, 4, 9))
    for i in range(2):
        done = recalibrate(exported.path, tmp_path / f"{i}.onnx", data, Method.TEMPERATURE)
        assert np.array_equal(
            Model(done.path, "cpu").logits(data.images), Model(exported.path, "cpu").logits(data.images)
        )


def test_random_noise_is_calibrated_without_a_bit_for_bit_check(tmp_path: Path) -> None:
    _, exported = export(wide(), tmp_path, noise=NoiseKind.RANDN, samples=6)
    data = Split(np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8), np.arange(9) % 4)
    done = recalibrate(exported.path, tmp_path / "new.onnx", data, Method.TEMPERATURE)
    is_contract(done.path)
    assert Model(done.path, "cpu").metadata.noise is NoiseKind.RANDN


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0, 1, 10], "between 0 and 9, but got 10"),
        ([0, -1, 1], "got -1"),
        ([0, 1], "one per image"),
        ([], "at least one image"),
    ],
)
def test_labels_that_do_not_fit(digits: Digits, labels: list[int], sentence: str, tmp_path: Path) -> None:
    images = digits.dataset.splits["test"].images[: 3 if labels else 0]
    with pytest.raises(UceEdgeError, match=sentence):
        recalibrate(digits.model, tmp_path / "new.onnx", Split(images, np.array(labels, np.int64)), Method.TEMPERATURE)
    assert list(tmp_path.iterdir()) == []


def test_paths_that_do_not_do(digits: Digits, tmp_path: Path) -> None:
    copy, other, link = tmp_path / "m.onnx", tmp_path / "other.onnx", tmp_path / "link.onnx"
    shutil.copy(digits.model, copy)
    link.symlink_to(copy)
    for out in (copy, link):
        with raises("argument.out"):
            recalibrate(copy, out, some(digits), Method.TEMPERATURE)
    with raises("argument.out"):
        recalibrate(copy, tmp_path / "new.bin", some(digits), Method.TEMPERATURE)
    with pytest.raises(ModelFileError, match="no model file"):
        recalibrate(tmp_path / "absent.onnx", copy, some(digits), Method.TEMPERATURE)
    other.write_bytes(wide().SerializeToString())
    with pytest.raises(ModelFileError, match="not a uce-edge model"):
        recalibrate(other, tmp_path / "new.onnx", some(digits), Method.TEMPERATURE)
    assert copy.read_bytes() == digits.model.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.onnx", "m.onnx", "other.onnx"]


@pytest.mark.parametrize("damage", ["logits", "map"])
def test_a_rewrite_that_went_wrong_leaves_nothing(digits, damage: str, tmp_path: Path, monkeypatch) -> None:
    honest = module.replace_head

    def wrong(model, metadata):
        model = honest(model, metadata)
        name = "calibration.temperature" if damage == "map" else metadata.layers[-1].name
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.5), name=name)
        return model

    monkeypatch.setattr(module, "replace_head", wrong)
    with raises("parity.logits" if damage == "logits" else "parity.likelihood"):
        recalibrate(digits.model, tmp_path / "new.onnx", some(digits), Method.TEMPERATURE)
    assert list(tmp_path.iterdir()) == []


# The command line.


@pytest.fixture
def calibrating(digits, call, monkeypatch, tmp_path):
    """`uce-edge calibrate` where there are a model and labelled images."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(digits.model, "m.onnx")
    for image, label in zip(some(digits).images, some(digits).labels, strict=True):
        Path("data", str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(Path("data", str(label), f"{len(list(Path('data').rglob('*')))}.png"))
    return partial(call, "calibrate")


def test_calibrate_a_file_on_a_folder_and_on_an_archive(digits: Digits, calibrating) -> None:
    done = calibrating("m.onnx", "--data", "data")
    assert done.code == 0, done.err
    note, written, *_ = done.err.splitlines()
    assert note.startswith(
        "Note: the file has no gate against out-of-distribution images. 20 reference images are too few: "
        "they can only promise that at most 13.9%"
    )
    assert written == "Wrote m-calibrated.onnx and m-calibrated.json."
    assert done.err.splitlines()[-1] == "Next: uce-edge predict --model m-calibrated.onnx image.png --reject 0.3"
    assert "On 40 calibration images" in done.err
    np.savez("data.npz", x=some(digits).images, y=some(digits).labels)
    done = calibrating("m.onnx", "--data", "data.npz", "--out", "new.onnx", "--samples", "9", "--json")
    report = json.loads(done.out)
    assert report["nll_after"] <= report["nll_before"]
    assert (report["samples"], report["images"], report["method"]) == (9, 40, "temperature")
    assert Model("new.onnx", "cpu").metadata.samples == 9
    assert calibrating("m.onnx", "--data", "digits", "--out", "whole.onnx").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["m.onnx"], 2, "add --data FOLDER"),
        (["RUN", "--out", "new.onnx"], 2, "--out needs a model file"),
        (["RUN", "--samples", "0"], 2, "`samples` to be an integer between 1 and 4096"),
        (["m.onnx", "--data", "data", "--out", "m.onnx"], 2, "`out` to be a new file"),
        (["m.onnx", "--data", "data", "--out", "new"], 2, "ending in .onnx"),
        (["m.onnx", "--data", "data", "--samples", "0"], 2, "`samples` to be an integer between 1 and 4096"),
        (["m.onnx", "--data", "data", "--seed", "4096"], 2, "`seed` to be an integer between 0 and 4095"),
        (["m.onnx", "--data", "absent"], 2, "but got 'absent'"),
        (["m.onnx", "--data", "wrong.npz"], 2, "between 0 and 9, but got 10"),
        (["absent.onnx", "--data", "data"], 1, "no model file absent.onnx"),
    ],
)
def test_wrong_requests(digits: Digits, calibrating, arguments: list[str], code: int, sentence: str) -> None:
    np.savez("wrong.npz", x=some(digits).images, y=np.arange(40) % 11)

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for top in (Path(), digits.run) for path in top.rglob("*") if path.is_file()}

    before = files()
    done = calibrating(*[digits.run if argument == "RUN" else argument for argument in arguments])
    assert done.code == code, done.err
    assert sentence in done.err
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert files() == before


def test_a_file_is_corrected_for_another_mix_of_classes(digits: Digits, tmp_path: Path) -> None:
    from uce_edge.calibration.class_prior import ClassPrior

    parts = splits.load("digits").splits
    plain, mixed = tmp_path / "plain.onnx", tmp_path / "mixed.onnx"
    for file, prior in ((plain, None), (mixed, ClassPrior({"8": 0.4}))):
        done = recalibrate(
            digits.deterministic, file, parts["calibration"], Method.TEMPERATURE, held_out=parts["guarantee"],
            class_prior=prior,
        )  # fmt: skip
    assert done.mix is not None
    assert done.metadata.calibration.class_shares[8] == pytest.approx(0.4)
    assert done.metadata.calibration.report is not None
    assert done.metadata.calibration.report.images == done.mix.kept < len(parts["calibration"])
    before, after = (Model(file, "cpu").predict(parts["test"].images[:200]).probabilities for file in (plain, mixed))
    assert (after[:, 8] > before[:, 8]).mean() > 0.9


def test_a_file_is_corrected_for_the_mix_of_unlabelled_images(digits: Digits, tmp_path: Path) -> None:
    from uce_edge.calibration.class_prior import ClassPrior

    parts = splits.load("digits").splits
    test, calibration = parts["test"], parts["calibration"]
    eights, others = np.flatnonzero(test.labels == 8), np.flatnonzero(test.labels != 8)
    place = test.images[np.concatenate([eights, others[: len(eights)]])]
    scarce = np.flatnonzero(np.isin(calibration.labels, (0, 1)))
    fewer = calibration.take(np.setdiff1d(np.arange(len(calibration)), np.concatenate([scarce[::2], scarce[1::4]])))
    for data, rare in ((calibration, ()), (fewer, (0, 1))):
        done = recalibrate(
            digits.deterministic, tmp_path / "mixed.onnx", data, Method.TEMPERATURE, held_out=parts["guarantee"],
            class_prior=ClassPrior(images=place),
        )  # fmt: skip
        assert done.mix is not None
        assert done.mix.unlabelled == len(place)
        assert done.mix.shares[8] == pytest.approx(0.5, abs=0.1)
        ratios = [done.mix.shares[label] / done.mix.old[label] for label in rare]
        assert not rare or ratios[0] == pytest.approx(ratios[1])

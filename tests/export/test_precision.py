"""Smaller numbers: the files are smaller, answer nearly the same, and are refused when they do not."""

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import Call, Digits
from helpers.errors import raises
from helpers.progress_lines import every_line, shown

from uce_edge import Model
from uce_edge.contract import Inference, Precision
from uce_edge_export.check import quality
from uce_edge_export.check.quality import QualityError
from uce_edge_train.export import export_run


@pytest.mark.parametrize(
    ("numbers", "kind"), [(Precision.FP16, onnx.TensorProto.FLOAT16), (Precision.INT8, onnx.TensorProto.INT8)]
)
@pytest.mark.parametrize("inference", [Inference.MC, Inference.DETERMINISTIC])
def test_a_smaller_file_answers_nearly_the_same(
    digits: Digits, tmp_path: Path, numbers: Precision, kind: int, inference: Inference,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "small.onnx"
    done = export_run(digits.run, out, digits.dataset, inference, numbers=numbers)
    assert "onnxruntime" not in capfd.readouterr().err  # where sessions write past Python
    assert done.metadata.precision is numbers
    full, small = Model(digits.model if inference is Inference.MC else digits.deterministic, "cpu"), Model(out, "cpu")
    test = digits.dataset.splits["test"].images[:100]
    theirs, ours = full.predict(test), small.predict(test)
    assert (theirs.labels == np.array(ours.labels)).mean() > 0.97
    np.testing.assert_allclose(ours.uncertainty, theirs.uncertainty, atol=0.15)
    assert np.abs(ours.uncertainty - theirs.uncertainty).mean() < 0.01
    assert not np.array_equal(ours.probabilities, theirs.probabilities)
    # All weights of the network are small, and the noise table is not.
    held = {tensor.name: tensor for tensor in onnx.load(out).graph.initializer}
    assert {tensor.data_type for tensor in held.values() if len(tensor.dims) == 4} == {kind}
    if inference is Inference.MC:
        assert held["noise.table"].data_type == onnx.TensorProto.FLOAT


def test_the_export_tells_the_price_and_the_file_its_precision(digits: Digits, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "small.onnx"
    said = call("export", digits.run, "--precision", "int8", "--out", out)
    assert "int8: NLL 0.0" in said.err
    assert "-> 0.0" in said.err
    assert ", int8" in call("info", out).out


def test_every_slow_step_of_int8_reports_and_takes_few_images_at_once(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, sizes, predict = every_line(monkeypatch), [], Model.predict

    def noted(model: Model, images: np.ndarray, *arguments: object) -> object:
        sizes.append(len(images))
        return predict(model, images, *arguments)

    monkeypatch.setattr(Model, "predict", noted)
    export_run(digits.run, tmp_path / "m.onnx", digits.dataset, numbers=Precision.INT8)
    count = len(digits.dataset.splits["calibration"])
    for form in ("fp32", "int8"):
        assert f"16 of {count} images" in shown(lines, f"measuring {form}")
    assert "64 of 128 images" in shown(lines, "finding ranges")
    assert shown(lines, "quantising")
    assert max(sizes) <= 16


def test_quantisation_leaves_the_logging_of_the_program_as_it_was(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[int] = []
    monkeypatch.setattr(onnxruntime, "set_default_logger_severity", changed.append)
    before = logging.root.manager.disable
    logging.disable(logging.DEBUG)
    try:
        export_run(digits.run, tmp_path / "m.onnx", digits.dataset, numbers=Precision.INT8)
        assert logging.root.manager.disable == logging.DEBUG
        assert set(changed) <= {4}  # which the command line alone chooses, for all of its work
    finally:
        logging.disable(before)


def test_too_high_a_price_is_refused_and_leaves_nothing(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(quality.BOUNDS, "nll", -1.0)
    with raises("quality.worse", QualityError):
        export_run(digits.run, tmp_path / "m.onnx", digits.dataset, numbers=Precision.FP16)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--untrained", "resnet8", "--precision", "int8"], "int8 needs images to find the range of every value"),
        (["--untrained", "resnet8", "--precision", "fp16", "--inference", "moments"], "too small for float16"),
    ],
)
def test_what_does_not_go_together_is_refused(call: Call, tmp_path: Path, arguments: list[str], refusal: str) -> None:
    said = call("export", *arguments, "--out", tmp_path / "m.onnx")
    assert said.code == 2
    assert refusal in said.err
    assert list(tmp_path.iterdir()) == []


def test_an_untrained_network_in_half_precision_runs(call: Call, tmp_path: Path) -> None:
    out, full = tmp_path / "half.onnx", tmp_path / "full.onnx"
    assert call("export", "--untrained", "resnet8", "--precision", "fp16", "--out", out).code == 0
    assert call("export", "--untrained", "resnet8", "--out", full).code == 0
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    half, whole = Model(out, "cpu").logits(images, 3), Model(full, "cpu").logits(images, 3)
    np.testing.assert_allclose(half, whole, atol=0.02 * np.abs(whole).max())

"""A file with its passes baked in is calibrated and promised like any other, and keeps its passes."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Call, Digits
from helpers.errors import raises
from PIL import Image

from uce_edge import contract
from uce_edge.contract import Method
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import Promise
from uce_edge.runtime.model import Model
from uce_edge_export.options import Options
from uce_edge_export.recalibration import recalibrate
from uce_edge_train import calibration
from uce_edge_train.export import export_run


@pytest.fixture(scope="module")
def baked(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model with its 25 passes baked in."""
    out = tmp_path_factory.mktemp("baked") / "baked.onnx"
    export_run(digits.run, out, digits.dataset, samples=25, options=Options(bake=True))
    return out


def seeds_of(path: Path) -> list[int]:
    """The baked seeds; there must be no such input."""
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == [contract.IMAGE]
    (seeds,) = (tensor for tensor in graph.initializer if tensor.name == contract.SEEDS)
    return onnx.numpy_helper.to_array(seeds).tolist()


@pytest.mark.parametrize("method", Method)
def test_it_is_recalibrated_as_the_file_with_seeds_is(
    digits: Digits, baked: Path, method: Method, tmp_path: Path
) -> None:
    data = digits.dataset.splits["calibration"]
    with_seeds = recalibrate(digits.model, tmp_path / "seeds.onnx", data, method)
    done = recalibrate(baked, tmp_path / "new.onnx", data, method)
    onnx.checker.check_model(onnx.load(done.path), full_check=True)
    assert seeds_of(done.path) == list(range(25))
    assert done.metadata.baked
    assert done.metadata.calibration == with_seeds.metadata.calibration
    images = digits.dataset.splits["test"].images[:40]
    ours, theirs = (Model(path, "cpu").predict(images) for path in (done.path, with_seeds.path))
    assert np.array_equal(ours.probabilities, theirs.probabilities)
    assert np.array_equal(ours.standard_error, theirs.standard_error)
    assert np.array_equal(ours.error_probability, theirs.error_probability)


def test_it_is_calibrated_for_its_own_passes_alone(digits: Digits, baked: Path, tmp_path: Path) -> None:
    data = digits.dataset.splits["calibration"]
    for name, value in (("samples", 5), ("seed", 1)):
        with raises(f"argument.{name}"):
            recalibrate(baked, tmp_path / "new.onnx", data, Method.TEMPERATURE, **{name: value})
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_a_promise_is_exported_with_its_passes_baked_in(digits: Digits, tmp_path: Path) -> None:
    run, out = shutil.copytree(digits.run, tmp_path / "run"), tmp_path / "m.onnx"
    promise = Promise(0.03, confidence=0.9)
    calibration.calibrate(run, promise=promise)
    done = export_run(run, out, digits.dataset, samples=25, options=Options(bake=True))
    promised = done.metadata.promise
    assert promised is not None
    held_out = digits.dataset.splits["guarantee"]
    said = Model(out, "cpu").predict(held_out.images, reject="auto")
    wrong = said.class_ids != held_out.labels
    found = guarantee.find(said.uncertainty, wrong, promise.target_error, promise.confidence)
    assert Model(out, "cpu").threshold("auto") == pytest.approx(found.threshold, abs=1e-6)
    assert (promised.accepted, promised.error_bound) == (found.accepted, found.error_bound)
    again = recalibrate(
        out, tmp_path / "again.onnx", held_out, Method.VECTOR, promise=replace(promise, target_error=0.1)
    )
    assert again.metadata.promise is not None
    assert seeds_of(again.path) == list(range(25))
    assert Model(again.path, "cpu").threshold("auto") == again.metadata.rule.threshold


def test_from_the_command_line(digits: Digits, baked: Path, call: Call, tmp_path: Path) -> None:
    split = digits.dataset.splits["calibration"]
    for number, (image, label) in enumerate(zip(split.images[:60], split.labels[:60], strict=True)):
        (tmp_path / "data" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(tmp_path / "data" / str(label) / f"{number}.png")
    out = tmp_path / "new.onnx"
    said = call("calibrate", baked, "--data", tmp_path / "data", "--out", out)
    assert said.code == 0, said.err
    assert call("predict", "--model", out, digits.image).code == 0

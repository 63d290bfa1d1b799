"""A threshold with a promise: found for the file as it ships, stored in it, and used by `--reject auto`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Digits

from uce_edge import guarantee
from uce_edge.contract import Inference, Method
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.guarantee import Guarantee, NoGuaranteeError
from uce_edge.model import GuaranteeWarning, Model, SamplesWarning
from uce_edge.prediction import Decision
from uce_edge_export.export import export_run
from uce_edge_export.recalibrate import recalibrate
from uce_edge_train import calibrate
from uce_edge_train.data import Split
from uce_edge_train.runs import Run

PROMISE = {"target_error": 0.03, "confidence": 0.9}


@pytest.fixture(scope="module")
def promised(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model with a threshold for 3 % errors."""
    folder = tmp_path_factory.mktemp("promise")
    shutil.copytree(digits.run, folder / "run")
    calibrate.calibrate(folder / "run", promise=PROMISE)
    done = export_run(folder / "run", folder / "model.onnx", digits.dataset)
    assert isinstance(done.promised, Guarantee)
    return folder / "model.onnx"


def test_the_file_has_the_threshold_of_its_own_guarantee_images(digits: Digits, promised: Path) -> None:
    model = Model(promised, "cpu")
    kept = digits.dataset.splits["guarantee"]
    said = model.predict(kept.images)
    wanted = guarantee.find(said.uncertainty, said.class_ids != kept.labels, **PROMISE)
    stored = model.metadata.reject
    assert stored is not None
    assert Guarantee.from_dict(stored) == wanted
    assert (stored["samples"], stored["seed"], stored["data"]) == (25, 0, kept.sha256())
    document = json.loads(promised.with_suffix(".json").read_text())
    assert document["reject"] == stored
    # Only the metadata differ from the file without a promise.
    np.testing.assert_array_equal(said.probabilities, Model(digits.model, "cpu").predict(kept.images).probabilities)


def test_reject_auto_uses_it(digits: Digits, promised: Path) -> None:
    model = Model(promised, "cpu")
    assert model.metadata.reject is not None
    test = digits.dataset.splits["test"]
    said = model.predict(test.images, reject="auto")
    accepted = np.array([decision is Decision.ACCEPT for decision in said.decisions])
    assert np.array_equal(accepted, said.uncertainty <= np.float32(model.metadata.reject["threshold"]))
    assert (said.class_ids != test.labels)[accepted].mean() <= PROMISE["target_error"]
    assert accepted.mean() > 0.5


def test_other_passes_are_announced(digits: Digits, promised: Path) -> None:
    model = Model(promised, "cpu")
    images = digits.dataset.splits["test"].images[:1]
    with pytest.warns(GuaranteeWarning, match="25 samples and seed 0"):
        model.predict(images, seed=1, reject="auto")
    with pytest.warns(GuaranteeWarning, match="with 5 and seed 0"), pytest.warns(SamplesWarning):
        model.predict(images, samples=5, reject="auto")


def test_without_a_stored_threshold_auto_is_refused(digits: Digits) -> None:
    with pytest.raises(UsageError, match=r"has no stored threshold.*--target-error"):
        Model(digits.model, "cpu").predict(digits.dataset.splits["test"].images[:1], reject="auto")


def test_a_promise_that_cannot_be_kept_is_told(digits: Digits, tmp_path: Path) -> None:
    run = shutil.copytree(digits.run, tmp_path / "run")
    before = (run / "run.json").read_bytes()
    with pytest.raises(NoGuaranteeError, match="images"):
        calibrate.calibrate(run, promise={"target_error": 0.0001, "confidence": 0.95})
    assert (run / "run.json").read_bytes() == before


def test_the_twin_gets_a_threshold_of_its_own(digits: Digits, promised: Path, tmp_path: Path) -> None:
    done = export_run(promised.parent / "run", tmp_path / "twin.onnx", digits.dataset, Inference.DETERMINISTIC)
    stored = Model(tmp_path / "twin.onnx", "cpu").metadata.reject
    assert stored is not None
    assert stored["samples"] == 1
    assert isinstance(done.promised, Guarantee)
    assert stored["threshold"] != Model(promised, "cpu").metadata.reject["threshold"]  # type: ignore[index]


def test_a_model_file_is_given_a_promise_from_half_of_the_images(digits: Digits, tmp_path: Path) -> None:
    parts = [digits.dataset.splits[name] for name in ("calibration", "guarantee", "test")]
    data = Split(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))
    out = tmp_path / "new.onnx"
    done = recalibrate(digits.model, out, data, Method.TEMPERATURE, promise=PROMISE)
    fitted, kept = data.halves()
    assert done.metadata.calibration.report["images"] == len(fitted)
    assert done.promised is not None
    assert done.promised.images == len(kept)
    assert len(fitted) + len(kept) == len(data)
    assert Model(out, "cpu").metadata == done.metadata
    assert json.loads(out.with_suffix(".json").read_text())["reject"]["data"] == kept.sha256()
    with pytest.raises(UceEdgeError):
        recalibrate(digits.model, tmp_path / "no.onnx", data, Method.NONE, promise=PROMISE | {"target_error": 1e-5})
    assert not (tmp_path / "no.onnx").exists()


def test_calibrating_again_without_a_promise_drops_it(promised: Path, tmp_path: Path) -> None:
    run = shutil.copytree(promised.parent / "run", tmp_path / "run")
    assert Run.load(run).promise == PROMISE
    assert calibrate.calibrate(run, samples=5).promise is None
    done = recalibrate(promised, tmp_path / "new.onnx", Run.load(run).dataset().splits["calibration"], Method.NONE)
    assert done.metadata.reject is None

"""The novelty gate of a run looks at its frozen trunk."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from torch import nn

from tests.helpers.errors import raises
from uce_edge.calibration import novelty
from uce_edge.contract import Inference
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Dataset
from uce_edge.errors import UsageError
from uce_edge.integrity.model_check import verify_model
from uce_edge.rejection.promises import NoveltyPromise
from uce_edge.runtime.model import Model
from uce_edge_export.options import FileKind
from uce_edge_export.transform.feature_extraction import emit_all_features, probe
from uce_edge_train import calibration
from uce_edge_train.ensemble_export import export_ensemble
from uce_edge_train.export import export_run
from uce_edge_train.loop import training
from uce_edge_train.networks import parameter_groups, pretrained
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run

SHORT = Recipe(epochs=1, batch_size=64)
TRUNK = ("stem", "blocks.0")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return splits.load("digits")


@pytest.fixture(scope="module")
def runs(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs over one frozen trunk."""
    folder = tmp_path_factory.mktemp("runs")
    training.train(digits, folder / "start", SHORT)
    start = pretrained.start_from(folder / "start")
    for seed in (1, 2):
        training.train(digits, folder / str(seed), dataclasses.replace(SHORT, init=start, freeze=TRUNK, seed=seed))
        calibration.calibrate(folder / str(seed), samples=2, novelty=NoveltyPromise())
    return folder / "1", folder / "2"


@pytest.mark.parametrize("inference", list(Inference))
def test_training_images_fit_the_gate_and_all_calibration_images_judge(
    inference: Inference, runs: tuple[Path, Path], digits: Dataset, tmp_path: Path
) -> None:
    done = export_run(runs[0], tmp_path / "m.onnx", digits, inference)
    file, layers = Model(done.path, "cpu"), done.metadata.novelty_layers
    assert verify_model(done.path).self_test is not None
    assert len(layers) > 1
    assert [name.startswith("blocks.1.") for name in done.costs.layers] == [False] * (len(layers) - 1) + [True]
    assert done.metadata.rule.gate.images == len(digits.splits["calibration"])
    images, train = digits.splits["test"].images[:20], digits.splits["train"]
    ours, theirs = (probe(ir.load(done.path), x, emit_all_features, layers=layers) for x in (images, train.images))
    exact = sum(novelty.fit(known, train.labels)(new) for known, new in zip(theirs, ours, strict=True))
    np.testing.assert_allclose(file.predict(images).novelty_score, exact, rtol=1e-4)


def test_the_trunk_of_an_ensemble_is_looked_at_once(runs: tuple[Path, Path], digits: Dataset, tmp_path: Path) -> None:
    done = export_ensemble(runs, tmp_path / "both.onnx", FileKind(Inference.DETERMINISTIC))
    alone = export_run(runs[0], tmp_path / "one.onnx", digits, Inference.DETERMINISTIC)
    assert done.calibrated.metadata.novelty_layers == alone.metadata.novelty_layers != ()
    images = digits.splits["test"].images[:20]
    both, one = (Model(tmp_path / name, "cpu").predict(images) for name in ("both.onnx", "one.onnx"))
    np.testing.assert_allclose(both.novelty_score, one.novelty_score, rtol=1e-4)
    np.testing.assert_array_equal(both.novelty, one.novelty)


def test_layers_that_a_run_lacks_are_refused_before_anything_slow(runs: tuple[Path, Path]) -> None:
    before = Run.load(runs[0])
    for features in ("absent", "99"):
        with raises("argument.novelty_features", UsageError):
            calibration.calibrate(runs[0], novelty=NoveltyPromise(features=features))
    with raises("argument.novelty_features", UsageError):
        calibration.calibrate(runs[0].parent / "start", novelty=NoveltyPromise(features="trunk"))
    assert Run.load(runs[0]) == before


def test_a_trained_norm_ends_the_trunk_before_its_layer() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3)
    )
    parameter_groups.freeze(model, ["0", "1", "2"])
    assert parameter_groups.frozen_weights(model) == {"0.weight"}
    parameter_groups.freeze(model, ["3"])
    assert parameter_groups.frozen_weights(model) == {"0.weight", "2.weight"}
    assert parameter_groups.frozen_weights(nn.Conv2d(1, 1, 3)) == frozenset()

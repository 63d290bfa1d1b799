"""The choice of what the novelty gate of a third-party file looks at."""

import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from conftest import GOLDEN
from helpers.progress_lines import every_line, shown

from uce_edge.calibration import novelty
from uce_edge.contract import Method
from uce_edge.datasets import splits, synthetic_ood
from uce_edge.datasets.splits import Split
from uce_edge.rejection.promises import NoveltyPromise
from uce_edge.runtime.model import Model
from uce_edge_export.check import novelty_choice
from uce_edge_export.graph import novelty_score
from uce_edge_export.recalibration import recalibrate
from uce_edge_export.transform.feature_extraction import emit_all_features, probe

FILE = GOLDEN / "digits-minor-0.onnx"


@pytest.fixture(scope="module")
def calibration() -> Split:
    return splits.load("digits").splits["calibration"]


def accepted(fitting: Split, layers: tuple[int, ...]) -> float:
    """The share of far images that a gate accepts which rejects 5 % of the own images."""
    fit_on, own = fitting.halves()
    far = synthetic_ood.far(Model(FILE, "cpu").metadata.image, synthetic_ood.CHOICE, each=25).images
    values = [
        probe(ir.load(FILE), images, emit_all_features, layers=layers) for images in (fit_on.images, own.images, far)
    ]
    scores = [
        [novelty.fit(k, fit_on.labels)(x) for x in (inside, outside)]
        for k, inside, outside in zip(*values, strict=True)
    ]
    inside, outside = (np.sum([one[index] for one in scores], axis=0) for index in (0, 1))
    return float((outside <= np.quantile(inside, 0.95)).mean())


def test_several_layers_are_taken_if_they_accept_fewer_far_images(
    calibration: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitting, reference = novelty_score.parts(calibration)
    spec = Model(FILE, "cpu").metadata.image
    monkeypatch.setattr(novelty_choice, "_GAIN", -1.0)
    taken = novelty_choice.choose(ir.load(FILE), fitting, spec)
    assert taken is not None
    assert len(taken.layers) > 1
    assert taken.accepted == pytest.approx(accepted(fitting, taken.layers))
    assert taken.accepted_by_last == pytest.approx(accepted(fitting, ()))
    done = recalibrate(FILE, tmp_path / "several.onnx", calibration, Method.TEMPERATURE, 2,
                       novelty=NoveltyPromise(), choose_features=True)  # fmt: skip
    assert done.metadata.novelty_layers == taken.layers
    assert done.features == taken
    assert done.metadata.rule.gate.data == reference.sha256()
    monkeypatch.setattr(novelty_choice, "_GAIN", 1.0)
    kept = novelty_choice.choose(ir.load(FILE), fitting, spec)
    assert kept == ((), taken.accepted_by_last, taken.accepted_by_last)


def test_few_images_choose_nothing(calibration: Split) -> None:
    fitting, _ = novelty_score.parts(calibration)
    few = fitting.take(np.arange(60))
    assert novelty_choice.choose(ir.load(FILE), few, Model(FILE, "cpu").metadata.image) is None


def test_the_choice_reports_its_images_and_its_fits(calibration: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, fit = every_line(monkeypatch), novelty.fit
    monkeypatch.setattr(novelty, "fit", lambda *given: (time.sleep(0.05), fit(*given))[1])
    fitting, _ = novelty_score.parts(calibration)
    assert novelty_choice.choose(ir.load(FILE), fitting, Model(FILE, "cpu").metadata.image) is not None
    assert f"32 of {len(fitting.halves()[0])} images" in shown(lines, "reading features")
    assert shown(lines, "choosing the layers of the novelty gate")

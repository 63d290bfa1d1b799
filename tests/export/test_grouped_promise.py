"""Where images are grouped, what a file promises is found with one image of each group."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN

from uce_edge.cli.words import describe_auto
from uce_edge.contract import Method
from uce_edge.datasets import splits
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.model import Model
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import NoveltyPromise, Promise

pytest.importorskip("onnx_ir")
pytest.importorskip("sklearn")
SOURCE = GOLDEN / "digits-mc.onnx"
PROMISE = Promise(0.1, 0.9)


@pytest.fixture(scope="module")
def data() -> Split:
    """540 digits that the network has not seen, in 180 groups."""
    parts = [splits.load("digits").splits[name] for name in ("calibration", "guarantee")]
    images, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels"))
    return Split(images, labels, np.arange(len(labels)) // 3)


def test_both_promises_count_each_group_once(data: Split, tmp_path: Path) -> None:
    from uce_edge_export.recalibrating import recalibrate

    done = recalibrate(SOURCE, tmp_path / "m.onnx", data, Method.TEMPERATURE, 4, 0, PROMISE, NoveltyPromise(0.1))
    metadata = done.metadata
    fitted, kept = data.halves()
    assert not set(fitted.groups) & set(kept.groups)
    single, reference = kept.one_per_group(), fitted.halves()[1].one_per_group()
    assert (len(single), len(reference)) == (90, 45)
    assert metadata.reject is not None
    assert metadata.rule is not None
    assert metadata.held_out is not None
    assert metadata.monitor is not None
    assert (metadata.reject.images, metadata.reject.data) == (90, single.sha256())
    assert (metadata.rule.foreign.images, metadata.rule.foreign.data) == (45, reference.sha256())
    assert metadata.held_out.data == metadata.monitor.data == single.sha256()
    assert metadata.reject.grouped
    assert metadata.rule.foreign.grouped
    assert metadata.held_out.grouped
    said = Model(tmp_path / "m.onnx", "cpu").predict(single.images)
    found = guarantee.find(said.uncertainty, said.class_ids != single.labels, 0.1, 0.9)
    assert metadata.reject.threshold == found.threshold
    told = describe_auto(metadata)
    assert told is not None
    assert "(45 reference images, one of each group)" in told
    assert "of 90 held-out images, one of each group" in told
    assert done.metadata.calibration.outcome.images == len(fitted), "the map is fitted on all of them"


def test_a_refusal_says_that_groups_are_counted(data: Split, tmp_path: Path) -> None:
    from uce_edge_export.recalibrating import recalibrate

    strict, possible = Promise(0.02, 0.95), Promise(0.04, 0.95)
    told = "90 guarantee groups cannot promise .* takes at least 149.* Only one image of each group counts"
    with pytest.raises(UsageError, match=told):
        recalibrate(SOURCE, tmp_path / "m.onnx", data, Method.TEMPERATURE, 2, 0, strict, NoveltyPromise())
    wrong = replace(data, labels=(data.labels + 1) % 10)
    done = recalibrate(SOURCE, tmp_path / "m.onnx", wrong, Method.TEMPERATURE, 2, 0, possible, NoveltyPromise())
    for refusal in (done.measured.refused, done.unfit):
        assert str(refusal).endswith("Only one image of each group counts.")
    alone = replace(data, groups=None)
    done = recalibrate(SOURCE, tmp_path / "a.onnx", alone, Method.TEMPERATURE, 2, 0, strict)
    assert done.metadata.reject is None or not done.metadata.reject.grouped
    assert "group" not in str(done.measured.refused)

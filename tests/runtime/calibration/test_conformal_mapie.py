"""Prediction sets beside those of MAPIE, where it is installed: pip install mapie."""

import importlib.util
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

pytest.importorskip("mapie", reason="MAPIE is not installed")

from uce_edge.calibration import conformal
from uce_edge.calibration.conformal import Penalty
from uce_edge.calibration.label_sets import SetPromise, scores
from uce_edge.contract import SetScore


def mapie(*arguments: Any) -> Any:
    path = ROOT / "benchmarks" / "studies" / "sets_mapie.py"
    spec = importlib.util.spec_from_file_location("sets_mapie", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.mapie(*arguments)


@pytest.fixture(scope="module")
def images() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (1500, 8))
    true = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = (true.cumsum(-1) < rng.random((1500, 1))).sum(-1)
    return (true**2 / (true**2).sum(-1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_the_sets_of_lac_are_the_same(images: tuple[Any, Any], alpha: float) -> None:
    table, labels = images
    limits = conformal.limits(table[:500], labels[:500], SetPromise(alpha), Penalty())
    ours = scores(table[500:], SetScore.LAC) <= limits
    theirs = mapie(table[:500].astype(float), labels[:500], table[500:].astype(float), "lac", alpha)
    assert (ours != theirs).sum() <= 1  # the label at the limit itself, in float32 and in float64


@pytest.mark.parametrize("score", [SetScore.APS, SetScore.RAPS])
def test_cumulative_sets_are_not_larger_and_keep_the_promise(images: tuple[Any, Any], score: SetScore) -> None:
    table, labels = images
    promise = SetPromise(0.1, score)
    penalty = conformal.choose_penalty(table[500:], labels[500:], promise)
    limits = conformal.limits(table[:500], labels[:500], promise, penalty)
    ours = scores(table[500:], score, *penalty) <= limits
    theirs = mapie(table[:500].astype(float), labels[:500], table[500:].astype(float), score.value, 0.1)
    assert ours.sum() <= theirs.sum()
    assert ours[np.arange(1000), labels[500:]].mean() > 0.87

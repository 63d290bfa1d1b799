"""Prediction sets beside those of TorchCP, where it is installed: pip install torchcp."""

from typing import Any

import numpy as np
import pytest

from uce_edge.calibration import conformal
from uce_edge.calibration.conformal import Penalty
from uce_edge.calibration.label_sets import SetPromise, scores
from uce_edge.contract import SetScore

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
predictor = pytest.importorskip("torchcp.classification.predictor", reason="TorchCP is not installed")
theirs = pytest.importorskip("torchcp.classification.score", reason="TorchCP is not installed")

FITTED = 500


@pytest.fixture(scope="module")
def images() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (1500, 8))
    true = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = (true.cumsum(-1) < rng.random((1500, 1))).sum(-1)
    return (true**2 / (true**2).sum(-1, keepdims=True)).astype(np.float32), labels


def sets(images: tuple[Any, Any], score: SetScore, alpha: float, penalty: Penalty) -> Any:
    table, labels = images
    limits = conformal.limits(table[:FITTED], labels[:FITTED], SetPromise(alpha, score), penalty)
    return scores(table[FITTED:], score, *penalty) <= limits


def sets_of_torchcp(images: tuple[Any, Any], score: Any, alpha: float) -> Any:
    table, labels = (torch.from_numpy(values) for values in images)
    split = predictor.SplitPredictor(score)
    split.calculate_threshold(table[:FITTED], labels[:FITTED], alpha)
    return np.asarray(split.predict_with_logits(table[FITTED:])).astype(bool)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_the_sets_of_lac_are_the_same(images: tuple[Any, Any], alpha: float) -> None:
    found = sets_of_torchcp(images, theirs.LAC(score_type="identity"), alpha)
    assert (sets(images, SetScore.LAC, alpha, Penalty()) != found).sum() <= 1  # the label at the limit itself


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("penalty", [Penalty(), Penalty(2**-5, 2)])
def test_cumulative_sets_are_those_with_the_whole_random_share(
    images: tuple[Any, Any], alpha: float, penalty: Penalty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchCP subtracts a random share of the label's own probability; here it is always the whole."""
    monkeypatch.setattr(torch, "rand", lambda *shape, device=None: torch.ones(*shape, device=device))
    score = SetScore.RAPS if penalty.penalty else SetScore.APS
    other = theirs.RAPS(score_type="identity", penalty=penalty.penalty, kreg=penalty.free)
    found = sets_of_torchcp(images, other, alpha)
    assert (sets(images, score, alpha, penalty) != found).sum() <= 1


@pytest.mark.parametrize("score", [SetScore.APS, SetScore.RAPS])
def test_cumulative_sets_are_not_larger_by_default(images: tuple[Any, Any], score: SetScore) -> None:
    torch.manual_seed(0)
    penalty = Penalty(2**-5, 2) if score is SetScore.RAPS else Penalty()
    other = theirs.RAPS(score_type="identity", penalty=penalty.penalty, kreg=penalty.free)
    assert sets(images, score, 0.1, penalty).sum() <= sets_of_torchcp(images, other, 0.1).sum()

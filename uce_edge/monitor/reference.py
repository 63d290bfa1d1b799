"""Make the reference of a drift monitor: score histograms."""

from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from uce_edge.contract import MODEL_UNCERTAINTY, NOVELTY_SCORE, UNCERTAINTY
from uce_edge.errors import UceEdgeError
from uce_edge.monitor import betting
from uce_edge.monitor.state import Bins, StoredReference
from uce_edge.runtime.prediction import Prediction

Scores = Mapping[str, npt.NDArray[np.float32]]

FEWEST = 50
"""The smallest number of images for the edges, and for the counts."""
_BINS = 32  # equal shares; 16 and 64 were as quick in simulations
_TAILS = (0.002, 0.005, 0.01, 0.02)  # finer shares at both ends, for single out-of-distribution images


class DriftReferenceError(UceEdgeError):
    """These images cannot be a reference."""


def scores_of(prediction: Prediction) -> Scores:
    """The monitored scores of a prediction."""
    scores = {UNCERTAINTY: prediction.uncertainty, MODEL_UNCERTAINTY: prediction.model_uncertainty}
    return scores if prediction.novelty_score is None else scores | {NOVELTY_SCORE: prediction.novelty_score}


def of(edges_from: Prediction, counted: Prediction, data: str) -> StoredReference:
    """Make the reference of a model file.

    Args:
        edges_from: The predictions that set the bins.
        counted: The predictions to count, of images that nothing was fitted on.
        data: SHA-256 of the counted images.
    """
    return count(scores_of(edges_from), scores_of(counted), counted.samples, counted.seed, data)


def from_prediction(prediction: Prediction) -> StoredReference:
    """Make a reference: a quarter of the images sets the bins."""
    order = np.random.default_rng(0).permutation(len(prediction))  # the files of a folder are sorted
    quarter = len(order) // 4
    if quarter < FEWEST:
        raise DriftReferenceError(
            f"{len(order)} images are too few for a reference: at least {4 * FEWEST} are needed. Give more images.",
            "monitor.too-few-images",
            images=len(order),
        )
    return of(prediction[order[:quarter]], prediction[order[quarter:]], data="")


def count(edges_from: Scores, counted: Scores, samples: int, seed: int, data: str) -> StoredReference:
    """Count scores in bins.

    Args:
        edges_from: The scores that set the edges of the bins.
        counted: The scores to count, of images that nothing was fitted on.
        samples: The number of passes.
        seed: The seed of the passes.
        data: SHA-256 of the counted images.

    Raises:
        DriftReferenceError: There are too few images.
    """
    fewest = min(len(scores) for part in (edges_from, counted) for scores in part.values())
    if fewest < FEWEST:
        raise DriftReferenceError(
            f"{fewest} images are too few for a reference: {FEWEST} are needed for the bins, {FEWEST} more to count. "
            "Give more images; some thousands are better.",
            "monitor.too-few-images",
            images=fewest,
        )
    statistics = {}
    for name, scores in edges_from.items():
        edges = _edges(scores)
        if len(edges) > 1:  # a constant score shows no drift
            filled = np.bincount(betting.bins(edges, counted[name]), minlength=len(edges) + 1)
            statistics[name] = Bins(edges, tuple(filled.tolist()))
    if not statistics:
        raise DriftReferenceError(
            "All these images have the same scores, which show no drift. Check the images.", "monitor.flat"
        )
    return StoredReference(statistics, samples, seed, data, today())


def today() -> str:
    """Today's date, for a promise or a reference."""
    return datetime.now(UTC).date().isoformat()


def _edges(scores: npt.NDArray[np.float32]) -> tuple[float, ...]:
    levels = np.concatenate([_TAILS, np.arange(1, _BINS) / _BINS, 1 - np.array(_TAILS)])
    edges = np.unique(np.quantile(np.asarray(scores, np.float32), levels, method="inverted_cdf"))
    return tuple(float(str(edge)) for edge in edges)  # the shortest decimals of the float32 numbers

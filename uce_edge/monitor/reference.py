"""The usual answers of a model: from the scores of images to a few dozen counts a statistic."""

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
"""Images for the edges, and for the counts, at least."""
_BINS = 32  # equal shares; 16 and 64 were as quick in simulations
_TAILS = (0.002, 0.005, 0.01, 0.02)  # finer shares at both ends, where single foreign images show


class UsualError(UceEdgeError):
    """These images cannot say what is usual."""


def scores_of(prediction: Prediction) -> Scores:
    """What is watched of some answers."""
    scores = {UNCERTAINTY: prediction.uncertainty, MODEL_UNCERTAINTY: prediction.model_uncertainty}
    return scores if prediction.novelty_score is None else scores | {NOVELTY_SCORE: prediction.novelty_score}


def of(usual: Prediction, said: Prediction, data: str) -> StoredReference:
    """The reference of a model file, from what it says of the images that set the bins and of those that are counted.

    Args:
        usual: Of some images.
        said: Of others, which nothing of the model was fitted on.
        data: SHA-256 of the counted images.
    """
    return count(scores_of(usual), scores_of(said), said.samples, said.seed, data)


def from_answers(said: Prediction) -> StoredReference:
    """A reference from the answers to images of the usual kind: a quarter sets the bins, the others are counted."""
    order = np.random.default_rng(0).permutation(len(said))  # a folder is sorted, and a sample must not be
    quarter = len(order) // 4
    if quarter < FEWEST:
        raise UsualError(
            f"{len(order)} images are too few to learn the usual answers: at least {4 * FEWEST} are needed. Give more "
            "images."
        )
    return of(said[order[:quarter]], said[order[quarter:]], data="")


def count(edges_from: Scores, counted: Scores, samples: int, seed: int, data: str) -> StoredReference:
    """The reference of a model file.

    Args:
        edges_from: The scores of some images, which say where bins begin and end.
        counted: The scores of others, which nothing of the model was fitted on.
        samples: The passes that gave them.
        seed: Which passes.
        data: SHA-256 of the counted images.

    Raises:
        UsualError: There are too few images.
    """
    fewest = min(len(scores) for part in (edges_from, counted) for scores in part.values())
    if fewest < FEWEST:
        raise UsualError(
            f"{fewest} images are too few to learn the usual answers: {FEWEST} are needed for the bins and {FEWEST} "
            "more to count. Give more images; some thousands are better."
        )
    statistics = {}
    for name, scores in edges_from.items():
        edges = _edges(scores)
        if len(edges) > 1:  # a score that never varies tells nothing
            filled = np.bincount(betting.bins(edges, counted[name]), minlength=len(edges) + 1)
            statistics[name] = Bins(edges, tuple(filled.tolist()))
    if not statistics:
        raise UsualError("All these images get the same answer: nothing could be unusual. Check the images.")
    return StoredReference(statistics, samples, seed, data, today())


def today() -> str:
    """The date that a promise or a reference carries."""
    return datetime.now(UTC).date().isoformat()


def _edges(scores: npt.NDArray[np.float32]) -> tuple[float, ...]:
    levels = np.concatenate([_TAILS, np.arange(1, _BINS) / _BINS, 1 - np.array(_TAILS)])
    edges = np.unique(np.quantile(np.asarray(scores, np.float32), levels, method="inverted_cdf"))
    return tuple(float(str(edge)) for edge in edges)  # the shortest decimals that float32 reads back as them

"""Scores of several trainings, with one interval.

The interval allows for the test images, which all trainings share, and for the trainings: the mean over the seeds is
resampled by images, and the spread between seeds enters with Student's t. With one seed, only images count.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge_train.reproduce.trained_networks import Row, Study

Score = Callable[..., float]
"""Of the predictions of one or more cells and the labels, in this order."""
_RESAMPLES = 200
_NORMAL = 1.96
# 97.5 % quantiles of Student's t, by degrees of freedom; 2.2 at most beyond.
_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def measure(study: Study, score: Score, *cells: tuple[Row, Inference]) -> metrics.Interval:
    """The mean of a score over the seeds, and its 95 % interval.

    Args:
        study: The networks.
        score: Called with one table of probabilities per cell, then the labels.
        *cells: The predictions that are compared; the same images and networks are drawn for all.
    """
    labels = study.first.labels()
    tables = [[subject.probabilities(row, kind) for row, kind in cells] for subject in study.subjects]

    def mean(rows: npt.NDArray[np.int64] | slice) -> npt.NDArray[np.float64]:
        return np.array([score(*(table[rows] for table in parts), labels[rows]) for parts in tables])

    rng, turns = np.random.default_rng(0), max(40, _RESAMPLES // len(tables))
    values = mean(slice(None))
    draws = [mean(np.sort(rng.integers(len(labels), size=len(labels)))).mean() for _ in range(turns)]
    half = math.hypot(_NORMAL * float(np.std(draws, ddof=1)), _between(values))
    value = float(values.mean())
    return metrics.Interval(value, value - half, value + half)


def over_seeds(values: list[float]) -> metrics.Interval:
    """The mean of numbers of each training, with the spread between trainings alone."""
    value, half = float(np.mean(values)), _between(np.array(values))
    return metrics.Interval(value, value - half, value + half)


def _between(values: npt.NDArray[np.float64]) -> float:
    """Half the width of the interval of a mean over seeds."""
    if len(values) == 1:
        return 0.0
    return _STUDENT.get(len(values) - 1, 2.2) * float(values.std(ddof=1)) / math.sqrt(len(values))

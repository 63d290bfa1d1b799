"""Accuracy, NLL and Brier score."""

import numpy as np
import numpy.typing as npt

from uce_edge.metrics.probabilities import inputs


def accuracy(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The share of images whose most probable class is the true one.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> accuracy(probabilities, labels)
        0.75
    """
    table, truth = inputs(probabilities, labels)
    return float(np.mean(table.predicted == truth))


def nll(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Negative log-likelihood per image, in nats.

    It is infinite if a true class has probability 0.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(nll(probabilities, labels), 3)
        0.4
    """
    table, truth = inputs(probabilities, labels)
    total = 0.0
    for rows, block in table.blocks():
        with np.errstate(divide="ignore"):  # log(0) is the right answer
            total -= float(np.log(block[np.arange(len(block)), truth[rows]]).sum())
    return total / len(table)


def brier(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Brier's original score, from 0 to 2.

    It is the mean over images of the squared differences to the one-hot label, summed over the classes. With two
    classes it is twice the score of one probability.

    Example:
        >>> probabilities, labels = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 0, 1, 1]
        >>> round(brier(probabilities, labels), 3)
        0.25
    """
    table, truth = inputs(probabilities, labels)
    total = 0.0
    for rows, block in table.blocks():
        difference = block.copy()
        difference[np.arange(len(block)), truth[rows]] -= 1
        total += float(np.einsum("ij,ij->", difference, difference))
    return total / len(table)

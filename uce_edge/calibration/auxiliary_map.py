"""The auxiliary map: R(z) = x + W2 leaky_relu(W1 x + b1) + b2, x = z / T.

It has as many hidden units as classes. It starts from temperature scaling, and stays there unless it is better on
held-out images.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from uce_edge.calibration.likelihood import Labelled, Likelihood, class_first, over_tiles
from uce_edge.calibration.logits import Block
from uce_edge.calibration.optimise import Adam
from uce_edge.metrics.argument_checks import Booleans, Floats, Integers

Array = TypeVar("Array", bound=Any)

_LEAKY_SLOPE = 0.01


def initial(classes: int) -> dict[str, Floats]:
    """Parameters of the identity, by W2 = 0.

    The paper's theta = I is not the identity for negative logits.
    """
    return {
        "aux.w1": np.eye(classes),
        "aux.b1": np.zeros(classes),
        "aux.w2": np.zeros((classes, classes)),
        "aux.b2": np.zeros(classes),
    }


def layers(parameters: Mapping[str, Array], logits: Array) -> tuple[Array, Array, Array]:
    """Hidden units before and after the leaky ReLU, and the result."""
    hidden: Array = logits @ parameters["aux.w1"].T + parameters["aux.b1"]
    active: Array = _LEAKY_SLOPE * hidden + (1 - _LEAKY_SLOPE) * hidden.clip(min=0)
    mapped: Array = logits + active @ parameters["aux.w2"].T + parameters["aux.b2"]
    return hidden, active, mapped


def held_out(images: int, seed: int) -> Booleans:
    """The fifth of the images that stops the fit."""
    held = np.zeros(images, np.bool_)
    held[np.random.default_rng(seed).permutation(images)[: images // 5]] = True
    return held


def fit(data: Labelled, held: Booleans, temperature: float, regularise: bool) -> dict[str, Floats]:
    """Fit by Adam with weight decay and early stopping.

    Without them, the map overfits with many classes.

    Args:
        data: Raw logits and labels.
        held: The held-out images of early stopping.
        temperature: The divisor of the logits.
        regularise: False for no decay and no early stopping.
    """
    parameters = initial(data.classes)
    if not held.any():
        return parameters
    # W2 = 0 is the identity: decay pulls towards "no change".
    optimiser = Adam(parameters, rate=1e-2, decay={"aux.w2": 1e-2 if regularise else 0.0})
    best, best_nll, waited = initial(data.classes), _nll(parameters, data, held, temperature), 0
    # One step per block; a small set is one block.
    for _ in range(max(20, 500 // len(data))):
        for block, labels in data.blocks(~held if regularise else None):
            optimiser.step(gradients(parameters, block, labels, temperature))
        if not regularise:
            continue
        nll = _nll(parameters, data, held, temperature)
        if nll < best_nll - 1e-6:
            best, best_nll, waited = {name: value.copy() for name, value in parameters.items()}, nll, 0
        else:
            waited += 1
            if waited == max(2, 30 // len(data)):
                break
    return best if regularise else parameters


def gradients(
    parameters: Mapping[str, Floats], block: Block, labels: Integers, temperature: float = 1.0
) -> dict[str, Floats]:
    """Derivatives of the mean NLL, at a fixed temperature."""

    def summed(tile: Block, labels: Integers) -> dict[str, Floats]:
        rows = tile.astype(np.float64).reshape(-1, tile.shape[-1]) / temperature
        hidden, active, mapped = layers(parameters, rows)
        likelihood = Likelihood.of(class_first(mapped.reshape(tile.shape)), labels)
        by_mapped = likelihood.derivative(labels).reshape(tile.shape[-1], -1)
        by_hidden = by_mapped.T @ parameters["aux.w2"]
        by_hidden *= _LEAKY_SLOPE + (1 - _LEAKY_SLOPE) * (hidden > 0)
        return {
            "aux.w1": by_hidden.T @ rows,
            "aux.b1": np.ones(len(rows)) @ by_hidden,  # several times faster than a sum over short rows
            "aux.w2": by_mapped @ active,
            "aux.b2": by_mapped.sum(axis=1),
        }

    total = {name: np.zeros_like(value) for name, value in parameters.items()}
    for part in over_tiles(summed, [(block, labels)]):
        for name, value in part.items():
            total[name] += value / len(labels)
    return total


def _nll(parameters: Mapping[str, Floats], data: Labelled, chosen: Booleans, temperature: float) -> float:
    """The mean NLL of the chosen images."""

    def summed(tile: Block, labels: Integers) -> float:
        *_, mapped = layers(parameters, tile.astype(np.float64) / temperature)
        return float(Likelihood.of(class_first(mapped), labels).nll.sum())

    return sum(over_tiles(summed, data.blocks(chosen))) / int(chosen.sum())

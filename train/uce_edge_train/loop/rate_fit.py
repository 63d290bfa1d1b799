"""Fit the dropout rate of a pretrained network on held-out images.

Rates of the literature ruin weights that were trained without noise. A rate is taken here only if it does no harm.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
from uce_edge_train.data.features import before_noise
from uce_edge_train.dropout.gaussian_layers import deterministic, gaussian_layers
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.loop.feeds import Feed

RATES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""The rates that are tried."""
_PASSES = 8
_LOSS = 0.01  # of accuracy, that one noisy pass may cost
TRIED = 3
"""The rates that are trained with, at most, one epoch each."""


class Fitted(NamedTuple):
    """The rate that was found, and what it does."""

    p: float
    nll: float
    """Of averaged passes, with a temperature."""
    plain_nll: float
    """Of the weights before, without noise, with a temperature."""
    cost: float
    """Accuracy that one noisy pass loses."""

    def summary(self) -> str:
        """One sentence about it."""
        return (
            f"Rate: p = {self.p:g}, the lowest NLL of the calibration images: {self.nll:.3f} with {_PASSES} passes, "
            f"{self.plain_nll:.3f} without noise, both with a temperature. One noisy pass loses "
            f"{100 * self.cost:.1f} points of accuracy."
        )


class _Measured(NamedTuple):
    nll: float
    accuracy: float
    """The mean of single passes."""


def fit(feed: Feed, seed: int, train: Callable[[float], None]) -> Fitted:
    """Choose the rate of a network, and train with it.

    The first rate is the largest one whose single pass loses less than a point of accuracy. Higher ones are trained
    with, and kept while the held-out NLL falls. The network ends with the weights and the rate that are best.

    Args:
        feed: The network, its training inputs and its held-out images.
        seed: Of the passes.
        train: Trains the network at a rate, for a short time.
    """
    network = feed.network
    with deterministic(network):
        plain = _measure(feed, 1, seed)
    first = RATES[0]
    for rate in reversed(RATES):
        set_rate(network, rate)
        found = _measure(feed, _PASSES, seed)
        if plain.accuracy - found.accuracy < _LOSS or rate == RATES[0]:
            first = rate
            break
    best, weights, before = (found.nll, first, found.accuracy), _copy(network), _copy(network)
    for rate in [rate for rate in RATES if rate >= first][:TRIED]:
        network.load_state_dict(before)
        set_rate(network, rate)
        train(rate)
        found = _measure(feed, _PASSES, seed)
        if found.nll < best[0]:
            best, weights = (found.nll, rate, found.accuracy), _copy(network)
        elif rate > first:
            break
    nll, p, accuracy = best
    network.load_state_dict(weights)
    set_rate(network, p)
    with deterministic(network):
        own = _measure(feed, 1, seed).accuracy
    return Fitted(p, nll, plain.nll, max(0.0, own - accuracy))


def set_rate(network: nn.Module, p: float) -> None:
    """Give all Gaussian layers one rate."""
    for layer in gaussian_layers(network).values():
        layer.p = p


def _measure(feed: Feed, samples: int, seed: int) -> _Measured:
    network, image, data = before_noise(feed.network.eval(), feed.image, feed.held_out)
    logits = mc_logits(network, data, image, samples, seed)
    labels = np.concatenate([block.argmax(-1) for block in logits], axis=1)
    report = fit_map(Method.TEMPERATURE, logits, data.labels, seed).outcome
    return _Measured(report.nll_after, float(np.mean(labels == data.labels)))


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}

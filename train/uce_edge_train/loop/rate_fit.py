"""Fit the dropout rate of a pretrained network on held-out images.

Rates of the literature ruin weights that were trained without noise. A rate is taken here only if it does no harm.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
from uce_edge.errors import UsageError, expected
from uce_edge_train.choices import Rates
from uce_edge_train.data.features import before_noise
from uce_edge_train.dropout.gaussian_layers import deterministic, gaussian_layers
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.loop.feeds import Feed

RATES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""The rates that are tried."""
_PASSES = 8
_LOSS = 0.01  # of accuracy, that one noisy pass may cost
_AS_GOOD = 0.005  # of NLL, above the lowest
TRIED = 3
"""The rates that are trained with, at most, one epoch each."""
PASSES = (len(RATES) + TRIED + 1) * _PASSES
"""The passes over the held-out images, at most."""


class Fitted(NamedTuple):
    """The rate that was found, and what it does."""

    p: float
    nll: float
    """Of averaged passes, with a temperature."""
    plain_nll: float
    """Of the weights before, without noise, with a temperature."""
    cost: float
    """Accuracy that one noisy pass loses."""
    trained: bool
    """Whether the network was trained with this rate, for a short time."""

    def summary(self) -> str:
        """One sentence about it."""
        return (
            f"Rate: p = {self.p:g}, the largest that does no harm. NLL of the selection images with a temperature: "
            f"{self.nll:.3f} with {_PASSES} passes, {self.plain_nll:.3f} without noise. One noisy pass loses "
            f"{100 * self.cost:.1f} points of accuracy."
        )


class _Measured(NamedTuple):
    nll: float
    accuracy: float
    """The mean of single passes."""


class _Tried(NamedTuple):
    p: float
    nll: float
    weights: dict[str, Tensor]


def check_processes(rates: Rates, processes: int) -> None:
    """Refuse to fit a rate in several processes."""
    if rates is Rates.FITTED and processes > 1:
        rule, remedy = "fixed, model or layer with several processes", "Choose a rate: --p 0.01"
        raise UsageError(expected("`rates`", rule, str(rates), remedy))


def fit(feed: Feed, seed: int, train: Callable[[float], None]) -> Fitted:
    """Choose the rate of a network, and train with it.

    The first rates are those whose single pass loses less than a point of accuracy, or than one image. The largest of
    them, and higher ones while the held-out NLL falls, are trained with for a short time. The largest rate is taken
    whose NLL is as good as the lowest.

    Args:
        feed: The network, its training inputs and its held-out images.
        seed: Of the passes.
        train: Trains the network at a rate, for a short time.
    """
    network = feed.network
    with deterministic(network):
        plain = _measure(feed, 1, seed)
    before = _copy(network)
    tried: list[_Tried] = []
    for rate in RATES:
        set_rate(network, rate)
        found = _measure(feed, _PASSES, seed)
        if tried and plain.accuracy - found.accuracy >= max(_LOSS, 1 / len(feed.held_out)):
            break
        tried.append(_Tried(rate, found.nll, before))
    first, lowest = tried[-1].p, float("inf")
    for rate in [rate for rate in RATES if rate >= first][:TRIED]:
        network.load_state_dict(before)
        set_rate(network, rate)
        train(rate)
        found = _measure(feed, _PASSES, seed)
        tried.append(_Tried(rate, found.nll, _copy(network)))
        if found.nll > lowest:
            break
        lowest = found.nll
    best = min(one.nll for one in tried)
    # Of the same rate, trained and not, the lower NLL.
    chosen = max((one for one in tried if one.nll <= best + _AS_GOOD), key=lambda one: (one.p, -one.nll))
    network.load_state_dict(chosen.weights)
    set_rate(network, chosen.p)
    with deterministic(network):
        own = _measure(feed, 1, seed).accuracy
    cost = max(0.0, own - _measure(feed, _PASSES, seed).accuracy)
    return Fitted(chosen.p, chosen.nll, plain.nll, cost, trained=chosen.weights is not before)


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

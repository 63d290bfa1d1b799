"""Table of dropout families for training."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from uce_edge.contract import Sigma
from uce_edge_train.choices import Dropout
from uce_edge_train.dropout.bernoulli_layers import bernoullize
from uce_edge_train.dropout.gaussian_layers import gaussianize


@dataclass(frozen=True)
class Family:
    """A dropout family: how to add it, what it supports."""

    add: Callable[[nn.Module, float, Sigma, tuple[str, ...]], nn.Module]
    """Gives chosen layers of a network this rate and sigma, in place."""
    masks: bool = False
    """Whether its layers call torch's dropout, so that passes and exports keep those masks."""
    learns_rates: bool = False
    has_sigma: bool = False
    """Whether its noise has a standard deviation that can be factored."""


FAMILIES = {
    Dropout.GAUSSIAN: Family(
        lambda network, p, sigma, layers: gaussianize(network, p, sigma=sigma, layers=layers),
        learns_rates=True,
        has_sigma=True,
    ),
    Dropout.BERNOULLI: Family(lambda network, p, _, layers: bernoullize(network, p, layers=layers), masks=True),
    Dropout.NONE: Family(lambda network, *_: network),
}

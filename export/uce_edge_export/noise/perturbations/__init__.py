"""Kinds of noise, as graph nodes and in numpy.

The graph pass (`sampling`) asks a perturbation for nodes and knows none of its formulas. A new kind is a module here
and a name in `contract.PerturbationKind`; whoever makes a `Site` chooses it.
"""

from uce_edge_export.noise.perturbations.base import Masking, Perturbation
from uce_edge_export.noise.perturbations.bernoulli import BernoulliDropout
from uce_edge_export.noise.perturbations.channel import ChannelDropout
from uce_edge_export.noise.perturbations.factored import FactoredDropout
from uce_edge_export.noise.perturbations.gaussian import GaussianDropout

__all__ = ["BernoulliDropout", "ChannelDropout", "FactoredDropout", "GaussianDropout", "Masking", "Perturbation"]

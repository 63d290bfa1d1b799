"""Which nodes of a graph get noise, and which noise."""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.contract import Sigma
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metadata import NoisyLayer
from uce_edge_export import layer_choice
from uce_edge_export.graph.weight_layers import is_depthwise, nodes_from, per_image_shape, weight_layers
from uce_edge_export.noise import sigma_factors as factoring
from uce_edge_export.noise.perturbations import (
    BernoulliDropout,
    ChannelDropout,
    FactoredDropout,
    GaussianDropout,
    Perturbation,
)
from uce_edge_export.options import pattern_and_rate
from uce_edge_export.source.dropout_marks import marks


@dataclass(frozen=True)
class Site:
    """A node that gets noise."""

    node: ir.Node
    name: str
    """That of its weights, or of its dropout."""
    perturbation: Perturbation
    """The noise."""
    shape: tuple[int, ...]
    """Its output for one image."""

    @property
    def layer(self) -> NoisyLayer:
        """Its entry in the metadata of a file."""
        return NoisyLayer(self.name, self.perturbation.p, self.perturbation.kind)

    @property
    def normals(self) -> tuple[int, ...]:
        """The shape of one image's standard normals in one pass."""
        return self.perturbation.normals(self.shape)

    @property
    def size(self) -> int:
        """How many standard normals one image takes in one pass."""
        return math.prod(self.normals)


def sites_with_rates(graph: ir.Graph, rates: Mapping[str, float]) -> list[Site]:
    """Noisy layers of a trained model, in graph order.

    Args:
        graph: The deterministic classifier.
        rates: Dropout rate by weight name.
    """
    layers = weight_layers(graph)
    missing = sorted(set(rates) - set(layers.values()))
    if missing:
        raise UceEdgeError(
            f"The layers {', '.join(missing)} have a dropout rate but are not in the exported graph. "
            "Are they used by the model's forward pass?",
            "layer.missing",
        )
    return [_site(node, name, rates[name]) for node, name in layers.items() if name in rates]


def sites_by_rule(graph: ir.Graph, p: Sequence[str]) -> list[Site]:
    """Layers of any classifier after the first, with their rates.

    Args:
        graph: The deterministic classifier.
        p: Rates as "0.2" for all layers or "PATTERN=0.1" for those whose name matches; the last match wins.
    """
    rules = [_rule(text) for text in p]
    candidates = list(weight_layers(graph).items())[1:]
    for text, (pattern, _) in zip(p, rules, strict=True):
        if candidates and not any(fnmatch.fnmatchcase(name, pattern) for _, name in candidates):
            names = ", ".join(name for _, name in candidates[:3])
            raise UsageError(
                expected("`p`", f"a pattern for a layer after the first ({names}, ...)", text, "Check the name")
            )
    sites = []
    for node, name in candidates:
        matching = [rate for pattern, rate in rules if fnmatch.fnmatchcase(name, pattern)]
        if matching:
            sites.append(_site(node, name, matching[-1]))
    return sites


def sites_of_marks(graph: ir.Graph) -> list[Site]:
    """Places of dropout that keeps its noise, in graph order."""
    return [
        Site(node, mark.name, BernoulliDropout(mark.p, mark.kind), per_image_shape(node.outputs[0], mark.name))
        for node, mark in marks(graph).items()
    ]


def in_order(graph: ir.Graph, sites: Sequence[Site]) -> list[Site]:
    """Sites of several kinds in the order of the graph."""
    by_node = {site.node: site for site in sites}
    return [by_node[node] for node in graph if node in by_node]


def _rule(text: str) -> tuple[str, float]:
    pattern, rate = pattern_and_rate(text)
    if not 0 < rate < 1:
        raise UsageError(
            expected("`p`", "a rate between 0 and 1, or PATTERN=RATE", text, "For example: --p 0.2 --p 'head*=0.1'")
        )
    return pattern or "*", rate


def select(sites: list[Site], graph: ir.Graph, noisy: Sequence[str]) -> list[Site]:
    """Keep the noisy layers of a choice, and masks behind the first.

    Args:
        sites: The candidates.
        graph: The classifier they are in.
        noisy: The choice, as in `layer_choice`; nothing for all.
    """
    if noisy:
        layers = weight_layers(graph)
        names = layer_choice.chosen([_described(node, name) for node, name in layers.items()][1:], noisy)
        first = next((number for number, name in enumerate(layers.values()) if name in names), len(layers))
        behind = nodes_from(graph, first)
        sites = [site for site in sites if (site.name in names if site.node in layers else site.node in behind)]
    if not sites:
        raise UceEdgeError(
            "No layer is left to be noisy: the graph has no Conv, Gemm or MatMul with constant weights after the "
            "first, or --p, --dropout and --noisy exclude all. Export with --inference deterministic.",
            "layer.missing",
        )
    return sites


def _described(node: ir.Node, name: str) -> layer_choice.Layer:
    return layer_choice.Layer(name, node.op_type == "Conv", is_depthwise(node))


def _site(node: ir.Node, name: str, p: float) -> Site:
    return Site(node, name, GaussianDropout(p), per_image_shape(node.outputs[0], f"layer {name}"))


def in_form(sites: list[Site], sigma: Sigma) -> list[Site]:
    """The layers with another sigma than the exact one."""
    if sigma is Sigma.FACTORED:
        return factored(sites)
    if sigma is Sigma.CHANNEL:
        return [_by_channel(site) for site in sites]
    return sites


def _by_channel(site: Site) -> Site:
    if site.node.op_type != "Conv" or not isinstance(site.perturbation, GaussianDropout):
        return site
    return replace(site, perturbation=ChannelDropout(site.perturbation.p, site.node))


def factored(sites: Sequence[Site], trained: Mapping[str, npt.NDArray[np.float32]] | None = None) -> list[Site]:
    """The layers with factored sigma, where it exists.

    Args:
        sites: Layers with Gaussian dropout.
        trained: Weights [outputs, inputs of a group, taps...] by name, before batch-norm was folded into them; their
            inputs and taps are used.
    """
    forms = []
    for site in sites:
        factors = factoring.of_layer(site.node)
        if factors is not None and trained is not None and site.name in trained:
            factors = factors.with_shape_of(trained[site.name])
        noise = None if factors is None else FactoredDropout(site.perturbation.p, factors)
        forms.append(site if noise is None else replace(site, perturbation=noise))
    if forms and not any(isinstance(site.perturbation, FactoredDropout) for site in forms):
        raise UsageError(
            f"No noisy layer has a factored sigma: {', '.join(site.name for site in sites[:3])} are depthwise layers, "
            "which are as cheap without, or products with stacks of matrices. Leave --sigma factored out.",
            "sigma.depthwise",
        )
    return forms

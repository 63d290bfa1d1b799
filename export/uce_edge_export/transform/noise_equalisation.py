"""Equalise the noise of a layer's channels: fewer products.

With factored sigma, channel o of a layer has the noise sqrt(u_o) * sqrt(s), for one map s. The weights and the bias of
the channel are divided by f_o = sqrt(u_o / mean u), and what comes behind a ReLU takes f into its own weights:

    W2 relu(x) = (W2 f) relu(x / f)

Then all channels of the layer have the same noise, and nothing is left to multiply. This is done where a ReLU follows,
and weight layers follow that. The last weight layer keeps its operand: its features are what novelty and a Laplace
posterior are fitted on.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge_export.graph.weight_layers import outputs_first, product_scale, weight_layers, weight_of
from uce_edge_export.noise.perturbations import FactoredDropout
from uce_edge_export.noise.sigma_factors import Factors
from uce_edge_export.noise.sites import Site

Weights = dict[ir.Value, npt.NDArray[np.float64]]
"""Weights and biases that are not those of the classifier."""

_SMALLEST = 0.01  # of the mean u: no channel grows by more than 10, whose square float16 still holds
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")  # a positive factor goes through them


def even(graph: ir.Graph, sites: Sequence[Site]) -> tuple[list[Site], Weights]:
    """Give all channels of a layer the same noise.

    Args:
        graph: The deterministic classifier, which stays as it is.
        sites: Its noisy layers.

    Returns:
        The layers with their new factors, and the weights that belong to them.
    """
    by_node = {site.node: site for site in sites}
    *_, last = weight_layers(graph) or [None]
    weights: Weights = {}
    for site in sites:
        node, noise = site.node, by_node[site.node].perturbation
        if not isinstance(noise, FactoredDropout) or not _can_change(node, noise.factors):
            continue
        readers = _readers(node, set(by_node))
        if not readers or last in readers:
            continue
        outputs = noise.factors.outputs
        scale = np.sqrt(outputs / outputs.mean())
        _multiply(weights, node, 1 / scale, outputs=True)
        by_node[node] = _with(
            by_node[node], replace(noise.factors, outputs=np.full_like(outputs, outputs.mean()), even=True)
        )
        for reader in readers:
            _multiply(weights, reader, scale, outputs=False)
            if reader in by_node and isinstance(theirs := by_node[reader].perturbation, FactoredDropout):
                inputs = theirs.factors.inputs * (scale**2).reshape(theirs.factors.inputs.shape)
                by_node[reader] = _with(by_node[reader], replace(theirs.factors, inputs=inputs))
    return list(by_node.values()), weights


def _can_change(node: ir.Node, factors: Factors) -> bool:
    """Whether a layer's outputs can be scaled: unshared, nonzero weights."""
    scaled = product_scale(node) != 1 or ("beta" in node.attributes and node.attributes["beta"].as_float() != 1)
    own = all(
        value.const_value is not None and len(value.uses()) == 1 for value in node.inputs[1:] if value is not None
    )
    outputs = factors.outputs
    large = factors.groups == 1 and len(outputs) > 1 and bool(outputs.min() > _SMALLEST * outputs.mean())
    return _reads(node) and own and large and not scaled


def _reads(node: ir.Node) -> bool:
    """Whether a layer's inputs can be scaled: unshared weights."""
    operand = weight_of(node)
    return node.op_type in ("Conv", "Gemm") and operand is not None and len(operand[0].uses()) == 1


def _readers(layer: ir.Node, noisy: Collection[ir.Node]) -> list[ir.Node]:
    """The noise-free weight layers behind a layer and its ReLU."""
    uses = list(layer.outputs[0].uses())
    relu = uses[0].node if len(uses) == 1 else None
    if relu is None or relu.op_type != "Relu" or relu in noisy or layer.outputs[0].is_graph_output():
        return []
    readers: list[ir.Node] = []
    open_values = [relu.outputs[0]]
    while open_values:
        value = open_values.pop()
        if value.is_graph_output():
            return []
        for use in value.uses():
            if use.node.op_type in _POOLS and use.node not in noisy:
                open_values += use.node.outputs
            elif use.idx == 0 and _reads(use.node):
                readers.append(use.node)
            else:
                return []
    return readers


def _multiply(weights: Weights, node: ir.Node, scale: npt.NDArray[np.float64], *, outputs: bool) -> None:
    """Scale the weights of every output or input."""
    weight, *bias = (value for value in node.inputs[1:] if value is not None)
    array = _current(weights, weight)
    if not outputs_first(node):
        weights[weight] = array * (scale if outputs else scale[:, None])
    elif outputs:
        weights[weight] = array * scale.reshape(-1, *[1] * (array.ndim - 1))
    else:
        by_group = scale.reshape(-1, array.shape[1])  # of a convolution with groups, every output sees its own inputs
        every_output = np.repeat(by_group, len(array) // len(by_group), axis=0)
        weights[weight] = array * every_output.reshape(*every_output.shape, *[1] * (array.ndim - 2))
    if outputs:
        weights |= {value: _current(weights, value) * scale for value in bias}


def _current(weights: Weights, value: ir.Value) -> npt.NDArray[np.float64]:
    if value in weights:
        return weights[value]
    assert value.const_value is not None
    return value.const_value.numpy().astype(np.float64)


def _with(site: Site, factors: Factors) -> Site:
    return replace(site, perturbation=FactoredDropout(site.perturbation.p, factors))

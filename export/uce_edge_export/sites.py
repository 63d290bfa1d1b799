"""Weight layers of a graph, and which of them get noise."""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metadata import NoisyLayer


@dataclass(frozen=True)
class Site:
    """A weight layer that gets noise."""

    node: ir.Node
    layer: NoisyLayer
    shape: tuple[int, ...]
    """Its output for one image."""

    @property
    def size(self) -> int:
        """Outputs for one image."""
        return math.prod(self.shape)


def weight_of(node: ir.Node) -> tuple[ir.Value, int] | None:
    """The constant weight of a Conv, Gemm or MatMul node and the index of its other, varying input."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return None
    first, second = node.inputs[:2]
    if first is None or second is None:
        return None
    if second.const_value is not None and first.const_value is None:
        # With transA the images are columns: that product is not a layer applied to every image.
        if node.op_type == "Gemm" and "transA" in node.attributes and node.attributes["transA"].as_int():
            return None
        return second, 0
    if node.op_type == "MatMul" and first.const_value is not None and second.const_value is None:
        return first, 1
    return None


def weight_layers(graph: ir.Graph) -> dict[ir.Node, str]:
    """All weight layers in graph order, by the name of their weight."""
    found = {}
    for node in graph:
        weight = weight_of(node)
        if weight is not None:
            found[node] = weight[0].name or node.name or node.op_type
    return found


def sites_with_rates(graph: ir.Graph, rates: Mapping[str, float]) -> list[Site]:
    """The layers that a trained model says are noisy, in graph order.

    Args:
        graph: The deterministic classifier.
        rates: Dropout rate by weight name.
    """
    layers = weight_layers(graph)
    missing = sorted(set(rates) - set(layers.values()))
    if missing:
        raise UceEdgeError(
            f"The layers {', '.join(missing)} have a dropout rate but are not in the exported graph. "
            "Are they used by the model's forward pass?"
        )
    return [_site(node, name, rates[name]) for node, name in layers.items() if name in rates]


def sites_by_rule(graph: ir.Graph, p: Sequence[str]) -> list[Site]:
    """The layers of any classifier after the first, with rates by rule.

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


def _rule(text: str) -> tuple[str, float]:
    pattern, _, number = text.rpartition("=")
    try:
        rate = float(number)
    except ValueError:
        rate = math.nan
    if not 0 < rate < 1:
        raise UsageError(
            expected("`p`", "a rate between 0 and 1, or PATTERN=RATE", text, "For example: --p 0.2 --p 'head*=0.1'")
        )
    return pattern or "*", rate


def select(sites: list[Site], graph: ir.Graph, from_layer: str | None) -> list[Site]:
    """Keep the noisy layers from one on; everything before is then computed once per image.

    Args:
        sites: The candidates.
        graph: The classifier they are in.
        from_layer: The number of a weight layer (0 is the first of the network), or a pattern for its name; noise
            starts at the first layer that matches.
    """
    if from_layer is not None:
        allowed = set(list(weight_layers(graph))[layer_number(graph, from_layer, "from_layer") :])
        sites = [site for site in sites if site.node in allowed]
    if not sites:
        raise UceEdgeError(
            "No layer is left to be noisy: the graph has no Conv, Gemm or MatMul with constant weights after the "
            "first, or --p and --from-layer exclude all. Export with --inference deterministic."
        )
    return sites


def layer_number(graph: ir.Graph, layer: str, argument: str = "sample_from") -> int:
    """Which weight layer a number (0 is the first of the network) or a pattern for its name stands for."""
    names = list(weight_layers(graph).values())
    if not names:
        raise UceEdgeError(f"--{argument.replace('_', '-')} {layer}: the graph has no layer with constant weights.")
    if layer.isdecimal():
        found = int(layer)
    else:
        found = next((i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, layer)), len(names))
    if found >= len(names):
        raise UsageError(
            expected(
                f"`{argument}`",
                f"a number below {len(names)} or a pattern for one of {', '.join(names[:3])}, ..., {names[-1]}",
                layer,
                f"The last layer alone: --{argument.replace('_', '-')} {len(names) - 1}",
            )
        )
    return found


def per_image_shape(value: ir.Value, where: str) -> tuple[int, ...]:
    """The shape of a value without its leading batch dimension; everything else must be known."""
    dims = value.shape.dims[1:] if value.shape is not None else (None,)
    if not all(isinstance(dim, int) for dim in dims):
        raise UceEdgeError(
            f"The output of {where} has no static shape ({value.shape}). Export with a fixed image size."
        )
    return tuple(dim for dim in dims if isinstance(dim, int))


def multiplications(node: ir.Node) -> int:
    """Multiply-accumulates of a Conv, Gemm or MatMul for one image; 0 for other nodes."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.outputs[0].shape is None:
        return 0
    outputs = math.prod(per_image_shape(node.outputs[0], node.op_type))
    first, second = node.inputs[:2]
    assert first is not None
    assert second is not None
    inner = second.shape if node.op_type == "Conv" else first.shape
    dims = [dim for dim in (inner.dims if inner is not None else ()) if isinstance(dim, int)]
    if node.op_type == "Conv":
        return outputs * math.prod(dims[1:])
    return outputs * (dims[-1] if dims else 0)


def largest_state(graph: ir.Graph) -> int:
    """The most bytes that one image's values take at once while a graph runs in its order, in float32."""
    last = {value: number for number, node in enumerate(graph) for value in node.inputs}
    alive: dict[ir.Value, int] = {}
    most = 0
    for number, node in enumerate(graph):
        alive |= {value: _bytes_of(value) for value in node.outputs}
        most = max(most, sum(alive.values()))
        alive = {value: size for value, size in alive.items() if last.get(value, -1) > number}
    return most


def _bytes_of(value: ir.Value) -> int:
    """Of one image; dimensions that are not known count as 1."""
    dims = value.shape.dims[1:] if value.shape is not None else ()
    return 4 * math.prod(dim for dim in dims if isinstance(dim, int))


def _site(node: ir.Node, name: str, p: float) -> Site:
    return Site(node, NoisyLayer(name, p), per_image_shape(node.outputs[0], f"layer {name}"))

"""Weight layers of a graph: nodes, names, costs."""

import fnmatch
import math

import onnx_ir as ir

from uce_edge.errors import UceEdgeError, UsageError, expected


def weight_of(node: ir.Node) -> tuple[ir.Value, int] | None:
    """The constant weight, and the index of the other input."""
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


def outputs_first(node: ir.Node) -> bool:
    """Whether the weight's first dimension is the outputs."""
    operand = weight_of(node)
    transposed = "transB" in node.attributes and bool(node.attributes["transB"].as_int())
    # Weights on the left multiply columns: the outputs are rows.
    return node.op_type == "Conv" or transposed or (operand is not None and operand[1] == 1)


def product_scale(node: ir.Node) -> float:
    """The `alpha` of a Gemm, which scales its product."""
    return node.attributes["alpha"].as_float() if node.op_type == "Gemm" and "alpha" in node.attributes else 1.0


def weight_layers(graph: ir.Graph) -> dict[ir.Node, str]:
    """All weight layers in graph order, by weight name."""
    names = {}
    for node in graph:
        weight = weight_of(node)
        if weight is not None:
            names[node] = weight[0].name or node.name or node.op_type
    return names


def is_depthwise(node: ir.Node) -> bool:
    """Whether a layer filters every channel alone."""
    if node.op_type != "Conv" or node.inputs[1] is None or node.inputs[1].shape is None:
        return False
    return node.inputs[1].shape[1] == 1 and "group" in node.attributes and node.attributes["group"].as_int() > 1


def layer_number(graph: ir.Graph, layer: str) -> int:
    """Find the layer of `sample_from` by number or name pattern."""
    names = list(weight_layers(graph).values())
    if not names:
        raise UceEdgeError(f"--sample-from {layer}: the graph has no layer with constant weights.", "layer.missing")
    if layer.isdecimal():
        index = int(layer)
    else:
        index = next((i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, layer)), len(names))
    if index >= len(names):
        raise UsageError(
            expected(
                "`sample_from`",
                f"a number below {len(names)} or a pattern for one of {', '.join(names[:3])}, ..., {names[-1]}",
                layer,
                f"The last layer alone: --sample-from {len(names) - 1}",
            )
        )
    return index


def nodes_from(graph: ir.Graph, start: int) -> set[ir.Node]:
    """Nodes from the weight layer before another one on."""
    before = list(weight_layers(graph))[:start]
    nodes = list(graph)
    return set(nodes[nodes.index(before[-1]) + 1 :] if before else nodes)


def per_image_shape(value: ir.Value, where: str) -> tuple[int, ...]:
    """The static shape of a value without its batch dimension."""
    dims = value.shape.dims[1:] if value.shape is not None else (None,)
    if not all(isinstance(dim, int) for dim in dims):
        raise UceEdgeError(
            f"The output of {where} has no static shape ({value.shape}). Export with a fixed image size.",
            "graph.shape-open",
        )
    return tuple(dim for dim in dims if isinstance(dim, int))


def multiplications(node: ir.Node) -> int:
    """Multiply-accumulates of a node for one image."""
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
    """Peak bytes of one image's values, in graph order, float32."""
    last = {value: number for number, node in enumerate(graph) for value in node.inputs}
    alive: dict[ir.Value, int] = {}
    most = 0
    for number, node in enumerate(graph):
        alive |= {value: bytes_of(value) for value in node.outputs}
        most = max(most, sum(alive.values()))
        alive = {value: size for value, size in alive.items() if last.get(value, -1) > number}
    return most


def bytes_of(value: ir.Value) -> int:
    """Bytes of one image; unknown dimensions count as 1."""
    return 4 * math.prod(known_dims(value))


def known_dims(value: ir.Value) -> list[int]:
    """The static dimensions of a value behind its batch."""
    dims = value.shape.dims[1:] if value.shape is not None else ()
    return [dim for dim in dims if isinstance(dim, int)]

"""Move the batch to the front of every value.

A graph whose shapes were inferred with a batch of 1 says what happens to one image. Most of its values begin with that
1, which becomes the number of images. Attention, written in the usual ways, moves the batch behind other dimensions or
joins it with them: `qkv.permute(2, 0, 3, 1, 4)`, `nn.MultiheadAttention`. Such values are *stacked*: what they are for
one image, behind a new leading dimension of images. Noise, masks and N passes then find the images where they are
everywhere else.
"""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from uce_edge.contract import PerturbationKind
from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import product_scale
from uce_edge_export.source.dropout_marks import marks
from uce_edge_export.transform.batch_mixing import works_across_images
from uce_edge_export.transform.simplification import register, replace_value

_RESHAPING = {"Reshape", "Squeeze", "Unsqueeze", "Flatten"}
_MOVING = _RESHAPING | {"Transpose", "Concat", "Expand"}
"""Operators that may move the images of a batch; others along the leading dimension mix them."""
_ELEMENTWISE = {
    "Abs", "Add", "And", "Cast", "Ceil", "Celu", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean",
    "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu", "Where",
}  # fmt: skip
_BROADCASTING = _ELEMENTWISE | {"MatMul", "Expand"}
_ALONG_AN_AXIS = {
    "ArgMax": 0, "ArgMin": 0, "Concat": 0, "Gather": 0, "Hardmax": -1, "LayerNormalization": -1, "LogSoftmax": -1,
    "Softmax": -1, "Split": 0, "TopK": -1,
}  # fmt: skip
_REMEDY = "Rewrite this part of the model with the batch first."
_BY_CHANNEL = {PerturbationKind.BERNOULLI_CHANNEL, PerturbationKind.ALPHA_CHANNEL}


class MixedImagesError(UceEdgeError):
    """A node mixes the images of a batch."""


def moves_images(graph: ir.Graph) -> bool:
    """Whether some node moves the batch from the front."""
    for node in graph:
        reshaped = node.op_type == "Reshape" and not _same_leading(node)
        if reshaped or (node.inputs and node.op_type in _MOVING and works_across_images(node)):
            return True
    return False


def free_batch(graph: ir.Graph) -> None:
    """Turn the batch of 1 into any batch, in place.

    Args:
        graph: A classifier with static shapes and its constants folded.

    Raises:
        MixedImagesError: Naming the node that mixes images.
    """
    _Walk(graph).run()
    image = graph.inputs[0]
    assert image.shape is not None
    image.shape = ir.Shape(["batch", *list(image.shape)[1:]])
    for output in graph.outputs:
        output.shape = None if output.shape is None else ir.Shape(["batch", *list(output.shape)[1:]])


class _Walk:
    """One walk over the nodes; `_stacked` has the moved values."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._stacked: dict[ir.Value, ir.Value] = {}
        self._transposed: dict[ir.Value, ir.Value] = {}
        self._marks = marks(graph)
        self._g = Builder()

    def run(self) -> None:
        """Write what has to be written in another way."""
        for node in list(self._graph):
            varying = [value for value in node.inputs if value is not None and value.const_value is None]
            unknown = any(_dims(value) is None for value in (*varying, *node.outputs))
            if unknown and any(value in self._stacked for value in varying):
                raise MixedImagesError(
                    f"The shape of what {node.op_type} ({node.name}) gives is not known. {_REMEDY}", "graph.shape-open"
                )
            if unknown or not varying:
                continue  # as it is
            if self._is_apart(node, varying):
                self._leave(node)
                continue
            across = works_across_images(node) and node.op_type not in _MOVING
            if across and not any(value in self._stacked for value in varying):
                raise MixedImagesError(_mixing(node), "graph.batch-mixing")
            self._g = Builder(self._graph.initializers)
            self._replace(node, self._stack(node))

    def _is_apart(self, node: ir.Node, varying: Sequence[ir.Value]) -> bool:
        """Whether a node keeps images in the leading dimension."""
        if any(value in self._stacked for value in varying) or any(_shape(value)[:1] != (1,) for value in node.outputs):
            return False
        if node.op_type == "Reshape":
            return _shape(varying[0])[0] == 1
        if works_across_images(node):
            return False
        rank = len(_shape(node.outputs[0]))
        return node.op_type not in _BROADCASTING or all(len(_shape(value)) == rank for value in varying)

    def _leave(self, node: ir.Node) -> None:
        """Remove the batch of 1 from a node's constants."""
        if node.op_type == "Concat":
            self._g = Builder(self._graph.initializers)
            _repeat_constants(self._g, node)
            self._insert_before(node)
        elif node.op_type == "Resize":
            _leave_batch_alone(self._graph, node)
        elif node.op_type == "Reshape":
            target = np.array([-1, *_shape(node.outputs[0])[1:]])
            node.replace_input_with(1, register(self._graph, f"{node.outputs[0].name}.shape", target))

    def _replace(self, node: ir.Node, outputs: Sequence[ir.Value]) -> None:
        """Replace a node's outputs by stacked ones, images in front."""
        for old, new in zip(node.outputs, outputs, strict=True):
            if _shape(old)[:1] != (1,):
                self._stacked[old] = new
                continue
            front = self._g.Reshape(new, self._g.constant(np.array([-1, *_shape(old)[1:]])))
            front.name, front.shape, front.type = old.name, old.shape, old.type
            old.name = f"{old.name}.one_image"
            replace_value(self._graph, old, front)
        self._insert_before(node)
        # What is not used any more is removed with the rest: stacked values still ask the old ones for their shapes.

    def _insert_before(self, node: ir.Node) -> None:
        for value in self._g.initializers:
            if value.name not in self._graph.initializers:
                self._graph.register_initializer(value)
        self._graph.insert_before(node, self._g.nodes)

    def _stack(self, node: ir.Node) -> list[ir.Value]:
        """The outputs of a node, stacked."""
        kind, first = node.op_type, node.inputs[0]
        assert first is not None
        if kind in _BROADCASTING:
            return self._broadcast(node, len(_shape(node.outputs[0])))
        if kind in _RESHAPING:
            target = np.array([-1, *_shape(node.outputs[0])])
            return [self._g.Reshape(self._stacked.get(first, first), self._g.constant(target))]
        if kind == "Gemm":
            return [self._product(node)]
        if kind == "Transpose":
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(_shape(first)))[::-1]
            return [self._g.Transpose(self._operand(first), perm=[0, *(axis + 1 for axis in perm)])]
        constant = not any(map(_varies, node.inputs[1:]))
        if kind == "Concat" or (constant and (kind in _ALONG_AN_AXIS or kind == "Slice" or kind.startswith("Reduce"))):
            return self._along_axes(node, first)
        raise MixedImagesError(
            f"{kind} ({node.name}) takes a value in which the images of a batch are not the first dimension, and "
            f"there is no rule for that. {_REMEDY}",
            "graph.batch-mixing",
        )

    def _operand(self, value: ir.Value, rank: int | None = None) -> ir.Value:
        """Stack a value to a rank; constants stay."""
        if not _varies(value):
            return value
        dims = _shape(value)
        missing = 0 if rank is None else rank - len(dims)
        if value in self._stacked and not missing:
            return self._stacked[value]
        target = np.array([-1, *[1] * missing, *dims])
        return self._g.Reshape(self._stacked.get(value, value), self._g.constant(target))

    def _broadcast(self, node: ir.Node, rank: int) -> list[ir.Value]:
        given = [value for value in node.inputs if value is not None]
        if node.op_type == "MatMul" and any(len(_shape(value)) < 2 for value in given):
            raise MixedImagesError(_mixing(node), "graph.batch-mixing")
        inputs = [None if value is None else self._operand(value, rank) for value in node.inputs]
        if node.op_type == "Expand":
            inputs[1] = self._g.constant(np.array([1, *_shape(node.outputs[0])]))
        return self._copy(node, inputs)

    def _product(self, node: ir.Node) -> ir.Value:
        """A Gemm with constant weights as a MatMul."""
        g, (x, weight, *rest) = self._g, node.inputs
        assert x is not None
        bias = rest[0] if rest else None
        transposed = {name for name in ("transA", "transB") if name in node.attributes and node.attributes[name].value}
        if weight is None or weight.const_value is None or "transA" in transposed or (bias and not bias.const_value):
            raise MixedImagesError(_mixing(node), "graph.batch-mixing")
        if "transB" in transposed:
            weight = self._columns(weight)
        result = g.MatMul(self._operand(x), weight)
        if product_scale(node) != 1:
            result = g.Mul(result, g.constant(np.float32(product_scale(node))))
        if bias is None or bias.const_value is None:
            return result
        beta = node.attributes["beta"].as_float() if "beta" in node.attributes else 1.0
        return g.Add(result, g.constant(bias.const_value.numpy() * np.float32(beta), f"{bias.name}.stacked"))

    def _columns(self, weight: ir.Value) -> ir.Value:
        """A transposed constant matrix, under the same name."""
        if weight not in self._transposed:
            assert weight.const_value is not None
            name = str(weight.name)
            weight.name = f"{name}.rows"
            self._transposed[weight] = register(self._graph, name, weight.const_value.numpy().T)
        return self._transposed[weight]

    def _repeated(self, node: ir.Node) -> list[ir.Value | None]:
        """The operands of a Concat, constants once for every image."""
        g = self._g
        some = next(value for value in node.inputs if value is not None and _varies(value))
        images = g.Shape(self._operand(some), start=0, end=1)
        operands: list[ir.Value | None] = []
        for value in node.inputs:
            assert value is not None
            if _varies(value):
                operands.append(self._operand(value))
            else:
                operands.append(g.Expand(value, g.Concat(images, g.constant(np.array(_shape(value))), axis=0)))
        return operands

    def _along_axes(self, node: ir.Node, first: ir.Value) -> list[ir.Value]:
        """A node along axes that moved by one."""
        kind, dims = node.op_type, _shape(first)
        axes = [axis % len(dims) for axis in _axes(node, len(dims))]
        if kind not in ("Concat", "Gather", "Slice", "Split") and any(dims[axis] == 1 for axis in axes):
            raise MixedImagesError(
                _mixing(node), "graph.batch-mixing"
            )  # one value for one image: along this axis are the images
        inputs = self._repeated(node) if kind == "Concat" else [self._operand(first), *node.inputs[1:]]
        if kind in _ALONG_AN_AXIS:
            return self._copy(node, inputs, axis=ir.AttrInt64("axis", axes[0] + 1))
        shifted = self._g.constant(np.array([axis + 1 for axis in axes]))
        if kind == "Slice":
            return self._copy(node, [*inputs[:3], shifted, *inputs[4:]])
        return self._copy(node, [inputs[0], shifted])

    def _copy(self, node: ir.Node, inputs: Sequence[ir.Value | None], **changed: ir.Attr) -> list[ir.Value]:
        """A copy of a node with name and mark."""
        if node in self._marks and self._marks[node].kind in _BY_CHANNEL:
            raise MixedImagesError(
                f"The dropout {self._marks[node].name} drops channels of a value in which the images of a batch are "
                "not the first dimension. Use nn.Dropout there, or write the model batch-first.",
                "graph.batch-mixing",
            )
        attributes = {**node.attributes, **changed}.values()
        notes = dict(node.metadata_props)
        fresh = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            attributes,
            num_outputs=len(node.outputs),
            name=node.name,
            metadata_props=notes,
        )
        return self._g.append(fresh)


def _repeat_constants(g: Builder, node: ir.Node) -> None:
    """Repeat a joined constant for every image."""
    varying = [value for value in node.inputs if value is not None and _varies(value)]
    rank = len(_shape(varying[0]))
    if len(varying) == len(node.inputs):
        return
    joined = varying[0] if len(varying) == 1 else g.Concat(*varying, axis=node.attributes["axis"].as_int())
    ones = [g.constant(np.ones(rank - 1, np.int64), "uce_edge.ones")] if rank > 1 else []
    batch = g.Concat(g.Shape(joined, start=0, end=1), *ones, axis=0)
    for i, value in enumerate(node.inputs):
        if value is not None and not _varies(value):
            node.replace_input_with(i, g.Expand(value, batch))


def _leave_batch_alone(graph: ir.Graph, node: ir.Node) -> None:
    """Resize without the batch axis, whose size was 1."""
    sizes = node.inputs[3].const_value if len(node.inputs) > 3 and node.inputs[3] is not None else None
    if sizes is not None and "axes" not in node.attributes:
        node.attributes["axes"] = ir.AttrInt64s("axes", list(range(1, sizes.size)))
        node.replace_input_with(3, register(graph, f"{node.outputs[0].name}.sizes", sizes.numpy()[1:]))


def _axes(node: ir.Node, rank: int) -> Sequence[int]:
    """The axes that a node with constant axes works along."""
    if node.op_type in _ALONG_AN_AXIS:
        return [node.attributes["axis"].as_int() if "axis" in node.attributes else _ALONG_AN_AXIS[node.op_type]]
    position = 3 if node.op_type == "Slice" else 1
    given = node.inputs[position] if len(node.inputs) > position else None
    if given is not None:
        return _integers(given)
    return range(_shape(node.inputs[1])[0] if node.op_type == "Slice" else rank)


def _same_leading(node: ir.Node) -> bool:
    """Whether a Reshape keeps the values per leading entry."""
    before, after = (value.shape for value in (node.inputs[0], node.outputs[0]) if value is not None)
    if before is None or after is None or isinstance(after[0], int):
        return False
    sizes = [list(shape)[1:] for shape in (before, after)]
    if not all(isinstance(dim, int) for dims in sizes for dim in dims):
        return False
    return math.prod(sizes[0]) == math.prod(sizes[1])


def _mixing(node: ir.Node) -> str:
    return (
        f"{node.op_type} ({node.name}) works across the images of a batch, so an answer would depend on the other "
        "images. Write the model so that every image is for itself."
    )


def _varies(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is None


def _integers(value: ir.Value) -> list[int]:
    assert value.const_value is not None
    return [int(number) for number in value.const_value.numpy().ravel()]


def _dims(value: ir.Value) -> tuple[int, ...] | None:
    """The static shape for one image; None if unknown."""
    dims = tuple(dim for dim in value.shape or () if isinstance(dim, int))
    return dims if value.shape is not None and len(dims) == len(value.shape) else None


def _shape(value: ir.Value | None) -> tuple[int, ...]:
    dims = None if value is None else value.const_value.shape.numpy() if value.const_value is not None else _dims(value)
    assert dims is not None
    return tuple(dims)

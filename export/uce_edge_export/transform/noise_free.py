"""The noise-free network of a contract graph.

Noise comes from the table, from RandomNormalLike or from graph inputs. Where it is 0, what it is multiplied with is 0,
what it is added to is the mean, and what repeats an image once per pass repeats it once. Where it is compared with a
number, it makes a mask, and what is masked is itself. So the nodes are walked once,
in order, and only what depends on noise is written again: nothing of a deterministic file, the means that a moments
file has already, one plain pass of an mc file. It runs once per image, however many passes are requested.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from uce_edge import contract
from uce_edge.calibration.novelty_features import Layer
from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.weight_layers import multiplications, per_image_shape

TABLE = "noise.table"
"""The initializer that noise is read from."""
MEMBERS = "members.logits"
"""The value that has the raw logits of an ensemble's members side by side."""
_MOVING = {"Gather", "Reshape", "Slice", "Transpose", "Unsqueeze", "Squeeze", "Cast", "Identity", "Expand", "Split"}
_LAYERS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class Features:
    """The noise-free input of a weight layer."""

    value: ir.Value
    """[batch, ...], its shape and type known."""
    last: bool
    """Whether its last dimension is the features; otherwise the second one is."""
    multiplications: int
    """Multiply-accumulates for one image that computing it adds to the graph."""
    layer: ir.Node
    """The weight layer."""

    @property
    def size(self) -> int:
        """The number of features."""
        return per_image_shape(self.value, "the weight layer's operand")[-1 if self.last else 0]


def raw_logits(graph: ir.Graph) -> ir.Value:
    """The raw logits: the input of the output's Identity."""
    (output,) = (value for value in graph.outputs if value.name == contract.LOGITS)
    producer = output.producer()
    assert producer is not None
    logits = producer.inputs[0]
    assert logits is not None
    return logits


def find_features(graph: ir.Graph, layers: Sequence[int] = ()) -> list[Features]:
    """Find the features of every member; may add nodes.

    Args:
        graph: The graph, with shapes and types inferred.
        layers: The numbers of the weight layers whose inputs they are, as in `noise_free_layers`; none for the last.

    Returns:
        One for a single network and a single layer. What members share is there once.
    """
    found: dict[ir.Value, Features] = {}
    for logits in _member_logits(graph):
        for features in _features(graph, logits, layers):
            found.setdefault(features.value, features)
    return list(found.values())


def noise_free_layers(graph: ir.Graph) -> list[Layer]:
    """The weight layers of the noise-free network, in order.

    Those of an ensemble are of its first member. Shapes and types are inferred.
    """
    found: list[Layer] = []
    taken: set[ir.Value | None] = set()
    for node, position in _Walk(graph, _member_logits(graph)[0]).layers():
        value = node.inputs[position]
        shape = None if value is None or value in taken else value.shape
        size = None if shape is None else shape[-1 if _is_last(node, position) else 1]
        taken.add(value)
        found.append(Layer(_weight_name(node, position), size if isinstance(size, int) else 0))
    return found


def _is_last(layer: ir.Node, position: int) -> bool:
    """Whether the last dimension of a layer's input is the features."""
    return layer.op_type != "Conv" and position == 0


def _member_logits(graph: ir.Graph) -> list[ir.Value]:
    joined = [node for node in graph if node.outputs[0].name == MEMBERS]
    return [value for value in joined[0].inputs if value is not None] if joined else [raw_logits(graph)]


def _features(graph: ir.Graph, logits: ir.Value, numbers: Sequence[int]) -> list[Features]:
    walk = _Walk(graph, logits)
    layers = walk.layers()
    if max(numbers, default=0) >= len(layers):
        raise UceEdgeError(
            f"The novelty gate looks at layer {max(numbers)}, but the network has {len(layers)} weight layers. Fit it "
            "again: uce-edge calibrate --novelty-features last",
            "graph.features-missing",
        )
    found, added = [], set(graph)
    for layer, position in [layers[number] for number in numbers] or layers[-1:]:
        value = layer.inputs[position]
        assert value is not None
        needed = ancestors(value)
        fresh = [node for node in walk.g.nodes if node in needed and node not in added]
        graph.extend(fresh)
        added.update(fresh)
        per_image_shape(value, "the weight layer's operand")  # refuses what is not known
        found.append(Features(value, _is_last(layer, position), sum(map(multiplications, fresh)), layer))
    return found


def _weight_name(layer: ir.Node, position: int) -> str:
    """The name of the constant that a layer's weights come from."""
    value = layer.inputs[1 - position]
    while value is not None and value.const_value is None and (made := value.producer()) is not None:
        value = made.inputs[0]
    return (value.name if value is not None else None) or layer.name or layer.op_type


class _Walk:
    """One walk over the nodes that the logits need."""

    def __init__(self, graph: ir.Graph, logits: ir.Value) -> None:
        self._logits = logits
        self.g = Builder()
        self._zeros = {value for value in graph.inputs if str(value.name).startswith("noise.")}
        self._zeros |= {value for value in graph.initializers.values() if value.name == TABLE}
        self._passes = {
            value for value in (*graph.inputs, *graph.initializers.values()) if value.name == contract.SEEDS
        }
        """Values of the seeds alone: the number of passes, and table positions."""
        self._masks: set[ir.Value] = set()
        """Dropout masks, and values that follow from them alone."""
        self._plain: dict[ir.Value, ir.Value] = {}
        """Noise-free replacements of noisy values."""
        self._image = {value for value in graph.inputs if value.name == contract.IMAGE}
        """Values that depend on pixels."""
        self._layers: list[tuple[ir.Node, int]] = []
        needed = ancestors(logits)
        for node in graph:
            if node in needed:
                self._visit(node)

    def layers(self) -> list[tuple[ir.Node, int]]:
        """The noise-free weight layers, and the index of their image input."""
        mean = ancestors(self._plain.get(self._logits, self._logits))  # variances have weight layers of their own
        layers = [(node, position) for node, position in self._layers if node in mean]
        if not layers:
            raise UceEdgeError(
                "The network has no Conv, Gemm or MatMul with constant weights: it has no features.",
                "graph.features-missing",
            )
        return layers

    def _visit(self, node: ir.Node) -> None:
        given = [value for value in node.inputs if value is not None]
        zeros = [value for value in given if value in self._zeros]
        if node.op_type == "RandomNormalLike":
            self._zeros.update(node.outputs)
        elif zeros:
            self._lose_noise(node, given)
        elif self._masks.intersection(given):
            self._lose_mask(node, given)
        elif node.op_type == "Gather" and given[1] in self._passes and given[0] not in self._passes:
            self._stand_for(node, given[0])  # once per pass becomes once
        elif self._passes.intersection(given):
            if any(self._depends(value) for value in given):
                self._stand_for(node, given[0])  # brought into the shape of several passes
            else:
                self._passes.update(node.outputs)
        else:
            self._copy(node, given)

    def _lose_noise(self, node: ir.Node, given: list[ir.Value]) -> None:
        if (node.op_type in _MOVING and given[0] in self._zeros) or node.op_type in ("Mul", "MatMul"):
            self._zeros.update(node.outputs)
            return
        if node.op_type == "Greater" and given[0] in self._zeros:
            self._masks.update(node.outputs)
            return
        self._lose(node, [value for value in given if value not in self._zeros], ("Add",))

    def _lose_mask(self, node: ir.Node, given: list[ir.Value]) -> None:
        others = [value for value in given if value not in self._masks]
        if any(self._depends(value) for value in others):
            self._lose(node, others, ("Mul", "Add"))
        else:
            self._masks.update(node.outputs)

    def _lose(self, node: ir.Node, others: list[ir.Value], operators: tuple[str, ...]) -> None:
        """A node whose only other operand is its noise-free result."""
        if node.op_type not in operators or len(others) != 1:
            raise UceEdgeError(
                f"Noise meets the operator {node.op_type} ({node.name}), so the network without it cannot be told "
                "apart. Export the file again: uce-edge export",
                "graph.operator",
            )
        self._stand_for(node, others[0])

    def _copy(self, node: ir.Node, given: list[ir.Value]) -> None:
        fresh = node
        if any(value in self._plain for value in given):
            fresh_inputs = [None if value is None else self._plain.get(value, value) for value in node.inputs]
            outputs = self.g.copy(node, fresh_inputs)
            self._plain |= dict(zip(node.outputs, outputs, strict=True))
            fresh = self.g.nodes[-1]
            for old, new in zip(node.outputs, outputs, strict=True):
                new.type = old.type
                new.shape = None if old.shape is None else ir.Shape(["batch", *list(old.shape)[1:]])
        moved = [self._depends(value) for value in given]
        if any(moved) and node.op_type not in ("Shape", "Size"):
            self._image.update(node.outputs)
            if node.op_type in _LAYERS and sum(moved[:2]) == 1 and not _is_sum(node):
                self._layers.append((fresh, moved.index(True)))

    def _depends(self, value: ir.Value) -> bool:
        """Whether a value depends on pixels."""
        return value in self._image

    def _stand_for(self, node: ir.Node, value: ir.Value) -> None:
        self._plain[node.outputs[0]] = self._plain.get(value, value)
        if self._depends(value):
            self._image.add(node.outputs[0])


def _is_sum(node: ir.Node) -> bool:
    """Whether a product is a sum with a constant row."""
    row = node.inputs[0]
    return row is not None and row.const_value is not None and row.const_value.shape[0] == 1


def ancestors(value: ir.Value) -> set[ir.Node]:
    """The nodes that a value needs."""
    needed: set[ir.Node] = set()
    open_values = [value]
    while open_values:
        node = open_values.pop().producer()
        if node is not None and node not in needed:
            needed.add(node)
            open_values.extend(x for x in node.inputs if x is not None)
    return needed

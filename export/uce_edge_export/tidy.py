"""Small passes over a graph that leave what it computes alone: constants, dropout, batch-norm, softmax, batch."""

import numpy as np
import onnx
import onnx_ir as ir

from uce_edge.errors import UceEdgeError
from uce_edge_export.builder import Builder
from uce_edge_export.evaluator import evaluate
from uce_edge_export.weights import weight_of

_RESHAPING = ("Identity", "Transpose", "Cast", "DequantizeLinear", "Reshape", "Squeeze", "Unsqueeze")


def infer_shapes(model: ir.Model) -> ir.Model:
    """Infer every shape again from the inputs alone."""
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def fold_constants(graph: ir.Graph) -> bool:
    """Replace every node that depends on constants or static shapes alone; tells whether there was one.

    A weight behind Identity, Transpose, Cast or DequantizeLinear becomes an ordinary one; it keeps the name of
    the initializer it came from, so that layers can be found by name.
    """
    changed = False
    for node in list(graph):
        outputs = _constant_outputs(node)
        if outputs is None:
            continue
        source = node.inputs[0].name if node.inputs and node.inputs[0] is not None else None
        for old, array in zip(node.outputs, outputs, strict=True):
            if old.is_graph_output():
                raise UceEdgeError(f"The output {old.name} does not depend on the image: this is no classifier.")
            name = source if node.op_type in _RESHAPING else old.name
            old.replace_all_uses_with(_register(graph, str(name), array))
        graph.remove(node, safe=True)
        changed = True
    return changed


def _constant_outputs(node: ir.Node) -> list[np.ndarray] | None:
    if node.op_type == "Shape":
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        if shape is None or not all(isinstance(dim, int) for dim in shape):
            return None
        start = node.attributes["start"].as_int() if "start" in node.attributes else 0
        stop = node.attributes["end"].as_int() if "end" in node.attributes else len(shape)
        return [np.array(list(shape)[start:stop], np.int64)]
    inputs = []
    for value in node.inputs:
        if value is not None and value.const_value is None:
            return None
        inputs.append(None if value is None or value.const_value is None else value.const_value.numpy())
    return [np.asarray(array) for array in evaluate(node, inputs)]


def to_float32(graph: ir.Graph, notes: list[str]) -> bool:
    """Turn half-precision weights and casts into float32: the variance branch would overflow; tells if any were."""
    halves = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    changed = False
    for value in [*graph.initializers.values()]:
        if value.const_value is not None and value.const_value.dtype in halves:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.dtype = ir.DataType.FLOAT
            changed = True
    for value in (*graph.inputs, *graph.outputs):
        if value.dtype in halves:
            value.dtype = ir.DataType.FLOAT
            changed = True
    for node in graph:
        if node.op_type == "Cast" and node.attributes["to"].as_int() in halves:
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT)
            changed = True
    if changed:
        notes.append("its half-precision weights were widened to float32")
    return changed


def strip_dropout(graph: ir.Graph, notes: list[str], *, keep: bool = False) -> None:
    """Remove Dropout and Identity nodes, also those left in training mode, and say which Dropout nodes there were.

    Args:
        graph: Any graph.
        notes: What was done is appended.
        keep: Leave Dropout nodes where they are, and only take them out of training mode.
    """
    names = []
    for node in list(graph):
        if node.op_type not in ("Dropout", "Identity"):
            continue
        value, output = node.inputs[0], node.outputs[0]
        assert value is not None
        if any(mask.uses() for mask in node.outputs[1:]):
            raise UceEdgeError(f"The mask of the Dropout {node.name} is used by the model, so it cannot be taken out.")
        if node.op_type == "Dropout" and keep:
            if len(node.inputs) > 2:
                node.replace_input_with(2, None)
            continue
        if node.op_type == "Dropout":
            names.append(node.name or f"before {output.name}")
        if node.op_type == "Identity" and output.is_graph_output():
            continue  # its input may be the image, or a second output
        replace_value(graph, output, value)
        graph.remove(node, safe=True)
    if names:
        one = len(names) == 1
        notes.append(
            f"its Dropout {'node' if one else 'nodes'} {', '.join(names)} {'was' if one else 'were'} removed: "
            "noise comes from Gaussian dropout in the weight layers (--p). To keep their noise: --dropout keep"
        )


def fold_batch_norm(graph: ir.Graph) -> None:
    """Fold a BatchNormalization into the Conv or Gemm before it; noise is folded exactly, being part of its output."""
    for node in list(graph):
        if node.op_type != "BatchNormalization":
            continue
        x = node.inputs[0]
        layer = x.producer() if x is not None else None
        if x is None or layer is None or layer.op_type not in ("Conv", "Gemm"):
            continue
        if len(x.uses()) != 1 or x.is_graph_output():
            continue
        weight_and_axis = weight_of(layer)
        constants = [value.const_value for value in node.inputs[1:5] if value is not None]
        plain_gemm = layer.op_type == "Conv" or all(
            layer.attributes[name].as_float() == 1 for name in ("alpha", "beta") if name in layer.attributes
        )
        complete = len(constants) == 4 and all(value is not None for value in constants)
        if weight_and_axis is None or not complete or not plain_gemm:
            continue
        scale, shift, mean, variance = (value.numpy().astype(np.float64) for value in constants if value is not None)
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        factor = scale / np.sqrt(variance + epsilon)
        weight = weight_and_axis[0]
        assert weight.const_value is not None
        array = weight.const_value.numpy().astype(np.float64)
        transposed = "transB" in layer.attributes and layer.attributes["transB"].as_int()
        outputs_first = layer.op_type == "Conv" or transposed
        array = array * (factor.reshape(-1, *[1] * (array.ndim - 1)) if outputs_first else factor)
        bias = layer.inputs[2] if len(layer.inputs) > 2 else None
        if bias is not None and bias.const_value is None:
            continue
        old_bias = np.zeros(1) if bias is None or bias.const_value is None else bias.const_value.numpy()
        new_bias = (old_bias - mean) * factor + shift
        shift_name = f"{weight.name}.bias" if bias is None else str(bias.name)
        inputs = [layer.inputs[0], _new_constant(graph, weight, array), _register(graph, shift_name, new_bias)]
        folded = ir.Node("", layer.op_type, inputs, layer.attributes.values(), name=layer.name)
        folded.outputs[0].name = node.outputs[0].name
        folded.outputs[0].shape, folded.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
        graph.insert_before(layer, folded)
        replace_value(graph, node.outputs[0], folded.outputs[0])
        graph.remove([node, layer], safe=True)


def strip_softmax(graph: ir.Graph) -> bool:
    """Remove a final Softmax over the classes; tells whether there was one."""
    output = graph.outputs[0]
    node = output.producer()
    moving = ("Identity", "Reshape", "Flatten", "Squeeze", "Cast")
    while node is not None and node.op_type in moving and not node.metadata_props:  # what is marked stays behind it
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    if node is None or node.op_type != "Softmax" or node.inputs[0] is None:
        return False
    replace_value(graph, node.outputs[0], node.inputs[0])
    return True


def free_batch(graph: ir.Graph) -> None:
    """Turn the batch of 1 that the shapes were inferred with into any batch."""
    for node in list(graph):
        if node.op_type == "Concat":
            _repeat_constants(graph, node)
        elif node.op_type == "Resize":
            _leave_batch_alone(graph, node)
        if node.op_type != "Reshape" or node.inputs[0] is None or node.outputs[0].shape is None:
            continue
        before, after = node.inputs[0].shape, node.outputs[0].shape
        if before is None or not all(isinstance(dim, int) for dim in after):
            continue
        if before[0] != 1 or after[0] != 1:
            raise UceEdgeError(
                f"The Reshape {node.name} ({before} to {after}) mixes the batch with other dimensions, "
                "so the model only works on single images. Export it with a dynamic batch."
            )
        target = np.array([-1, *(dim for dim in list(after)[1:] if isinstance(dim, int))])
        node.replace_input_with(1, _register(graph, f"{node.outputs[0].name}.shape", target))
    image = graph.inputs[0]
    assert image.shape is not None
    image.shape = ir.Shape(["batch", *list(image.shape)[1:]])
    for output in graph.outputs:
        output.shape = None if output.shape is None else ir.Shape(["batch", *list(output.shape)[1:]])


def _repeat_constants(graph: ir.Graph, node: ir.Node) -> None:
    """Give every image its copy of a constant that is joined to it, as the class token of a transformer is."""
    varying = [value for value in node.inputs if value is not None and value.const_value is None]
    axis = node.attributes["axis"].as_int()
    rank = len(varying[0].shape or ()) if varying else 0
    if not rank or len(varying) == len(node.inputs) or axis in (0, -rank) or (varying[0].shape or (0,))[0] != 1:
        return
    g = Builder()
    joined = varying[0] if len(varying) == 1 else g.Concat(*varying, axis=axis)
    ones = [g.constant(np.ones(rank - 1, np.int64), "uce_edge.ones")] if rank > 1 else []
    batch = g.Concat(g.Shape(joined, start=0, end=1), *ones, axis=0)
    for i, value in enumerate(node.inputs):
        if value is not None and value.const_value is not None:
            node.replace_input_with(i, g.Expand(value, batch))
    _insert(graph, node, g)


def _leave_batch_alone(graph: ir.Graph, node: ir.Node) -> None:
    """Resize to sizes that say "1 image" becomes one of the other axes."""
    sizes = node.inputs[3].const_value if len(node.inputs) > 3 and node.inputs[3] is not None else None
    if sizes is not None and "axes" not in node.attributes:
        node.attributes["axes"] = ir.AttrInt64s("axes", list(range(1, sizes.size)))
        node.replace_input_with(3, _register(graph, f"{node.outputs[0].name}.sizes", sizes.numpy()[1:]))


def _insert(graph: ir.Graph, node: ir.Node, g: Builder) -> None:
    """Put a builder's nodes before a node."""
    for value in g.initializers:
        if value.name in graph.initializers:
            value.name = f"{node.outputs[0].name}.{value.name}"
        graph.register_initializer(value)
    graph.insert_before(node, g.nodes)


def _new_constant(graph: ir.Graph, old: ir.Value, array: np.ndarray) -> ir.Value:
    """A changed copy of a constant, which keeps the name when nobody else uses the old one."""
    name = str(old.name)
    if len(old.uses()) == 1 and name in graph.initializers:
        old.const_value = ir.tensor(array.astype(np.float32), name=name)
        return old
    return _register(graph, name, array)


def _register(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    while name in graph.initializers:
        name += "_"
    # Not ascontiguousarray, which turns a scalar into a vector.
    array = np.array(array, np.float32 if array.dtype.kind == "f" else array.dtype, order="C")
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def replace_value(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Use another value everywhere, also as a graph output."""
    for i, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[i] = new
    old.replace_all_uses_with(new)

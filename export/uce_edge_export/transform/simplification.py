"""Graph simplification: constants, dropout, batch-norm, softmax."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from uce_edge.errors import UceEdgeError
from uce_edge_export.graph.node_evaluator import evaluate
from uce_edge_export.graph.weight_layers import outputs_first, weight_of

_RESHAPING = ("Identity", "Transpose", "Cast", "DequantizeLinear", "Reshape", "Squeeze", "Unsqueeze")


def infer_shapes(model: ir.Model) -> ir.Model:
    """Infer every shape again from the inputs alone."""
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def for_one_image(model: ir.Model) -> ir.Model:
    """Fix the batch at 1: all shapes become static."""
    common.LiftConstantsToInitializersPass()(model)
    image = model.graph.inputs[0]
    assert image.shape is not None
    image.shape = ir.Shape([1, *list(image.shape)[1:]])
    model = infer_shapes(model)
    while fold_constants(model.graph):
        model = infer_shapes(model)
    return model


def fold_constants(graph: ir.Graph) -> bool:
    """Fold constants and static shapes; returns whether there were any.

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
                raise UceEdgeError(
                    f"The output {old.name} does not depend on the image: this is no classifier.",
                    "graph.constant-output",
                )
            name = source if node.op_type in _RESHAPING else old.name
            old.replace_all_uses_with(register(graph, str(name), array))
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
    if node.op_type == "CastLike":
        return _cast_like(*node.inputs[:2])
    for value in node.inputs:
        if value is not None and value.const_value is None:
            return None
        inputs.append(None if value is None or value.const_value is None else value.const_value.numpy())
    return [np.asarray(array) for array in evaluate(node, inputs)]


def _cast_like(value: ir.Value | None, other: ir.Value | None) -> list[np.ndarray] | None:
    """A constant in the type of another value."""
    if value is None or value.const_value is None or other is None or other.dtype is None:
        return None
    return [value.const_value.numpy().astype(other.dtype.numpy())]


def to_float32(graph: ir.Graph, notes: list[str]) -> bool:
    """Convert other floats to float32; returns whether there were any."""
    names = {ir.DataType.FLOAT16: "half-precision", ir.DataType.BFLOAT16: "bfloat16", ir.DataType.DOUBLE: "float64"}
    found = set()

    def replaced(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        found.add(tensor.dtype)
        return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)

    for value in [*graph.initializers.values()]:
        if value.const_value is not None and value.const_value.dtype in names:
            value.const_value = replaced(value.const_value)
            value.dtype = ir.DataType.FLOAT
    for value in (*graph.inputs, *graph.outputs):
        if value.dtype in names:
            found.add(value.dtype)
            value.dtype = ir.DataType.FLOAT
    for node in graph:
        if node.op_type == "Cast" and node.attributes["to"].as_int() in names:
            found.add(ir.DataType(node.attributes["to"].as_int()))
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT)
        if node.op_type == "ConstantOfShape" and "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
            if tensor.dtype in names:
                node.attributes["value"] = ir.AttrTensor("value", replaced(tensor))
        for output in node.outputs:
            if output.dtype in names:
                output.dtype = ir.DataType.FLOAT
    if found:
        kinds = " and ".join(names[kind] for kind in names if kind in found)
        notes.append(f"its {kinds} numbers became float32")
    return bool(found)


def strip_dropout(graph: ir.Graph, notes: list[str], *, keep: bool = False) -> None:
    """Remove Dropout and Identity nodes; returns the Dropout nodes.

    Args:
        graph: Any graph.
        notes: Changes are appended.
        keep: Leave Dropout nodes where they are, and only take them out of training mode.
    """
    names = []
    for node in list(graph):
        if node.op_type not in ("Dropout", "Identity"):
            continue
        value, output = node.inputs[0], node.outputs[0]
        assert value is not None
        if any(mask.uses() for mask in node.outputs[1:]):
            raise UceEdgeError(
                f"The mask of the Dropout {node.name} is used by the model, so it cannot be taken out.",
                "dropout.mask-used",
            )
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
    """Fold a BatchNormalization into the Conv or Gemm before it.

    One of rows, as behind a MatMul, becomes a product and a sum: its rows may be images and places at once.
    """
    for node in list(graph):
        if node.op_type != "BatchNormalization":
            continue
        x = node.inputs[0]
        layer = x.producer() if x is not None else None
        if x is not None and x.shape is not None and len(x.shape) == 2 and (not layer or layer.op_type != "Gemm"):
            _expand_batch_norm(graph, node)
            continue
        if x is None or layer is None or layer.op_type not in ("Conv", "Gemm"):
            continue
        if len(x.uses()) != 1 or x.is_graph_output():
            continue
        weight_and_axis = weight_of(layer)
        plain_gemm = layer.op_type == "Conv" or all(
            layer.attributes[name].as_float() == 1 for name in ("alpha", "beta") if name in layer.attributes
        )
        factors = _batch_norm_factors(node)
        if weight_and_axis is None or factors is None or not plain_gemm:
            continue
        factor, shift = factors
        weight = weight_and_axis[0]
        assert weight.const_value is not None
        array = weight.const_value.numpy().astype(np.float64)
        array = array * (factor.reshape(-1, *[1] * (array.ndim - 1)) if outputs_first(layer) else factor)
        bias = layer.inputs[2] if len(layer.inputs) > 2 else None
        if bias is not None and bias.const_value is None:
            continue
        old_bias = np.zeros(1) if bias is None or bias.const_value is None else bias.const_value.numpy()
        new_bias = old_bias * factor + shift
        shift_name = f"{weight.name}.bias" if bias is None else str(bias.name)
        inputs = [layer.inputs[0], _new_constant(graph, weight, array), register(graph, shift_name, new_bias)]
        folded = ir.Node("", layer.op_type, inputs, layer.attributes.values(), name=layer.name)
        folded.outputs[0].name = node.outputs[0].name
        folded.outputs[0].shape, folded.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
        graph.insert_before(layer, folded)
        replace_value(graph, node.outputs[0], folded.outputs[0])
        graph.remove([node, layer], safe=True)


def pool_whole_maps(graph: ir.Graph) -> None:
    """Turn average pools whose window covers the map into global ones.

    Runtimes count the cells of a window beyond the map in different ways.
    """
    for node in list(graph):
        x, output = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "AveragePool" or x is None or x.shape is None or output.shape is None:
            continue
        window, padded = (
            node.attributes[name].as_ints() if name in node.attributes else () for name in ("kernel_shape", "pads")
        )
        places, left = list(x.shape)[2:], list(output.shape)[2:]
        covers = all(isinstance(size, int) and size <= wide for size, wide in zip(places, window, strict=True))
        automatic = node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else "NOTSET"
        if not covers or any(padded) or automatic.startswith("SAME") or any(size != 1 for size in left):
            continue
        pool = ir.Node("", "GlobalAveragePool", [x], name=node.name)
        new = pool.outputs[0]
        new.name, new.shape, new.type = output.name, output.shape, output.type
        graph.insert_before(node, pool)
        replace_value(graph, output, new)
        graph.remove(node, safe=True)


def _batch_norm_factors(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and shift of every channel; None if they are not constant."""
    constants = [value.const_value for value in node.inputs[1:5] if value is not None and value.const_value is not None]
    if len(constants) != 4:
        return None
    scale, shift, mean, variance = (value.numpy().astype(np.float64) for value in constants)
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    factor = scale / np.sqrt(variance + epsilon)
    return factor, shift - mean * factor


def _expand_batch_norm(graph: ir.Graph, node: ir.Node) -> None:
    factors = _batch_norm_factors(node)
    if factors is None:
        return
    output = node.outputs[0]
    factor, shift = (
        register(graph, f"{output.name}.{name}", values)
        for name, values in zip(("factor", "shift"), factors, strict=True)
    )
    product = ir.Node("", "Mul", [node.inputs[0], factor], name=f"{node.name}.factor")
    total = ir.Node("", "Add", [product.outputs[0], shift], name=f"{node.name}.shift")
    for new in (product.outputs[0], total.outputs[0]):
        new.shape, new.type = output.shape, output.type
    product.outputs[0].name, total.outputs[0].name = f"{output.name}.scaled", output.name
    graph.insert_before(node, [product, total])
    replace_value(graph, output, total.outputs[0])
    graph.remove(node, safe=True)


def final_node(graph: ir.Graph) -> ir.Node | None:
    """The node that computes the output, before its shape is changed."""
    node = graph.outputs[0].producer()
    moving = ("Identity", "Reshape", "Flatten", "Squeeze", "Cast")
    while node is not None and node.op_type in moving and not node.metadata_props:  # what is marked stays behind it
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    return node


def strip_final(graph: ir.Graph) -> None:
    """Remove the node that computes the output: its input is used instead."""
    node = final_node(graph)
    assert node is not None
    assert node.inputs[0] is not None
    replace_value(graph, node.outputs[0], node.inputs[0])


def _new_constant(graph: ir.Graph, old: ir.Value, array: np.ndarray) -> ir.Value:
    """A changed copy of a constant; keeps an unshared name."""
    name = str(old.name)
    if len(old.uses()) == 1 and name in graph.initializers:
        old.const_value = ir.tensor(array.astype(np.float32), name=name)
        return old
    return register(graph, name, array)


def register(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """A new constant of a graph; floats are float32."""
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

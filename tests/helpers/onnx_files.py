"""A small ONNX file with every message that can hold a tensor, and damage to the format of such a file."""

import random

import onnx
from onnx import TensorProto, helper

from uce_edge.integrity import protobuf

HOLDERS = ("initializer", "sparse values", "sparse indices", "attribute", "attributes", "sparse attribute", "subgraph",
           "function", "training")  # fmt: skip
"""Where a model can have tensors."""


_OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
_TYPES = onnx.AttributeProto.AttributeType.values()


def small_model() -> onnx.ModelProto:
    """A model with a tensor in every one of `HOLDERS`, under that name."""

    def tensor(name: str, kind: int = TensorProto.FLOAT) -> onnx.TensorProto:
        return helper.make_tensor(name, kind, [2], [1, 2])

    def graph(name: str, held: str) -> onnx.GraphProto:
        return helper.make_graph([], name, [], [], [tensor(held)])

    sparse = [
        helper.make_sparse_tensor(tensor(f"{place}sparse values"), tensor(f"{place}sparse indices", 7), [4])
        for place in ("", "attribute ")
    ]
    sparse[1].values.name = "sparse attribute"
    nodes = [
        helper.make_node("Constant", [], ["a"], value=tensor("attribute")),
        helper.make_node("Constant", [], ["b"], sparse_value=sparse[1]),
        helper.make_node("Any", ["x"], ["c"], many=[tensor("attributes")], flags=[1, 2], rates=[0.5], words=["w"]),
        helper.make_node("If", ["x"], ["d"], then_branch=graph("then", "subgraph"), more=[graph("m", "other")]),
    ]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "n"])
    whole = helper.make_graph(nodes, "whole", [value], [value], [tensor("initializer")], sparse_initializer=[sparse[0]])
    constant = helper.make_node("Constant", [], ["y"], value=tensor("function"))
    function = helper.make_function("own", "f", [], ["y"], [constant], [helper.make_opsetid("", 17)])
    model = helper.make_model(whole, functions=[function], producer_name="maker", doc_string="words")
    model.training_info.add().algorithm.CopyFrom(graph("training", "training"))
    helper.set_model_props(model, {"uce_edge": "{}", "other": "text"})
    return model


def tensors(message: object) -> list[onnx.TensorProto]:
    """Every tensor in a message, at any depth."""
    if isinstance(message, onnx.TensorProto):
        return [message]
    found = []
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                found += tensors(inner)
    return found


def misspelt(content: bytes, dice: random.Random, kind: str = "model") -> bytes:
    """The same file with one field, at any depth, written in a way that protobuf may or may not accept."""
    fields = list(protobuf.fields(memoryview(content), kind))
    if not fields:
        return content
    place = dice.randrange(len(fields))
    field, parts = fields[place], [bytes(field.raw) for field in fields]
    message = protobuf._MESSAGES[kind]
    inner = message.once.get(field.number) or message.often.get(field.number)
    if isinstance(inner, str) and dice.random() < 0.8:
        parts[place] = protobuf.bytes_field(field.number, misspelt(bytes(field.content), dice, inner))
    else:
        parts[place] = _respelt(field, dice)
    return b"".join(parts)


def _respelt(field: protobuf.Field, dice: random.Random) -> bytes:
    raw = bytes(field.raw)
    tag, start = protobuf._varint(raw, 0, len(raw))
    rest, content = raw[start:], bytes(field.content)
    half = len(content) // 2
    as_varint = protobuf.as_varint
    return dice.choice(
        [
            as_varint(tag | dice.randrange(1, 2**20) << 32) + rest,  # bits that a tag of 32 bits does not have
            padded(as_varint(tag), dice.choice([1, 2, 3, 8])) + rest,
            as_varint(tag) + padded(as_varint(len(content)), dice.choice([1, 3, 8])) + content,
            as_varint(tag & 7) + rest,  # the number 0
            as_varint(tag & ~7 | dice.randrange(8)) + rest,  # another type
            as_varint(dice.randrange(1, 2**29) << 3 | tag & 7) + rest,  # another number
            as_varint(dice.randrange(1, 30) << 3 | tag & 7) + rest,
            raw + raw,
            protobuf.bytes_field(field.number, content[:half]) + protobuf.bytes_field(field.number, content[half:]),
            as_varint(field.number << 3 | 3) + raw + as_varint(field.number << 3 | 4),  # a group
            raw[: dice.randrange(len(raw))],
            raw + as_varint(field.number << 3) + as_varint(dice.randrange(2**64)),
            raw + protobuf.bytes_field(dice.choice([13, dice.randrange(1, 30)]), protobuf._entry("location", "x")[2:]),
            b"",
        ]
    )


def padded(number: bytes, by: int) -> bytes:
    """The same number, longer than it must be."""
    return number[:-1] + bytes([number[-1] | 128]) + b"\x80" * (by - 1) + b"\x00"


def rewired(model: onnx.ModelProto, dice: random.Random) -> None:  # noqa: PLR0912 - one branch per kind
    """Damage what a graph says, not how it is written: nodes, attributes, tensors, shapes."""
    graph = model.graph
    names = [value.name for value in (*graph.input, *graph.initializer)] + [o for n in graph.node for o in n.output]
    node, tensor = dice.choice(graph.node), dice.choice(graph.initializer)
    numbers = (-(2**63), -7, -1, 0, 1, 2, 3, 9, 2**31, 2**62)
    match dice.randrange(16):
        case 0 if node.input:
            node.input[dice.randrange(len(node.input))] = dice.choice([*names, "", "nothing"])
        case 1:
            del node.input[dice.randrange(len(node.input) + 1) :]
        case 2:
            node.input.append(dice.choice([*names, ""]))
        case 3:
            node.output[0] = dice.choice([*names, "", "other"])
        case 4:
            node.op_type = dice.choice([*(other.op_type for other in graph.node), *_OPERATORS, "Odd", ""])
        case 5 if node.attribute:
            attribute = dice.choice(node.attribute)
            attribute.i = dice.choice(numbers)
            for place in range(len(attribute.ints)):
                attribute.ints[place] = dice.choice([attribute.ints[place], *numbers])
        case 6 if node.attribute:
            del node.attribute[dice.randrange(len(node.attribute))]
        case 7:
            dice.choice([*node.attribute, onnx.AttributeProto()]).type = dice.choice(_TYPES)
        case 8 if tensor.dims:
            tensor.dims[dice.randrange(len(tensor.dims))] = dice.choice(numbers)
        case 9:
            del tensor.dims[dice.randrange(len(tensor.dims) + 1) :]
        case 10:
            tensor.data_type = dice.choice([*onnx.TensorProto.DataType.values(), 99])
        case 11:
            tensor.raw_data = dice.choice(
                [b"", tensor.raw_data[:-1], tensor.raw_data * 2, b"\xff" * len(tensor.raw_data)]
            )
        case 12:
            tensor.name = dice.choice([*names, "", "other"])
        case 13:
            kind = dice.choice([*graph.input, *graph.output, *graph.value_info]).type.tensor_type
            kind.elem_type = dice.choice([kind.elem_type, *onnx.TensorProto.DataType.values()])
            for dimension in kind.shape.dim:
                if dice.random() < 0.5:
                    dimension.dim_value = dice.choice(numbers)
        case 14:
            order = list(graph.node)
            dice.shuffle(order)
            del graph.node[:]
            graph.node.extend(order[: dice.choice([0, 1, len(order), len(order)])])
        case _:
            model.opset_import[0].version = dice.choice([-1, 0, 1, 7, 9, 13, 17, 18, 19, 21, 99, 2**31])

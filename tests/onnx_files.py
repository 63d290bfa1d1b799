"""A small ONNX file with every message that can hold a tensor, and damage to the format of such a file."""

import random

import onnx
from onnx import TensorProto, helper

from uce_edge import wire

HOLDERS = ("initializer", "sparse values", "sparse indices", "attribute", "attributes", "sparse attribute", "subgraph",
           "function", "training")  # fmt: skip
"""Where a model can have tensors."""


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
    fields = list(wire.fields(memoryview(content), kind))
    if not fields:
        return content
    place = dice.randrange(len(fields))
    field, parts = fields[place], [bytes(field.raw) for field in fields]
    message = wire._MESSAGES[kind]
    inner = message.once.get(field.number) or message.often.get(field.number)
    if isinstance(inner, str) and dice.random() < 0.8:
        parts[place] = wire._bytes_field(field.number, misspelt(bytes(field.content), dice, inner))
    else:
        parts[place] = _respelt(field, dice)
    return b"".join(parts)


def _respelt(field: wire.Field, dice: random.Random) -> bytes:
    raw = bytes(field.raw)
    tag, start = wire._varint(raw, 0, len(raw))
    rest, content = raw[start:], bytes(field.content)
    half = len(content) // 2
    as_varint = wire._as_varint
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
            wire._bytes_field(field.number, content[:half]) + wire._bytes_field(field.number, content[half:]),
            as_varint(field.number << 3 | 3) + raw + as_varint(field.number << 3 | 4),  # a group
            raw[: dice.randrange(len(raw))],
            raw + as_varint(field.number << 3) + as_varint(dice.randrange(2**64)),
            raw + wire._bytes_field(dice.choice([13, dice.randrange(1, 30)]), wire._entry("location", "x")[2:]),
            b"",
        ]
    )


def padded(number: bytes, by: int) -> bytes:
    """The same number, longer than it must be."""
    return number[:-1] + bytes([number[-1] | 128]) + b"\x80" * (by - 1) + b"\x00"

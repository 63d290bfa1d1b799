"""What our reader of ONNX files accepts, protobuf reads alike: the same messages, texts and no external data."""

import os
import random
from typing import Any

import onnx
from damage import damaged
from google.protobuf.message import DecodeError
from helpers.onnx_files import misspelt, small_model, tensors

from uce_edge.integrity import protobuf
from uce_edge.integrity.protobuf import WireError

LONG = int(os.environ.get("UCE_EDGE_FUZZ", "0"))
FIRST = int(os.environ.get("UCE_EDGE_FUZZ_FIRST", "0"))


def ours(content: bytes, kind: str = "model") -> dict[int, list[Any]]:
    """What our reader sees of a message, by field number."""
    message, seen = protobuf._MESSAGES[kind], {}
    for field in protobuf.fields(memoryview(content), kind):
        form = message.once.get(field.number) or message.often.get(field.number)
        inner = bytes(field.content)
        if isinstance(form, str):
            seen.setdefault(field.number, []).append(ours(inner, form))
        elif kind == "entry":
            seen.setdefault(field.number, []).append(inner)
    return seen


def theirs(proto: Any, kind: str = "model") -> dict[int, list[Any]]:
    """What protobuf sees of it."""
    message, seen = protobuf._MESSAGES[kind], {}
    for field, value in proto.ListFields():
        form = message.once.get(field.number) or message.often.get(field.number)
        if isinstance(form, str):
            seen[field.number] = [theirs(one, form) for one in (value if field.is_repeated else [value])]
        elif kind == "entry":
            seen[field.number] = [value if isinstance(value, bytes) else value.encode()]  # bytes: not UTF-8
    return seen


def outcome(content: bytes) -> str:
    try:
        protobuf.check(content)
    except WireError:
        return "refused"
    try:
        proto = onnx.ModelProto.FromString(content)
        read = theirs(proto)
    except (
        DecodeError,
        UnicodeDecodeError,
    ):  # whoever uses it cannot read it either
        return "refused by protobuf"
    assert read == ours(content)
    assert not any(tensor.external_data or tensor.data_location for tensor in tensors(proto))
    return "read alike"


def test_what_is_accepted_is_read_as_protobuf_reads_it() -> None:
    corpus, counts = [small_model().SerializeToString()], {}
    for number in range(FIRST, FIRST + 2000 * (LONG or 1)):
        dice = random.Random(number)
        content = corpus[0]
        if dice.random() < 0.5:
            content = damaged(corpus, number)
        else:
            for _ in range(dice.choice([1, 1, 2])):
                try:
                    content = misspelt(content, dice)
                except WireError:
                    break  # it is misspelt already
        try:
            word = outcome(content)
        except Exception as error:
            raise AssertionError(f"number {number}") from error
        counts[word] = counts.get(word, 0) + 1
    print(f"ONNX files in odd spellings, {sum(counts.values())} from number {FIRST}: {counts}")
    assert counts.keys() == {"refused", "refused by protobuf", "read alike"}

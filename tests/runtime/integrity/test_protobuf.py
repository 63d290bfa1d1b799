"""The reader of ONNX files sees what protobuf sees, or refuses the file."""

import onnx
import pytest
from helpers.onnx_files import HOLDERS, padded, small_model, tensors

from uce_edge.integrity import protobuf
from uce_edge.integrity.protobuf import ExternalDataError, WireError

NAMES = {
    "model": "ModelProto", "graph": "GraphProto", "node": "NodeProto", "attribute": "AttributeProto",
    "tensor": "TensorProto", "sparse": "SparseTensorProto", "function": "FunctionProto",
    "training": "TrainingInfoProto", "entry": "StringStringEntryProto",
}  # fmt: skip
CONTENT = small_model().SerializeToString()


@pytest.mark.parametrize("kind", protobuf._MESSAGES)
def test_the_fields_are_those_of_onnx(kind: str) -> None:
    """Fields that a newer ONNX may have are refused; those that are known are of its type."""
    message = protobuf._MESSAGES[kind]
    theirs = {field.number: field for field in getattr(onnx, NAMES[kind]).DESCRIPTOR.fields}
    assert not message.once.keys() & message.often.keys()
    for number, form in (message.once | message.often).items():
        field = theirs[number]
        assert field.is_repeated == (number in message.often)
        if isinstance(form, str):
            assert field.message_type.name == NAMES[form]
        else:
            texts = (field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_MESSAGE)
            forms = {field.TYPE_FLOAT: 5, field.TYPE_DOUBLE: 1} | dict.fromkeys(texts, 2)
            assert forms.get(field.type, 0) == form
            assert field.message_type is None or field.message_type.name not in NAMES.values()


def test_a_sound_model_is_read() -> None:
    protobuf.check(CONTENT)
    read = [field.entry for field in protobuf.fields(memoryview(CONTENT)) if field.entry is not None]
    assert read == [("uce_edge", "{}"), ("other", "text")]
    assert b"".join(field.raw for field in protobuf.fields(memoryview(CONTENT))) == CONTENT


def graph_twice(content: bytes) -> bytes:
    """As protobuf merges them: the second one adds an initializer."""
    more = onnx.ModelProto()
    more.graph.initializer.add(name="hidden")
    return content + more.SerializeToString()


def respell_graph(tag: bytes) -> bytes:
    parts = [(field.number, bytes(field.raw)) for field in protobuf.fields(memoryview(CONTENT))]
    return b"".join(tag + raw[1:] if number == 7 else raw for number, raw in parts)


@pytest.mark.parametrize(
    "content",
    {
        "a tag of more than 32 bits": respell_graph(b"\xba\x80\x80\x80\x10"),
        "a longer tag": respell_graph(b"\xba\x00"),
        "a graph twice": graph_twice(CONTENT),
        "another type": CONTENT + b"\x70\x01",  # an entry of the metadata as a number
        "a group": CONTENT + b"\x73\x0a\x01a\x12\x01b\x74",
        "the number 0": CONTENT + b"\x02\x00",
        "an unknown field": CONTENT + protobuf.bytes_field(99, b""),
        "a key twice": CONTENT + protobuf.bytes_field(14, b"\x0a\x01a\x0a\x08uce_edge\x12\x02{}"),
        "a longer length": CONTENT + b"\x72" + padded(b"\x00", 1),
        "a number of 65 bits": CONTENT + b"\x28" + b"\xff" * 9 + b"\x03",
        "a number without an end": CONTENT + b"\x28" + b"\x80" * 400,
        "a cut": CONTENT[:-1],
        "an overlong field": CONTENT + b"\x72\xff\xff\xff\xff\x0f",
    }.items(),
    ids=lambda case: case[0],
)
def test_what_parsers_may_read_differently_is_refused(content: tuple[str, bytes]) -> None:
    assert content[1] != CONTENT
    with pytest.raises(WireError):
        protobuf.check(content[1])


@pytest.mark.parametrize("spelling", ["both", "entry alone", "no location", "flag alone"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_weights_in_other_files_are_refused_wherever_they_are(holder: str, spelling: str) -> None:
    model = small_model()
    (tensor,) = (tensor for tensor in tensors(model) if tensor.name == holder)
    if spelling != "flag alone":
        tensor.external_data.add(key="offset" if spelling == "no location" else "location", value="x")
    if spelling in ("both", "flag alone"):
        tensor.data_location = onnx.TensorProto.EXTERNAL
    with pytest.raises(ExternalDataError):
        protobuf.check(model.SerializeToString())


def test_a_flag_is_cut_to_32_bits_as_protobuf_does() -> None:
    tensor = b"\x70" + protobuf.as_varint(2**32 + onnx.TensorProto.EXTERNAL)
    content = protobuf.bytes_field(7, protobuf.bytes_field(5, tensor))
    assert onnx.ModelProto.FromString(content).graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL
    with pytest.raises(ExternalDataError):
        protobuf.check(content)


def nested(depth: int) -> bytes:
    """Subgraphs inside each other."""
    graph = b""
    for _ in range(depth):
        graph = protobuf.bytes_field(1, protobuf.bytes_field(5, protobuf.bytes_field(6, graph)))
    return protobuf.bytes_field(7, graph)


def test_nesting_is_limited_as_protobuf_limits_it() -> None:
    protobuf.check(nested(32))
    onnx.ModelProto.FromString(nested(32))
    for depth in (34, 200, 20_000):
        with pytest.raises(WireError):
            protobuf.check(nested(depth))


def test_a_compiled_network_in_another_file_is_refused() -> None:
    model = small_model()
    model.graph.node.add(op_type="EPContext", domain="com.microsoft", output=["compiled"])
    with pytest.raises(ExternalDataError):
        protobuf.check(model.SerializeToString())


def test_the_number_of_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "_MAX_FIELDS", 10)
    with pytest.raises(WireError):
        protobuf.check(CONTENT)

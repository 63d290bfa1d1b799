"""The wire format, on its own."""

import json
import tracemalloc

import numpy as np
import pytest

from uce_edge.errors import UsageError
from uce_edge.serve import protocol


def request(**changes: object) -> bytes:
    entry = {"name": "image", "shape": [1, 2], "datatype": "UINT8", "data": [1, 2]} | changes
    return json.dumps({"inputs": [entry]}).encode()


def test_numbers_may_be_nested_or_in_a_row() -> None:
    for data in ([1, 2], [[1, 2]]):
        (values,) = protocol.read(request(data=data), None).inputs.values()
        assert values.dtype == np.uint8
        assert values.tolist() == [[1, 2]]


def test_binary_tensors_follow_the_json_in_their_order() -> None:
    inputs = [
        {"name": "image", "shape": [1, 2], "datatype": "UINT8", "parameters": {"binary_data_size": 2}},
        {"name": "seeds", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}},
    ]
    text = json.dumps({"inputs": inputs, "id": "x", "parameters": {"binary_data_output": True}}).encode()
    read = protocol.read(text + b"\x05\x06" + np.int32(7).tobytes(), str(len(text)))
    assert read.inputs["image"].tolist() == [[5, 6]]
    assert read.inputs["seeds"].tolist() == [7]
    assert (read.id, read.binary, read.outputs) == ("x", True, None)


@pytest.mark.parametrize(
    ("body", "header"),
    [
        (b"", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"inputs": []}', None),
        (b'{"inputs": [1]}', None),
        (b"[" * 100_000, None),
        (b"\xff\xfe", None),
        (request(), "-1"),
        (request(), "1e3"),
        (request(), "999999"),
        (request() + b"rest", str(len(request()))),
        (request(name=3), None),
        (request(shape=[]), None),
        (request(shape=[0]), None),
        (request(shape=[-1, 2]), None),
        (request(shape=[True, 2]), None),
        (request(shape=[1, 2, 1, 1, 1]), None),
        (request(shape=[2**40, 2**40]), None),
        (request(datatype="BYTES"), None),
        (request(datatype=None), None),
        (request(data=None), None),
        (request(data="no"), None),
        (request(data=[1, 256]), None),
        (request(data=[1, -1]), None),
        (request(data=[1.5, 2]), None),
        (request(data=[[1], [2, 3]]), None),
        (request(data=[True, False]), None),
        (request(data=[True, 2]), None),
        (request(data=[[1], [2]]), None),
        (request(data=[1, 2]).replace(b'"data": [1, 2]', b'"data": [1, , 2]'), None),
        (request(data=[1, 2]).replace(b'"data": [1, 2]', b'"data": [[1[, 2]]'), None),
        (request(data=[1, 2]).replace(b'"data": [1, 2]', b'"data": [1, 2'), None),
        (request(data=[1, 2]).replace(b"UINT8", b"FP32").replace(b"[1, 2]}", b"[1e39, 2]}"), None),
        (request(data=[1, 2]).replace(b"UINT8", b"FP32").replace(b"[1, 2]}", b"[NaN, 2]}"), None),
        (request(parameters={"binary_data_size": 2}), None),
        (request(parameters={"binary_data_size": "2"}), None),
        (request(parameters=[]), None),
    ],
)
def test_a_malformed_request_is_rejected(body: bytes, header: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        protocol.read(body, header)
    assert {"argument", "rule", "value", "remedy"} <= caught.value.fields.keys()


def test_a_long_array_is_read_and_written_piece_by_piece() -> None:
    values = np.arange(90_000).reshape(3, 100, 300) % 251
    for data in (values.tolist(), values.ravel().tolist()):
        (found,) = protocol.read(request(shape=[3, 100, 300], data=data), None).inputs.values()
        np.testing.assert_array_equal(found, values)
    floats = np.random.default_rng(0).random(90_000, np.float32)
    body, _ = protocol.write({}, {"a": floats, "b": floats[:1]}, {"a": False, "b": False})
    assert [entry["data"] for entry in json.loads(body)["outputs"]] == [floats.tolist(), floats[:1].tolist()]


@pytest.mark.parametrize(
    ("item", "shape"), [("[]", [1]), ("[]", [600_000]), ("{}", [1]), ('"data":[', [1]), ("0", [1])]
)
def test_a_body_of_many_small_things_takes_little_memory(item: str, shape: list[int]) -> None:
    body = request(shape=shape, data=[]).replace(b"[]}", b"[" + ",".join([item] * 600_000).encode() + b"]}")
    tracemalloc.start()
    with pytest.raises(UsageError):
        protocol.read(body, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(body)


def test_a_response_is_json_or_json_and_bytes() -> None:
    values = {"uncertainty": np.array([0.5], np.float32), "class_id": np.array([3], np.int32)}
    body, length = protocol.write({"model_name": "m"}, values, dict.fromkeys(values, False))
    assert length is None
    assert json.loads(body)["outputs"][1] == {"name": "class_id", "datatype": "INT32", "shape": [1], "data": [3]}
    body, length = protocol.write({"model_name": "m"}, values, {"uncertainty": True, "class_id": False})
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 4}
    assert np.frombuffer(body[length:], np.float32).tolist() == [0.5]

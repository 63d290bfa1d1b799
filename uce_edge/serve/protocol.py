"""Requests and responses of the Open Inference Protocol: JSON and binary tensors."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError, expected
from uce_edge.serve import numbers

HEADER = "Inference-Header-Content-Length"
"""The HTTP header with the length of the JSON part; binary tensors follow it."""

DATATYPES = {"uint8": "UINT8", "int32": "INT32", "float32": "FP32", "bool": "BOOL"}
"""The data types of model files, by the names of the protocol."""
_DTYPES = {name: np.dtype(dtype).newbyteorder("<") for dtype, name in DATATYPES.items() if dtype != "bool"}
_LARGEST_RANK = 4
_LARGEST_OUTLINE = 1 << 16
"""Bytes of JSON apart from tensor data; a typical request has some hundred."""

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RequestedOutput:
    """One output of a response."""

    name: str
    binary: bool


@dataclass(frozen=True)
class InferRequest:
    """A parsed inference request."""

    id: str | None
    inputs: dict[str, npt.NDArray[Any]]
    outputs: tuple[RequestedOutput, ...] | None
    """None for all outputs per image."""
    binary: bool
    """Whether the outputs are binary tensors if none is named."""
    parameters: dict[str, Any]


def read(body: bytes, header_length: str | None) -> InferRequest:
    """Parse a request.

    Args:
        body: The body of the HTTP request.
        header_length: The value of `HEADER`; None for a body that is JSON alone.

    Raises:
        UsageError: The body is not a request of the protocol.
    """
    size = len(body) if header_length is None else _length(header_length, len(body))
    document = _document(body[:size])
    parameters = _table(document, "parameters")
    inputs, rest = _list(document, "inputs"), memoryview(body)[size:]
    tensors: dict[str, npt.NDArray[Any]] = {}
    for entry in inputs:
        name = _name(entry, "inputs")
        if name in tensors:
            raise UsageError(
                expected("the names of `inputs`", "different", name, "Send every input once"), "request.inputs"
            )
        tensors[name], rest = _tensor(name, entry, rest)
    if len(rest):
        rule = "as long as its tensors"
        raise UsageError(
            expected("the body", rule, f"{len(rest)} bytes more", "Check `binary_data_size`"), "request.body"
        )
    outputs = None
    if "outputs" in document:
        outputs = tuple(
            RequestedOutput(_name(entry, "outputs"), _flag(_table(entry, "parameters"), "binary_data"))
            for entry in _list(document, "outputs")
        )
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise UsageError(expected("`id`", "a text", request_id, "Leave it out if you need none"))
    return InferRequest(request_id, tensors, outputs, _flag(parameters, "binary_data_output"), parameters)


def write(document: dict[str, Any], outputs: Tensors, binary: Mapping[str, bool]) -> tuple[bytes, int | None]:
    """Write the body of a response.

    Args:
        document: Name and version of the model, and the id of the request.
        outputs: The tensors.
        binary: Which of them are binary.

    Returns:
        The body, and the value of `HEADER`: None if all of it is JSON.
    """
    entries, blobs = [], []
    for name, values in outputs.items():
        entry: dict[str, Any] = {"name": name, "datatype": DATATYPES[values.dtype.name], "shape": list(values.shape)}
        if binary[name]:
            blob = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
            entry["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            entry["data"] = values
        entries.append(entry)
    text = numbers.dumps(document | {"outputs": entries})
    return b"".join([text, *blobs]), len(text) if blobs else None


def _length(text: str, whole: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and int(text) <= whole):
        rule = f"a number of bytes, at most the {whole} of the body"
        raise UsageError(
            expected(f"the header {HEADER}", rule, text, "Send the length of the JSON part"), "request.header"
        )
    return int(text)


def _document(text: bytes) -> dict[str, Any]:
    rest = numbers.cut(text, _LARGEST_OUTLINE)
    if isinstance(rest, int):
        where, rule = "the JSON without the numbers of `data`", f"at most {_LARGEST_OUTLINE} bytes"
        raise UsageError(
            expected(where, rule, rest, "Send numbers in `data` alone, or as binary tensors"), "request.json"
        )
    outline, arrays = rest
    try:
        document = json.loads(outline, parse_float=lambda text: arrays.get(text) or float(text))
    except (ValueError, RecursionError):
        where = "the JSON part of the body"
        raise UsageError(expected(where, "JSON", text[:60], f"Check the header {HEADER}"), "request.json") from None
    if not isinstance(document, dict):
        raise UsageError(
            expected("the body", "a JSON object", type(document).__name__, 'Send {"inputs": [...]}'), "request.json"
        )
    return document


def _table(entry: dict[str, Any], key: str) -> dict[str, Any]:
    value = entry.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(expected(f"`{key}`", "a JSON object", value, "Leave it out if you need none"))
    return value


def _list(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
        raise UsageError(expected(f"`{key}`", "a list of JSON objects", value, 'For example: {"inputs": [{...}]}'))
    return value


def _name(entry: dict[str, Any], key: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str):
        raise UsageError(
            expected(f"the `name` of an entry of `{key}`", "a text", name, "Name every tensor"), "request.name"
        )
    return name


def _flag(parameters: dict[str, Any], key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(expected(f"`{key}`", "true or false", value, "Leave it out for false"))
    return value


def _tensor(name: str, entry: dict[str, Any], rest: memoryview) -> tuple[npt.NDArray[Any], memoryview]:
    """Read one tensor; also returns the rest of the binary part."""
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if not isinstance(datatype, str) or datatype not in _DTYPES:
        rule = f"one of {', '.join(_DTYPES)}"
        raise UsageError(
            expected(f"the `datatype` of {name}", rule, datatype, "Convert it before you send it"), "request.datatype"
        )
    if not (
        isinstance(shape, list)
        and 1 <= len(shape) <= _LARGEST_RANK
        and all(type(length) is int and length >= 1 for length in shape)
    ):
        rule = f"one to {_LARGEST_RANK} whole numbers, each at least 1"
        raise UsageError(
            expected(f"the `shape` of {name}", rule, shape, "Send the lengths of its dimensions"), "request.shape"
        )
    dtype, count = _DTYPES[datatype], math.prod(shape)
    size = _table(entry, "parameters").get("binary_data_size")
    if size is None:
        return _from_json(name, entry.get("data"), dtype, shape, count), rest
    if type(size) is not int or size != count * dtype.itemsize or size > len(rest):
        rule = f"{count * dtype.itemsize} by its shape, and at most the {len(rest)} bytes that follow"
        raise UsageError(
            expected(f"the `binary_data_size` of {name}", rule, size, "Send the whole tensor"),
            "request.binary-data-size",
        )
    values = np.frombuffer(rest[:size], dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False), rest[size:]


def _from_json(name: str, data: Any, dtype: np.dtype[Any], shape: list[int], count: int) -> npt.NDArray[Any]:
    """Read a tensor from JSON, flat or nested by its shape."""
    if isinstance(data, numbers.Numbers) and data.count == count:
        with suppress(ValueError, OverflowError):
            return data.read(dtype, shape)
    kind = "numbers" if dtype.kind == "f" else "whole numbers"
    rule = f"{count} {kind} that fit into {dtype.name}, flat or nested by its shape"
    raise UsageError(expected(f"the `data` of {name}", rule, data, "Send a flat list of numbers"), "request.data")


def binary_choice(request: InferRequest, names: Sequence[str]) -> dict[str, bool]:
    """Which outputs the client requests as binary tensors."""
    if request.outputs is None:
        return dict.fromkeys(names, request.binary)
    return {output.name: output.binary for output in request.outputs}

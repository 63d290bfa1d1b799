"""Read safetensors and torch files without running their code."""

import io
import json
import pickle
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load
from torch import Tensor

from uce_edge._util.atomic_files import read_regular

_DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
_LONGEST = 200  # characters of a reason


class TensorFileError(ValueError):
    """A file of tensors cannot be read.

    The message is a clause without a full stop.
    """


class TensorFile(NamedTuple):
    """The content of a safetensors file."""

    tensors: dict[str, Tensor]
    header: dict[str, str]
    """The texts beside the tensors."""


def read(path: Path) -> TensorFile:
    """Read a safetensors file.

    Raises:
        FileNotFoundError: There is none.
        TensorFileError: It is damaged, or something else.
    """
    try:
        content = read_regular(path)
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    except FileNotFoundError:
        raise
    except Exception as error:  # safetensors and torch each have their own; all mean the same
        raise TensorFileError(reason(error)) from None
    return TensorFile({name: value for name, value in tensors.items() if is_plain(value)}, header)


def read_any(content: bytes) -> object:
    """Read a safetensors or torch file.

    Of torch files, only tensors and plain containers are read.

    Raises:
        TensorFileError: It is damaged, or something else.
    """
    try:
        if content[8:9] == b"{":  # after the length of the header
            return load(content)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # its text recommends to run what is in the file
        raise TensorFileError("it is damaged, or holds other objects than tensors") from None
    except Exception as error:  # torch raises whatever its parsing ran into
        raise TensorFileError(reason(error)) from None


def is_plain(value: object) -> bool:
    """Whether a value is a dense tensor, fully stored."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.dtype in _DTYPES
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def reason(error: Exception) -> str:
    """The first line of an error, or its class."""
    line = next(iter(str(error).splitlines()), "").strip()[:_LONGEST]
    return line if line and line.isprintable() else type(error).__name__

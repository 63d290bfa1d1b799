"""Import public names on first use."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from uce_edge.errors import MissingPartError

_EXTRAS = {
    "torch": "train,export",
    "safetensors": "train",
    "sklearn": "train",
    "matplotlib": "train",
    "onnx": "export",
    "onnx_ir": "export",
    "onnxscript": "export",
    "onnxruntime": "cpu",
}


def names(package: str, modules: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        modules: Where its public names come from.
    """
    homes = {name: module for module, listed in modules.items() for name in listed}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            value = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRAS:
                raise
            raise MissingPartError(f"{package}.{name}", error.name, _EXTRAS[error.name]) from None
        setattr(sys.modules[package], name, value)  # the next use finds it at once
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, listed

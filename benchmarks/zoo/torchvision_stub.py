"""timm without torchvision.

timm's networks need torchvision for two names alone, and its data part for the names of transforms and datasets. The
stub has empty classes for all of them while timm is imported, and is gone afterwards.
"""

import enum
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "torchvision"
_FILTERS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")


class _Names(ModuleType):
    """A module in which every name is an empty class."""

    InterpolationMode = enum.Enum("InterpolationMode", {name.upper(): name for name in _FILTERS})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] == _NAME else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Names are made when they are asked for."""


@contextmanager
def _stubbed() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.append(finder)  # last: a real torchvision comes first
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        # transformers looks for torchvision, and must not find this one.
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Names)]:
            del sys.modules[name]


def import_timm() -> Any:
    """Import timm, with or without torchvision."""
    with _stubbed():
        return import_module("timm")

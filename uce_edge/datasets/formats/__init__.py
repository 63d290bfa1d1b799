"""Formats of labelled images, one module each.

A module defines `FORMAT`, a `sources.Format`. Modules are found by listing this folder.
"""

import pkgutil
from functools import cache
from importlib import import_module

from uce_edge.datasets.sources import Format


@cache
def all_formats() -> tuple[Format, ...]:
    """Every format, in the order of the modules' names."""
    modules = pkgutil.iter_modules(__path__)
    return tuple(import_module(f"{__name__}.{module.name}").FORMAT for module in modules)

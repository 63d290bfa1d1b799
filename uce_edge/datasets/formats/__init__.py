"""Kinds of files and folders with labelled images: one module each, found by listing this folder.

A module has `FORMAT`, a `sources.Format`: a new kind is one new file.
"""

import pkgutil
from functools import cache
from importlib import import_module

from uce_edge.datasets.sources import Format


@cache
def all_formats() -> tuple[Format, ...]:
    """Every kind, in the order of the modules' names."""
    modules = pkgutil.iter_modules(__path__)
    return tuple(import_module(f"{__name__}.{module.name}").FORMAT for module in modules)

"""Datasets that have a name: one module each, found by listing this folder, so that `--help` need not import them.

A module has `DATASET`, a `sources.Named`: a new dataset is one new file. fashion_mnist.py is the dataset fashion-mnist;
a module whose name starts with an underscore serves several datasets.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uce_edge.datasets.sources import Named


def names() -> tuple[str, ...]:
    """Every name, in the order of the alphabet."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in modules if not name.startswith("_")))


def get(name: str) -> "Named":
    """The dataset of one of the `names`."""
    dataset: Named = import_module(f"{__name__}.{name.replace('-', '_')}").DATASET
    return dataset

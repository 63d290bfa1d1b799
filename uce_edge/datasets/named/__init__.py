"""Named datasets, one module each.

A module defines `DATASET`, a `sources.Named`. Modules are found by listing this folder, so that `--help` does not
import them. fashion_mnist.py is the dataset fashion-mnist; modules with an underscore are shared.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uce_edge.datasets.sources import Named


def names() -> tuple[str, ...]:
    """All names in alphabetical order."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in modules if not name.startswith("_")))


def get(name: str) -> "Named":
    """The dataset of one of the `names`."""
    dataset: Named = import_module(f"{__name__}.{name.replace('-', '_')}").DATASET
    return dataset

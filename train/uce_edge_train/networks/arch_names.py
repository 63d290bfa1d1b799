"""Names of networks, checked without torch, which takes seconds to load."""

import importlib.util
import sys
from pathlib import Path

from uce_edge.errors import UsageError, expected
from uce_edge_train.choices import Architecture


def check(name: str, folder: Path | None = None) -> None:
    """Reject a name that means no network.

    Args:
        name: A built-in network, or package.module:function.
        folder: Where to look for the user's own module, too.
    """
    if ":" not in name:
        if name not in list(Architecture):
            rule = f"one of {', '.join(Architecture)}, or package.module:function"
            raise UsageError(expected("`arch`", rule, name, "As in --arch resnet20"))
        return
    top = name.partition(":")[0].partition(".")[0]
    place = [] if folder is None else [str(folder)]
    sys.path += place
    try:
        if not top or importlib.util.find_spec(top) is None:
            raise no_network(name, f"No module named {top!r}")
    except (ImportError, ValueError) as error:
        raise no_network(name, error) from None
    finally:
        for one in place:
            sys.path.remove(one)


def no_network(name: str, reason: object) -> UsageError:
    """The error for a module that cannot be imported."""
    top = name.partition(":")[0].partition(".")[0]
    remedy = f"{reason}. Put the folder of {top}.py on PYTHONPATH"
    return UsageError(expected("`arch`", "an importable package.module:function", name, remedy))

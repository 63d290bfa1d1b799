"""The order of classes: by name, by number, or by a column `class_id`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from uce_edge.errors import UsageError, expected

_DIGITS = 10  # a class number has fewer digits; a longer label is a name


def is_number(name: str) -> bool:
    """Whether a label is the number of a class."""
    return name.isascii() and name.isdecimal() and len(name) < _DIGITS


def in_order(names: set[str]) -> list[str]:
    """Sort class names; as numbers if all are numbers."""
    if all(map(is_number, names)):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def numbered(ids: Sequence[str], labels: Sequence[str], path: Path) -> dict[int, str]:
    """The class names by `class_id`, made unique, in order.

    A name of several classes gets its number, as in "crane (134)".

    Args:
        ids: The cell `class_id` of every row.
        labels: The label of every row.
        path: The manifest, for messages.
    """
    names: dict[int, str] = {}
    for cell, label in zip(ids, labels, strict=True):
        if not is_number(cell.strip()):
            raise UsageError(
                expected(f"the class_id in {path}", "a whole number from 0", cell, "Number the model's outputs from 0"),
                "manifest.class-id",
                path=path,
            )
        known = names.setdefault(int(cell), label)
        if known != label:
            raise UsageError(
                expected(f"the labels of class_id {int(cell)} in {path}", "one", f"{known}, {label}", "Keep one"),
                "manifest.class-id",
                path=path,
            )
    shared = Counter(name.casefold() for name in names.values())
    return {
        number: f"{name} ({number})" if shared[name.casefold()] > 1 else name for number, name in sorted(names.items())
    }


def of_outputs(names: Sequence[str], ids: Sequence[int], outputs: int, given: str) -> tuple[str, ...]:
    """The name of every output of a network; those without images get numbers.

    Args:
        names: The classes that have images.
        ids: Their outputs.
        outputs: The number of outputs.
        given: The dataset, for messages.
    """
    if ids[-1] >= outputs:
        rule = f"between 0 and {outputs - 1}, the model's outputs"
        raise UsageError(
            expected(f"class_id in {given}", rule, ids[-1], "Count from 0, or use the model's own numbers"),
            "manifest.class-id",
        )
    known = dict(zip(ids, names, strict=True))
    return tuple(known.get(number, str(number)) for number in range(outputs))

"""Groups of images that belong together, such as those of one patient: found by a column, or in file names."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge.datasets.sources import UngroupedWarning, Wanted
from uce_edge.errors import UsageError, expected

_EXAMPLE = "For example: --group '(patient\\d+)'"


def by_pattern(names: Sequence[str], pattern: str, where: Path | str, columns: Sequence[str] = ()) -> list[str]:
    """The group of every file: what the one capture group of a pattern finds in its name.

    Args:
        names: The files, as the dataset calls them.
        pattern: A regular expression, looked for anywhere in a name.
        where: What messages call the dataset.
        columns: What a manifest has instead, for messages.
    """
    rule = f"a column of {where} ({', '.join(columns)}), or " if columns else ""
    rule += "a regular expression with one capture group"
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(expected("`group`", f"{rule} ({error})", pattern, _EXAMPLE)) from None
    if compiled.groups != 1:
        raise UsageError(expected("`group`", rule, pattern, _EXAMPLE))
    found = [match[1] if (match := compiled.search(name)) else None for name in names]
    lacking = [name for name, group in zip(names, found, strict=True) if not group]
    if len(lacking) == len(names):
        raise UsageError(
            f"--group {pattern!r} matches no image of {where}: the first is called {names[0]}. Check the pattern."
        )
    if lacking:
        raise UsageError(
            f"--group {pattern!r} finds no group for {len(lacking)} of the {len(names)} images of {where}. "
            f"The first: {lacking[0]}. Every image needs one."
        )
    return [group or "" for group in found]


def soft(wanted: Wanted, where: Path | str, error: UsageError) -> None:
    """Images that cannot be grouped: refuse them, or say so where a model's own grouping was only tried.

    Args:
        wanted: What the reader was told.
        where: What messages call the dataset.
        error: Why not.
    """
    if wanted.must_group:
        raise error
    warnings.warn(
        f"This model was made from images that were grouped by {wanted.group}, but the images of {where} cannot be "
        "grouped so. They are treated as independent. If they are not, name their groups with --group.",
        UngroupedWarning,
        stacklevel=3,
    )


def numbered(groups: Sequence[str], parts: Sequence[str], where: Path | str) -> npt.NDArray[np.int64]:
    """The groups as numbers; refuses one that stands in two parts.

    Args:
        groups: The group of every image.
        parts: The part of every image.
        where: What messages call the dataset.
    """
    first: dict[str, str] = {}
    torn = {group: (first[group], part) for group, part in zip(groups, parts, strict=True)
            if first.setdefault(group, part) != part}  # fmt: skip
    if torn:
        group, (one, other) = next(iter(torn.items()))
        more = f", and so are {len(torn) - 1} others" if len(torn) > 1 else ""
        raise UsageError(
            f"The group {group} of {where} is in {one} and in {other}{more}. Put all images of a group into one split."
        )
    # Not by numpy, whose arrays give every text the room of the longest.
    number = {group: index for index, group in enumerate(sorted(set(groups)))}
    return np.array([number[group] for group in groups], np.int64)

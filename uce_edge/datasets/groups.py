"""Groups of dependent images, such as those of one patient."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge.datasets.sources import ReaderOptions, UngroupedWarning
from uce_edge.errors import UsageError, expected

_EXAMPLE = "For example: --group '(patient\\d+)'"


def by_pattern(names: Sequence[str], pattern: str, where: Path | str, columns: Sequence[str] = ()) -> list[str]:
    """Group files by the capture group of a pattern.

    Args:
        names: The file names within the dataset.
        pattern: A regular expression that is searched for in each name.
        where: The dataset's name in messages.
        columns: The columns of a manifest, for messages.
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
            f"--group {pattern!r} matches no image of {where}. The first image is {names[0]}. Check the pattern.",
            "group.unmatched",
            pattern=pattern,
        )
    if lacking:
        raise UsageError(
            f"--group {pattern!r} finds no group for {len(lacking)} of the {len(names)} images of {where}. "
            f"The first: {lacking[0]}. Every image needs one.",
            "group.unmatched",
            pattern=pattern,
        )
    return [group or "" for group in found]


def refuse_or_warn(options: ReaderOptions, where: Path | str, error: UsageError) -> None:
    """Raise the error, or warn where grouping is optional.

    Args:
        options: The reader's options.
        where: The dataset's name in messages.
        error: Why the images cannot be grouped.
    """
    if options.must_group:
        raise error
    warnings.warn(
        f"This model was made from images that were grouped by {options.group}. The images of {where} have no such "
        "groups and are treated as independent. If they are not independent, name their groups with --group.",
        UngroupedWarning,
        stacklevel=3,
    )


def numbered(groups: Sequence[str], parts: Sequence[str], where: Path | str) -> npt.NDArray[np.int64]:
    """Number the groups; refuse a group in two parts.

    Args:
        groups: The group of every image.
        parts: The part of every image.
        where: The dataset's name in messages.
    """
    first: dict[str, str] = {}
    divided = {group: (first[group], part) for group, part in zip(groups, parts, strict=True)
               if first.setdefault(group, part) != part}  # fmt: skip
    if divided:
        group, (one, other) = next(iter(divided.items()))
        more = f", and so are {len(divided) - 1} others" if len(divided) > 1 else ""
        raise UsageError(
            f"The group {group} of {where} is in {one} and in {other}{more}. Put all images of a group into one split.",
            "group.split",
            group=group,
        )
    # Not np.unique: a numpy array of strings gives each the width of the longest.
    number = {group: index for index, group in enumerate(sorted(set(groups)))}
    return np.array([number[group] for group in groups], np.int64)

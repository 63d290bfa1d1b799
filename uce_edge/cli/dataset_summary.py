"""Summary of a labelled dataset before training."""

from typing import TYPE_CHECKING

from uce_edge.cli.messages import say, warn

if TYPE_CHECKING:
    from uce_edge.datasets.splits import Dataset, Split

_FEW = 20  # classes whose images are counted one by one


def tell_dataset(dataset: "Dataset") -> None:
    """Print the classes, the images of every split, and problems."""
    import numpy as np

    names, splits = dataset.class_names, dataset.splits
    counts = {key: np.bincount(split.labels, minlength=len(names)) for key, split in splits.items()}
    rows = [("", *splits), ("images", *(f"{len(split):,}" for split in splits.values()))]
    if dataset.group is not None:
        groups = [len(np.unique(split.groups)) for split in splits.values() if split.groups is not None]
        rows.append(("groups", *(f"{count:,}" for count in groups)))
    if len(names) <= _FEW:
        rows += [(name, *(f"{counts[key][label]:,}" for key in splits)) for label, name in enumerate(names)]
        say(f"{len(names)} classes in {dataset.name}:")
    else:
        say(f"{len(names)} classes in {dataset.name}: {', '.join(names[:5])}, ..., {names[-1]}")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for head, *cells in rows:
        say("  ".join([head.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))]))
    if dataset.group is not None:
        say(f"No group ({dataset.group}) is in two splits.")
        _tell_groups(splits["guarantee"])
    lacking = [name for label, name in enumerate(names) if not counts["train"][label]]
    if lacking:
        warn(f"there is no training image of the class {', '.join(lacking[:5])}: the network cannot learn it.")
    _tell_overlaps(dataset)
    if dataset.gray.words is not None:
        say(dataset.gray.words)


def _tell_groups(split: "Split") -> None:
    """Warn if there are too few groups for a promised error of 5 %."""
    from uce_edge.rejection.guarantee import images_needed, upper_bound

    groups, needed = len(split.one_per_group()), images_needed(0.05, 0.95)
    if groups < needed:
        warn(
            f"a promised error counts one image per group. {groups} guarantee groups can prove an error of "
            f"{upper_bound(0, groups, 0.95):.0%} at best; an error of 5 % needs {needed} groups."
        )


def _tell_overlaps(dataset: "Dataset") -> None:
    from uce_edge.datasets import overlap

    found = overlap.across(dataset.splits)
    for twins, fact, harm in (
        (found.same, "are also in an earlier split, pixel by pixel", "metrics on them are too good"),
        (found.alike, "look like one of an earlier split", "if they are copies, metrics on them are too good"),
        (found.two_labels, "also occur with another label", "one of the labels is wrong"),
    ):
        if twins is not None:
            one, other = twins.example
            warn(f"{twins.images:,} of {twins.compared:,} images {fact}, such as {one} and {other}: {harm}.")

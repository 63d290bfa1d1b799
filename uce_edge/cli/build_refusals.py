"""What `uce-edge build` refuses before anything slow."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.cli.messages import quote, say, warn
from uce_edge.cli.shared_options import parse_novelty, parse_promise, parse_sets
from uce_edge.errors import UsageError, expected

if TYPE_CHECKING:
    from uce_edge.datasets.splits import Dataset
    from uce_edge_train.networks.initial_weights import Start
    from uce_edge_train.recipe import Recipe
    from uce_edge_train.runs import Run

NONE = "none"
"""The word that leaves something out."""
SETS = 0.05
"""The default of --sets."""
_CONFIDENCE, _TARGETS = 0.95, (0.1, 0.05, 0.02)
_FEW = 20  # training images of a class


@dataclass(frozen=True)
class Asked:
    """The training that a build asks for."""

    dataset: "Dataset"
    arch: str
    init: "Start | None"
    """The weights of the backbone; None for random ones."""
    members: int


def check_out(out: Path, report: Path) -> None:
    """Refuse a model file and a report that cannot be written."""
    from uce_edge._util.atomic_files import writable_folder
    from uce_edge.output.destinations import check_report

    if out.suffix != ".onnx":
        raise UsageError(f"--out must end in .onnx, but got {out}. For example: --out photos.onnx", "build.out")
    writable_folder(out.parent)
    check_report(report, [])


def check_run(folder: Path, asked: Asked, *, overwrite: bool) -> None:
    """Refuse a folder with the training of something else.

    `train --resume` takes a finished run as it is, whatever its options are.
    """
    from uce_edge_train.loop import checkpoint
    from uce_edge_train.runs import DESCRIPTION, Run, numbered

    members = numbered(folder)
    _check_kind(folder, list(members), asked.members)
    if overwrite:
        return
    finished = 0
    for place in (folder, *members.values()):
        found: list[str] = []
        if (place / checkpoint.CHECKPOINT).exists():
            stored = checkpoint.stored(place)
            found = _other_network(stored.recipe, asked)
            if stored.data != asked.dataset.splits["train"].sha256():
                found.append("its training images are others, or of another size")
        elif (place / DESCRIPTION).exists():
            found = _differences(Run.load(place), asked)
            finished += 1
        if found:
            raise UsageError(
                f"{folder} holds the training of something else: {'; '.join(found)}. Choose another folder: --run "
                f"{quote(f'{folder}-2')}, or replace the training with --overwrite.",
                "build.other-training",
                differences=found,
            )
    if finished == asked.members:
        say(f"{folder} holds a finished training of these images, which is kept. To train again, in the time of")
        say("--budget: --overwrite")


def discard(folder: Path) -> None:
    """Remove the state that a training would continue from."""
    from uce_edge.cli.train_settings import PLAN
    from uce_edge_train.loop.checkpoint import CHECKPOINT
    from uce_edge_train.runs import DESCRIPTION, numbered

    for place in (folder, *numbered(folder).values()):
        for name in (DESCRIPTION, CHECKPOINT, PLAN):
            (place / name).unlink(missing_ok=True)


def _check_kind(folder: Path, members: list[int], wanted: int) -> None:
    """Refuse one network where there are several, and the reverse."""
    from uce_edge_train.loop.checkpoint import CHECKPOINT
    from uce_edge_train.runs import DESCRIPTION

    single = (folder / DESCRIPTION).exists() or (folder / CHECKPOINT).exists()
    if single if wanted > 1 else members:
        what = "a single network" if single else f"an ensemble of {len(members)} networks"
    elif [number for number in members if number >= wanted]:
        what = f"more networks, {len(members)}"
    else:
        return
    raise UsageError(
        f"{folder} holds {what}, but --members is {wanted}. Choose another folder: --run {quote(f'{folder}-2')}",
        "build.other-members",
    )


def _differences(run: "Run", asked: Asked) -> list[str]:
    """What of a finished run is not as asked, in words."""
    dataset, image = asked.dataset, run.image
    found = _other_network(run.recipe, asked)
    if (run.data, run.root) != (dataset.name, dataset.root):
        found.append(f"its images are those of {_place(run)}, not of {_place(dataset)}")
    if run.group != dataset.group:
        found.append(f"its images are grouped by {run.group or 'nothing'}, not by {dataset.group or 'nothing'}")
    sizes = [
        f"{image.height}x{image.width} ({image.resize})",
        "{}x{} ({})".format(*dataset.image_shape[:2], dataset.resize),
    ]
    if sizes[0] != sizes[1]:
        found.append(f"its images have the size {sizes[0]}, not {sizes[1]}")
    if not found and (run.class_names != dataset.class_names or run.split_hashes != dataset.hashes()):
        found.append(f"the images or classes of {_place(run)} have changed since")
    return found


def _place(of: "Run | Dataset") -> str:
    name = of.data if hasattr(of, "data") else of.name
    return name if of.root is None else f"{name} in {of.root}"


def _other_network(recipe: "Recipe", asked: Asked) -> list[str]:
    if recipe.arch != asked.arch:
        return [f"its network is {recipe.arch}, not {asked.arch}"]
    if recipe.init != asked.init:
        return [f"its network began with {recipe.init or 'random weights'}, not with {asked.init or 'random weights'}"]
    return []


def check_promise(dataset: "Dataset", target_error: str | None) -> None:
    """Refuse a promise that the photos cannot keep, and state what they can."""
    from uce_edge.rejection import guarantee

    held_out = dataset.splits["guarantee"].one_per_group()
    photos = sum(map(len, dataset.splits.values()))
    _tell_small(dataset)
    if target_error is None:
        say(f"No error is promised. {possible(len(held_out), photos, grouped=held_out.groups is not None)}")
        return
    promise = parse_promise(target_error)
    promise.targets(dataset.class_names)  # rejects unknown classes
    guarantee.check_possible(len(held_out), promise, photos, grouped=held_out.groups is not None)


def check_sets(dataset: "Dataset", text: str | None) -> str | None:
    """The share of --sets; refuses one that so few photos cannot keep.

    Returns:
        As --sets takes it; None for no sets, which is the default where there are too few photos.
    """
    from uce_edge.calibration import conformal

    if text == NONE:
        return None
    try:
        alpha = SETS if text is None else float(text)
    except ValueError:
        rule, remedy = f"a number, or {NONE}", f"For example: --sets {SETS}"
        raise UsageError(expected("`sets`", rule, str(text), remedy)) from None
    if alpha == 0:
        return None
    promise = parse_sets(alpha, None, None)
    assert promise is not None
    labels = dataset.splits["guarantee"].one_per_group().labels
    needed = conformal.images_needed(alpha)
    if text is None and len(labels) < needed:
        more = f", which suffice for --sets {math.ceil(100 / (len(labels) + 1)) / 100:g}"
        say(f"No prediction sets: --sets {alpha:g} needs {needed} guarantee images, and there are {len(labels)}{more}.")
        return None
    conformal.check_possible(labels, promise, dataset.class_names)
    return f"{alpha:g}"


def check_level(asked: Asked, level: float | None) -> None:
    """Refuse a level of the gate that so few photos cannot keep."""
    promise = parse_novelty(level)
    if level is None:
        return
    from uce_edge.calibration.novelty import cutoff_for
    from uce_edge_train.loop.budget import ENOUGH

    train, reference = asked.dataset.splits["train"], asked.dataset.splits["calibration"]
    all_layers = asked.members == 1 and len(train) // len(asked.dataset.class_names) >= ENOUGH
    if asked.init is None or all_layers:  # the gate may look at trained layers, and half of the images fit it
        reference = reference.halves()[1]
    cutoff_for(len(reference.one_per_group()), promise)


def check_ood(ood: str, dataset: "Dataset") -> None:
    """Refuse out-of-distribution images that the last stage could not read."""
    from uce_edge.datasets import labelled, synthetic_ood
    from uce_edge.metadata import ImageSpec

    if ood not in synthetic_ood.HALVES:
        labelled.load_ood(ood, ImageSpec(*dataset.image_shape, range=dataset.gray.range, resize=dataset.resize))


def possible(held_out: int, photos: int, *, grouped: bool) -> str:
    """What so many guarantee images could promise, and how many other promises take."""
    from uce_edge.rejection import guarantee

    best = guarantee.upper_bound(0, held_out, _CONFIDENCE)
    kind = "patients or other groups" if grouped else "images"
    text = f"{held_out} guarantee {kind} could promise {best:.1%} at best, if their labels are all right"
    more = []
    for target in _TARGETS:
        count = guarantee.images_needed(target, _CONFIDENCE)
        if count > held_out:
            all_photos = "" if grouped else f" ({math.ceil(count * photos / held_out):,} photos in all)"
            more.append(f"{target:.0%} takes {count}{all_photos}")
    return f"{text}{'; ' if more else ''}{', '.join(more)}: --target-error."


def _tell_small(dataset: "Dataset") -> None:
    """Warn where few images a class are left to train on."""
    import numpy as np

    counts = np.bincount(dataset.splits["train"].labels, minlength=len(dataset.class_names))
    fewest = int(counts.argmin())
    if counts[fewest] < _FEW:
        warn(
            f"only {counts[fewest]} training images show {dataset.class_names[fewest]}. What so few images give is "
            "uncertain: read the intervals in the report, and add images of this class first."
        )

"""What `evaluate` and `compare` share: their images, and where a page may be written."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uce_edge.cli.predict_outputs import check_apart
from uce_edge.errors import UsageError, expected

if TYPE_CHECKING:
    import numpy.typing as npt

    from uce_edge.datasets.splits import Split
    from uce_edge.metadata import ImageSpec, Metadata

_PAGES = (".html", ".htm")


def check_report(report: Path, models: Iterable[Path]) -> None:
    """Refuse a page that cannot be written, before minutes of evaluation."""
    check_apart("report", report, models)
    if report.suffix.lower() not in _PAGES or report.is_dir():
        raise UsageError(expected("`report`", "a file name ending in .html", str(report), "Use: --report report.html"))
    if not report.parent.is_dir():
        remedy = f"Make the folder, or choose another: --report {report.name}"
        raise UsageError(expected("`report`", "a file in a folder that exists", str(report), remedy))
    if not os.access(report.parent, os.W_OK):
        remedy = "Choose another folder with --report"
        raise UsageError(expected("`report`", "a file in a folder you may write to", str(report), remedy))


class Outside(NamedTuple):
    """Out-of-distribution images, by what they are called."""

    images: "dict[str, npt.NDArray[Any]]"
    kinds: dict[str, tuple[str, ...]]
    """The kind of every image, where it is known."""


def outside_images(
    names: Sequence[str], spec: "ImageSpec", root: Path | None, own: "npt.NDArray[Any]", most: int | None = None
) -> Outside:
    """The images that the words after --ood stand for; of a dataset, at most so many.

    Args:
        names: The words.
        spec: What the model takes as an image.
        root: Where datasets are looked for.
        own: The images that the model is evaluated on.
        most: Images of a dataset, at most.
    """
    from uce_edge.datasets import labelled, synthetic_ood

    outside = Outside({}, {})
    for name in names:
        if name in synthetic_ood.HALVES:
            outside.images[name], outside.kinds[name] = synthetic_ood.far(spec, synthetic_ood.HALVES[name], own)
        else:
            found = labelled.load_ood(name, spec, root)
            outside.images[called(name)] = (found if most is None else found.at_most(most)).images
    return outside


def called(source: str) -> str:
    """The name of a dataset, a file or a folder: where it lies is nobody else's business."""
    return Path(source).name or source


def trained_note(metadata: "Metadata", images: "npt.NDArray[Any]") -> list[str]:
    """What must be said when a network was trained on some of the images."""
    from uce_edge.datasets import overlap

    known = overlap.seen(metadata.trained_on, images)
    told = f"The network was trained on about {known:,} of these images. It is too sure of them."
    return [told] if known else []


def grouped_note(split: "Split") -> list[str]:
    """What must be said of intervals when some of the images belong together."""
    groups = 0 if split.groups is None else len(set(split.groups.tolist()))
    told = (
        f"The {len(split):,} images are from {groups:,} groups, and images of a group are alike. Intervals and bounds "
        "treat all images as independent, so they are too narrow."
    )
    return [told] if 0 < groups < len(split) else []

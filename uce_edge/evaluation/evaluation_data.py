"""The images of an evaluation: labelled test images and out-of-distribution images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from uce_edge.datasets import labelled, overlap, synthetic_ood
from uce_edge.datasets.splits import Split
from uce_edge.evaluation.evaluator import evaluate
from uce_edge.evaluation.results import Evaluation
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.runtime.model import Model


@dataclass(frozen=True)
class EvaluationData:
    """Labelled test images, with sets of out-of-distribution images."""

    name: str
    """The name of the dataset, file or folder, without its path."""
    part: str
    """Which images of it, such as "test images"."""
    split: Split
    ood: dict[str, npt.NDArray[Any]]
    """Out-of-distribution images by name."""
    kinds: dict[str, tuple[str, ...]]
    """The kind of every image of a set, where it is known."""

    @classmethod
    def load(
        cls,
        source: str,
        metadata: Metadata,
        *,
        own: labelled.Own | None = None,
        ood: Sequence[str] = (),
        root: Path | None = None,
        group: str | None = None,
        most: int | None = None,
    ) -> "EvaluationData":
        """Load the images of an evaluation.

        Args:
            source: A dataset's name, a folder, a manifest or an .npz file.
            metadata: The metadata of the model.
            own: The splits of the training; None for those in the metadata.
            ood: Sets of out-of-distribution images: as `source`, or `far` and its halves, which are synthetic.
            root: The folder of the public datasets.
            group: The column or pattern that groups images; None for that of the model.
            most: The largest number of images of `source` and of each other dataset; None for all.
        """
        own = labelled.Own(metadata.hashes.splits, metadata.group) if own is None else own
        split, part = labelled.load_test(source, metadata.image, metadata.classes, root, own, group)
        if most is not None and most < len(split):
            split, part = split.at_most(most), f"{most:,} of the {part}"
        images, kinds = _load_ood(ood, metadata.image, root, split.images, most)
        return cls(base_name(source), part, split, images, kinds)

    @property
    def names(self) -> list[str] | None:
        """The names of the test images, if they have any."""
        return None if self.split.names is None else list(self.split.names)

    def evaluate(self, model: Model, **options: Any) -> Evaluation:
        """Evaluate a model on these images, with further options of `evaluate`."""
        return evaluate(
            model,
            self.split.images,
            self.split.labels,
            data=self.name,
            part=self.part,
            outside=self.ood,
            kinds=self.kinds,
            notes=[*self._training_overlap(model.metadata), *self._groups()],
            **options,
        )

    def _training_overlap(self, metadata: Metadata) -> list[str]:
        count = overlap.seen(metadata.trained_on, self.split.images)
        note = f"The network was trained on about {count:,} of these images. It is too sure of them."
        return [note] if count else []

    def _groups(self) -> list[str]:
        groups = 0 if self.split.groups is None else len(set(self.split.groups.tolist()))
        note = (
            f"The {len(self.split):,} images are from {groups:,} groups, and images of a group are alike. Intervals "
            "and bounds treat all images as independent, so they are too narrow."
        )
        return [note] if 0 < groups < len(self.split) else []


def base_name(source: str) -> str:
    """The name of a dataset, file or folder without its path, which reports should not reveal."""
    return Path(source).name or source


def arguments(source: str, *, ood: Sequence[str] = (), root: Path | None = None, group: str | None = None) -> list[str]:
    """The options of a command that loads these images, without their paths."""
    words = ["--data", base_name(source), *(word for name in ood for word in ("--ood", base_name(name)))]
    given = {"--group": group, "--root": None if root is None else base_name(str(root))}
    return words + [word for name, value in given.items() if value is not None for word in (name, value)]


def _load_ood(
    names: Sequence[str], spec: ImageSpec, root: Path | None, own: npt.NDArray[Any], most: int | None
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, tuple[str, ...]]]:
    images: dict[str, npt.NDArray[Any]] = {}
    kinds: dict[str, tuple[str, ...]] = {}
    for name in names:
        if name in synthetic_ood.HALVES:
            images[name], kinds[name] = synthetic_ood.far(spec, synthetic_ood.HALVES[name], own)
        else:
            split = labelled.load_ood(name, spec, root)
            images[base_name(name)] = (split if most is None else split.at_most(most)).images
    return images, kinds

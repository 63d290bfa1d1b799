"""Predictions for one image and for a batch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge import contract
from uce_edge.calibration import label_sets
from uce_edge.metadata import ImageSpec
from uce_edge.rejection import description
from uce_edge.rejection.rule import Decision, Reason, RejectRule

if TYPE_CHECKING:
    from pandas import DataFrame

FloatArray = npt.NDArray[np.float32]
ImageLike = str | Path | bytes | npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | Image.Image
"""One image: a path, encoded bytes, pixels or a Pillow image."""


class ClassProbability(NamedTuple):
    """A class and how likely it is."""

    label: str
    probability: float


@dataclass(frozen=True, eq=False)
class ImagePrediction:
    """The prediction for one image."""

    label: str
    class_id: int
    confidence: float
    uncertainty: float
    model_uncertainty: float
    standard_error: float
    error_probability: float
    decision: Decision | None
    passes: int
    """The passes of the image; fewer than requested with early stopping."""
    seed: int
    probabilities: FloatArray
    novelty: float | None = None
    """A p-value, small for an out-of-distribution image. None for a file without this output."""
    novelty_score: float | None = None
    """The distance from the calibration images; None for a file without this output."""
    reason: Reason | None = None
    """Why it is rejected; None if it is not."""
    label_set: tuple[str, ...] | None = None
    """The labels of the prediction set, likeliest first; None for a file without sets."""
    set_ids: tuple[int, ...] | None = field(default=None, repr=False)
    """Their class ids; None for a file without sets."""
    heatmap: FloatArray | None = field(default=None, repr=False)
    """[height, width], each place's share of the class's logit. None for a file without this output, or if no pass
    predicts the class on its own."""
    heatmap_spread: FloatArray | None = field(default=None, repr=False)
    """Its standard deviation over the passes; None for a file without this output."""
    spec: ImageSpec | None = field(default=None, repr=False)
    """How the image was resized, which the map lies over."""
    rule: RejectRule = field(default=RejectRule(), repr=False)
    """The rule of the decision."""
    classes: Sequence[str] = field(default=(), repr=False)
    """The class names, in the order of the probabilities."""
    source: ImageLike | None = field(default=None, repr=False)
    """The image as given."""

    @property
    def path(self) -> str | None:
        """The file, where the image was given as a path."""
        return str(self.source) if isinstance(self.source, str | Path) else None

    @property
    def out_of_distribution(self) -> bool:
        """Whether it is rejected as out of distribution."""
        return self.reason in (Reason.OUT_OF_DISTRIBUTION, Reason.BOTH)

    @property
    def why(self) -> str:
        """The reason for the decision, in words; empty without one."""
        if self.decision is None:
            return ""
        return description.why(self.rule, self.class_id, self.label, self.reason)

    @property
    def says(self) -> str:
        """The labels in words: "cat or dog" for a set of two, else the label."""
        return label_sets.in_words(self.label_set) if self.label_set and len(self.label_set) > 1 else self.label

    @property
    def looked_at(self) -> tuple[float, float] | None:
        """The place that speaks most for the class: x and y as shares of the resized image's width and height."""
        if self.heatmap is None or not self.heatmap.max() > 0:
            return None
        row, column = np.unravel_index(self.heatmap.argmax(), self.heatmap.shape)
        height, width = self.heatmap.shape
        return round((float(column) + 0.5) / width, 4), round((float(row) + 0.5) / height, 4)

    def _repr_html_(self) -> str:
        """A card, for notebooks."""
        from uce_edge.output.notebook import card

        return card(self)

    def top(self, classes: Sequence[str], count: int) -> tuple[ClassProbability, ...]:
        """The likeliest classes and their probabilities."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return tuple(ClassProbability(classes[index], _short(self.probabilities[index])) for index in order)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON.

        The passes are called `samples`. The probabilities of all classes are left out.
        """
        return {
            "label": self.label,
            "class_id": self.class_id,
            "confidence": self.confidence,
            **{name: getattr(self, name) for name in contract.NUMBERS},
            "decision": None if self.decision is None else str(self.decision),
            "reason": None if self.reason is None else str(self.reason),
            "set": None if self.label_set is None else list(self.label_set),
            "samples": self.passes,
            "seed": self.seed,
        }


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for a batch; iterate for single images."""

    class_ids: npt.NDArray[np.int32]
    labels: list[str]
    probabilities: FloatArray
    uncertainty: FloatArray
    model_uncertainty: FloatArray
    standard_error: FloatArray
    error_probability: FloatArray
    decisions: list[Decision | None]
    samples: int
    """The requested passes."""
    drawn: npt.NDArray[np.int32]
    """The passes of each image."""
    seed: int
    novelty: FloatArray | None = None
    """As in `ImagePrediction`; None for a file without this output, like the next."""
    novelty_score: FloatArray | None = None
    reasons: list[Reason | None] | None = None
    """Why each image is rejected; None without a rule."""
    in_set: npt.NDArray[np.bool_] | None = None
    """Which labels are in the prediction set of each image, [images, classes]; None for a file without sets."""
    heatmap: FloatArray | None = field(default=None, repr=False)
    """[images, height, width], as in `ImagePrediction`; NaN where that is None."""
    heatmap_spread: FloatArray | None = field(default=None, repr=False)
    spec: ImageSpec | None = field(default=None, repr=False)
    """How the images were resized."""

    rule: RejectRule = field(default=RejectRule(), repr=False)
    """The rule of the decisions."""
    classes: Sequence[str] = field(default=(), repr=False)
    """The class names, in the order of the probabilities."""
    sources: Sequence[ImageLike | None] | npt.NDArray[np.uint8] | None = field(default=None, repr=False)
    """The images as given."""

    @property
    def paths(self) -> list[str | None]:
        """The file of each image given as a path."""
        return [image.path for image in self]

    @property
    def accepted(self) -> npt.NDArray[np.bool_]:
        """A mask of the accepted images: `prediction[prediction.accepted]`."""
        return np.array([decision is Decision.ACCEPT for decision in self.decisions], dtype=bool)

    def __len__(self) -> int:
        return len(self.class_ids)

    def __iter__(self) -> Iterator[ImagePrediction]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: "int | np.integer[Any]") -> ImagePrediction: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> "Prediction": ...

    def __getitem__(
        self, index: "int | np.integer[Any] | slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]"
    ) -> "ImagePrediction | Prediction":
        """Select one image by number, or several.

        A slice, numbers or a mask selects several: `prediction[prediction.uncertainty < 0.1]`.

        Raises:
            IndexError: There is no such image, or a mask has another length.
        """
        if isinstance(index, bool | np.bool_):  # such as the comparison of a whole list
            raise IndexError("Expected a number, a slice, numbers or a mask with one value per image, but got a bool.")
        if isinstance(index, int | np.integer):
            return self._image(range(len(self))[index])
        return self._images(np.arange(len(self))[index if isinstance(index, slice) or len(index) else slice(0)])

    def _image(self, index: int) -> ImagePrediction:
        numbers: dict[str, Any] = {
            name: None if values is None else _short(values[index]) for name, values in self._numbers()
        }
        maps: dict[str, Any] = {
            name: None if values is None else _known(values[index]) for name, values in self._maps()
        }
        members = self._members(index)
        return ImagePrediction(
            label=self.labels[index],
            class_id=int(self.class_ids[index]),
            confidence=_short(self.probabilities[index].max()),
            decision=self.decisions[index],
            passes=int(self.drawn[index]),
            seed=self.seed,
            probabilities=self.probabilities[index],
            reason=None if self.reasons is None else self.reasons[index],
            label_set=None if members is None else tuple(self.classes[number] for number in members),
            set_ids=members,
            rule=self.rule,
            classes=self.classes,
            spec=self.spec,
            source=None if self.sources is None else self.sources[index],
            **numbers,
            **maps,
        )

    def _images(self, chosen: npt.NDArray[np.intp]) -> "Prediction":
        numbers: dict[str, Any] = {
            name: None if values is None else values[chosen] for name, values in (*self._numbers(), *self._maps())
        }
        return replace(
            self,
            class_ids=self.class_ids[chosen],
            labels=[self.labels[index] for index in chosen],
            probabilities=self.probabilities[chosen],
            decisions=[self.decisions[index] for index in chosen],
            drawn=self.drawn[chosen],
            reasons=None if self.reasons is None else [self.reasons[index] for index in chosen],
            in_set=None if self.in_set is None else self.in_set[chosen],
            sources=None if self.sources is None else [self.sources[index] for index in chosen],
            **numbers,
        )

    def _members(self, index: int) -> tuple[int, ...] | None:
        """The class ids of a prediction set, likeliest first."""
        if self.in_set is None:
            return None
        inside = np.flatnonzero(self.in_set[index])
        order = np.argsort(-self.probabilities[index, inside], kind="stable")
        return tuple(inside[order].tolist())

    def _numbers(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in contract.NUMBERS]

    def _maps(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in contract.MAPS]

    def to_pandas(self) -> "DataFrame":
        """A table with one row per image.

        Its columns are the path and the values of `ImagePrediction.as_dict`.
        """
        from uce_edge.output.dataframe import to_pandas

        return to_pandas(self)

    def _repr_html_(self) -> str:
        """Cards side by side, for notebooks."""
        from uce_edge.output.notebook import cards

        return cards(self)


def joined(parts: Sequence[Prediction]) -> Prediction:
    """The predictions of several batches, by one request, as one."""

    def whole(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    def listed(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else [one for value in values for one in value]

    arrays = ("class_ids", "probabilities", "drawn", *contract.NUMBERS, *contract.MAPS)
    lists = ("labels", "decisions", "reasons", "sources")
    return replace(parts[0], **{name: whole(name) for name in arrays}, **{name: listed(name) for name in lists})


def _short(value: np.float32) -> float:
    """The shortest decimal of a float32: 0.3, not 0.30000001192092896."""
    return float(str(value))


def _known(values: FloatArray) -> FloatArray | None:
    """A map; None for NaN."""
    return None if np.isnan(values).all() else values


class Summary(NamedTuple):
    """Statistics of the passes, as the graph computes them."""

    probabilities: FloatArray
    uncertainty: FloatArray
    model_uncertainty: FloatArray
    standard_error: FloatArray


def seed_averages(passes: FloatArray, members: int) -> FloatArray:
    """The mean of the members for every seed.

    [seeds * members, ...] becomes [seeds, ...].
    """
    if members == 1:
        return passes
    averages: FloatArray = passes.reshape(-1, members, *passes.shape[1:]).mean(axis=1)
    return averages


def summarise(passes: FloatArray, members: int = 1) -> Summary:
    """Merge the calibrated probabilities of split passes.

    Args:
        passes: [seeds * members, batch, classes], seed by seed.
        members: The networks of an ensemble. They are not draws, so the standard error is that of the seeds' averages.
    """
    classes = passes.shape[-1]
    values = passes.astype(np.float64)
    scale = -1 / math.log(classes)
    mean = values.mean(axis=0)
    log_mean = np.log(np.maximum(mean, 1e-30))
    total = np.clip(scale * (mean * log_mean).sum(-1), 0, 1)
    data = scale * (values * np.log(np.maximum(values, 1e-30))).sum(-1).mean(axis=0)
    # Delta method: the entropy of the mean is the mean of the passes' cross-entropies to it.
    cross = seed_averages(scale * (values * log_mean).sum(-1), members)
    seeds = len(cross)
    error = np.ones_like(total) if seeds == 1 else cross.std(axis=0, ddof=1) / math.sqrt(seeds)
    return Summary(
        *(np.asarray(x, np.float32) for x in (mean, total, np.clip(total - data, 0, 1), np.minimum(error, 1)))
    )

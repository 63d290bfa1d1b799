"""What a model says of a batch of images, as values."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge import contract

if TYPE_CHECKING:
    from pandas import DataFrame

    from uce_edge.metadata import Metadata

FloatArray = npt.NDArray[np.float32]
ImageLike = str | Path | bytes | npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | Image.Image
"""What a user gives as one image."""


class Decision(StrEnum):
    """Whether a prediction may be used."""

    ACCEPT = "accept"
    """The uncertainty is at most the threshold, and the image is not foreign where the file can tell."""
    REJECT = "reject"
    """The model does not know; the `Reason` says why."""


class Reason(StrEnum):
    """Why a prediction is rejected."""

    UNCERTAIN = "uncertain"
    """The uncertainty is above the threshold; or the confidence is too low, where the file rejects by that."""
    FOREIGN = "foreign"
    """The image is unlike those that the model was calibrated on."""
    BOTH = "both"
    """Both of it."""


class ClassProbability(NamedTuple):
    """A class and how likely it is."""

    label: str
    probability: float


class Limits(NamedTuple):
    """What a rejection compares; None compares nothing."""

    threshold: float | None = None
    """The uncertainty may be at most this."""
    cutoff: float | None = None
    """The novelty must be above this."""
    doubt: float | None = None
    """1 - confidence may be at most this."""
    per_class: tuple[float, ...] | None = None
    """The uncertainty may be at most that of its label; below 0, nothing with the label is accepted."""
    label: str | None = None
    """Whose limit the threshold is, where every class has its own."""

    @classmethod
    def stored(cls, metadata: "Metadata") -> "Limits":
        """What `--reject auto` compares; nothing for a file without a threshold and a rule."""
        cutoff = None if metadata.rule is None else metadata.rule.foreign.cutoff
        if metadata.per_class is not None:
            return cls(None, cutoff, per_class=metadata.per_class.thresholds)
        if metadata.doubt is not None:
            return cls(None, cutoff, metadata.doubt.threshold)
        stored = metadata.reject if metadata.rule is None else metadata.rule.uncertain
        return cls(None if stored is None else stored.threshold, cutoff)

    def of(self, class_id: int, label: str) -> "Limits":
        """What an answer with this label is compared with."""
        if self.per_class is None:
            return self
        return Limits(self.per_class[class_id], self.cutoff, label=label)

    @property
    def only_foreign(self) -> bool:
        """Whether nothing is rejected but what is foreign."""
        return self.decide and self == Limits(cutoff=self.cutoff)

    @property
    def decide(self) -> bool:
        """Whether there is anything to decide."""
        return self != Limits()

    def reasons(
        self, uncertainty: FloatArray, novelty: FloatArray | None, probabilities: FloatArray | None = None
    ) -> list[Reason | None]:
        """Why each image is rejected; None for one that is accepted. What a file stores may need the probabilities."""
        uncertain, foreign = self._turned_away(uncertainty, novelty, probabilities)
        return [_REASONS[bool(u), bool(f)] for u, f in zip(uncertain, foreign, strict=True)]

    def accept(
        self, uncertainty: FloatArray, novelty: FloatArray | None, probabilities: FloatArray | None = None
    ) -> npt.NDArray[np.bool_]:
        """Which images are accepted; arguments as in `reasons`."""
        uncertain, foreign = self._turned_away(uncertainty, novelty, probabilities)
        return ~(uncertain | foreign)

    def why(self, reason: Reason | None) -> str:
        """What a decision rests on, in words that follow "reject:" or "accept:"; the reason is that of a rejection."""
        above, at_most = (f"its uncertainty is {rule} {self.threshold or 0:.4g}" for rule in ("above", "at most"))
        if self.label is not None:
            above, at_most = (f"{text}, the limit for {self.label}" for text in (above, at_most))
            if self.threshold is not None and self.threshold < 0:
                above = f"nothing that is labelled {self.label} is accepted"
        if self.doubt is not None:
            least = f"{100 * (1 - self.doubt):.4g} %"
            above, at_most = (f"its confidence is {rule} {least}" for rule in ("below", "at least"))
        foreign = "unlike anything it was calibrated on"
        match reason:
            case Reason.UNCERTAIN:
                return above
            case Reason.FOREIGN:
                return foreign
            case Reason.BOTH:
                return f"{foreign}, and {above}"
        familiar = "like what it was calibrated on"
        if self.cutoff is None:
            return at_most
        return familiar if self.threshold is self.doubt is None else f"{familiar}, and {at_most}"

    def _turned_away(
        self, uncertainty: FloatArray, novelty: FloatArray | None, probabilities: FloatArray | None
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which images are uncertain, and which are foreign."""
        uncertain, foreign = np.isnan(uncertainty), np.zeros(len(uncertainty), np.bool_)  # no limit accepts NaN
        if self.threshold is not None:
            uncertain = ~contract.accepts(uncertainty, self.threshold)
        if self.doubt is not None:
            assert probabilities is not None  # whoever applies what a file stores has its probabilities
            uncertain = uncertain | ~contract.accepts(contract.doubt(probabilities.max(-1)), self.doubt)
        if self.per_class is not None:
            assert probabilities is not None
            own = np.array(self.per_class, np.float32)[probabilities.argmax(-1)]
            uncertain = ~(uncertainty.astype(np.float32) <= own)
        if self.cutoff is not None:
            assert novelty is not None  # a file whose metadata has a rule without it is refused
            foreign = contract.is_foreign(novelty, self.cutoff)
        return uncertain, foreign


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
    """The passes that the image took: fewer than were asked for, where they were drawn adaptively."""
    seed: int
    probabilities: FloatArray
    novelty: float | None = None
    """How like the calibration images it is: a p-value, small for what is foreign. None for a file that cannot tell."""
    novelty_score: float | None = None
    """Its distance from them; None for a file that cannot tell."""
    reason: Reason | None = None
    """Why it is rejected; None for what is not."""
    limits: Limits = field(default=Limits(), repr=False)
    """What the decision compared."""
    classes: Sequence[str] = field(default=(), repr=False)
    """The class names, in the order of the probabilities."""
    source: ImageLike | None = field(default=None, repr=False)
    """The image as it was given."""

    @property
    def path(self) -> str | None:
        """The file, where the image was given as a path."""
        return str(self.source) if isinstance(self.source, str | Path) else None

    @property
    def foreign(self) -> bool:
        """Whether it is rejected as unlike the images that the model was calibrated on."""
        return self.reason in (Reason.FOREIGN, Reason.BOTH)

    @property
    def why(self) -> str:
        """What the decision rests on, in words that follow "reject:" or "accept:"; empty without a decision."""
        return "" if self.decision is None else self.limits.why(self.reason)

    def _repr_html_(self) -> str:
        """A card, for notebooks."""
        from uce_edge.notebook import card

        return card(self)

    def top(self, classes: Sequence[str], count: int) -> tuple[ClassProbability, ...]:
        """The likeliest classes and their probabilities."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return tuple(ClassProbability(classes[index], _short(self.probabilities[index])) for index in order)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the probabilities of all classes; the passes are called `samples` there."""
        return {
            "label": self.label,
            "class_id": self.class_id,
            "confidence": self.confidence,
            "uncertainty": self.uncertainty,
            "model_uncertainty": self.model_uncertainty,
            "standard_error": self.standard_error,
            "error_probability": self.error_probability,
            "novelty": self.novelty,
            "novelty_score": self.novelty_score,
            "decision": None if self.decision is None else str(self.decision),
            "reason": None if self.reason is None else str(self.reason),
            "samples": self.passes,
            "seed": self.seed,
        }


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for a batch; iterate for one image at a time."""

    class_ids: npt.NDArray[np.int32]
    labels: list[str]
    probabilities: FloatArray
    uncertainty: FloatArray
    model_uncertainty: FloatArray
    standard_error: FloatArray
    error_probability: FloatArray
    decisions: list[Decision | None]
    samples: int
    """The passes that were asked for."""
    drawn: npt.NDArray[np.int32]
    """The passes that each image took."""
    seed: int
    novelty: FloatArray | None = None
    """As in `ImagePrediction`; None for a file that cannot tell, like the next."""
    novelty_score: FloatArray | None = None
    reasons: list[Reason | None] | None = None
    """Why an image is rejected; None where nothing was to be decided."""

    limits: Limits = field(default=Limits(), repr=False)
    """What the decisions compared."""
    classes: Sequence[str] = field(default=(), repr=False)
    """The class names, in the order of the probabilities."""
    sources: Sequence[ImageLike | None] | npt.NDArray[np.uint8] | None = field(default=None, repr=False)
    """The images as they were given."""

    @property
    def paths(self) -> list[str | None]:
        """The file of each image that was given as a path."""
        return [image.path for image in self]

    @property
    def accepted(self) -> npt.NDArray[np.bool_]:
        """Which images are accepted, as in `prediction[prediction.accepted]`; none where nothing was to be decided."""
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
        """One image by its number; several by a slice, numbers or a mask: `prediction[prediction.uncertainty < 0.1]`.

        Raises:
            IndexError: There is no such image, or a mask has another length.
        """
        if isinstance(index, bool | np.bool_):  # such as a comparison of a whole list
            raise IndexError("Expected a number, a slice, numbers or a mask with one value per image, but got a bool.")
        if isinstance(index, int | np.integer):
            return self._image(range(len(self))[index])
        return self._images(np.arange(len(self))[index if isinstance(index, slice) or len(index) else slice(0)])

    def _image(self, index: int) -> ImagePrediction:
        return ImagePrediction(
            label=self.labels[index],
            class_id=int(self.class_ids[index]),
            confidence=_short(self.probabilities[index].max()),
            uncertainty=_short(self.uncertainty[index]),
            model_uncertainty=_short(self.model_uncertainty[index]),
            standard_error=_short(self.standard_error[index]),
            error_probability=_short(self.error_probability[index]),
            decision=self.decisions[index],
            passes=int(self.drawn[index]),
            seed=self.seed,
            probabilities=self.probabilities[index],
            novelty=None if self.novelty is None else _short(self.novelty[index]),
            novelty_score=None if self.novelty_score is None else _short(self.novelty_score[index]),
            reason=None if self.reasons is None else self.reasons[index],
            limits=self.limits.of(int(self.class_ids[index]), self.labels[index]),
            classes=self.classes,
            source=None if self.sources is None else self.sources[index],
        )

    def _images(self, chosen: npt.NDArray[np.intp]) -> "Prediction":
        return replace(
            self,
            class_ids=self.class_ids[chosen],
            labels=[self.labels[index] for index in chosen],
            probabilities=self.probabilities[chosen],
            uncertainty=self.uncertainty[chosen],
            model_uncertainty=self.model_uncertainty[chosen],
            standard_error=self.standard_error[chosen],
            error_probability=self.error_probability[chosen],
            decisions=[self.decisions[index] for index in chosen],
            drawn=self.drawn[chosen],
            novelty=None if self.novelty is None else self.novelty[chosen],
            novelty_score=None if self.novelty_score is None else self.novelty_score[chosen],
            reasons=None if self.reasons is None else [self.reasons[index] for index in chosen],
            sources=None if self.sources is None else [self.sources[index] for index in chosen],
        )

    def to_pandas(self) -> "DataFrame":
        """A table with one row per image: its path, if it has one, and the values of `ImagePrediction.as_dict`."""
        from uce_edge.frames import to_pandas

        return to_pandas(self)

    def _repr_html_(self) -> str:
        """Cards side by side, for notebooks."""
        from uce_edge.notebook import cards

        return cards(self)


_REASONS = {
    (False, False): None,
    (True, False): Reason.UNCERTAIN,
    (False, True): Reason.FOREIGN,
    (True, True): Reason.BOTH,
}


def _short(value: np.float32) -> float:
    """The shortest decimal that is this float32, so that JSON shows 0.3 and not 0.30000001192092896."""
    return float(str(value))


class Summary(NamedTuple):
    """What follows from the probabilities of all passes; the graph computes the same for one call."""

    probabilities: FloatArray
    uncertainty: FloatArray
    model_uncertainty: FloatArray
    standard_error: FloatArray


def seed_averages(passes: FloatArray, members: int) -> FloatArray:
    """What the members of an ensemble say together for every seed: [seeds * members, ...] -> [seeds, ...]."""
    if members == 1:
        return passes
    averages: FloatArray = passes.reshape(-1, members, *passes.shape[1:]).mean(axis=1)
    return averages


def summarise(passes: FloatArray, members: int = 1) -> Summary:
    """Merge calibrated probabilities, for passes that were split over several calls.

    Args:
        passes: [seeds * members, batch, classes], seed by seed.
        members: The networks of an ensemble. They are no draws, so the standard error is that of the seeds' averages.
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

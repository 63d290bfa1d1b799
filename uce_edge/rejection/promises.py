"""What is promised about rejection, and what is known of it: records without the arithmetic, which is `guarantee`'s."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar

from uce_edge._util.field_rules import OPTIONAL, Count, Positive, Rule, Share, between, strictly_between
from uce_edge._util.records import Record
from uce_edge.contract import MAX_SAMPLES, MAX_SEED
from uce_edge.errors import UsageError, expected

STEPS = 100
"""The thresholds 0/STEPS, 1/STEPS, ..., 1 are counted."""
OTHER = "other"
"""Stands for every class without an error of its own."""

_AGAIN = "Find it again from the guarantee images."
_RISING = Rule(
    f"of {STEPS + 1} counts that never fall",
    lambda counts: len(counts) == STEPS + 1 and all(low <= high for low, high in pairwise((0, *counts))),
)


class RejectBy(StrEnum):
    """What `--reject auto` of a file shall compare with its threshold."""

    UNCERTAINTY = "uncertainty"
    """The entropy of all probabilities, which ranks foreign images better."""
    CONFIDENCE = "confidence"
    """The largest probability, which often ranks the errors among familiar images a little better."""
    AUTO = "auto"
    """The confidence if it ranks the errors among the calibration images better beyond doubt, else the uncertainty."""


@dataclass(frozen=True)
class Promise(Record):
    """What a threshold must keep: the largest error among the accepted images, and the confidence of that promise."""

    target_error: Annotated[float, strictly_between(0, 1)]
    """The largest share of wrong labels among accepted images."""
    confidence: Annotated[float, strictly_between(0.5, 1)] = 0.95
    """The probability of keeping it, over the draw of the guarantee images."""
    score: Annotated[RejectBy, OPTIONAL] = RejectBy.UNCERTAINTY
    """What the threshold is about."""
    per_class: Annotated[dict[str, Annotated[float, strictly_between(0, 1)]], OPTIONAL] = field(default_factory=dict)
    """An error for every class that the model names, by its name; `other` stands for those without one of their own.
    `target_error` is then what is promised of all classes together, to readers that have one threshold."""

    REMEDY: ClassVar[str] = "For example: an error of 0.05 with confidence 0.95"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_class and self.score is not RejectBy.UNCERTAINTY:
            raise self.wrong("score", f"{RejectBy.UNCERTAINTY} where every class has an error of its own")

    @classmethod
    def of_classes(cls, per_class: Mapping[str, float], confidence: float = 0.95) -> "Promise":
        """An error for every class; of all together, the smallest one."""
        return cls(min(per_class.values()), confidence, per_class=dict(per_class))

    @property
    def by_class(self) -> bool:
        """Whether every class has an error of its own."""
        return bool(self.per_class)

    @property
    def easiest(self) -> float:
        """The largest error that is asked for, which needs the fewest images."""
        return max((self.target_error, *self.per_class.values()))

    def targets(self, classes: Sequence[str]) -> tuple[float, ...]:
        """The error of every class of a model, in its order; none where all have the same.

        Raises:
            UsageError: A class does not exist, or has no error.
        """
        if not self.per_class:
            return ()
        listed = ", ".join(classes)
        unknown = [name for name in self.per_class if name not in (*classes, OTHER)]
        if unknown:
            rule, remedy = f"about classes of the model, or {OTHER}", f"The classes are: {listed}"
            raise UsageError(expected("`target_error`", rule, ", ".join(unknown), remedy))
        rest = self.per_class.get(OTHER)
        errors = [self.per_class.get(name, rest) for name in classes]
        missing = [name for name, error in zip(classes, errors, strict=True) if error is None]
        if missing:
            remedy = f"Add those that are not named: {OTHER}=0.1"
            raise UsageError(expected("`target_error`", "an error for every class", f"none for {missing[0]}", remedy))
        return tuple(error for error in errors if error is not None)


@dataclass(frozen=True)
class Guarantee(Record):
    """A threshold on the uncertainty and what is known of the error among the images it accepts."""

    threshold: Share
    """H_max: an image is accepted when its uncertainty, in float32, is at most this."""
    target_error: Share | None
    """The promise: the true error rate of accepted images is at most this; None when only a bound was asked for."""
    confidence: Share
    """The probability, over the draw of the guarantee set, that the promise or the bound holds."""
    error_bound: Share
    """The upper bound of the true error rate; with a target, the one that met it, and only the target is promised."""
    error: Share | None
    """The error rate that was observed among the accepted images; None when none is accepted."""
    coverage: Share
    """The share of the guarantee set that is accepted."""
    accepted: Count
    """The number of accepted images."""
    images: Positive
    """The size of the guarantee set."""

    REMEDY: ClassVar[str] = _AGAIN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accepted > self.images:
            raise self.wrong("accepted", f"at most {self.images}, the images")


@dataclass(frozen=True)
class ClassPromise(Record):
    """What is promised of the images that get one label."""

    target_error: Annotated[float, strictly_between(0, 1)]
    """What was asked for: of the accepted images with this label, at most this share is wrong."""
    error_bound: Share
    """The upper bound that met it; 1 where nothing is promised, because nothing is accepted."""
    error: Share | None
    """The observed error of the accepted images with this label; None when none is accepted."""
    coverage: Share
    """The share of the guarantee images with this label that is accepted."""
    accepted: Count
    images: Count
    """The guarantee images with this label."""

    REMEDY: ClassVar[str] = _AGAIN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accepted > self.images:
            raise self.wrong("accepted", f"at most {self.images}, the images")


@dataclass(frozen=True)
class ErrorPromise(Record):
    """The error among the accepted images, and what it was measured with: for anything else nothing is promised."""

    target_error: Share | None
    """At most this share of the accepted images is wrong; None when only a bound was asked for."""
    confidence: Annotated[float, strictly_between(0, 1)]
    """The probability, over the draw of the guarantee images, that the promise holds."""
    error_bound: Share
    """The upper bound that met the target; only the target is promised."""
    error: Share | None
    """The observed error of the accepted images; None when none is accepted."""
    coverage: Share
    """The share of the guarantee images that is accepted."""
    accepted: Count
    images: Positive
    """The size of the guarantee set."""
    samples: Annotated[int, between(1, MAX_SAMPLES)]
    """The passes."""
    seed: Annotated[int, between(0, MAX_SEED)]
    data: str
    """SHA-256 of the guarantee images."""
    date: Annotated[str | None, OPTIONAL] = None
    """When it was measured; None in older files."""
    grouped: Annotated[bool, OPTIONAL] = False
    """Whether the images are one of each group: the promise is then about a random image of a random group."""
    classes: Annotated[tuple[ClassPromise, ...], OPTIONAL] = ()
    """One per class, where each has a limit of its own; all hold together with the confidence."""
    tested: Annotated[Positive | None, OPTIONAL] = None
    """The classes that were tested, each at the confidence 1 - (1 - confidence) / tested."""

    REMEDY: ClassVar[str] = _AGAIN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accepted > self.images:
            raise self.wrong("accepted", f"at most {self.images}, the images")
        if bool(self.classes) != (self.tested is not None):
            raise self.wrong("tested", "stored exactly when every class has a promise")
        if self.classes and not any(one.accepted for one in self.classes):
            raise self.wrong("classes", "a list that promises something of at least one class")


@dataclass(frozen=True)
class NoveltyGuarantee(Record):
    """How many images like the reference a cutoff on novelty rejects, and what it was found with."""

    level: Annotated[float, strictly_between(0, 1)]
    """At most this share of images like the reference is rejected."""
    confidence: Annotated[float, strictly_between(0, 1)]
    """The probability, over the draw of the reference images, that the promise holds."""
    images: Positive
    """The size of the reference."""
    data: str
    """SHA-256 of the reference images."""
    grouped: Annotated[bool, OPTIONAL] = False
    """Whether they are one of each group."""

    REMEDY: ClassVar[str] = "Fit it again: uce-edge calibrate"


@dataclass(frozen=True)
class NoveltyPromise(Record):
    """What is asked of the gate against foreign images: how many familiar ones it may turn away, and how sure."""

    level: Annotated[float, strictly_between(0, 1)] | None = None
    """The largest share of familiar images; None for 3 %, or the least that the images allow, up to 5 %."""
    confidence: Annotated[float, strictly_between(0.5, 1)] = 0.95
    """The probability of keeping it, over the draw of the reference images."""

    REMEDY: ClassVar[str] = "For example: a level of 0.03 with confidence 0.95"


@dataclass(frozen=True)
class Cutoff(Record):
    """Images whose novelty is at most `cutoff` are foreign."""

    cutoff: Annotated[float, strictly_between(0, 1)]
    level: Annotated[float, strictly_between(0, 1)]
    """The promise: at most this share of images like the reference is turned away as foreign."""
    confidence: Annotated[float, strictly_between(0, 1)]
    """The probability, over the draw of the reference images, that the promise holds."""
    images: Positive
    """The size of the reference."""

    REMEDY: ClassVar[str] = "Fit it again: uce-edge calibrate"


@dataclass(frozen=True)
class Counts(Record):
    """What every threshold 0.00, 0.01, ..., 1.00 lets through, small enough to travel with a model file."""

    accepted: Annotated[tuple[int, ...], _RISING]
    """How many images each accepts."""
    errors: Annotated[tuple[int, ...], _RISING]
    """How many of these are wrong."""

    REMEDY: ClassVar[str] = "Count the held-out images again."

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(wrong > accepted for wrong, accepted in zip(self.errors, self.accepted, strict=True)):
            raise self.wrong("errors", "at most the accepted images at every threshold")
        if not self.accepted[-1]:
            raise self.wrong("accepted", "of at least one image")


@dataclass(frozen=True)
class HeldOut(Counts):
    """The counts in a model file, of images that nothing was fitted on, and how they were counted."""

    samples: Annotated[int, between(1, MAX_SAMPLES)]
    """The passes."""
    seed: Annotated[int, between(0, MAX_SEED)]
    data: str
    """SHA-256 of the images."""
    grouped: Annotated[bool, OPTIONAL] = False
    """Whether they are one of each group."""

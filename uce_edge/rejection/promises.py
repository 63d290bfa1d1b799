"""Records of promises about rejection; `guarantee` has the arithmetic."""

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
"""`Counts` has the thresholds 0/STEPS, 1/STEPS, ..., 1."""
OTHER = "other"
"""Stands for every class without an error of its own."""

_AGAIN = "Find it again from the guarantee images."
_RISING = Rule(
    f"of {STEPS + 1} counts that never fall",
    lambda counts: len(counts) == STEPS + 1 and all(low <= high for low, high in pairwise((0, *counts))),
)


class RejectBy(StrEnum):
    """The score that `--reject auto` compares with its limits."""

    UNCERTAINTY = "uncertainty"
    """The entropy of all probabilities, which ranks out-of-distribution images better."""
    CONFIDENCE = "confidence"
    """The largest probability, which often ranks the errors among in-distribution images a little better."""
    AUTO = "auto"
    """The confidence if it ranks the errors of the calibration images better beyond chance, else the uncertainty."""


@dataclass(frozen=True)
class Promise(Record):
    """The largest error among accepted images, and its confidence."""

    target_error: Annotated[float, strictly_between(0, 1)]
    """The largest share of wrong labels among accepted images."""
    confidence: Annotated[float, strictly_between(0.5, 1)] = 0.95
    """The probability of keeping it, over the draw of the guarantee images."""
    score: Annotated[RejectBy, OPTIONAL] = RejectBy.UNCERTAINTY
    """The score that the threshold is compared with."""
    per_class: Annotated[dict[str, Annotated[float, strictly_between(0, 1)]], OPTIONAL] = field(default_factory=dict)
    """The error of every predicted class, by name; `other` stands for the classes without an entry. `target_error` is
    then the promise for all classes together."""

    REMEDY: ClassVar[str] = "For example: an error of 0.05 with confidence 0.95"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_class and self.score is not RejectBy.UNCERTAINTY:
            raise self.wrong("score", f"{RejectBy.UNCERTAINTY} where every class has an error of its own")

    @classmethod
    def of_classes(cls, per_class: Mapping[str, float], confidence: float = 0.95) -> "Promise":
        """A promise for every class; for all together, the smallest error."""
        return cls(min(per_class.values()), confidence, per_class=dict(per_class))

    @property
    def by_class(self) -> bool:
        """Whether every class has an error of its own."""
        return bool(self.per_class)

    @property
    def easiest(self) -> float:
        """The largest requested error, which needs the fewest images."""
        return max((self.target_error, *self.per_class.values()))

    def targets(self, classes: Sequence[str]) -> tuple[float, ...]:
        """The errors in the order of the classes; empty without `per_class`.

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
    """A threshold on the uncertainty, and the error of the accepted images."""

    threshold: Share
    """H_max: an image is accepted when its uncertainty, in float32, is at most this."""
    target_error: Share | None
    """The promise: the true error rate of accepted images is at most this; None for a bound without a promise."""
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
    """The promise for the images with one predicted label."""

    target_error: Annotated[float, strictly_between(0, 1)]
    """The requested error: at most this share of the accepted images with this label is wrong."""
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
    """The error of the accepted images, for these passes and seed only."""

    target_error: Share | None
    """At most this share of the accepted images is wrong; None for a bound without a promise."""
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
    """The share of in-distribution images that a cutoff on novelty rejects."""

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


AUTO_FEATURES, LAST_FEATURES, TRUNK_FEATURES, SPREAD_FEATURES = "auto", "last", "trunk", "spread"
"""What the novelty gate looks at, besides layers by name."""


@dataclass(frozen=True)
class NoveltyPromise(Record):
    """The requested share of rejected in-distribution images, and its confidence."""

    level: Annotated[float, strictly_between(0, 1)] | None = None
    """The largest share; None for 3 %, or the smallest share that the images allow, up to 5 %."""
    confidence: Annotated[float, strictly_between(0.5, 1)] = 0.95
    """The probability of keeping it, over the draw of the reference images."""
    features: Annotated[str, OPTIONAL] = AUTO_FEATURES
    """What it looks at: auto, last, trunk, spread, or numbers and patterns of weight layers, separated by commas."""

    REMEDY: ClassVar[str] = "For example: a level of 0.03 with confidence 0.95"


@dataclass(frozen=True)
class Cutoff(Record):
    """Images whose novelty is at most `cutoff` are out of distribution."""

    cutoff: Annotated[float, strictly_between(0, 1)]
    level: Annotated[float, strictly_between(0, 1)]
    """The promise: at most this share of images like the reference is rejected as out of distribution."""
    confidence: Annotated[float, strictly_between(0, 1)]
    """The probability, over the draw of the reference images, that the promise holds."""
    images: Positive
    """The size of the reference."""

    REMEDY: ClassVar[str] = "Fit it again: uce-edge calibrate"


@dataclass(frozen=True)
class Counts(Record):
    """Accepted images and errors at the thresholds 0.00, 0.01, ..., 1.00."""

    accepted: Annotated[tuple[int, ...], _RISING]
    """The number of images that each threshold accepts."""
    errors: Annotated[tuple[int, ...], _RISING]
    """The number of these that are wrong."""

    REMEDY: ClassVar[str] = "Count the held-out images again."

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(wrong > accepted for wrong, accepted in zip(self.errors, self.accepted, strict=True)):
            raise self.wrong("errors", "at most the accepted images at every threshold")
        if not self.accepted[-1]:
            raise self.wrong("accepted", "of at least one image")


@dataclass(frozen=True)
class HeldOut(Counts):
    """The counts of held-out images in a model file."""

    samples: Annotated[int, between(1, MAX_SAMPLES)]
    """The passes."""
    seed: Annotated[int, between(0, MAX_SEED)]
    data: str
    """SHA-256 of the images."""
    grouped: Annotated[bool, OPTIONAL] = False
    """Whether they are one of each group."""
    covered: Annotated[Annotated[tuple[int, ...], _RISING] | None, OPTIONAL] = None
    """How many of the images that each threshold accepts have a prediction set with the true label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.covered and any(some > accepted for some, accepted in zip(self.covered, self.accepted, strict=True)):
            raise self.wrong("covered", "at most the accepted images at every threshold")

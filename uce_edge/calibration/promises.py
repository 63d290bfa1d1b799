"""What is promised about rejection, and what is known of it: records without the arithmetic, which is `guarantee`'s."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar

from uce_edge.contract import MAX_SAMPLES, MAX_SEED, Score
from uce_edge.fields import OPTIONAL, Count, Positive, Rule, Share, between, strictly_between
from uce_edge.records import Record

STEPS = 100
"""The thresholds 0/STEPS, 1/STEPS, ..., 1 are counted."""

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
    """What is asked of a threshold: the error among the accepted images, and how sure that shall be."""

    target_error: Annotated[float, strictly_between(0, 1)]
    """The largest share of wrong labels among accepted images."""
    confidence: Annotated[float, strictly_between(0.5, 1)] = 0.95
    """The probability of keeping it, over the draw of the guarantee images."""
    score: Annotated[RejectBy, OPTIONAL] = RejectBy.UNCERTAINTY
    """What the threshold is about."""

    REMEDY: ClassVar[str] = "For example: an error of 0.05 with confidence 0.95"


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
class StoredThreshold(Guarantee):
    """The threshold in a model file, and what it was found with: for anything else it promises nothing."""

    samples: Annotated[int, between(1, MAX_SAMPLES)]
    """The passes."""
    seed: Annotated[int, between(0, MAX_SEED)]
    data: str
    """SHA-256 of the guarantee images."""
    date: Annotated[str | None, OPTIONAL] = None
    """When it was promised; None in older files."""
    grouped: Annotated[bool, OPTIONAL] = False
    """Whether the images are one of each group: the promise is then about a random image of a random group."""


@dataclass(frozen=True)
class NoveltyPromise(Record):
    """What is asked of the gate against foreign images: how many familiar ones it may turn away, and how sure."""

    level: Annotated[float, strictly_between(0, 1)] | None = None
    """The largest share of familiar images; None for 1 %, or the least that the images allow, up to 5 %."""
    confidence: Annotated[float, strictly_between(0.5, 1)] = 0.95
    """The probability of keeping it, over the draw of the reference images."""

    REMEDY: ClassVar[str] = "For example: a level of 0.01 with confidence 0.95"


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
class StoredCutoff(Cutoff):
    """The cutoff in a model file, and what it was found with."""

    data: str
    """SHA-256 of the reference images."""
    grouped: Annotated[bool, OPTIONAL] = False
    """Whether they are one of each group."""


@dataclass(frozen=True)
class StoredRule(Record):
    """What `--reject auto` applies: foreign images are turned away, and of the others those that are uncertain."""

    foreign: StoredCutoff
    """The first promise, about the novelty alone."""
    uncertain: StoredThreshold | None = None
    """The second one, about the error of what both let through; None when no error was promised, and none is turned
    away for its uncertainty."""
    score: Score = Score.UNCERTAINTY
    """What the threshold is compared with."""

    REMEDY: ClassVar[str] = _AGAIN


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

"""What a monitor keeps: the usual answers of a model, in its file, and the evidence so far, in a state file."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

from uce_edge._util.field_rules import OPTIONAL, Rule, Share, between, many, strictly_between
from uce_edge._util.records import Record
from uce_edge.contract import MAX_SAMPLES, MAX_SEED, MODEL_UNCERTAINTY, NOVELTY_SCORE, UNCERTAINTY

STATISTICS = (UNCERTAINTY, MODEL_UNCERTAINTY, NOVELTY_SCORE)
"""What is watched, where a file has it; the place here numbers the random numbers of each."""
WORDS = {UNCERTAINTY: "uncertainty", MODEL_UNCERTAINTY: "model uncertainty", NOVELTY_SCORE: "novelty score"}

_LARGEST = 2**53  # the ports count in floating-point numbers
_LOGARITHM = 1e15  # of evidence, at most: a billion images do not get there
_LONGEST = 100  # characters of a time or a hash
_SINGLE = 3.4e38  # scores are compared in float32

Count = Annotated[int, between(0, _LARGEST)]
Positive = Annotated[int, between(1, _LARGEST)]
Logarithm = Annotated[float, between(-_LOGARITHM, _LOGARITHM)]
Words = Annotated[
    str,
    Rule(f"of at most {_LONGEST} printable characters", lambda text: len(text) <= _LONGEST and text.isprintable()),
]
"""A time or a hash, which reaches screens."""

_RISING = Rule("of rising numbers", lambda values: all(low < high for low, high in pairwise(values)))
_KNOWN = Rule(
    f"with some of {', '.join(STATISTICS)} and nothing else", lambda kept: bool(kept) and set(kept) <= set(STATISTICS)
)
Edges = Annotated[tuple[Annotated[float, between(-_SINGLE, _SINGLE)], ...], many(1, "numbers"), _RISING]


@dataclass(frozen=True)
class Bins(Record):
    """How many reference images have a score in every bin; bin i is (edges[i - 1], edges[i]], in float32."""

    edges: Edges
    counts: tuple[Count, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.counts) != len(self.edges) + 1:
            raise self.wrong("counts", f"of {len(self.edges) + 1} numbers, one more than the edges")
        if not 1 <= sum(self.counts) <= _LARGEST:
            raise self.wrong("counts", f"of 1 to {_LARGEST} images together")


@dataclass(frozen=True)
class StoredReference(Record):
    """What a model says of images like those it was calibrated on, as a file keeps it: a few dozen counts a statistic.

    The edges come from other images than the counts, and nothing of the model was fitted on the counted ones: so the
    counted images and later ones like them are exchangeable, which is all that the monitor's promise needs.
    """

    statistics: Annotated[dict[str, Bins], _KNOWN]
    samples: Annotated[int, between(1, MAX_SAMPLES)]
    """The passes."""
    seed: Annotated[int, between(0, MAX_SEED)]
    data: str
    """SHA-256 of the counted images."""
    date: Annotated[str | None, OPTIONAL] = None
    """When they were counted."""

    REMEDY: ClassVar[str] = "Count the images again: uce-edge calibrate"

    @property
    def images(self) -> int:
        """How many images were counted."""
        return sum(next(iter(self.statistics.values())).counts)


@dataclass(frozen=True)
class Bet(Record):
    """What one way of betting has made of its money."""

    wealth: Logarithm
    """The logarithm of what it has, summed over all images at which it may have begun, weighted."""
    run: Logarithm
    """The logarithm of what it won since `start`: the largest over all starts."""
    start: Count
    """The bet from which it won most."""
    time: Words
    """When that was."""


@dataclass(frozen=True)
class Track(Bins):
    """One statistic: its growing reference with the stream so far, and the bets on it."""

    bets: tuple[Bet, ...]


@dataclass(frozen=True)
class Alarm(Record):
    """When the evidence first reached what an alarm takes, and what it says."""

    image: Positive
    """The image at which it was raised, counted from 1."""
    time: Words
    evidence: Logarithm
    """Its logarithm at that image."""
    statistic: Annotated[str, Rule(f"that is one of {', '.join(STATISTICS)}", STATISTICS.__contains__)]
    """What moved most."""
    rises: bool
    """Whether it rose, rather than fell."""
    since_image: Positive
    """The likeliest image at which the change began."""
    since: Words
    """When that was."""


@dataclass(frozen=True)
class Point(Record):
    """The evidence at one image, for the plot."""

    image: Count
    time: Words
    evidence: Annotated[dict[str, Logarithm], _KNOWN]
    """Its logarithm, for each statistic."""


@dataclass(frozen=True)
class LabelCheck(Record):
    """A test of a promised error on labelled images that were accepted."""

    target_error: Share
    images: Count
    errors: Count
    """How many of them were wrong."""
    broken: Logarithm
    """The largest evidence so far, as a logarithm, that the error is above the promised one."""
    kept: Logarithm
    """The largest evidence so far, as a logarithm, that it is below."""
    time: Words
    """When it was last checked."""

    def is_broken(self, alpha: float) -> bool:
        """Whether the error is above the promised one, but for a probability of alpha."""
        return self.broken >= -math.log(alpha)

    def is_kept(self, alpha: float) -> bool:
        """Whether it is below, but for a probability of alpha."""
        return self.kept >= -math.log(alpha)


@dataclass(frozen=True)
class State(Record):
    """All that a monitor knows. A process that is killed goes on from it."""

    model: Words
    """SHA-256 of the model file."""
    alpha: Annotated[float, strictly_between(0, 1)]
    every: Positive
    seed: Annotated[int, between(0, 2**32 - 1)]
    samples: Annotated[int, between(1, MAX_SAMPLES)]
    pass_seed: Annotated[int, between(0, MAX_SEED)]
    started: Words
    reference: Positive
    """How many images the reference has."""
    tracks: Annotated[dict[str, Track], _KNOWN]
    updated: Words | None = None
    images: Count = 0
    """Answers that were shown to it."""
    bets: Count = 0
    """Answers that it bet on: every `every`-th."""
    peak: Logarithm = 0.0
    """The logarithm of the largest evidence so far."""
    alarm: Alarm | None = None
    shuffled: bool = False
    history: tuple[Point, ...] = ()
    stride: Positive = 1
    """Bets from one point of the history to the next; it doubles when the history is full."""
    log_line: Words | None = None
    """The hash of the last line that was read of a log."""
    labels: LabelCheck | None = None
    version: Annotated[int, between(1, 1)] = 1

    REMEDY: ClassVar[str] = "Start anew with another state file."

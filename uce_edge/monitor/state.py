"""Records of a drift monitor: the reference in a model, and the state."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

from uce_edge._util.field_rules import OPTIONAL, Rule, Share, between, many, strictly_between
from uce_edge._util.records import Record
from uce_edge.contract import MAX_SAMPLES, MAX_SEED, MODEL_UNCERTAINTY, NOVELTY_SCORE, UNCERTAINTY
from uce_edge.rejection.promises import STEPS
from uce_edge.rejection.rule import Code

STATISTICS = (UNCERTAINTY, MODEL_UNCERTAINTY, NOVELTY_SCORE)
"""The monitored scores; a file may lack the last. The index is an input of the random numbers."""
WORDS = {UNCERTAINTY: "uncertainty", MODEL_UNCERTAINTY: "model uncertainty", NOVELTY_SCORE: "novelty score"}

WINDOW = 1000
"""The default number of last answers that the accuracy is estimated for."""
LARGEST_WINDOW = 100_000
KINDS = len(Code) + 1
"""What may be decided about an answer, or nothing."""

_LARGEST = 2**53  # the ports count in floating-point numbers
_LOGARITHM = 1e15  # the largest log evidence: more than a billion images can give
_LONGEST = 100  # the most characters of a time or a hash
_SINGLE = 3.4e38  # scores are compared in float32

Count = Annotated[int, between(0, _LARGEST)]
Positive = Annotated[int, between(1, _LARGEST)]
Logarithm = Annotated[float, between(-_LOGARITHM, _LOGARITHM)]
Words = Annotated[
    str,
    Rule(f"of at most {_LONGEST} printable characters", lambda text: len(text) <= _LONGEST and text.isprintable()),
]
"""A time or a hash, which is printed."""

_RISING = Rule("of rising numbers", lambda values: all(low < high for low, high in pairwise(values)))
_KNOWN = Rule(
    f"with some of {', '.join(STATISTICS)} and nothing else", lambda kept: bool(kept) and set(kept) <= set(STATISTICS)
)
Edges = Annotated[tuple[Annotated[float, between(-_SINGLE, _SINGLE)], ...], many(1, "numbers"), _RISING]


@dataclass(frozen=True)
class Bins(Record):
    """Counts of scores; bin i is (edges[i - 1], edges[i]] in float32."""

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
    """Histograms of the scores of calibration images, in a model file.

    The edges come from other images than the counts, and nothing of the model was fitted on the counted images. So
    these and later images from the same distribution are exchangeable, as the monitor's promise requires.
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
    """The wealth of one betting strategy."""

    wealth: Logarithm
    """The log of its wealth: the weighted sum over all possible starts."""
    run: Logarithm
    """The log of its gain since `start`: the largest over all starts."""
    start: Count
    """The step from which it gained most."""
    time: Words
    """The time of that step."""


@dataclass(frozen=True)
class Track(Bins):
    """One statistic: its reference and the stream so far, and its bets."""

    bets: tuple[Bet, ...]


@dataclass(frozen=True)
class Alarm(Record):
    """The first image at which the evidence reached the alarm level."""

    image: Positive
    """The number of the image, from 1."""
    time: Words
    evidence: Logarithm
    """The log evidence at that image."""
    statistic: Annotated[str, Rule(f"that is one of {', '.join(STATISTICS)}", STATISTICS.__contains__)]
    """The statistic with the most evidence."""
    rises: bool
    """Whether it rises or falls."""
    since_image: Positive
    """The likeliest image at which the drift began."""
    since: Words
    """The time of that image."""


@dataclass(frozen=True)
class Point(Record):
    """The evidence at one image, for the plot."""

    image: Count
    time: Words
    evidence: Annotated[dict[str, Logarithm], _KNOWN]
    """The log evidence of each statistic."""


@dataclass(frozen=True)
class LabelCheck(Record):
    """A test of a promised error on accepted, labelled images."""

    target_error: Share
    images: Count
    errors: Count
    """The number of wrong images."""
    broken: Logarithm
    """The largest log evidence so far that the error is above the promised one."""
    kept: Logarithm
    """The largest log evidence so far that it is below."""
    time: Words
    """The time of the last test."""

    def is_broken(self, alpha: float) -> bool:
        """Whether the error is above the promised one, at level alpha."""
        return self.broken >= -math.log(alpha)

    def is_kept(self, alpha: float) -> bool:
        """Whether the error is below the promised one, at level alpha."""
        return self.kept >= -math.log(alpha)


@dataclass(frozen=True)
class Outcomes(Record):
    """Errors of held-out images by uncertainty, from the counts of a model file."""

    steps: Annotated[tuple[Annotated[int, between(0, STEPS)], ...], many(1, "numbers")]
    """Bin i holds uncertainties above steps[i - 1] / 100 and up to steps[i] / 100; the last step is 100."""
    images: tuple[Positive, ...]
    errors: tuple[Count, ...]
    covered: Annotated[tuple[Count, ...] | None, OPTIONAL] = None
    """Images whose prediction set has the true label; None for a file without counts of it."""
    level: Annotated[float, strictly_between(0, 1)] | None = None
    """The share of images like these that the novelty gate rejects at most; None without a gate."""

    REMEDY: ClassVar[str] = "Use a new state file."

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.steps) != sorted(set(self.steps)) or self.steps[-1] != STEPS:
            raise self.wrong("steps", f"of rising numbers that end with {STEPS}")
        for name in ("images", "errors", "covered"):
            counts = getattr(self, name)
            if counts is not None and len(counts) != len(self.steps):
                raise self.wrong(name, f"of {len(self.steps)} numbers, one for every step")
        for name in ("errors", "covered"):
            counts = getattr(self, name) or ()
            if any(some > images for some, images in zip(counts, self.images, strict=False)):
                raise self.wrong(name, "at most the images of every step")


@dataclass(frozen=True)
class Window(Record):
    """The last answers of a monitor, and what they are compared with."""

    outcomes: Outcomes
    size: Annotated[int, between(1, LARGEST_WINDOW)] = WINDOW
    """The most answers it holds."""
    answers: tuple[Annotated[int, between(0, KINDS * (STEPS + 1) - 1)], ...] = ()
    """For each, oldest first: 5 times its bin, plus its `decision` or 4 without one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.answers) > self.size or any(code // KINDS >= len(self.outcomes.steps) for code in self.answers):
            raise self.wrong("answers", f"of at most {self.size} numbers, each below {KINDS} times the steps")


@dataclass(frozen=True)
class State(Record):
    """The state of a monitor, from which a new process continues."""

    model: Words
    """SHA-256 of the model file."""
    alpha: Annotated[float, strictly_between(0, 1)]
    every: Positive
    seed: Annotated[int, between(0, 2**32 - 1)]
    samples: Annotated[int, between(1, MAX_SAMPLES)]
    pass_seed: Annotated[int, between(0, MAX_SEED)]
    started: Words
    reference: Positive
    """The number of reference images."""
    tracks: Annotated[dict[str, Track], _KNOWN]
    updated: Words | None = None
    images: Count = 0
    """The number of answers."""
    bets: Count = 0
    """The number of answers it bet on: every `every`-th."""
    peak: Logarithm = 0.0
    """The largest log evidence so far."""
    alarm: Alarm | None = None
    shuffled: bool = False
    history: tuple[Point, ...] = ()
    stride: Positive = 1
    """Bets between two points of the history; it doubles when the history is full."""
    log_line: Words | None = None
    """The hash of the last line that was read from a log."""
    labels: LabelCheck | None = None
    window: Annotated[Window | None, OPTIONAL] = None
    """The last answers, for the estimate of the accuracy; None for a file without counts, or an older state."""
    version: Annotated[int, between(1, 1)] = 1

    REMEDY: ClassVar[str] = "Use a new state file."

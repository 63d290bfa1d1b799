"""Prediction sets: the labels that an image may have.

`conformal` fits their limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from uce_edge import contract
from uce_edge._util.field_rules import OPTIONAL, Positive, Rule, Share, between, many, strictly_between
from uce_edge._util.printable import shown
from uce_edge._util.records import Record
from uce_edge.contract import MAX_SAMPLES, MAX_SEED, SetScore

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GRAINS = 2**22
"""The cumulative scores count probabilities in parts of 1 / GRAINS, so that float32 sums are exact in any order."""
RANKED = 128
"""The likeliest labels that a cumulative score adds up; all labels behind them share one score."""
MOST_PENALTY = 2.0
"""More than any probability: a label with this penalty is never in a set of others."""
PENALTY_STEP = 2**-12
"""Penalties are multiples of it, so that their products with ranks are exact in float32."""
_NAMED = 3

_Penalty = Annotated[
    float,
    Rule(f"between 0 and 1, a multiple of {PENALTY_STEP:g}", lambda x: 0 <= x <= 1 and x / PENALTY_STEP % 1 == 0),
]


@dataclass(frozen=True)
class SetPromise(Record):
    """The requested prediction sets."""

    alpha: Annotated[float, strictly_between(0, 1)]
    """At most this share of the sets lacks the true label."""
    score: Annotated[SetScore, OPTIONAL] = SetScore.LAC
    by_class: Annotated[bool, OPTIONAL] = False
    """Whether the promise holds for the images of every class, by one limit per label."""

    REMEDY: ClassVar[str] = "For example: 0.05"


@dataclass(frozen=True)
class LabelSets(Record):
    """The prediction sets of a file: a label is in the set if its score is at most its limit."""

    alpha: Annotated[float, strictly_between(0, 1)]
    """At most this share of the sets of images like the guarantee images lacks the true label, for these passes."""
    score: SetScore
    limits: Annotated[tuple[Annotated[float, between(0, 4)], ...], many(1, "limits")]
    """One for all labels, or one for each."""
    images: Positive
    """The guarantee images that the limits were fitted on."""
    coverage: Share
    """The share of these images whose set contains the true label."""
    size: Annotated[float, Rule("of at least 0", lambda value: value >= 0)]
    """The mean size of their sets."""
    samples: Annotated[int, between(1, MAX_SAMPLES)]
    """The passes."""
    seed: Annotated[int, between(0, MAX_SEED)]
    data: str
    """SHA-256 of the guarantee images."""
    date: Annotated[str | None, OPTIONAL] = None
    grouped: Annotated[bool, OPTIONAL] = False
    """Whether the images are one of each group: the promise is then about a random image of a random group."""
    penalty: Annotated[_Penalty, OPTIONAL] = 0.0
    """RAPS: what every rank behind `free` adds to the score."""
    free: Annotated[Annotated[int, between(0, RANKED)], OPTIONAL] = 0
    """RAPS: the ranks without a penalty."""

    REMEDY: ClassVar[str] = "Fit them again: uce-edge calibrate --sets 0.05"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty and self.score is not SetScore.RAPS:
            raise self.wrong("penalty", f"0 for a score other than {SetScore.RAPS}")

    @property
    def by_class(self) -> bool:
        """Whether every label has a limit of its own."""
        return len(self.limits) > 1

    def fits(self, classes: int) -> bool:
        """Whether the limits fit a model with so many classes."""
        return len(self.limits) in (1, classes)

    def initializers(self, classes: int) -> "dict[str, npt.NDArray[np.generic]]":
        """The sets as the graph stores them, by initializer."""
        import numpy as np

        return {
            contract.SET_LIMITS: np.broadcast_to(np.asarray(self.limits, np.float32), (classes,)).copy(),
            contract.SET_PENALTY: np.asarray(self.penalty, np.float32),
            contract.SET_FREE: np.asarray(self.free, np.float32),
        }

    def contains(self, probabilities: "npt.NDArray[np.float32]") -> "npt.NDArray[np.bool_]":
        """Which labels are in the set of each image, equal to the graph output `in_set`."""
        import numpy as np

        scored = scores(probabilities, self.score, self.penalty, self.free)
        return np.asarray((scored <= np.asarray(self.limits, np.float32)) & (probabilities.sum(-1) > 0)[..., None])


def scores(
    probabilities: "npt.NDArray[np.float32]", score: SetScore, penalty: float = 0.0, free: int = 0
) -> "npt.NDArray[np.float32]":
    """The score of every label, in float32; NaN for an image with a probability of NaN.

    The cumulative scores have no random part: a label's own probability is left out, so the likeliest label has score
    0. Any function of image and label keeps the promise if the limits are fitted with the same.

    Args:
        probabilities: [images, classes].
        score: Which one.
        penalty: As in `LabelSets`.
        free: As in `LabelSets`.
    """
    import numpy as np

    table = np.asarray(probabilities, np.float32)
    if score is SetScore.LAC:
        return np.asarray(np.float32(1) - table)
    coarse = np.floor(table * np.float32(GRAINS)).astype(np.float64) / GRAINS
    order = np.argsort(-coarse, axis=-1, kind="stable")
    ranked = np.take_along_axis(coarse, order, -1)
    place = np.arange(table.shape[-1])
    edges, differs = np.full((len(table), 1), True), ranked[:, 1:] != ranked[:, :-1]
    starts, ends = np.concatenate([edges, differs], axis=1), np.concatenate([differs, edges], axis=1)
    # Of each label, how many are likelier, and how many are at least as likely: equal ones have the worst rank.
    above = np.minimum(np.maximum.accumulate(np.where(starts, place, 0), axis=-1), RANKED)
    last = np.minimum.accumulate(np.where(ends, place, len(place))[:, ::-1], axis=-1)[:, ::-1]
    rank = np.minimum(last + 1, RANKED)
    sums = np.concatenate([np.zeros((len(table), 1)), np.cumsum(ranked[:, :RANKED], axis=-1)], axis=1)
    values = np.take_along_axis(sums, above, -1)
    values += np.minimum(penalty * np.maximum(rank - free, 0), MOST_PENALTY)
    found = np.empty(table.shape, np.float32)
    np.put_along_axis(found, order, values.astype(np.float32), -1)
    found[np.isnan(table).any(-1)] = np.nan
    return found


def in_words(labels: Sequence[str]) -> str:
    """A set for people: "cat or dog", "cat, dog, frog and 12 more"."""
    if not labels:
        return "none of the labels"
    if len(labels) > _NAMED:
        return f"{', '.join(labels[:_NAMED])} and {len(labels) - _NAMED:,} more"
    *others, last = labels
    return f"{', '.join(others)} or {last}" if others else last


def describe(sets: LabelSets, classes: Sequence[str]) -> str:
    """The promise of the sets, in sentences."""
    from uce_edge.output.wording import percent

    share = f"{100 * (1 - sets.alpha):.4g} %"
    of_all = f"at least {share} of the images of every class" if sets.by_class else f"at least {share} of the images"
    grouped = ", one of each group" if sets.grouped else ""
    lines = [
        f"The set of labels contains the true label for {of_all}, on average over images like the {sets.images:,} "
        f"held-out images{grouped} that fitted it ({sets.score}; there {percent(sets.coverage)}, with "
        f"{sets.size:.2f} labels on average). ",
        "This is no promise about a single image, the accepted images, or out-of-distribution images.",
    ]
    if sets.by_class:
        strictest = min(range(len(classes)), key=lambda index: sets.limits[index])
        lines.append(f" Every label has its own limit; the strictest is that of {shown(classes[strictest])}.")
    return "".join(lines)

"""The reject rule: which predictions may be used."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from uce_edge import contract
from uce_edge._util.field_rules import OPTIONAL, Share, between, checked, many, strictly_between
from uce_edge._util.records import Record
from uce_edge.contract import RuleScore
from uce_edge.errors import argument
from uce_edge.rejection.promises import ErrorPromise, NoveltyGuarantee

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NO_LIMIT = 2.0
"""Accepts every score, because scores are at most 1. NaN is rejected."""
NO_CUTOFF = -1.0
"""Accepts every novelty, because it is at least 0. NaN is rejected."""
COLUMNS = ("threshold", "cutoff", "doubt")
"""The keys of an answer's JSON that describe its rule."""


class Code(IntEnum):
    """The values of the graph output `decision`."""

    ACCEPT = 0
    """The prediction may be used."""
    UNCERTAIN = 1
    """The score is above the limit of its class, or NaN."""
    OUT_OF_DISTRIBUTION = 2
    """The novelty is at most the cutoff, or NaN."""
    BOTH = 3
    """Both reasons hold."""


class Decision(StrEnum):
    """Whether a prediction may be used."""

    ACCEPT = "accept"
    """The score is at most the limit, and the image is not out of distribution."""
    REJECT = "reject"
    """The prediction must not be used; the `Reason` says why."""


class Reason(StrEnum):
    """Why a prediction is rejected."""

    UNCERTAIN = "uncertain"
    """The uncertainty is above the limit, or the confidence below it."""
    OUT_OF_DISTRIBUTION = "out-of-distribution"
    """The image is unlike the calibration images."""
    BOTH = "both"
    """Both reasons hold."""


REASONS = (None, Reason.UNCERTAIN, Reason.OUT_OF_DISTRIBUTION, Reason.BOTH)
"""By code; an accepted prediction has no reason."""

_Limit = Annotated[float, between(-1, 1)]


@dataclass(frozen=True)
class RejectRule(Record):
    """Accept when novelty > cutoff and score <= the limit of the predicted class. NaN rejects."""

    score: RuleScore = RuleScore.UNCERTAINTY
    """The score that is compared with the limits."""
    limits: Annotated[tuple[_Limit, ...], many(1, "limits")] | None = None
    """One for all classes, or one for each; below 0, nothing of the class is accepted. None accepts every score."""
    cutoff: Annotated[float, strictly_between(0, 1)] | None = None
    """None accepts every novelty."""
    promise: Annotated[ErrorPromise | None, OPTIONAL] = None
    """The error among accepted images; None when nothing is promised."""
    gate: Annotated[NoveltyGuarantee | None, OPTIONAL] = None
    """How many images like the calibration images the cutoff rejects."""

    REMEDY: ClassVar[str] = "Find the rule again: uce-edge calibrate --target-error 0.05"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.cutoff is None) != (self.gate is None):
            raise self.wrong("gate", "stored exactly when there is a cutoff")
        if self.promise is not None and self.limits is None:
            raise self.wrong("limits", "stored with a promise about the error")
        if self.promise is not None and len(self.promise.classes) not in (0, len(self.limits or ())):
            raise self.wrong("limits", f"{len(self.promise.classes)} limits, one for every class that is promised")

    @property
    def decides(self) -> bool:
        """Whether it has a limit or a cutoff."""
        return self.limits is not None or self.cutoff is not None

    @property
    def by_class(self) -> bool:
        """Whether every class has a limit of its own."""
        return self.limits is not None and len(self.limits) > 1

    @property
    def threshold(self) -> float | None:
        """The limit on the uncertainty, where all classes share one."""
        return self.limits[0] if self.limits and not self.by_class and self.score is RuleScore.UNCERTAINTY else None

    def with_threshold(self, threshold: float) -> "RejectRule":
        """The same cutoff with one limit on the uncertainty, without a promise."""
        return RejectRule(limits=(threshold,), cutoff=self.cutoff, gate=self.gate)

    def limit(self, class_id: int) -> float | None:
        """The limit of a class."""
        return None if self.limits is None else self.limits[class_id if self.by_class else 0]

    def fits(self, classes: int) -> bool:
        """Whether the limits fit a model with so many classes."""
        return not self.by_class or self.limits is None or len(self.limits) == classes

    def columns(self, class_id: int | None) -> dict[str, float | None]:
        """The values of `COLUMNS` for a predicted class; None for an image without a prediction."""
        limit = None if class_id is None and self.by_class else self.limit(class_id or 0)
        by_confidence = self.score is RuleScore.CONFIDENCE
        return dict(
            zip(COLUMNS, (None if by_confidence else limit, self.cutoff, limit if by_confidence else None), strict=True)
        )

    def scores(
        self, uncertainty: "npt.NDArray[np.float32]", probabilities: "npt.NDArray[np.float32]"
    ) -> "npt.NDArray[np.float32]":
        """The scores that are compared with the limits, in float32."""
        return uncertainty if self.score is RuleScore.UNCERTAINTY else inverse_confidence(probabilities)

    def initializers(self, classes: int) -> "dict[str, npt.NDArray[np.generic]]":
        """The rule as the graph stores it, by initializer."""
        import numpy as np

        limits = np.asarray((NO_LIMIT,) if self.limits is None else self.limits, np.float32)
        return {
            contract.LIMITS: np.broadcast_to(limits, (classes,)).copy(),
            contract.CUTOFF: np.asarray(NO_CUTOFF if self.cutoff is None else self.cutoff, np.float32),
            contract.BY_CONFIDENCE: np.asarray(self.score is RuleScore.CONFIDENCE),
        }

    def decide(
        self,
        uncertainty: "npt.NDArray[np.float32]",
        probabilities: "npt.NDArray[np.float32]",
        novelty: "npt.NDArray[np.float32] | None",
    ) -> "npt.NDArray[np.int32]":
        """One `Code` per image, equal to the graph output `decision`."""
        import numpy as np

        limits = np.asarray((NO_LIMIT,) if self.limits is None else self.limits, np.float32)
        own = limits[probabilities.argmax(-1) if self.by_class else 0]
        certain = within(self.scores(uncertainty, probabilities), own) & (probabilities.sum(-1) > 0)
        rejected: npt.NDArray[np.int32] = (~certain).astype(np.int32)
        if self.cutoff is not None:
            assert novelty is not None  # metadata with a cutoff requires this output
            rejected += 2 * is_out_of_distribution(novelty, self.cutoff).astype(np.int32)
        return rejected

    def accept(
        self,
        uncertainty: "npt.NDArray[np.float32]",
        probabilities: "npt.NDArray[np.float32]",
        novelty: "npt.NDArray[np.float32] | None",
    ) -> "npt.NDArray[np.bool_]":
        """Which images are accepted."""
        import numpy as np

        return np.asarray(self.decide(uncertainty, probabilities, novelty) == Code.ACCEPT)


def threshold_rule(reject: float | None) -> RejectRule:
    """The rule of `--reject 0.3`: one limit on the uncertainty. None decides nothing."""
    return RejectRule(limits=None if reject is None else (check_threshold(reject),))


Rejecting = float | Literal["auto"] | None
"""A user's request: a limit on the uncertainty, the rule of the file, or no rule."""


def check_threshold(threshold: float, name: str = "reject") -> float:
    """Refuse a threshold on the uncertainty outside [0, 1]."""
    return float(checked(name, Share, threshold, f"For example: {argument(name, 0.3)}"))


def within(scores: "npt.ArrayLike", limits: "npt.ArrayLike") -> "npt.NDArray[np.bool_]":
    """Whether scores are at most their limits in float32. NaN is not."""
    import numpy as np  # a late import: commands that only need the names start faster

    return np.asarray(np.asarray(scores, np.float32) <= np.asarray(limits, np.float32))


def inverse_confidence(probabilities: "npt.NDArray[np.float32]") -> "npt.NDArray[np.float32]":
    """1 - confidence in float32, for [images, classes]."""
    import numpy as np

    return np.asarray(np.float32(1) - np.asarray(probabilities, np.float32).max(-1))


def is_out_of_distribution(novelty: "npt.ArrayLike", cutoff: "npt.ArrayLike") -> "npt.NDArray[np.bool_]":
    """Whether the novelty is at most the cutoff, compared as float32, or NaN."""
    import numpy as np

    return np.asarray(~(np.asarray(novelty, np.float32) > np.asarray(cutoff, np.float32)))

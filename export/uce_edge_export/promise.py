"""What rejection does to a model file as it ships, measured on held-out images and stored in it."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from uce_edge import contract, metrics
from uce_edge.calibration import guarantee, per_class
from uce_edge.calibration.guarantee import NoGuaranteeError
from uce_edge.calibration.promises import (
    Guarantee,
    HeldOut,
    Promise,
    RejectBy,
    StoredClasses,
    StoredCutoff,
    StoredRule,
    StoredThreshold,
)
from uce_edge.datasets.splits import ONE_EACH, Split
from uce_edge.model import Model
from uce_edge.monitor import reference
from uce_edge.prediction import Prediction
from uce_edge_export.publish import Draft


@dataclass(frozen=True)
class Known:
    """What a file says of images that its map was fitted on, and their labels."""

    said: Prediction
    labels: npt.NDArray[np.int64]

    @classmethod
    def of(cls, draft: Draft, data: Split) -> "Known":
        """Ask the file as it ships."""
        return cls(Model(draft.path, "cpu").predict(data.images), data.labels)


@dataclass(frozen=True)
class Measured:
    """What was stored, or why it was not."""

    threshold: Guarantee | NoGuaranteeError | None = None
    """On the uncertainty alone, with its promise; None when nothing was to be promised."""
    rule: StoredRule | NoGuaranteeError | None = None
    """With novelty; None for a file that cannot tell what is foreign."""
    doubt: StoredThreshold | NoGuaranteeError | None = None
    """On the confidence, which is then what is applied; None when the uncertainty is."""

    per_class: StoredClasses | NoGuaranteeError | None = None
    """A threshold for every class, which are then what is applied; None when all have the same."""

    @property
    def refused(self) -> NoGuaranteeError | None:
        """Why what was asked for is not promised by what `--reject auto` applies."""
        applied: object = self.threshold if self.rule is None else self.rule
        if self.per_class is not None:
            applied = self.per_class
        if self.doubt is not None:
            applied = self.doubt
        return applied if isinstance(applied, NoGuaranteeError) else None


Found = TypeVar("Found")
NOTHING = Measured()
"""Nothing was asked for."""


def measure(
    draft: Draft,
    data: Split,
    promise: Promise | None,
    foreign: StoredCutoff | None = None,
    known: Known | None = None,
) -> Measured:
    """Count what thresholds let through and which answers are usual, find what keeps a promise, and store it all.

    All hold for what the file does by default: its passes, its seeds, its map.

    Args:
        draft: The file as it ships.
        data: Labelled images that nothing was fitted on; of each group, one is counted.
        promise: What the threshold shall keep; None when nothing shall be promised.
        foreign: What turns foreign images away before the threshold does; None for a file that cannot tell.
        known: Other images, which choose what is promised about, where that is left open, and set the bins that the
            monitor counts in; None for neither.
    """
    data = data.one_per_group()
    model = Model(draft.path, "cpu")
    said = model.predict(data.images)
    wrong = said.class_ids != data.labels
    how = _how(said, data)
    counts = guarantee.count(said.uncertainty, wrong)
    metadata = replace(draft.metadata, held_out=HeldOut.from_document(counts.to_document() | how))
    threshold: Guarantee | NoGuaranteeError | None = None
    rule: StoredRule | NoGuaranteeError | None = None
    if promise is not None and promise.score is RejectBy.AUTO:
        promise = replace(promise, score=RejectBy.UNCERTAINTY if known is None else chosen_score(known))
    doubt = doubt_for(said, data, promise, foreign)
    classes = classes_for(said, data, promise, foreign)
    if promise is not None:
        threshold = _tried(said.uncertainty, wrong, promise)
    if foreign is not None:
        rule = rule_for(said, data, promise, foreign)
        if isinstance(rule, NoGuaranteeError) and isinstance(doubt or classes, StoredThreshold | StoredClasses):
            rule = StoredRule(foreign)  # whose gate what is applied instead counts on
    if not isinstance(doubt, NoGuaranteeError) and not isinstance(classes, NoGuaranteeError):
        if isinstance(threshold, Guarantee):
            metadata = replace(metadata, reject=StoredThreshold.from_document(threshold.to_document() | how))
        if isinstance(rule, StoredRule):
            metadata = replace(metadata, rule=rule)
        metadata = replace(metadata, doubt=doubt, per_class=classes)
    if known is not None:
        with suppress(reference.UsualError):  # too few images: the file has no monitor, and says so when it is asked
            metadata = replace(metadata, monitor=reference.of(known.said, said, data.sha256()))
    draft.describe(metadata)
    return Measured(_told(threshold, data), _told(rule, data), _told(doubt, data), _told(classes, data))


def chosen_score(known: Known) -> RejectBy:
    """The confidence, if its risk-coverage curve has the smaller area with 95 % confidence; else the uncertainty."""

    def gain(table: Any, labels: Any) -> float:
        by_entropy, by_confidence = (metrics.aurc(table, labels, score=name) for name in ("uncertainty", "confidence"))
        return by_entropy - by_confidence

    found = metrics.bootstrap(gain, known.said.probabilities, known.labels)
    return RejectBy.CONFIDENCE if found.low > 0 else RejectBy.UNCERTAINTY


def rule_for(
    said: Prediction, data: Split, promise: Promise | None, foreign: StoredCutoff
) -> StoredRule | NoGuaranteeError:
    """The rule of a file that can tell what is foreign, or why nothing can be promised of it.

    Args:
        said: What the file says of the images.
        data: Labelled images that nothing was fitted on, one of each group.
        promise: What the threshold shall keep; None when nothing shall be promised.
        foreign: What turns foreign images away before the threshold does.
    """
    if promise is None:
        return StoredRule(foreign)
    joint = _joint(said, data, promise, foreign, said.uncertainty)
    return joint if isinstance(joint, NoGuaranteeError) else StoredRule(foreign, joint)


def doubt_for(
    said: Prediction, data: Split, promise: Promise | None, foreign: StoredCutoff | None
) -> StoredThreshold | NoGuaranteeError | None:
    """The threshold on 1 - max p that keeps a promise; None for a promise about the uncertainty. As in `rule_for`."""
    if promise is None or promise.score is not RejectBy.CONFIDENCE:
        return None
    return _joint(said, data, promise, foreign, contract.doubt(said.probabilities.max(-1)))


def classes_for(
    said: Prediction, data: Split, promise: Promise | None, foreign: StoredCutoff | None
) -> StoredClasses | NoGuaranteeError | None:
    """A threshold for every class that keeps a promise of its own; None where all have the same. As in `rule_for`."""
    targets = () if promise is None else promise.targets(said.classes)
    if promise is None or not targets:
        return None
    familiar = _familiar(said, foreign)
    if not familiar.any():
        return _all_foreign(len(familiar))
    wrong = said.class_ids != data.labels
    try:
        found = per_class.find(
            said.uncertainty[familiar],
            wrong[familiar],
            said.class_ids[familiar],
            targets,
            promise.confidence,
            said.classes,
        )
    except NoGuaranteeError as error:
        return NoGuaranteeError(str(error), tuple(_of_all(row, len(wrong)) for row in error.curve))
    images = np.bincount(said.class_ids, minlength=len(targets)).tolist()
    limits = tuple(
        replace(limit, images=count, coverage=limit.accepted / max(1, count))
        for limit, count in zip(found.limits, images, strict=True)
    )
    return StoredClasses(limits, promise.confidence, found.tested, **_how(said, data))


def _how(said: Prediction, data: Split) -> dict[str, Any]:
    """What a promise was found with, and when."""
    return {
        "samples": said.samples,
        "seed": said.seed,
        "data": data.sha256(),
        "date": reference.today(),
        "grouped": data.groups is not None,
    }


def _told(found: Found, data: Split) -> Found | NoGuaranteeError:
    """A refusal also says that images were left out, where they are grouped."""
    if isinstance(found, NoGuaranteeError) and data.groups is not None:
        return NoGuaranteeError(f"{found} {ONE_EACH}", found.curve, found.score)
    return found


def _tried(
    scores: npt.NDArray[np.float32], wrong: npt.NDArray[np.bool_], promise: Promise
) -> Guarantee | NoGuaranteeError:
    try:
        return guarantee.find(scores, wrong, promise.target_error, promise.confidence)
    except NoGuaranteeError as error:
        return error


def _joint(
    said: Prediction, data: Split, promise: Promise, foreign: StoredCutoff | None, scores: npt.NDArray[np.float32]
) -> StoredThreshold | NoGuaranteeError:
    """The threshold for what is not foreign: the cutoff was fixed before, so those are independent draws, too."""
    wrong, familiar = said.class_ids != data.labels, _familiar(said, foreign)
    if not familiar.any():
        return _all_foreign(len(wrong))
    joint = _tried(scores[familiar], wrong[familiar], promise)
    if isinstance(joint, NoGuaranteeError):
        return NoGuaranteeError(str(joint), tuple(_of_all(row, len(wrong)) for row in joint.curve), promise.score)
    return StoredThreshold.from_document(_of_all(joint, len(wrong)).to_document() | _how(said, data))


def _familiar(said: Prediction, foreign: StoredCutoff | None) -> npt.NDArray[np.bool_]:
    """What the gate lets through."""
    if foreign is None:
        return np.ones(len(said), np.bool_)
    assert said.novelty is not None
    return ~contract.is_foreign(said.novelty, foreign.cutoff)


def _all_foreign(images: int) -> NoGuaranteeError:
    return NoGuaranteeError(
        f"All {images} guarantee images are foreign to the calibration images. Calibrate on images like them."
    )


def _of_all(found: Guarantee, images: int) -> Guarantee:
    """What was found among the familiar images, as a share of all."""
    return replace(found, images=images, coverage=found.accepted / images)

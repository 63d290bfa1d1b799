"""What rejection does to a model file as it ships, measured on held-out images and stored in it."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from uce_edge import contract
from uce_edge.calibration import guarantee
from uce_edge.calibration.guarantee import NoGuaranteeError
from uce_edge.calibration.promises import Guarantee, HeldOut, Promise, StoredCutoff, StoredRule, StoredThreshold
from uce_edge.datasets.splits import ONE_EACH, Split
from uce_edge.model import Model
from uce_edge.monitor import reference
from uce_edge.prediction import Prediction
from uce_edge_export.publish import Draft


@dataclass(frozen=True)
class Measured:
    """What was stored, or why it was not."""

    threshold: Guarantee | NoGuaranteeError | None = None
    """On the uncertainty alone, with its promise; None when nothing was to be promised."""
    rule: StoredRule | NoGuaranteeError | None = None
    """With novelty; None for a file that cannot tell what is foreign."""

    @property
    def refused(self) -> NoGuaranteeError | None:
        """Why what was asked for is not promised by what `--reject auto` applies."""
        applied = self.threshold if self.rule is None else self.rule
        return applied if isinstance(applied, NoGuaranteeError) else None


Found = TypeVar("Found")
NOTHING = Measured()
"""Nothing was asked for."""


def measure(
    draft: Draft,
    data: Split,
    promise: Promise | None,
    foreign: StoredCutoff | None = None,
    usual: Prediction | None = None,
) -> Measured:
    """Count what thresholds let through and which answers are usual, find what keeps a promise, and store it all.

    All hold for what the file does by default: its passes, its seeds, its map.

    Args:
        draft: The file as it ships.
        data: Labelled images that nothing was fitted on; of each group, one is counted.
        promise: What the threshold shall keep; None when nothing shall be promised.
        foreign: What turns foreign images away before the threshold does; None for a file that cannot tell.
        usual: What the file says of other images, which set the bins that the monitor counts in; None counts nothing.
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
    if promise is not None:
        threshold = _tried(said.uncertainty, wrong, promise)
        if isinstance(threshold, Guarantee):
            metadata = replace(metadata, reject=StoredThreshold.from_document(threshold.to_document() | how))
    if foreign is not None:
        rule = rule_for(said, data, promise, foreign)
    if isinstance(rule, StoredRule):
        metadata = replace(metadata, rule=rule)
    if usual is not None:
        with suppress(reference.UsualError):  # too few images: the file has no monitor, and says so when it is asked
            metadata = replace(metadata, monitor=reference.of(usual, said, data.sha256()))
    draft.describe(metadata)
    return Measured(_told(threshold, data), _told(rule, data))


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
    joint = _joint(said, said.class_ids != data.labels, promise, foreign)
    if isinstance(joint, NoGuaranteeError):
        return joint
    return StoredRule(foreign, StoredThreshold.from_document(joint.to_document() | _how(said, data)))


def _how(said: Prediction, data: Split) -> dict[str, int | str]:
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
        return NoGuaranteeError(f"{found} {ONE_EACH}")
    return found


def _tried(
    uncertainty: npt.NDArray[np.float32], wrong: npt.NDArray[np.bool_], promise: Promise
) -> Guarantee | NoGuaranteeError:
    try:
        return guarantee.find(uncertainty, wrong, promise.target_error, promise.confidence)
    except NoGuaranteeError as error:
        return error


def _joint(
    said: Prediction, wrong: npt.NDArray[np.bool_], promise: Promise, foreign: StoredCutoff
) -> Guarantee | NoGuaranteeError:
    """The threshold for what is not foreign: the cutoff was fixed before, so those are independent draws, too."""
    assert said.novelty is not None
    familiar = ~contract.is_foreign(said.novelty, foreign.cutoff)
    if not familiar.any():
        return NoGuaranteeError(
            f"All {len(wrong)} guarantee images are foreign to the calibration images. Calibrate on images like them."
        )
    joint = _tried(said.uncertainty[familiar], wrong[familiar], promise)
    if isinstance(joint, NoGuaranteeError):
        return NoGuaranteeError(str(joint), tuple(_of_all(row, len(wrong)) for row in joint.curve))
    return _of_all(joint, len(wrong))


def _of_all(found: Guarantee, images: int) -> Guarantee:
    """What was found among the familiar images, as a share of all."""
    return replace(found, images=images, coverage=found.accepted / images)

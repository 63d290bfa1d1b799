"""What every level of the novelty gate costs and brings, so that somebody can choose one.

Only calibration images and the far images of `CHOICE` are looked at. The guarantee images are not: a level that was
chosen by this table is fixed before the threshold is searched on them, so that their promise stays valid.
"""

from dataclasses import dataclass, replace

import numpy as np

from uce_edge.calibration import novelty
from uce_edge.calibration.guarantee import NoGuaranteeError
from uce_edge.calibration.promises import Promise, RejectBy, StoredCutoff, StoredRule
from uce_edge.datasets import far
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Metadata
from uce_edge.model import Model
from uce_edge.prediction import Limits, Prediction
from uce_edge_export.novelty import parts
from uce_edge_export.promise import Known, chosen_score, classes_for, doubt_for, rule_for
from uce_edge_export.publish import Draft

SHOWN = (0.01, 0.02, 0.03, 0.05)
"""The levels that are compared, besides the one in use."""
EACH = 100
"""Far images of every kind."""


@dataclass(frozen=True)
class Cost:
    """What `--reject auto` would do at one level."""

    level: float
    used: bool
    """Whether it is the level of the file."""
    coverage: float
    """The share of the reference images that is accepted."""
    error: float | None
    """The share of these that is wrong; None where none is accepted."""
    far: dict[str, float]
    """The share of each kind of far image that is accepted."""


@dataclass(frozen=True)
class Costs:
    """The levels, from the smallest; those that so few images cannot promise are left out."""

    rows: tuple[Cost, ...]
    target_error: float | None
    """The error that the thresholds of all rows keep; None where the gate acts alone."""
    images: int
    """Reference images."""


def compare(draft: Draft, data: Split, promise: Promise | None, used: StoredCutoff) -> Costs:
    """What a file would accept at each level.

    Args:
        draft: The file, with novelty.
        data: The calibration images, as `novelty.add` took them.
        promise: What the threshold shall keep. Each level gets its own threshold, found on the reference images. If
            they cannot prove the error, the gate alone is shown.
        used: The cutoff of the file.
    """
    model, reference = Model(draft.path, "cpu"), parts(data)[1]
    said = model.predict(reference.images)
    made = far.far(model.metadata.image, far.CHOICE, each=EACH)
    strange, kinds = model.predict(made.images), np.array(made.kinds)
    wrong = said.class_ids != reference.labels
    if promise is not None and promise.score is RejectBy.AUTO:
        promise = replace(promise, score=chosen_score(Known(said, reference.labels)))
    smallest = novelty.smallest_level(used.images, used.confidence)
    cutoffs = [
        replace(used, level=level, cutoff=novelty.cutoff(used.images, level, used.confidence).cutoff)
        for level in sorted({*SHOWN, used.level})
        if level >= smallest
    ]
    found = [_limits(model.metadata, said, reference, promise, cutoff) for cutoff in cutoffs]
    limits = [one for one in found if one is not None]
    if len(limits) < len(found):
        promise, limits = None, [Limits(cutoff=cutoff.cutoff) for cutoff in cutoffs]
    rows = []
    for cutoff, limit in zip(cutoffs, limits, strict=True):
        own, foreign = (limit.accept(one.uncertainty, one.novelty, one.probabilities) for one in (said, strange))
        rows.append(
            Cost(
                level=cutoff.level,
                used=cutoff.level == used.level,
                coverage=float(own.mean()),
                error=float(wrong[own].mean()) if own.any() else None,
                far={kind: float(foreign[kinds == kind].mean()) for kind in far.CHOICE},
            )
        )
    return Costs(tuple(rows), None if promise is None else promise.target_error, len(reference))


def _limits(
    metadata: Metadata, said: Prediction, data: Split, promise: Promise | None, foreign: StoredCutoff
) -> Limits | None:
    """What a file with this cutoff would compare; None where the images cannot prove the error."""
    rule, doubt = rule_for(said, data, promise, foreign), doubt_for(said, data, promise, foreign)
    classes = classes_for(said, data, promise, foreign)
    if isinstance(doubt, NoGuaranteeError) or isinstance(classes, NoGuaranteeError):
        return None
    if isinstance(rule, NoGuaranteeError):
        if (doubt or classes) is None:
            return None
        rule = StoredRule(foreign)
    return Limits.stored(replace(metadata, rule=rule, doubt=doubt, per_class=classes))

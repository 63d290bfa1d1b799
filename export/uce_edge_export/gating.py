"""Give a model file the gate against foreign images, and change nothing else of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from uce_edge.calibration.guarantee import NoGuaranteeError
from uce_edge.calibration.novelty import NoveltyError
from uce_edge.calibration.promises import NoveltyPromise, Promise, RejectBy, StoredRule
from uce_edge.contract import NoiseKind
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Metadata
from uce_edge.model import Model
from uce_edge_export import novelty
from uce_edge_export.gate import ParityError
from uce_edge_export.promise import classes_for, doubt_for, rule_for
from uce_edge_export.publish import check_name, graph_of, publish

_COMPARED = 64  # images whose answers must stay


def add_gate(
    source: str | Path, out: str | Path, calibration: Split, guarantee: Split, wanted: NoveltyPromise = NoveltyPromise()
) -> Metadata:
    """Let a file tell what is foreign, with a rule that keeps its stored promise; its answers stay to the bit.

    Args:
        source: Any contract file.
        out: The new file, which may be the old one.
        calibration: Labelled images that the network was not trained on; those that fitted its map will do.
        guarantee: Labelled images that nothing was fitted on. The rule promises on them what the file's stored
            threshold promises; without one, nothing about the error.
        wanted: What the cutoff shall keep.

    Returns:
        The metadata of the new file.

    Raises:
        NoveltyError: The calibration images do not allow it. Nothing was written.
        NoGuaranteeError: The guarantee images do not allow the promise. Nothing was written.
    """
    check_name(out)
    old = Model(source, "cpu")
    stored = old.metadata.reject or old.metadata.doubt
    promise, per_class = None, old.metadata.per_class
    if per_class is not None:
        targets = (limit.target_error for limit in per_class.limits)
        promise = Promise.of_classes(dict(zip(old.classes, targets, strict=True)), per_class.confidence)
    elif stored is not None and stored.target_error is not None:
        score = RejectBy.UNCERTAINTY if old.metadata.doubt is None else RejectBy.CONFIDENCE
        promise = Promise(stored.target_error, stored.confidence, score)
    guarantee = guarantee.one_per_group()
    with publish(graph_of(old), old.metadata, out) as draft:
        foreign = novelty.add(draft, calibration, wanted)
        if isinstance(foreign, NoveltyError):
            raise foreign
        fresh = Model(draft.path, "cpu")
        _check(fresh, old, guarantee.at_most(_COMPARED))
        said = fresh.predict(guarantee.images)
        rule, doubt = rule_for(said, guarantee, promise, foreign), doubt_for(said, guarantee, promise, foreign)
        classes = classes_for(said, guarantee, promise, foreign)
        if isinstance(rule, NoGuaranteeError) and classes is not None:
            rule = StoredRule(foreign)  # one threshold for all classes is what older readers have, if it can be
        if isinstance(rule, NoGuaranteeError):
            raise rule
        if isinstance(doubt, NoGuaranteeError):
            raise doubt
        if isinstance(classes, NoGuaranteeError):
            raise classes
        draft.describe(replace(draft.metadata, rule=rule, doubt=doubt, per_class=classes))
    return draft.metadata


def _check(fresh: Model, old: Model, data: Split) -> None:
    if fresh.metadata.noise is NoiseKind.RANDN:
        return
    ours, theirs = (model.predict(data.images) for model in (fresh, old))
    for name in ("probabilities", "class_ids", "uncertainty", "model_uncertainty", "standard_error"):
        if not np.array_equal(getattr(ours, name), getattr(theirs, name)):
            raise ParityError(f"The file would have other values of {name} than before. Nothing was written.")

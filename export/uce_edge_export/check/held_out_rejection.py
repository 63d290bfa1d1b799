"""Measure rejection on held-out images, and store the result."""

import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge._util.progress import progress
from uce_edge.calibration import conformal
from uce_edge.calibration.label_sets import LabelSets, SetPromise
from uce_edge.calibration.logits import Logits
from uce_edge.calibration.maps import pass_probabilities
from uce_edge.contract import CLASS_ID, MAPS
from uce_edge.datasets.splits import ONE_EACH, Split
from uce_edge.monitor import reference
from uce_edge.rejection import fitting, guarantee
from uce_edge.rejection.fitting import Circumstances
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import HeldOut, Promise, RejectBy
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.prediction import Prediction, joined
from uce_edge.runtime.request import SamplesWarning
from uce_edge.runtime.scheduler import from_passes
from uce_edge_export.graph import prediction_sets
from uce_edge_export.publish.draft import Draft

_AT_ONCE = 16  # images between two steps of a progress bar


@dataclass(frozen=True)
class Known:
    """Predictions and labels of the calibration images."""

    prediction: Prediction
    labels: npt.NDArray[np.int64]

    @classmethod
    def of(cls, draft: Draft, data: Split) -> "Known":
        """Run the draft."""
        return cls(predicted(draft, data.images, "predicting calibration images"), data.labels)

    @classmethod
    def of_passes(cls, draft: Draft, data: Split, logits: Logits) -> "Known":
        """As `of`, from the logits of all passes; the draft runs once per image, for novelty.

        Args:
            draft: The file.
            data: The images.
            logits: Those of its network under its own seeds.
        """
        metadata, count = draft.metadata, len(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplesWarning)  # one pass shows novelty alone
            once = predicted(draft, data.images, "predicting calibration images", 1)
        parts = [from_passes(pass_probabilities(metadata.calibration, block), metadata) for block in logits]
        values: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        ids = values.pop(CLASS_ID)
        samples, drawn = metadata.samples, np.full(count, metadata.samples, np.int32)
        labels = [metadata.classes[number] for number in ids]
        maps: dict[str, Any] = dict.fromkeys(MAPS)
        return cls(
            replace(once, class_ids=ids, labels=labels, samples=samples, drawn=drawn, **values, **maps), data.labels
        )


def predicted(
    draft: Draft, images: npt.NDArray[Any], task: str, samples: int | None = None, seed: int = 0
) -> Prediction:
    """Predict images with the draft, and show progress."""
    with progress(task, len(images), unit="images") as advance:
        parts = []
        for start in range(0, len(images), _AT_ONCE):
            parts.append(draft.model.predict(images[start : start + _AT_ONCE], samples, seed))
            advance(len(parts[-1]))
    return joined(parts)


def measure(
    draft: Draft,
    data: Split,
    promise: Promise | None,
    gate: RejectRule = RejectRule(),
    known: Known | None = None,
    sets: SetPromise | None = None,
) -> RejectRule | NoGuaranteeError | None:
    """Count accepted images, fit and store the reject rule and the prediction sets.

    All hold for what the file does by default: its passes, its seeds, its map.

    Args:
        draft: The file as it ships.
        data: Labelled images that nothing was fitted on; of each group, one is counted.
        promise: The promise of the rule; None for no promise.
        gate: The rule with the cutoff on novelty, or without any limit.
        known: Other images, which choose the score where that is left open, and set the bins of the monitor; None for
            neither. They also choose the penalty of RAPS.
        sets: The promise of the prediction sets; None for no sets. It holds on its own: the rule and the sets are
            functions of the same images, but neither promise is about what the other selects.

    Returns:
        The rule that was stored, why there is none, or None when nothing was to be decided.
    """
    data = data.one_per_group()
    prediction = predicted(draft, data.images, "counting on held-out images")
    how = circumstances(prediction, data)
    found = None
    if sets is not None:
        penalty = conformal.Penalty()
        if known is not None:
            penalty = conformal.choose_penalty(known.prediction.probabilities, known.labels, sets)
        found = conformal.fit(prediction.probabilities, data.labels, sets, prediction.classes, how, penalty)
    metadata = replace(draft.metadata, held_out=_counts(prediction, data, how, found))
    if promise is not None and promise.score is RejectBy.AUTO:
        chosen = RejectBy.UNCERTAINTY
        if known is not None:
            chosen = fitting.choose_score(known.prediction.probabilities, known.labels)
        promise = replace(promise, score=chosen)
    fitted = fitting.fit_rule(prediction, data.labels, promise, gate, how)
    if isinstance(fitted, NoGuaranteeError) and data.groups is not None:
        fitted = NoGuaranteeError(f"{fitted} {ONE_EACH}", fitted.curve, fitted.score)
    if known is not None:
        with suppress(reference.DriftReferenceError):  # too few images: the file has no monitor
            metadata = replace(metadata, monitor=reference.of(known.prediction, prediction, data.sha256()))
    draft.describe(replace(metadata, rule=None if isinstance(fitted, NoGuaranteeError) else fitted))
    if found is not None:
        prediction_sets.add(draft, found, data)
    return fitted


def circumstances(prediction: Prediction, data: Split) -> Circumstances:
    """The conditions of a prediction."""
    return Circumstances(prediction.samples, prediction.seed, data.sha256(), reference.today(), data.groups is not None)


def _counts(prediction: Prediction, data: Split, how: Circumstances, sets: LabelSets | None) -> HeldOut:
    """Count accepted images, errors and sets with the true label, at every threshold."""
    counts: dict[str, Any] = guarantee.count(prediction.uncertainty, prediction.class_ids != data.labels).to_document()
    if sets is not None:
        inside = np.take_along_axis(sets.contains(prediction.probabilities), data.labels[:, None], -1)[:, 0]
        counts["covered"] = guarantee.count(prediction.uncertainty, inside).errors
    return HeldOut.from_document(counts | vars(how))

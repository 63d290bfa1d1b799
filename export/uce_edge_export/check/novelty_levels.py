"""Costs and benefits of the levels of the novelty gate.

Only calibration images and the far images of `CHOICE` are looked at. The guarantee images are not: a level that was
chosen by this table is fixed before the threshold is searched on them, so that their promise stays valid.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.calibration import novelty
from uce_edge.datasets import synthetic_ood
from uce_edge.datasets.splits import Split
from uce_edge.rejection import fitting
from uce_edge.rejection.promises import Promise, RejectBy
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.request import SamplesWarning
from uce_edge_export.check.held_out_rejection import Known, circumstances, predicted
from uce_edge_export.graph.novelty_score import parts
from uce_edge_export.publish.draft import Draft
from uce_edge_export.transform.noise_free import noise_free_layers
from uce_edge_export.transform.simplification import infer_shapes

SHOWN = (0.01, 0.02, 0.03, 0.05)
"""The levels that are compared, besides the one in use."""
EACH = 100
"""Far images of every kind."""


@dataclass(frozen=True)
class Cost:
    """The effect of `--reject auto` at one level."""

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
    """Provable levels in rising order."""

    rows: tuple[Cost, ...]
    target_error: float | None
    """The error that the thresholds of all rows keep; None where the gate acts alone."""
    images: int
    """Reference images."""
    layers: tuple[str, ...]
    """The weights of the layers whose inputs the gate looks at."""
    training: bool
    """Whether training images fitted it."""


def compare(
    draft: Draft,
    data: Split,
    known: Known,
    promise: Promise | None,
    used: RejectRule,
    training: Split | None = None,
) -> Costs:
    """Compute what a file accepts at each level.

    Args:
        draft: The file, with novelty.
        data: The calibration images, as `novelty.add` took them.
        known: The predictions of the file for them.
        promise: The promise of the limits. Each level gets its own limits, found on the reference images. If they
            cannot prove the error, the gate alone is shown.
        used: The rule with the cutoff of the file.
        training: As `novelty.add` took them.
    """
    assert used.gate is not None
    reference = parts(data, training)[1]
    # The same division of the numbers of the images.
    prediction = known.prediction[parts(replace(data, images=np.arange(len(data))), training)[1].images]
    made = synthetic_ood.far(draft.metadata.image, synthetic_ood.CHOICE, each=EACH)
    kinds = np.array(made.kinds)
    wrong = prediction.class_ids != reference.labels
    if promise is not None and promise.score is RejectBy.AUTO:
        promise = replace(promise, score=fitting.choose_score(prediction.probabilities, reference.labels))
    images, confidence = used.gate.images, used.gate.confidence
    smallest = novelty.smallest_level(images, confidence)
    levels = [level for level in sorted({*SHOWN, used.gate.level}) if level >= smallest]
    gates = [
        RejectRule(cutoff=novelty.cutoff(images, level, confidence).cutoff, gate=replace(used.gate, level=level))
        for level in levels
    ]
    how = circumstances(prediction, reference)
    found = [fitting.fit_rule(prediction, reference.labels, promise, gate, how) for gate in gates]
    rules = [rule for rule in found if isinstance(rule, RejectRule)]
    if len(rules) < len(found):
        promise, rules = None, gates
    accepted = _accepted(draft, made.images, rules)
    rows = []
    for level, applied, far in zip(levels, rules, accepted, strict=True):
        own = applied.accept(prediction.uncertainty, prediction.probabilities, prediction.novelty)
        rows.append(
            Cost(
                level=level,
                used=level == used.gate.level,
                coverage=float(own.mean()),
                error=float(wrong[own].mean()) if own.any() else None,
                far={kind: float(far[kinds == kind].mean()) for kind in synthetic_ood.CHOICE},
            )
        )
    target = None if promise is None else promise.target_error
    names = noise_free_layers(infer_shapes(draft.graph()).graph)
    looked_at = tuple(names[number].name for number in draft.metadata.novelty_layers or (-1,))
    return Costs(tuple(rows), target, len(reference), looked_at, training is not None)


def _accepted(draft: Draft, images: npt.NDArray[Any], rules: Sequence[RejectRule]) -> list[npt.NDArray[np.bool_]]:
    """Which images each rule accepts.

    Novelty has no noise, so one pass finds the images that every gate rejects. Only the others need all passes.
    """
    samples = 1 if draft.metadata.takes_seeds and not draft.metadata.runs_once else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplesWarning)  # the first pass shows novelty alone
        ood = predicted(draft, images, "predicting images made by rule", samples)
    assert ood.novelty is not None
    undecided = np.flatnonzero(ood.novelty >= min(rule.cutoff or 0 for rule in rules))
    if samples is None or not any(rule.limits for rule in rules) or not len(undecided):
        return [rule.accept(ood.uncertainty, ood.probabilities, ood.novelty) for rule in rules]
    full = predicted(draft, images[undecided], "predicting images made by rule")
    uncertainty, probabilities = ood.uncertainty.copy(), ood.probabilities.copy()
    uncertainty[undecided], probabilities[undecided] = full.uncertainty, full.probabilities
    return [rule.accept(uncertainty, probabilities, ood.novelty) for rule in rules]

"""Detection of out-of-distribution images by each score."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.evaluation.batch_mixture import FRACTIONS, mixture
from uce_edge.evaluation.model_outputs import ModelOutputs
from uce_edge.evaluation.score_intervals import Score
from uce_edge.metrics import Interval, intervals
from uce_edge.rejection.rule import RejectRule, within

APART = {"unseen in training": False, "seen in training": True}
"""The two groups of kinds, and whether training saw them."""
_BINS = 20


@dataclass(frozen=True)
class Detection:
    """How well one score detects out-of-distribution images."""

    auroc: Score
    fpr_at_95: Score


@dataclass(frozen=True)
class OodKind:
    """One kind of out-of-distribution images."""

    name: str
    images: int
    seen: bool | None
    """Whether the network was trained with such images; None if unknown."""
    auroc: dict[str, float]
    """By score, as in `OutOfDistribution.detection`."""
    accepted: float
    """As in `OutOfDistribution`, like the next."""
    gated: float | None


@dataclass(frozen=True, eq=False)
class OutOfDistribution:
    """The results on one set of out-of-distribution images."""

    name: str
    images: int
    detection: dict[str, Detection]
    """By score: uncertainty, confidence, model_uncertainty; novelty and both, for a file with the output novelty."""
    accepted: float
    """The share of them that the threshold in use accepts."""
    gated: float | None
    """The share that the threshold and the cutoff on novelty accept; None for a file without a cutoff."""
    kinds: tuple[OodKind, ...]
    """Each kind by itself, where kinds are known."""
    apart: tuple[OodKind, ...]
    """All kinds unseen in training, and all seen ones; empty if unknown."""
    mean_inside: float
    """The mean uncertainty of the in-distribution images."""
    mean_outside: float
    """The mean uncertainty of the out-of-distribution images."""
    fractions: npt.NDArray[np.float64]
    """The out-of-distribution share of a batch."""
    mean_uncertainty: npt.NDArray[np.float64]
    """The mean uncertainty of such a batch."""
    batch_deviation: npt.NDArray[np.float64]
    """The standard deviation from batch to batch."""
    edges: npt.NDArray[np.float64]
    """Bins of the uncertainty."""
    inside: npt.NDArray[np.float64]
    """The share of the in-distribution images in each bin."""
    outside: npt.NDArray[np.float64]
    """The share of the out-of-distribution images in each bin."""
    ranked: "dict[str, Ranked | None]" = field(repr=False, metadata={"json": False})
    """The scores of every image, for comparisons with another model; None where one pass has no such score."""


class Ranked(NamedTuple):
    """One score of every image, larger when less certain."""

    inside: npt.NDArray[np.float64]
    outside: npt.NDArray[np.float64]


def compare(
    name: str,
    inside: ModelOutputs,
    outside: ModelOutputs,
    passes: int,
    threshold: float,
    gate: RejectRule | None = None,
    kinds: Sequence[str] = (),
    seen: Collection[str] = (),
) -> OutOfDistribution:
    """Compare in-distribution and out-of-distribution images.

    Args:
        name: The name of the out-of-distribution images.
        inside: The model's outputs for in-distribution images.
        outside: Its outputs for out-of-distribution images.
        passes: The number of passes.
        threshold: The limit on the uncertainty.
        gate: The rule in use, for a file with a cutoff on novelty.
        kinds: The kind of every out-of-distribution image, where known.
        seen: The kinds that training saw, as in `Metadata.seen`.
    """
    scores = [outputs.scores(passes) | _with_novelty(outputs, inside) for outputs in (inside, outside)]
    ranked = {
        key: None if ours is None or theirs is None else Ranked(ours, theirs)
        for key, ours, theirs in zip(scores[0], scores[0].values(), scores[1].values(), strict=True)
    }
    accepted = within(outside.uncertainty, threshold)
    gated = None if gate is None else gate.accept(outside.uncertainty, outside.probabilities, outside.novelty)

    def of_kind(name: str, rows: npt.NDArray[np.bool_], known: bool | None) -> OodKind:
        return OodKind(
            name=name,
            images=int(rows.sum()),
            seen=known,
            auroc={key: metrics.ood_auroc(pair.inside, pair.outside[rows]) for key, pair in ranked.items() if pair},
            accepted=float(accepted[rows].mean()),
            gated=None if gated is None else float(gated[rows].mean()),
        )

    labels = np.array(kinds, dtype=str)
    each = [(kind, labels == kind, kind in seen if seen else None) for kind in dict.fromkeys(kinds)]
    apart = [(group, np.isin(labels, list(seen), invert=not known), known) for group, known in APART.items() if seen]
    mean, deviation = mixture(inside.uncertainty, outside.uncertainty, FRACTIONS)
    edges = np.arange(_BINS + 1) / _BINS
    shares = [np.histogram(answers.uncertainty, edges)[0] / len(answers) for answers in (inside, outside)]
    return OutOfDistribution(
        name=name,
        images=len(outside),
        detection={key: _detection(pair) for key, pair in ranked.items()},
        accepted=float(accepted.mean()),
        gated=None if gated is None else float(gated.mean()),
        kinds=tuple(of_kind(*kind) for kind in each),
        apart=tuple(of_kind(*group) for group in apart if group[1].any()),
        mean_inside=float(inside.uncertainty.mean(dtype=np.float64)),
        mean_outside=float(outside.uncertainty.mean(dtype=np.float64)),
        fractions=FRACTIONS,
        mean_uncertainty=mean,
        batch_deviation=deviation,
        edges=edges,
        inside=shares[0],
        outside=shares[1],
        ranked=ranked,
    )


def _with_novelty(answers: ModelOutputs, inside: ModelOutputs) -> dict[str, npt.NDArray[np.float64] | None]:
    """The novelty score, and its combination with the uncertainty.

    Both become the share of in-distribution images that are at least as extreme, and their -log is summed (Fisher).
    """
    if answers.novelty_score is None or inside.novelty_score is None:
        return {}
    pairs = ((answers.uncertainty, inside.uncertainty), (answers.novelty_score, inside.novelty_score))
    both = sum(-np.log(_share_above(values, own)) for values, own in pairs)
    return {"novelty": answers.novelty_score.astype(np.float64), "both": np.asarray(both, np.float64)}


def _share_above(values: npt.NDArray[np.floating], own: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """The share of in-distribution values, and one more, at least as large."""
    below = np.searchsorted(np.sort(own), values, side="left")
    return np.asarray((1 + len(own) - below) / (1 + len(own)), np.float64)


def _detection(ranked: Ranked | None) -> Detection:
    if ranked is None:
        missing = Score(None, why="One pass has no model part: evaluate a Monte Carlo model with --samples 25.")
        return Detection(missing, missing)
    area, accepted = intervals.separation(*ranked).interval(), intervals.accepted_at_95(*ranked)
    return Detection(*(Score(one.value, max(one.low, 0.0), min(one.high, 1.0)) for one in (area, accepted)))


def auroc_difference(ranked: Ranked, other: Ranked) -> Interval:
    """The paired difference of the AUROC between two models."""
    return intervals.separation(*ranked).less(intervals.separation(*other))

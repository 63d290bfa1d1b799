"""Images from elsewhere: how far the uncertainty tells them from the model's own kind."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.evaluation.model_outputs import Answers
from uce_edge.evaluation.score_intervals import Score, separation
from uce_edge.rejection.rule import RejectRule, within

BATCH, BATCHES = 100, 200  # the paper's batch, and how many random ones are averaged
FRACTIONS = np.round(np.linspace(0, 1, 21), 2)
"""The foreign shares of a batch that a curve is drawn through."""
APART = {"unseen in training": False, "seen in training": True}
"""What is reported apart, and whether training saw it."""
_BINS = 20


@dataclass(frozen=True)
class Detection:
    """How well one score tells outside from inside."""

    auroc: Score
    fpr_at_95: Score


@dataclass(frozen=True)
class ForeignKind:
    """What the model says of some of the foreign images, which have something in common."""

    name: str
    images: int
    seen: bool | None
    """Whether the network was trained with such images; None for a file that does not say."""
    auroc: dict[str, float]
    """By score, as in `OutOfDistribution.detection`."""
    accepted: float
    """As in `OutOfDistribution`, like the next."""
    gated: float | None


@dataclass(frozen=True, eq=False)
class OutOfDistribution:
    """What the model says of images it was not made for."""

    name: str
    images: int
    detection: dict[str, Detection]
    """Per score: uncertainty, confidence, model_uncertainty; novelty, and both, for a file that can tell."""
    accepted: float
    """The share of them that the threshold in use accepts."""
    gated: float | None
    """The share that it and the gate against foreign images accept; None for a file without one."""
    kinds: tuple[ForeignKind, ...]
    """Each kind by itself, where they are known."""
    apart: tuple[ForeignKind, ...]
    """All kinds that training has not seen, and all that it has; empty for a file that does not say."""
    mean_inside: float
    """Mean uncertainty of the model's own kind of images."""
    mean_outside: float
    fractions: npt.NDArray[np.float64]
    """The foreign share of a batch."""
    mean_uncertainty: npt.NDArray[np.float64]
    """Of such a batch, averaged over random ones."""
    batch_deviation: npt.NDArray[np.float64]
    """The standard deviation from batch to batch."""
    edges: npt.NDArray[np.float64]
    """Bins of the uncertainty."""
    inside: npt.NDArray[np.float64]
    """The share of the own images in each bin."""
    outside: npt.NDArray[np.float64]
    """The share of the foreign images in each bin."""
    ranked: "dict[str, Ranked | None]" = field(repr=False, metadata={"json": False})
    """What every image is ranked by, for comparisons with another model; None where one pass has no such score."""


class Ranked(NamedTuple):
    """One score of every image, larger when less certain."""

    inside: npt.NDArray[np.float64]
    outside: npt.NDArray[np.float64]


def compare(
    name: str,
    inside: Answers,
    outside: Answers,
    passes: int,
    threshold: float,
    gate: RejectRule | None = None,
    kinds: Sequence[str] = (),
    seen: Collection[str] = (),
) -> OutOfDistribution:
    """Both kinds of images, seen by the same model.

    Args:
        name: What the foreign images are called.
        inside: What the model says of its own kind of images.
        outside: What it says of the foreign ones.
        passes: How many passes it took.
        threshold: What the uncertainty is compared with.
        gate: What is compared where the file can tell what is foreign.
        kinds: The kind of every foreign image, where it is known.
        seen: What the training saw, as in `Metadata.seen`.
    """
    own, foreign = (answers.scores(passes) | _with_novelty(answers, inside) for answers in (inside, outside))
    ranked = {
        key: None if mine is None or theirs is None else Ranked(mine, theirs)
        for key, mine, theirs in zip(own, own.values(), foreign.values(), strict=True)
    }
    accepted = within(outside.uncertainty, threshold)
    kept = None if gate is None else gate.accept(outside.uncertainty, outside.probabilities, outside.novelty)

    def of_kind(called: str, rows: npt.NDArray[np.bool_], known: bool | None) -> ForeignKind:
        return ForeignKind(
            name=called,
            images=int(rows.sum()),
            seen=known,
            auroc={key: metrics.ood_auroc(pair.inside, pair.outside[rows]) for key, pair in ranked.items() if pair},
            accepted=float(accepted[rows].mean()),
            gated=None if kept is None else float(kept[rows].mean()),
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
        gated=None if kept is None else float(kept.mean()),
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


def _with_novelty(answers: Answers, inside: Answers) -> dict[str, npt.NDArray[np.float64] | None]:
    """The distance from the calibration images, and its combination with the uncertainty.

    Both are turned into the share of the own images that are at least as extreme, and -log of these is added (Fisher).
    """
    if answers.novelty_score is None or inside.novelty_score is None:
        return {}
    pairs = ((answers.uncertainty, inside.uncertainty), (answers.novelty_score, inside.novelty_score))
    both = sum(-np.log(_share_above(values, own)) for values, own in pairs)
    return {"novelty": answers.novelty_score.astype(np.float64), "both": np.asarray(both, np.float64)}


def _share_above(values: npt.NDArray[np.floating], own: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """The share of own values, and one more, that are at least as large."""
    below = np.searchsorted(np.sort(own), values, side="left")
    return np.asarray((1 + len(own) - below) / (1 + len(own)), np.float64)


def mixture(
    inside: npt.ArrayLike, outside: npt.ArrayLike, fractions: npt.NDArray[np.float64], seed: int = 0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation, over random batches, of the batch's mean uncertainty at every foreign fraction.

    What was replaced once stays replaced as the fraction grows, as in the paper's figure.
    """
    rng = np.random.default_rng(seed)
    kinds = [np.asarray(values, np.float64) for values in (inside, outside)]
    # Batch by batch, its own images before the foreign ones: the order in which the published curves were drawn.
    drawn = np.array([[rng.choice(values, BATCH) for values in kinds] for _ in range(BATCHES)])
    sums = np.pad(drawn.cumsum(axis=2), ((0, 0), (0, 0), (1, 0)))
    own, foreign = sums[:, 0], sums[:, 1]
    replaced = np.rint(fractions * BATCH).astype(int)
    means = (foreign[:, replaced] + own[:, -1:] - own[:, replaced]) / BATCH
    return means.mean(axis=0), means.std(axis=0, ddof=1)


def _detection(ranked: Ranked | None) -> Detection:
    if ranked is None:
        missing = Score(None, why="One pass has no model part: evaluate a Monte Carlo model with --samples 25.")
        return Detection(missing, missing)
    return Detection(*separation(*ranked))

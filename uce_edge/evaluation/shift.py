"""Accuracy and uncertainty on corrupted images."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.errors import UsageError, argument
from uce_edge.evaluation.model_outputs import ModelOutputs, predict_all
from uce_edge.images.corruptions import KINDS, SEVERITIES, corrupt
from uce_edge.rejection.rule import RejectRule, within
from uce_edge.runtime.model import Model


@dataclass(frozen=True)
class Condition:
    """One corruption at one severity; severity 0 is no corruption."""

    severity: int
    accuracy: float
    uncertainty: float
    """The mean."""
    uce: float
    coverage: float
    """The share that the threshold in use accepts."""
    error: float | None
    """The error of the accepted images; None if there are none."""
    gated_coverage: float | None = None
    """The share that the threshold and the cutoff on novelty accept; None for a file without a cutoff."""
    gated_error: float | None = None
    """The error of these images; None if there are none."""


@dataclass(frozen=True)
class Pooled:
    """Several corruptions in all severities together."""

    kinds: tuple[str, ...]
    seen: bool
    """Whether the network was trained with them."""
    accuracy: float
    coverage: float
    error: float | None
    """The error of all accepted images; None if there are none."""
    gated_coverage: float | None
    gated_error: float | None


@dataclass(frozen=True, eq=False)
class Shift:
    """All corruptions, each from severity 0 to 5."""

    images: int
    threshold: float
    curves: dict[str, tuple[Condition, ...]]
    pictures: dict[str, tuple[npt.NDArray[Any], ...]] = field(repr=False, metadata={"json": False})
    """Their effect on one of the images."""
    apart: tuple[Pooled, ...] = ()
    """The kinds unseen in training, and the seen ones; empty if unknown."""

    def seen(self, kind: str) -> bool | None:
        """Whether the network was trained with a corruption; None if unknown."""
        return next((group.seen for group in self.apart if kind in group.kinds), None)


def check(model: Model) -> None:
    """Refuse a model whose images have no defined range."""
    if model.metadata.image.dtype != "uint8":
        raise UsageError(
            f"Corruptions are defined for uint8 images, and {model.path} takes {model.metadata.image.dtype}. "
            f"Evaluate it without {argument('corrupt')}.",
            "image.not-uint8",
        )


def sweep(
    model: Model,
    images: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    clean: ModelOutputs,
    *,
    limit: int,
    threshold: float,
    samples: int | None,
    seed: int,
    gate: RejectRule | None = None,
    seen: Collection[str] = (),
) -> Shift:
    """Evaluate every corruption on the same images.

    Args:
        model: The model.
        images: All images; at most `limit` of them, drawn at random, are corrupted.
        labels: Their true classes.
        clean: The model's outputs for the original images.
        limit: The most images.
        threshold: The limit on the uncertainty.
        samples: The number of passes, as in `Model.predict`.
        seed: The seed of the passes.
        gate: The rule in use, for a file with a cutoff on novelty.
        seen: The kinds that training saw, as in `Metadata.seen`.
    """
    # At random, because a folder is sorted by class; sorted, so that the pixels are read in order.
    chosen = np.sort(np.random.default_rng(0).permutation(len(labels))[:limit])
    pixels, truth = images[chosen], labels[chosen]
    first = _condition(0, clean.part(chosen), truth, threshold, gate)
    curves, pictures = {}, {}
    for kind in KINDS:
        conditions, shown = [first], [pixels[0]]
        for severity in SEVERITIES:
            damaged = corrupt(pixels, kind, severity)
            answers = predict_all(model, damaged, samples, seed, f"{kind} {severity}")
            conditions.append(_condition(severity, answers, truth, threshold, gate))
            shown.append(damaged[0].copy())
        curves[str(kind)], pictures[str(kind)] = tuple(conditions), tuple(shown)
    groups = [pooled(curves, [kind for kind in curves if (kind in seen) is known], known) for known in (False, True)]
    apart = tuple(group for group in groups if seen and group is not None)
    return Shift(len(chosen), threshold, curves, pictures, apart)


def pooled(curves: dict[str, tuple[Condition, ...]], kinds: Iterable[str], seen: bool) -> Pooled | None:
    """Combine several corruptions without severity 0; None for no kinds."""
    kinds = tuple(kinds)
    damaged = [one for kind in kinds for one in curves[kind] if one.severity]
    if not damaged:
        return None
    gated = [(one.gated_coverage, one.gated_error) for one in damaged if one.gated_coverage is not None]
    return Pooled(
        kinds=kinds,
        seen=seen,
        accuracy=float(np.mean([one.accuracy for one in damaged])),
        coverage=float(np.mean([one.coverage for one in damaged])),
        error=_error([(one.coverage, one.error) for one in damaged]),
        gated_coverage=float(np.mean([coverage for coverage, _ in gated])) if gated else None,
        gated_error=_error(gated),
    )


def _error(conditions: list[tuple[float, float | None]]) -> float | None:
    """The error of all accepted images; conditions have equally many images."""
    accepted = sum(coverage for coverage, _ in conditions)
    return sum(coverage * (error or 0.0) for coverage, error in conditions) / accepted if accepted else None


def _condition(
    severity: int, answers: ModelOutputs, truth: npt.NDArray[np.int64], threshold: float, gate: RejectRule | None
) -> Condition:
    accepted = within(answers.uncertainty, threshold)
    wrong = answers.table.predicted != truth
    gated = None if gate is None else gate.accept(answers.uncertainty, answers.probabilities, answers.novelty)
    return Condition(
        severity=severity,
        accuracy=float(1 - wrong.mean()),
        uncertainty=float(answers.uncertainty.mean(dtype=np.float64)),
        uce=metrics.uce(answers.table, truth),
        coverage=float(accepted.mean()),
        error=float(wrong[accepted].mean()) if accepted.any() else None,
        gated_coverage=None if gated is None else float(gated.mean()),
        gated_error=float(wrong[gated].mean()) if gated is not None and gated.any() else None,
    )

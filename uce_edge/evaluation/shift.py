"""The same images, damaged more and more: whether the uncertainty notices what the accuracy loses."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.errors import UsageError, argument
from uce_edge.evaluation.model_outputs import Answers, ask
from uce_edge.images.corruptions import KINDS, SEVERITIES, corrupt
from uce_edge.rejection.rule import RejectRule, within
from uce_edge.runtime.model import Model


@dataclass(frozen=True)
class Condition:
    """One corruption at one severity; severity 0 is the images as they are."""

    severity: int
    accuracy: float
    uncertainty: float
    """The mean."""
    uce: float
    coverage: float
    """The share that the threshold in use accepts."""
    error: float | None
    """Of the accepted images; None when none is accepted."""
    gated_coverage: float | None = None
    """The share that the threshold and the gate against foreign images accept; None for a file without one."""
    gated_error: float | None = None
    """Of these images; None when there are none."""


@dataclass(frozen=True)
class Pooled:
    """Some corruptions in all their severities, taken together."""

    kinds: tuple[str, ...]
    seen: bool
    """Whether the network was trained with them."""
    accuracy: float
    coverage: float
    error: float | None
    """Of all accepted images; None when none is accepted."""
    gated_coverage: float | None
    gated_error: float | None


@dataclass(frozen=True, eq=False)
class Shift:
    """All corruptions, each from severity 0 to 5."""

    images: int
    threshold: float
    curves: dict[str, tuple[Condition, ...]]
    pictures: dict[str, tuple[npt.NDArray[Any], ...]] = field(repr=False, metadata={"json": False})
    """What they do to one of the images."""
    apart: tuple[Pooled, ...] = ()
    """The kinds that training has not seen, and those that it has; empty for a file that does not say."""

    def seen(self, kind: str) -> bool | None:
        """Whether the network was trained with a corruption; None where the file does not say."""
        return next((group.seen for group in self.apart if kind in group.kinds), None)


def check(model: Model) -> None:
    """Refuse a model whose images have no defined range: how much is a severity of theirs?"""
    if model.metadata.image.dtype != "uint8":
        raise UsageError(
            f"Only uint8 images can be damaged in known steps, and {model.path} takes {model.metadata.image.dtype}. "
            f"Evaluate it without {argument('corrupt')}.",
            "image.not-uint8",
        )


def sweep(
    model: Model,
    images: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    clean: Answers,
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
        images: All images; at most `limit` of them, drawn at random, are damaged.
        labels: Their true classes.
        clean: What the model says of them as they are.
        limit: How many images are used.
        threshold: What the coverage refers to.
        samples: Passes, as in `Model.predict`.
        seed: Which passes.
        gate: What is compared where the file can tell what is foreign.
        seen: What the training saw, as in `Metadata.seen`.
    """
    # At random, because a folder is in the order of its classes; sorted, so that the pixels are read forwards.
    chosen = np.sort(np.random.default_rng(0).permutation(len(labels))[:limit])
    pixels, truth = images[chosen], labels[chosen]
    first = _condition(0, clean.part(chosen), truth, threshold, gate)
    curves, pictures = {}, {}
    for kind in KINDS:
        conditions, shown = [first], [pixels[0]]
        for severity in SEVERITIES:
            damaged = corrupt(pixels, kind, severity)
            answers = ask(model, damaged, samples, seed, f"{kind} {severity}")
            conditions.append(_condition(severity, answers, truth, threshold, gate))
            shown.append(damaged[0].copy())
        curves[str(kind)], pictures[str(kind)] = tuple(conditions), tuple(shown)
    groups = [pooled(curves, [kind for kind in curves if (kind in seen) is known], known) for known in (False, True)]
    apart = tuple(group for group in groups if seen and group is not None)
    return Shift(len(chosen), threshold, curves, pictures, apart)


def pooled(curves: dict[str, tuple[Condition, ...]], kinds: Iterable[str], seen: bool) -> Pooled | None:
    """Some kinds of damage together, without the images as they are; None for no kinds."""
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
    """The share of wrong images among all accepted ones; every condition has the same number of images."""
    accepted = sum(coverage for coverage, _ in conditions)
    return sum(coverage * (error or 0.0) for coverage, error in conditions) / accepted if accepted else None


def _condition(
    severity: int, answers: Answers, truth: npt.NDArray[np.int64], threshold: float, gate: RejectRule | None
) -> Condition:
    accepted = within(answers.uncertainty, threshold)
    wrong = answers.table.predicted != truth
    kept = None if gate is None else gate.accept(answers.uncertainty, answers.probabilities, answers.novelty)
    return Condition(
        severity=severity,
        accuracy=float(1 - wrong.mean()),
        uncertainty=float(answers.uncertainty.mean(dtype=np.float64)),
        uce=metrics.uce(answers.table, truth),
        coverage=float(accepted.mean()),
        error=float(wrong[accepted].mean()) if accepted.any() else None,
        gated_coverage=None if kept is None else float(kept.mean()),
        gated_error=float(wrong[kept].mean()) if kept is not None and kept.any() else None,
    )

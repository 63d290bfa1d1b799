"""Compare several files on the same images, with paired differences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uce_edge import metrics
from uce_edge._util.progress import progress
from uce_edge.bench.measurements import Measurement
from uce_edge.contract import Inference
from uce_edge.errors import UsageError, expected
from uce_edge.evaluation.ood import Ranked, auroc_difference
from uce_edge.evaluation.rejection_results import Kept
from uce_edge.evaluation.results import Evaluation, plain
from uce_edge.evaluation.set_results import Sets
from uce_edge.metadata import Metadata
from uce_edge.metrics import Interval, intervals

COMPARED = ("accuracy", "nll", "ece", "debiased_ece", "tuce", "debiased_tuce", "uce", "aurc")
"""The compared metrics, as in `score_intervals.METRICS`."""
JUDGED = ("accuracy", "nll", "aurc")
"""The metrics that decide: labels, probabilities, and the order of rejection. Calibration errors decide only between
files with equally good labels, because a constant prediction can have none. The verdict names them."""
CALIBRATION = ("debiased_ece", "debiased_tuce")
"""The calibration errors that the verdict names."""
OOD_SCORES = ("uncertainty", "novelty", "both")
"""The scores that detect out-of-distribution images, from the weakest to the best."""
COVERAGE, OOD = "coverage", "foreign"
"""Values of `Standing.what`, which are part of the JSON format."""


@dataclass(frozen=True)
class Price:
    """The cost of one image at the stored number of passes."""

    passes: int
    file_mb: float
    macs: int | None
    """Multiply-accumulates from the metadata; None if unknown."""
    measured: Measurement | None = None
    """Milliseconds, and their ratio to the reference; None without a measurement."""


@dataclass(frozen=True, eq=False)
class Compared:
    """One file and its differences to the reference."""

    name: str
    evaluation: Evaluation
    price: Price
    macs_ratio: float | None
    """Its multiply-accumulates over those of the reference."""
    kept: Kept | None
    """The results of its stored rule; None for a file without a promised error."""
    differences: dict[str, Interval]
    """By metric, where both have it; empty for the reference."""
    coverage: Interval | None
    """The difference of the stored rules' coverage, where both promise the same error."""
    set_size: Interval | None
    """The difference of the mean size of the prediction sets, where both make the same promise."""
    ood: dict[str, dict[str, Interval]] = field(metadata={"json": "foreign"})
    """The difference of the AUROC, by the name of the out-of-distribution images and by score."""

    @property
    def ratio(self) -> float | None:
        """Its cost over the reference's: median milliseconds, else multiply-accumulates."""
        return self.macs_ratio if self.price.measured is None else self.price.measured.ratio


@dataclass(frozen=True)
class Standing:
    """The best file by one criterion, and its ties."""

    what: str
    """A metric, `COVERAGE` or `OOD`."""
    about: str
    """The promised error, or the name of the out-of-distribution images."""
    best: str
    tied: tuple[str, ...]
    """The best file, and all files whose difference to it may be 0."""
    differences: dict[str, Interval]
    """The difference of every other file to the best one."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results of several files on the same labelled images."""

    reference: str
    """The file that differences and prices refer to."""
    files: tuple[Compared, ...]
    standings: tuple[Standing, ...]
    winner: str | None
    """The cheapest file that no other file beats in any of `JUDGED`; None if there is no such file."""
    threads: int | None
    """The number of threads of the measurement; None for all cores."""
    notes: tuple[str, ...] = field(default=())
    """Caveats of the numbers."""

    def __getitem__(self, name: str) -> Compared:
        return next(one for one in self.files if one.name == name)

    def standing(self, what: str) -> Standing:
        """The standing of a metric."""
        return next(one for one in self.standings if one.what == what)

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON, with the whole evaluation of each file."""
        document: dict[str, Any] = plain(self)
        for shown, one in zip(document["files"], self.files, strict=True):
            shown["evaluation"] = one.evaluation.as_dict()
        return document


def reference_of(described: Mapping[str, Metadata]) -> str:
    """The reference file: the first single deterministic network, else the first."""
    return next(
        (name for name, one in described.items() if one.inference is Inference.DETERMINISTIC and one.members == 1),
        next(iter(described)),
    )


def check_alike(described: Mapping[str, Metadata]) -> None:
    """Refuse files with different classes or image formats."""
    names = list(described)
    first = described[names[0]]
    for name, other in described.items():
        if other.classes != first.classes:
            unlike = set(other.classes) ^ set(first.classes)
            what = f"{len(other.classes)} classes" if len(other.classes) != len(first.classes) else "others"
            what = "the same ones in another order" if not unlike else what
            remedy = "Compare files that were trained for the same classes"
            raise UsageError(
                expected(f"the classes of {name}", f"those of {names[0]}", what, remedy), "comparison.classes"
            )
        images = first.image, other.image
        sizes = [image.words for image in images]
        if sizes[0] != sizes[1]:
            remedy = "Compare files that take the same images"
            raise UsageError(
                expected(f"the image of {name}", f"that of {names[0]} ({sizes[0]})", sizes[1], remedy),
                "comparison.image",
            )


def compare(
    evaluations: Mapping[str, Evaluation],
    prices: Mapping[str, Price],
    *,
    threads: int | None = None,
) -> Comparison:
    """Compare files that were evaluated on the same images.

    Args:
        evaluations: The evaluations of at least two files, by name.
        prices: The cost of the same files.
        threads: The number of threads of the measurement.

    Raises:
        UsageError: The files cannot be compared.
    """
    check_alike({name: one.metadata for name, one in evaluations.items()})
    first = next(iter(evaluations.values()))
    for name, other in evaluations.items():
        if not np.array_equal(other.truth, first.truth):
            remedy = "Evaluate every file on the same images, in the same order"
            raise UsageError(
                expected(f"the labels of {name}", "those of the first file", "others", remedy), "comparison.labels"
            )
    kept = {name: one.kept for name, one in evaluations.items()}
    reference = reference_of({name: one.metadata for name, one in evaluations.items()})
    base = evaluations[reference]
    others = [name for name in evaluations if name != reference]
    with progress("comparing", len(others) + len(JUDGED)) as advance:
        files = []
        for name, one in evaluations.items():
            same = name == reference
            files.append(
                Compared(
                    name=name,
                    evaluation=one,
                    price=prices[name],
                    macs_ratio=_ratio(prices[name].macs, prices[reference].macs),
                    kept=one.kept,
                    differences={} if same else _differences(one, base),
                    coverage=None if same else _coverage(one.kept, base.kept),
                    set_size=None if same else _set_size(one.sets, base.sets),
                    ood={} if same else _ood_differences(one, base),
                )
            )
            advance(0 if same else 1)
        standings = []
        for metric in JUDGED:
            standings.append(_judged(metric, evaluations))
            advance(1)
    standings += _promises(kept)
    standings += [_detection(at, evaluations) for at in range(len(first.ood))]
    return Comparison(
        reference=reference,
        files=tuple(files),
        standings=tuple(standings),
        winner=_winner(files, standings),
        threads=threads,
        notes=_notes(evaluations),
    )


def _ratio(macs: int | None, reference: int | None) -> float | None:
    return macs / reference if macs is not None and reference else None


def _difference(metric: str, one: Evaluation, other: Evaluation) -> Interval | None:
    """None where the metric is not defined for both files."""
    if one.metrics[metric].value is None or other.metrics[metric].value is None:
        return None
    tables = one.answers.table, other.answers.table
    return metrics.difference(metric, *tables, one.truth)


def _differences(one: Evaluation, base: Evaluation) -> dict[str, Interval]:
    found = {metric: _difference(metric, one, base) for metric in COMPARED}
    return {metric: interval for metric, interval in found.items() if interval is not None}


def _coverage(one: Kept | None, other: Kept | None) -> Interval | None:
    if one is None or other is None or one.target_error != other.target_error:
        return None
    return intervals.share_difference(one.accepted, other.accepted)


def _set_size(one: Sets | None, other: Sets | None) -> Interval | None:
    if one is None or other is None or (one.alpha, one.by_class) != (other.alpha, other.by_class):
        return None
    return intervals.mean_difference(one.sizes, other.sizes, len(one.classes))


def _ood_differences(one: Evaluation, base: Evaluation) -> dict[str, dict[str, Interval]]:
    return {
        ours.name: {
            score: auroc_difference(ranked, other)
            for score in OOD_SCORES
            if (ranked := ours.ranked.get(score)) and (other := theirs.ranked.get(score))
        }
        for ours, theirs in zip(one.ood, base.ood, strict=True)
    }


def _judged(metric: str, evaluations: Mapping[str, Evaluation]) -> Standing:
    sign = 1 if metric == "accuracy" else -1
    scores = {name: one.metrics[metric].value for name, one in evaluations.items()}
    known = {name: sign * value for name, value in scores.items() if value is not None}
    if not known:
        return Standing(metric, "", next(iter(evaluations)), tuple(evaluations), {})
    return _standing(metric, "", known, lambda name, best: _difference(metric, evaluations[name], evaluations[best]))


def _promises(results: Mapping[str, Kept | None]) -> list[Standing]:
    """One standing for every error that at least two files promise."""
    by_error: dict[float, dict[str, Kept]] = {}
    for name, one in results.items():
        if one is not None:
            by_error.setdefault(one.target_error, {})[name] = one
    return [
        _standing(
            COVERAGE,
            f"{target:g}",
            {name: one.coverage for name, one in same.items()},
            lambda name, best, same=same: _coverage(same[name], same[best]),  # type: ignore[misc]
        )
        for target, same in by_error.items()
        if len(same) > 1
    ]


def _detection(at: int, evaluations: Mapping[str, Evaluation]) -> Standing:
    """The standing on one out-of-distribution set, by each file's best score."""
    ranked = {name: best_score(one, at)[1] for name, one in evaluations.items()}
    return _standing(
        OOD,
        next(iter(evaluations.values())).ood[at].name,
        {name: metrics.ood_auroc(*pair) for name, pair in ranked.items()},
        lambda name, best: auroc_difference(ranked[name], ranked[best]),
    )


def best_score(evaluation: Evaluation, at: int) -> tuple[str, Ranked]:
    """The best score of a file on an out-of-distribution set."""
    ranked = evaluation.ood[at].ranked
    return [(score, pair) for score in OOD_SCORES if (pair := ranked.get(score)) is not None][-1]


def _standing(
    what: str, about: str, known: Mapping[str, float], difference: Callable[[str, str], Interval | None]
) -> Standing:
    """From values of which the largest is best."""
    best = max(known, key=lambda name: known[name])
    found = {name: difference(name, best) for name in known if name != best}
    differences = {name: interval for name, interval in found.items() if interval is not None}
    tied = (best, *(name for name, interval in differences.items() if holds_zero(interval)))
    return Standing(what, about, best, tied, differences)


def holds_zero(difference: Interval) -> bool:
    """Whether a difference may be chance."""
    return difference.low <= 0 <= difference.high


def lost_calibration(one: Compared) -> bool:
    """Whether a file is worse calibrated than the reference, and has no better labels for it."""
    labels = one.differences.get("accuracy")
    if labels is not None and labels.low > 0:
        return False
    return any(gap.low > 0 for metric in CALIBRATION if (gap := one.differences.get(metric)) is not None)


def _winner(files: Sequence[Compared], standings: Sequence[Standing]) -> str | None:
    judged = [one for one in standings if one.what in JUDGED]
    unbeaten = [
        one for one in files if all(one.name in standing.tied for standing in judged) and not lost_calibration(one)
    ]
    # An unknown price is the highest; of equal prices the first file wins.
    prices = [float("inf") if one.ratio is None else one.ratio for one in unbeaten]
    return unbeaten[int(np.argmin(prices))].name if unbeaten else None


def _notes(evaluations: Mapping[str, Evaluation]) -> tuple[str, ...]:
    """The notes of all files; a note of every file appears once."""
    whose: dict[str, list[str]] = {}
    for name, one in evaluations.items():
        for note in one.notes:
            whose.setdefault(note, []).append(name)
    return tuple(
        note if len(names) == len(evaluations) else f"{', '.join(names)}: {note}" for note, names in whose.items()
    )

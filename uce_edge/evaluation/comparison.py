"""Several files on the same images: all of them against one, and each metric's best against the others.

Differences are paired: both files answer the same images.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge._util.progress import progress
from uce_edge.bench.measurements import Measurement
from uce_edge.contract import Inference
from uce_edge.errors import UsageError, expected
from uce_edge.evaluation.ood import Ranked
from uce_edge.evaluation.rejection_results import Kept
from uce_edge.evaluation.results import Evaluation, plain
from uce_edge.evaluation.score_intervals import separation_difference
from uce_edge.metadata import Metadata
from uce_edge.metrics import Interval, intervals

COMPARED = ("accuracy", "nll", "ece", "debiased_ece", "tuce", "debiased_tuce", "uce", "aurc")
"""What files are compared by, as in `score_intervals.METRICS`."""
JUDGED = ("accuracy", "nll", "aurc")
"""What decides: labels, probabilities, and the order in which images are rejected. Errors of calibration do not: a file
that says the same of every image can have none. The sentence names them beside the winner."""
CALIBRATION = ("debiased_ece", "debiased_tuce")
"""What a winner may have lost."""
FOREIGN_SCORES = ("uncertainty", "novelty", "both")
"""What foreign images are told by, the last that a file has being its best."""
COVERAGE, FOREIGN = "coverage", "foreign"


@dataclass(frozen=True)
class Price:
    """What one image costs at the file's own number of passes."""

    passes: int
    file_mb: float
    macs: int | None
    """Multiply-accumulates, as the file says; None for one that does not."""
    measured: Measurement | None = None
    """Milliseconds, and their ratio to the reference; None when nothing was timed."""


@dataclass(frozen=True, eq=False)
class Compared:
    """One file, and its differences to the reference; the reference itself has none."""

    name: str
    evaluation: Evaluation
    price: Price
    macs_ratio: float | None
    """Its multiply-accumulates over those of the reference."""
    kept: Kept | None
    """What its stored rule accepts; None for a file that promises no error."""
    differences: dict[str, Interval]
    """By metric, where both have it."""
    coverage: Interval | None
    """The difference of what the stored rules accept, where both promise the same error."""
    foreign: dict[str, dict[str, Interval]]
    """By the name of the foreign images and by score, the difference of the AUROC."""

    @property
    def ratio(self) -> float | None:
        """Its price over that of the reference: by median milliseconds, or else by multiply-accumulates."""
        return self.macs_ratio if self.price.measured is None else self.price.measured.ratio


@dataclass(frozen=True)
class Standing:
    """Which file is best at one thing, and which are not worse beyond chance."""

    what: str
    """A metric, "coverage" or "foreign"."""
    about: str
    """The promised error, or the name of the foreign images."""
    best: str
    tied: tuple[str, ...]
    """The best one, and all whose difference to it may be 0."""
    differences: dict[str, Interval]
    """Of every other file to the best one."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """How several files did on the same labelled images."""

    reference: str
    """The file that differences and prices refer to."""
    files: tuple[Compared, ...]
    standings: tuple[Standing, ...]
    winner: str | None
    """The cheapest file that none is better than in any of `JUDGED`; None when there is no such file."""
    threads: int | None
    """With which the price was measured; None for all cores."""
    notes: tuple[str, ...] = field(default=())
    """What a reader must know before believing the numbers."""

    def __getitem__(self, name: str) -> Compared:
        return next(one for one in self.files if one.name == name)

    def standing(self, what: str) -> Standing:
        """That of a metric."""
        return next(one for one in self.standings if one.what == what)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, each file with its whole evaluation."""
        document: dict[str, Any] = plain(self)
        for shown, one in zip(document["files"], self.files, strict=True):
            shown["evaluation"] = one.evaluation.as_dict()
        return document


def reference_of(described: Mapping[str, Metadata]) -> str:
    """The name of the file that others are compared with: the first single deterministic network, or else the first."""
    return next(
        (name for name, one in described.items() if one.inference is Inference.DETERMINISTIC and one.members == 1),
        next(iter(described)),
    )


def check_alike(described: Mapping[str, Metadata]) -> None:
    """Refuse files that cannot answer the same images with the same classes."""
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
        evaluations: Those of at least two files, by name.
        prices: What the same files cost.
        threads: With which that was measured.

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
    rules = {name: one.kept for name, one in evaluations.items()}
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
                    kept=rules[name],
                    differences={} if same else _differences(one, base),
                    coverage=None if same else _coverage(rules[name], rules[reference]),
                    foreign={} if same else _foreign(one, base),
                )
            )
            advance(0 if same else 1)
        standings = []
        for metric in JUDGED:
            standings.append(_judged(metric, evaluations))
            advance(1)
    standings += _promises(rules)
    standings += [_outside(at, evaluations) for at in range(len(first.ood))]
    return Comparison(
        reference=reference,
        files=tuple(files),
        standings=tuple(standings),
        winner=_winner(files, standings),
        threads=threads,
        notes=_notes(evaluations),
    )


def _wrong(evaluation: Evaluation) -> npt.NDArray[np.bool_]:
    return np.asarray(evaluation.answers.table.predicted != evaluation.truth)


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


def _foreign(one: Evaluation, base: Evaluation) -> dict[str, dict[str, Interval]]:
    found: dict[str, dict[str, Interval]] = {}
    for ours, theirs in zip(one.ood, base.ood, strict=True):
        pairs = {score: (ours.ranked.get(score), theirs.ranked.get(score)) for score in FOREIGN_SCORES}
        found[ours.name] = {
            score: separation_difference(mine, other)
            for score, (mine, other) in pairs.items()
            if mine is not None and other is not None
        }
    return found


def _judged(metric: str, evaluations: Mapping[str, Evaluation]) -> Standing:
    sign = 1 if metric == "accuracy" else -1
    scores = {name: one.metrics[metric].value for name, one in evaluations.items()}
    known = {name: sign * value for name, value in scores.items() if value is not None}
    if not known:
        return Standing(metric, "", next(iter(evaluations)), tuple(evaluations), {})
    return _standing(metric, "", known, lambda name, best: _difference(metric, evaluations[name], evaluations[best]))


def _promises(rules: Mapping[str, Kept | None]) -> list[Standing]:
    """One for every error that two files at least promise."""
    made: dict[float, dict[str, Kept]] = {}
    for name, rule in rules.items():
        if rule is not None:
            made.setdefault(rule.target_error, {})[name] = rule
    return [
        _standing(
            COVERAGE,
            f"{target:g}",
            {name: rule.coverage for name, rule in same.items()},
            lambda name, best, same=same: _coverage(same[name], same[best]),  # type: ignore[misc]
        )
        for target, same in made.items()
        if len(same) > 1
    ]


def _outside(at: int, evaluations: Mapping[str, Evaluation]) -> Standing:
    """Of one set of foreign images, each file by the best score that it has."""
    ranked = {name: best_score(one, at)[1] for name, one in evaluations.items()}
    return _standing(
        FOREIGN,
        next(iter(evaluations.values())).ood[at].name,
        {name: metrics.ood_auroc(*pair) for name, pair in ranked.items()},
        lambda name, best: separation_difference(ranked[name], ranked[best]),
    )


def best_score(evaluation: Evaluation, at: int) -> tuple[str, Ranked]:
    """What a file tells the foreign images of a set by: with a gate both scores, else the uncertainty."""
    there = [(score, evaluation.ood[at].ranked.get(score)) for score in FOREIGN_SCORES]
    return [(score, pair) for score, pair in there if pair is not None][-1]


def _standing(
    what: str, about: str, known: Mapping[str, float], difference: Callable[[str, str], Interval | None]
) -> Standing:
    """From values of which the largest is best."""
    best = max(known, key=lambda name: known[name])
    found = {name: difference(name, best) for name in known if name != best}
    told = {name: interval for name, interval in found.items() if interval is not None}
    tied = (best, *(name for name, interval in told.items() if holds_zero(interval)))
    return Standing(what, about, best, tied, told)


def holds_zero(difference: Interval) -> bool:
    """Whether a difference may be chance."""
    return difference.low <= 0 <= difference.high


def _winner(files: Sequence[Compared], standings: Sequence[Standing]) -> str | None:
    judged = [one for one in standings if one.what in JUDGED]
    unbeaten = [one for one in files if all(one.name in standing.tied for standing in judged)]
    # A file of unknown price is taken last, and of equal ones the first.
    prices = [float("inf") if one.ratio is None else one.ratio for one in unbeaten]
    return unbeaten[int(np.argmin(prices))].name if unbeaten else None


def _notes(evaluations: Mapping[str, Evaluation]) -> tuple[str, ...]:
    """Those of the files; what is true of all is said once."""
    whose: dict[str, list[str]] = {}
    for name, one in evaluations.items():
        for note in one.notes:
            whose.setdefault(note, []).append(name)
    return tuple(
        note if len(names) == len(evaluations) else f"{', '.join(names)}: {note}" for note, names in whose.items()
    )

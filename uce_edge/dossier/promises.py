"""The promises of a file, beside what test images show.

A promise is kept where the 95 % bound of these images is within it, and broken where these images refute it: under the
promise, so many failures have a probability below 5 %. Otherwise the images cannot decide.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from uce_edge._util.printable import shown
from uce_edge.calibration.label_sets import LabelSets
from uce_edge.evaluation import Evaluation, rejection_results, set_results
from uce_edge.evaluation.rejection_results import Gated, Kept, KeptClass
from uce_edge.evaluation.set_results import Sets
from uce_edge.output.wording import at_most, percent
from uce_edge.rejection.guarantee import upper_bound
from uce_edge.rejection.promises import ErrorPromise

_RISK = 0.05
_NAMED = 3


@dataclass(frozen=True)
class PromiseCheck:
    """A promise of the file, beside what the test images show."""

    name: str
    """In a word or two."""
    promise: str
    proved_on: str
    here: str
    kept: bool | None
    """None where the images cannot decide."""


def check(evaluation: Evaluation, units: npt.NDArray[np.generic] | None) -> list[PromiseCheck]:
    """Compare every promise of a file with its evaluation.

    Args:
        evaluation: All outputs for the test images.
        units: The group of every image, of which one image is used; None if the images are independent.
    """
    metadata, rows = evaluation.metadata, _independent(units, evaluation.images)
    answers, truth = evaluation.answers.part(rows), evaluation.truth[rows]
    wrong, rule, classes = answers.table.predicted != truth, metadata.rule, metadata.classes
    found = []
    kept = rejection_results.kept(answers, wrong, rule)
    if kept is not None and metadata.promise is not None:
        found.append(_error(kept, metadata.promise, wrong))
        labels = rejection_results.kept_classes(answers, wrong, classes, rule)
        if labels:
            found.append(_error_by_label(labels, metadata.promise))
    gated = rejection_results.gated(answers, wrong, rejection_results.gate_of(rule, None))
    if gated is not None:
        found.append(_gate(gated, len(rows)))
    sets = set_results.measure(metadata.sets, answers.probabilities.astype(np.float32), truth, classes)
    if sets is not None and metadata.sets is not None:
        found.append(_sets(sets, metadata.sets))
    few = "" if len(rows) == evaluation.images else f" (one image of each of {len(rows):,} groups or copies)"
    return [replace(one, here=one.here + few) for one in found]


def decided(failures: int, images: int, target: float, risk: float = _RISK) -> bool | None:
    """Whether a promised share of failures is kept; None where these images cannot tell."""
    if not images:
        return None
    if upper_bound(failures, images, 1 - risk) <= target:
        return True
    return False if 1 - upper_bound(images - failures, images, 1 - risk) > target else None


def sets_decided(missed: int, images: int, fitted: int, alpha: float, risk: float = _RISK) -> bool | None:
    """Whether prediction sets keep their promise; None where these images cannot tell.

    The promise is an average over the images that fitted the limit. Given these, the share of sets without the true
    label has a beta distribution, so the number here is beta-binomial (Vovk 2012).

    Args:
        missed: Sets without the true label.
        images: All sets.
        fitted: The images that fitted the limit.
        alpha: The promised largest share.
        risk: The probability of a wrong result, for each of the two.
    """
    if not images:
        return None
    if upper_bound(missed, images, 1 - risk) <= alpha:
        return True
    failing = max(1, math.floor((fitted + 1) * alpha))
    holding = max(1, fitted + 1 - failing)

    def log_beta(a: float, b: float) -> float:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    def probability(count: int) -> float:
        ways = -math.log(images + 1) - log_beta(count + 1, images - count + 1)
        return math.exp(ways + log_beta(count + failing, images - count + holding) - log_beta(failing, holding))

    return False if math.fsum(map(probability, range(missed, images + 1))) < risk else None


def _independent(units: npt.NDArray[np.generic] | None, images: int) -> npt.NDArray[np.int64]:
    """A fixed random image of each group, rising."""
    if units is None:
        return np.arange(images)
    order = np.random.default_rng(0).permutation(images)
    _, first = np.unique(units[order], return_index=True)
    return np.sort(order[first])


def _error(kept: Kept, stored: ErrorPromise, wrong: npt.NDArray[np.bool_]) -> PromiseCheck:
    errors, accepted = int((kept.accepted & wrong).sum()), int(kept.accepted.sum())
    error = "no image is accepted" if kept.error is None else f"{errors:,} of {accepted:,} accepted images are wrong"
    return PromiseCheck(
        "accepted error",
        f"of the accepted images at most {percent(kept.target_error)} are wrong, with confidence "
        f"{percent(kept.confidence, 0)}",
        f"{stored.images:,} images that nothing was fitted on, by an exact binomial bound that allows for the search "
        "of the limit",
        f"{error}; {percent(kept.coverage)} are accepted; 95 % bound {at_most(kept.error_bound)}",
        decided(errors, accepted, kept.target_error),
    )


def _error_by_label(labels: Sequence[KeptClass], stored: ErrorPromise) -> PromiseCheck:
    found = {
        one.label: decided(round((one.error or 0) * one.accepted), one.accepted, one.target_error, _RISK / len(labels))
        for one in labels
        if one.target_error is not None
    }
    return PromiseCheck(
        "accepted error by label",
        "of the accepted images with each label at most the share of that label is wrong",
        f"{stored.images:,} images that nothing was fitted on, by a bound for each of {stored.tested} labels",
        f"{_by_name(found, 'labels')}; {len(labels) - len(found)} of {len(labels)} labels have no promise",
        _together(found.values()),
    )


def _gate(gated: Gated, images: int) -> PromiseCheck:
    rejected = round(gated.own_rejected * images)
    return PromiseCheck(
        "novelty gate",
        f"at most {percent(gated.level)} of images like the calibration images are rejected as out of distribution",
        "images that nothing was fitted on, by the exact bound of an order statistic",
        f"{rejected:,} of {images:,} are rejected ({percent(gated.own_rejected, 2)})",
        decided(rejected, images, gated.level),
    )


def _sets(sets: Sets, stored: LabelSets) -> PromiseCheck:
    of_all = f"{sets.covered.count:,} of {sets.covered.of:,} sets contain the true label; {sets.size.value:.2f} labels "
    each = {
        one.name: sets_decided(
            one.images - one.covered.count,
            one.images,
            round(stored.images * one.images / sets.covered.of),  # the file counts the images of all classes
            sets.alpha,
            _RISK / len(sets.classes),
        )
        for one in sets.classes
        if one.images
    }
    whole = sets_decided(sets.covered.of - sets.covered.count, sets.covered.of, stored.images, sets.alpha)
    of_class = "every class" if stored.by_class else "all classes together"
    return PromiseCheck(
        "prediction sets",
        f"the set of labels contains the true label for at least {percent(1 - sets.alpha)} of the images of "
        f"{of_class}, on average over the images that fit the limits",
        f"{stored.images:,} images that nothing else was fitted on, by split conformal prediction ({stored.score})",
        f"{of_all}on average" + (f"; {_by_name(each, 'classes')}" if stored.by_class else ""),
        _together(each.values()) if stored.by_class else whole,
    )


def _together(found: Iterable[bool | None]) -> bool | None:
    results = list(found)
    return False if False in results else True if results and all(results) else None


def _by_name(found: dict[str, bool | None], noun: str) -> str:
    """How many names have which result; those with a broken promise by name."""
    broken = [shown(name) for name, kept in found.items() if kept is False]
    more = "" if len(broken) <= _NAMED else f" and {len(broken) - _NAMED} more"
    listed = f" ({', '.join(broken[:_NAMED])}{more})" if broken else ""
    kept = sum(value is True for value in found.values())
    return f"kept for {kept} {noun}, broken for {len(broken)}{listed}, undecided for {len(found) - kept - len(broken)}"

"""The verdict of a comparison in sentences."""

from collections.abc import Iterable

from uce_edge.evaluation.comparison import (
    CALIBRATION,
    COVERAGE,
    JUDGED,
    OOD,
    Compared,
    Comparison,
    Standing,
    best_score,
    holds_zero,
)
from uce_edge.metrics import Interval
from uce_edge.output.report.summary import calibration
from uce_edge.output.wording import METRICS, SCORES, SHARE, Words, count, interval, percent, score

_NAMES = {"accuracy": "accuracy", "nll": "NLL", "aurc": "AURC"}


def sentence(comparison: Comparison) -> str:
    """The winner, its price, and whether it is calibrated."""
    images = count(comparison.files[0].evaluation.images, "image")
    if comparison.winner is None:
        bests = "; ".join(_best(comparison, comparison.standing(metric)) for metric in JUDGED)
        names = dict.fromkeys(comparison.standing(metric).best for metric in JUDGED)
        but = "".join(_calibration(comparison[name], comparison.reference) for name in names)
        return f"No file wins on these {images}: {bests}. Prices are multiples of {comparison.reference}.{but}"
    winner = comparison[comparison.winner]
    return _won(comparison, winner, images) + _calibration(winner, comparison.reference)


def _won(comparison: Comparison, winner: Compared, images: str) -> str:
    reference = comparison[comparison.reference]
    if all(set(comparison.standing(metric).tied) >= {one.name for one in comparison.files} for metric in JUDGED):
        return (
            f"A tie: on these {images} no file is better than another in {_listed(_NAMES.values(), 'or')} beyond "
            f"chance. {winner.name} costs least{_others(comparison, winner)}."
        )
    if winner is reference:
        return (
            f"{winner.name} wins: on these {images} no other file is better in {_listed(_NAMES.values(), 'or')} beyond "
            f"chance{_others(comparison, winner)}."
        )
    return f"{winner.name} wins: {_against(winner, reference)}{_price(comparison, winner)}.{_no_better(comparison)}"


def _calibration(one: Compared, reference: str) -> str:
    """Whether a file is calibrated, and its larger calibration errors."""
    text = ""
    for kind in ("uncertainty", "confidence"):
        test = one.evaluation.reliability[kind].test
        if test.flagged:
            text += f" But {one.name} is not calibrated. By {kind} it is {calibration(test)}."
    for metric in CALIBRATION:
        gap = one.differences.get(metric)
        if gap is not None and gap.value > 0:
            chance = ", which may be chance" if holds_zero(gap) else ""
            words = METRICS[metric]
            text += f" The {words.title} of {one.name} is larger than of {reference}: {difference(gap, words)}{chance}."
    return text


def findings(comparison: Comparison) -> list[tuple[str, str]]:
    """For every criterion, the best file, its ties, and the worse files."""
    return [(_about(standing), _found(comparison, standing)) for standing in comparison.standings]


def times(ratio: float) -> str:
    """A price as a multiple."""
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:.0f}"


def difference(given: Interval, words: Words) -> str:
    """A difference with its interval."""
    ends = [score(end, words, signed=True).removesuffix(" %") for end in (given.low, given.high)]
    return f"{score(given.value, words, signed=True)} ({ends[0]} to {ends[1]})"


def words_of(standing: Standing) -> Words:
    """The number format of a standing."""
    return METRICS.get(standing.what, SHARE)


def _about(standing: Standing) -> str:
    if standing.what == COVERAGE:
        return f"Accepted at a promised error of {percent(float(standing.about))}"
    return f"Out of distribution: {standing.about}" if standing.what == OOD else METRICS[standing.what].title


def _found(comparison: Comparison, standing: Standing) -> str:
    words = words_of(standing)
    ties = [name for name in standing.tied if name != standing.best]
    start = f"{standing.best}{_value(comparison, standing)}"
    text = f"A tie of {_listed([start, *ties])}." if ties else f"{start} is best."
    worse = {name: gap for name, gap in standing.differences.items() if name not in standing.tied}
    if worse:
        text += f" Worse: {', '.join(f'{name} {difference(gap, words)}' for name, gap in worse.items())}."
    missing = [one.name for one in comparison.files if one.name not in (*standing.tied, *worse)]
    if missing and standing.what == COVERAGE:
        text += f" {_listed(missing)} {'promises' if len(missing) == 1 else 'promise'} no such error."
    elif missing:
        text += f" Not defined for {_listed(missing)}."
    return text


def _value(comparison: Comparison, standing: Standing) -> str:
    best = comparison[standing.best]
    if standing.what == COVERAGE:
        return "" if best.kept is None else f" ({percent(best.kept.coverage)})"
    if standing.what == OOD:
        at = next(at for at, one in enumerate(best.evaluation.ood) if one.name == standing.about)
        by, _ = best_score(best.evaluation, at)
        return f" (AUROC {percent(best.evaluation.ood[at].detection[by].auroc.value)} by {SCORES[by]})"
    measured, words = best.evaluation.metrics[standing.what], METRICS[standing.what]
    return f" ({score(measured.value, words)}, {interval(measured.low, measured.high, words)})"


def _best(comparison: Comparison, standing: Standing) -> str:
    return (
        f"{_NAMES[standing.what]} is best with {_listed((_priced(comparison[name]) for name in standing.tied), 'or')}"
    )


def _priced(one: Compared) -> str:
    """A file and its price."""
    return one.name if one.ratio is None else f"{one.name} ({times(one.ratio)}x)"


def _against(winner: Compared, reference: Compared) -> str:
    """The metrics in which the winner is better, worse or tied."""
    sides: dict[str, list[str]] = {"better": [], "worse": [], "tied": []}
    for metric in JUDGED:
        gap = winner.differences.get(metric)
        if gap is None or holds_zero(gap):
            sides["tied"].append(_NAMES[metric])
        else:
            way = "better" if (gap.value > 0) == (metric == "accuracy") else "worse"
            sides[way].append(f"{_NAMES[metric]} {difference(gap, METRICS[metric])}")
    if not sides["better"]:  # the reference lost to another file, which this one ties with
        return f"no file is better beyond chance, and another one is better than {reference.name}"
    text = f"better than {reference.name} in {_listed(sides['better'])}"
    text += f", worse in {_listed(sides['worse'])}" if sides["worse"] else ""
    return text + (f", a tie in {_listed(sides['tied'])}" if sides["tied"] else "")


def _price(comparison: Comparison, one: Compared) -> str:
    if one.ratio is None:
        return ""
    if times(one.ratio) == "1":
        return ", at the same price"
    if one.price.measured is None:
        return f", for {times(one.ratio)} times its multiply-accumulates"
    best = one.price.measured.ratio_best
    return f", for {times(one.ratio)} times its time (median; {times(best or one.ratio)} by the best runs)"


def _others(comparison: Comparison, winner: Compared) -> str:
    """The cost of the other files, as multiples of the winner's."""
    ratios = [one.ratio / winner.ratio for one in comparison.files if one is not winner and one.ratio and winner.ratio]
    if not ratios:
        return ""
    span = sorted({times(min(ratios)), times(max(ratios))}, key=float)
    unit = "multiply-accumulates" if winner.price.measured is None else "time"
    return f"; the {'others take' if len(ratios) > 1 else 'other takes'} {' to '.join(span)} times its {unit}"


def _no_better(comparison: Comparison) -> str:
    """The files that are as good as the winner, and not cheaper."""
    same = [
        one
        for one in comparison.files
        if one.name != comparison.winner and all(one.name in comparison.standing(metric).tied for metric in JUDGED)
    ]
    if not same:
        return ""
    return f" No better beyond chance: {_listed(map(_priced, same))}."


def _listed(names: Iterable[str], word: str = "and") -> str:
    """Names with commas, and a word before the last."""
    given = list(names)
    return given[0] if len(given) == 1 else f"{', '.join(given[:-1])} {word} {given[-1]}"

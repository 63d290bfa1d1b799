"""The paper's eight claims, each with a verdict.

Every verdict follows from numbers by a stated rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.output.wording import percent, percentage
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.result_files import Cells, interval, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.seed_intervals import measure, over_seeds
from uce_edge_train.reproduce.trained_networks import Row, Study

MAPS = (Row.TEMPERATURE, Row.VECTOR, Row.AUX)
MANY_CLASSES = 50
MARGIN = 0.01  # of cUCE, that counts as "about as good"
FALL, STRAIGHT = 0.001, 0.95  # of an error that rises with H_max "almost linearly"
STEPS = np.arange(0.1, 1.0, 0.1)  # values of H_max

Table = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Finding:
    """The verdict on a claim."""

    verdict: str
    evidence: str
    cause: str = ""
    """Of a verdict other than confirmed; that of the claim if empty."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    text: str
    rule: str
    """When it counts as confirmed."""
    check: Callable[[Study], Finding]
    cause: str
    """Where it is not confirmed: the method, the scale or the data, and why; or that it is unknown."""


def run(study: Study) -> None:
    """Write scorecard.csv with all claims, and the section."""
    judged = [(number, claim, claim.check(study)) for number, claim in enumerate(_CLAIMS, 1)]
    lines: list[Cells] = [
        {
            "claim": number,
            "text": claim.text,
            "verdict": finding.verdict,
            "evidence": finding.evidence,
            "rule": claim.rule,
            "cause": "" if finding.verdict == "confirmed" else finding.cause or claim.cause,
        }
        for number, claim, finding in judged
    ]
    write_csv(study.folder, Experiment.SCORECARD, lines)
    rows = [[str(number), claim.text, f"**{finding.verdict}**", finding.evidence] for number, claim, finding in judged]
    rules = "\n".join(
        f"{line['claim']}. {line['rule']}{' *Why it is not confirmed:* ' if line['cause'] else ''}{line['cause']}"
        for line in lines
    )
    setting, seeds = study.setting, len(study.subjects)
    trainings = "one training" if seeds == 1 else f"{seeds} trainings"
    spread = (
        "they do not contain the spread between trainings"
        if seeds == 1
        else "they contain the spread between images and that between trainings"
    )
    write_section(
        study.folder,
        Experiment.SCORECARD,
        f"## Scorecard: the paper's claims\n\n{setting.recipe.arch} on {setting.data} at {setting.scale} scale, "
        f"{trainings} per objective, from seed {setting.recipe.seed} on; Monte Carlo with N = {setting.samples} unless "
        f"marked deterministic. Intervals are 95 % intervals, paired where two predictions are compared; {spread}."
        f"\n\n{markdown_table(['', 'claim', 'verdict', 'evidence'], rows)}\n\n"
        f"When a claim counts as confirmed:\n\n{rules}",
    )


def _verdict(parts: list[bool | None]) -> str:
    """Combine the parts of a claim; None is undecided."""
    if all(parts):
        return "confirmed"
    return "partly" if any(parts) else "not confirmed" if False in parts else "undecided"


def _sign(difference: metrics.Interval) -> bool | None:
    """Whether a difference is below 0; None if undecided."""
    return True if difference.high < 0 else False if difference.low > 0 else None


def _difference(
    study: Study,
    score: Callable[[Table, Labels], float],
    first: Row,
    second: Row,
    inferences: tuple[Inference, Inference] = (Inference.MC, Inference.MC),
) -> metrics.Interval:
    """The difference of two scores, paired by image and training."""
    return measure(
        study,
        lambda one, other, labels: score(one, labels) - score(other, labels),
        (first, inferences[0]),
        (second, inferences[1]),
    )


def _mean(
    study: Study, score: Callable[[Table, Labels], float], row: Row, inference: Inference = Inference.MC
) -> float:
    """The mean of a score over the trainings."""
    labels = study.first.labels()
    return float(np.mean([score(subject.probabilities(row, inference), labels) for subject in study.subjects]))


def _overconfidence(table: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The error minus the error that the probabilities expect."""
    return 1 - metrics.accuracy(table, labels) - float(np.mean(1 - np.asarray(table).max(-1)))


def _over_or_under(study: Study, row: Row) -> tuple[metrics.Interval, str]:
    gap = measure(study, _overconfidence, (row, Inference.MC))
    error = 1 - _mean(study, metrics.accuracy, row)
    mean = _mean(study, lambda table, _: float(metrics.normalized_entropy(table).mean()), row)
    expected = _mean(study, lambda table, _: float((1 - table.max(-1)).mean()), row)
    return gap, (
        f"error {percent(error)}, mean H {percent(mean)}, error that its own probabilities expect "
        f"{percent(expected)}; error minus expected {interval(gap, 1)} %"
    )


def _underestimates(study: Study) -> Finding:
    gap, words = _over_or_under(study, Row.UNCALIBRATED)
    found = [subject.calibration(Row.TEMPERATURE, Inference.MC).temperature for subject in study.subjects]
    temperature = float(np.mean([value for value in found if value is not None]))
    sign = _sign(gap)
    return Finding(_verdict([None if sign is None else not sign]), f"{words}; T = {temperature:.2f}")


def _to_the_twin(study: Study) -> Finding:
    parts: list[bool | None] = []
    words = []
    judged = {"T-UCE": metrics.tuce, "cT-UCE": metrics.classwise_tuce}
    for name, metric in (judged | {"UCE": metrics.uce, "cUCE": metrics.classwise_uce}).items():
        cells = []
        for row in (Row.UNCALIBRATED, *MAPS):
            twin = _mean(study, partial(_twin, metric), row)
            cells.append(f"{row} {percentage(_mean(study, metric, row), 2)} (twin {percentage(twin, 2)})")
        words.append(f"{name} in %: {', '.join(cells)}")
        if name in judged:
            falls = {row: _difference(study, metric, row, Row.UNCALIBRATED) for row in MAPS}
            parts += [_sign(difference) for difference in falls.values()]
            shown = ", ".join(f"{row} {interval(difference)}" for row, difference in falls.items())
            words.append(f"{name} minus that of uncalibrated in %: {shown}")
    return Finding(_verdict(parts), "; ".join(words))


def _twin(metric: Callable[[Table, Labels], float], table: Table, _: Labels) -> float:
    return metrics.calibrated_twin(metric, table).value


def _temperature_suffices(study: Study) -> Finding:
    parts, words = [], []
    for row in (Row.VECTOR, Row.AUX, Row.PAPER_AUX):
        difference = _difference(study, metrics.classwise_uce, Row.TEMPERATURE, row)
        parts.append(difference.high < MARGIN)
        words.append(f"temperature minus {row}: {interval(difference)} %")
    return Finding(_verdict(list(parts)), f"cUCE of {'; '.join(words)}")


def _aux_overfits(study: Study) -> Finding:
    classes = len(study.first.dataset.class_names)
    fitted = study.first.dataset.splits["calibration"].labels
    seen = np.mean(
        [
            metrics.accuracy(subject.probabilities(Row.PAPER_AUX, Inference.MC, "calibration"), fitted)
            for subject in study.subjects
        ]
    )
    cuce, nll = (
        _difference(study, score, Row.UNCALIBRATED, Row.PAPER_AUX) for score in (metrics.classwise_uce, metrics.nll)
    )
    words = (
        f"aux of the paper: accuracy {percent(float(seen))} on the calibration images, "
        f"{percent(_mean(study, metrics.accuracy, Row.PAPER_AUX))} on the test images; cUCE "
        f"{percent(_mean(study, metrics.classwise_uce, Row.PAPER_AUX))}, uncalibrated "
        f"{percent(_mean(study, metrics.classwise_uce, Row.UNCALIBRATED))}, aux with weight decay and early stopping "
        f"{percent(_mean(study, metrics.classwise_uce, Row.AUX))}; uncalibrated minus aux of the paper: cUCE "
        f"{interval(cuce)} %, NLL {_number(nll)}"
    )
    if classes < MANY_CLASSES:
        return Finding("not tested", f"{words}; {classes} classes are few")
    return Finding(_verdict([_sign(cuce), _sign(nll)]), words)


def _penalty_overestimates(study: Study) -> Finding:
    gap, words = _over_or_under(study, Row.PENALTY)
    return Finding(_verdict([_sign(gap)]), words)


def _straightness(limits: Table, errors: Table) -> float:
    """R² of a straight line."""
    return float(np.corrcoef(limits, errors)[0, 1] ** 2)


def _rejection_lowers(study: Study) -> Finding:
    straight: dict[Row, list[float]] = {Row.UNCALIBRATED: [], Row.TEMPERATURE: []}
    falls = 0.0
    for subject in study.subjects:
        for row, found in straight.items():
            kept = metrics.error_at(subject.probabilities(row, Inference.MC), subject.labels(), thresholds=STEPS)
            limits, errors = STEPS[kept.coverage > 0], kept.risk[kept.coverage > 0]
            if len(limits) < 2:
                return Finding(
                    "not tested",
                    f"{row}: {len(limits)} of the {len(STEPS)} thresholds on H from 0.1 to 0.9 accept an image, and a "
                    "line needs two",
                )
            if np.ptp(errors) == 0:
                same = f"the error is {percent(errors[0])} at every threshold on H that accepts an image"
                return Finding("not tested", f"{row}: {same}, so that no threshold can lower it")
            found.append(_straightness(limits, errors))
            if row is Row.TEMPERATURE:
                falls = max(falls, float(-np.diff(errors).min()))
    plain, calibrated = (over_seeds(values) for values in straight.values())
    line = calibrated.value >= STRAIGHT > plain.value
    return Finding(
        _verdict([falls <= FALL, line]),
        f"R² of a straight line, error against H_max from 0.1 to 0.9: uncalibrated {_number(plain)}, temperature "
        f"{_number(calibrated)}; largest fall of the error as H_max rises by 0.1: {percent(max(falls, 0), 2)}",
        "The data: few images are accepted at small H_max, and chance moves their error." if line else "",
    )


def _number(measured: metrics.Interval) -> str:
    if measured.low == measured.high:
        return f"{measured.value:.3f}"
    return f"{measured.value:.3f} ({measured.low:.3f} to {measured.high:.3f})"


def _ood_rises(study: Study) -> Finding:
    if not study.first.has_ood:
        return Finding("not tested", "no out-of-distribution images were given (--ood)")
    rises, words = {}, []
    for row in (Row.UNCALIBRATED, Row.TEMPERATURE):
        means, within = [], []
        for subject in study.subjects:
            inside, outside = (subject.answers(row, Inference.MC, split).uncertainty for split in ("test", "ood"))
            means.append((float(inside.mean()), float(outside.mean())))
            within.append(float(np.sqrt(inside.var() / len(inside) + outside.var() / len(outside))))
        between = over_seeds([after - before for before, after in means])
        half = float(np.hypot(1.96 * np.mean(within), between.value - between.low))
        rises[row] = None if abs(between.value) < half else bool(between.value > 0)
        own, ood = np.mean(means, 0)
        words.append(f"{row} {own:.3f} -> {ood:.3f} (rise ± {half:.3f})")
    uncalibrated = rises[Row.UNCALIBRATED]
    return Finding(
        _verdict([rises[Row.TEMPERATURE], None if uncalibrated is None else not uncalibrated]),
        f"mean H, own -> OOD: {', '.join(words)}. The expected curve is a straight line between the two, so a curve "
        "that rises at all also rises past 50 %",
    )


def _mc_is_better(study: Study) -> Finding:
    both = (Inference.MC, Inference.DETERMINISTIC)
    difference = _difference(study, metrics.ece, Row.UNCALIBRATED, Row.UNCALIBRATED, both)
    mc, deterministic = (_mean(study, metrics.ece, Row.UNCALIBRATED, inference) for inference in both)
    return Finding(
        _verdict([_sign(difference)]),
        f"uncalibrated ECE: Monte Carlo {percent(mc, 2)}, deterministic {percent(deterministic, 2)}; "
        f"difference {interval(difference)} %",
    )


_CLAIMS = (
    Claim(
        "Uncalibrated uncertainty underestimates the error",
        "The error is larger than the probabilities expect (1 - max p): its interval is above. Mean H itself is no "
        "yardstick: for a perfectly calibrated model too it differs from the error.",
        _underestimates,
        "The scale: a network that does not memorise its training images, or is trained with much noise, is not "
        "overconfident.",
    ),
    Claim(
        "Each logit scaling lowers UCE and cUCE towards the twin",
        "T-UCE and cT-UCE, which compare the error with the twin's in every bin, fall for temperature, vector and aux, "
        "by paired intervals; partly: some do. UCE and cUCE themselves also fall when a model becomes overconfident.",
        _to_the_twin,
        "The data: with few calibration images, or test images of another kind, a map does not help; or the scale: "
        "there is little to mend.",
    ),
    Claim(
        "Temperature is about as good classwise as vector and aux",
        "Its cUCE is less than 1 % (absolute) above that of vector and of both forms of aux, by paired intervals; "
        "partly: of some.",
        _temperature_suffices,
        "The method: a map with more parameters fits the classes better, where it does not overfit.",
    ),
    Claim(
        "Auxiliary scaling overfits with many classes",
        f"With {MANY_CLASSES} classes or more, the paper's aux has a larger cUCE and NLL on the test images than no "
        "calibration at all, by paired intervals.",
        _aux_overfits,
        "The data: the claim is about many classes and few calibration images of each.",
    ),
    Claim(
        "The confidence penalty overestimates uncertainty",
        "The error is smaller than the probabilities expect: its interval is below.",
        _penalty_overestimates,
        "Unknown: the size of the network or the weight of the penalty, for instance. Neither was varied.",
    ),
    Claim(
        "Lowering H_max lowers the error, almost linearly once calibrated",
        "With temperature the error falls by at most 0.1 % (absolute) in any step; and R² is at least 0.95 with "
        "temperature and below 0.95 without. Partly: one of the two.",
        _rejection_lowers,
        "The scale: the line is bent without calibration only where the network is overconfident.",
    ),
    Claim(
        "Mean H rises with the OOD share, past 50 % only once calibrated",
        "OOD images have a larger mean H than own ones with temperature and not without calibration; partly: both.",
        _ood_rises,
        "The method: OOD images replace own ones at random, so the expected curve is a straight line, calibrated or "
        "not.",
    ),
    Claim(
        "MC likelihood is better calibrated than deterministic confidence",
        "Uncalibrated, the ECE is lower with Monte Carlo, by a paired interval.",
        _mc_is_better,
        "The scale: averaging passes lowers the confidence, which helps an overconfident network and harms another.",
    ),
)

"""The paper's eight claims, each with a verdict.

Every verdict follows from numbers by a stated rule.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge.output.wording import percent, percentage
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.result_files import interval, markdown_table, write_csv, write_section
from uce_edge_train.reproduce.trained_networks import Row, Subject

MAPS = (Row.TEMPERATURE, Row.VECTOR, Row.AUX)
MANY_CLASSES = 50
MARGIN = 0.01  # of cUCE, that counts as "about as good"
FALL, STRAIGHT = 0.001, 0.95  # of an error that rises with H_max "almost linearly"
STEPS = np.arange(0.1, 1.0, 0.1)  # values of H_max
RESAMPLES = 200

Table = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Finding:
    """The verdict on a claim."""

    verdict: str
    evidence: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    text: str
    rule: str
    """When it counts as confirmed."""
    check: Callable[[Subject], Finding]


def run(subject: Subject) -> None:
    """Write scorecard.csv with all claims, and the section."""
    judged = [(number, claim, claim.check(subject)) for number, claim in enumerate(_CLAIMS, 1)]
    write_csv(
        subject.folder,
        Experiment.SCORECARD,
        [
            {
                "claim": number, "text": claim.text, "verdict": finding.verdict, "evidence": finding.evidence,
                "rule": claim.rule,
            }
            for number, claim, finding in judged
        ],
    )  # fmt: skip
    rows = [[str(number), claim.text, f"**{finding.verdict}**", finding.evidence] for number, claim, finding in judged]
    rules = "\n".join(f"{number}. {claim.rule}" for number, claim, _ in judged)
    setting = subject.setting
    write_section(
        subject.folder,
        Experiment.SCORECARD,
        f"## Scorecard: the paper's claims\n\n{setting.recipe.arch} on {setting.data} at {setting.scale} scale, one "
        f"training per objective, seed {setting.recipe.seed}; Monte Carlo with N = {setting.samples} unless marked "
        "deterministic. Intervals are 95 % bootstrap intervals over the test images (paired where two "
        "predictions are compared); they do not contain the spread "
        f"between trainings.\n\n{markdown_table(['', 'claim', 'verdict', 'evidence'], rows)}\n\n"
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
    subject: Subject, score: Callable[[Table, Labels], float], first: Table, second: Table
) -> metrics.Interval:
    """Paired bootstrap interval of the difference of two scores."""
    labels = subject.labels()
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(RESAMPLES):
        rows = np.sort(rng.integers(len(labels), size=len(labels)))
        draws.append(score(first[rows], labels[rows]) - score(second[rows], labels[rows]))
    value = score(first, labels) - score(second, labels)
    low, high = np.quantile(draws, [0.025, 0.975]) + value - np.mean(draws)  # centred, as `metrics.bootstrap` is
    return metrics.Interval(value, float(low), float(high))


def _overconfidence(table: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The error minus the error that the probabilities expect."""
    return 1 - metrics.accuracy(table, labels) - float(np.mean(1 - np.asarray(table).max(-1)))


def _over_or_under(subject: Subject, row: Row) -> tuple[metrics.Interval, str]:
    table, labels = subject.probabilities(row, Inference.MC), subject.labels()
    gap = metrics.bootstrap(_overconfidence, table, labels)
    error, mean, expected = (
        1 - metrics.accuracy(table, labels),
        metrics.normalized_entropy(table).mean(),
        (1 - table.max(-1)).mean(),
    )
    return gap, (
        f"error {percent(error)}, mean H {percent(mean)}, error that its own probabilities expect "
        f"{percent(expected)}; error minus expected {interval(gap, 1)} %"
    )


def _underestimates(subject: Subject) -> Finding:
    gap, words = _over_or_under(subject, Row.UNCALIBRATED)
    temperature = subject.calibration(Row.TEMPERATURE, Inference.MC).temperature
    sign = _sign(gap)
    return Finding(_verdict([None if sign is None else not sign]), f"{words}; T = {temperature:.3f}")


def _to_the_twin(subject: Subject) -> Finding:
    parts: list[bool | None] = []
    words = []
    judged = {"T-UCE": metrics.tuce, "cT-UCE": metrics.classwise_tuce}
    for name, metric in (judged | {"UCE": metrics.uce, "cUCE": metrics.classwise_uce}).items():
        cells = []
        plain = subject.probabilities(Row.UNCALIBRATED, Inference.MC)
        for row in (Row.UNCALIBRATED, *MAPS):
            table = subject.probabilities(row, Inference.MC)
            twin = metrics.calibrated_twin(metric, table).value
            cells.append(f"{row} {percentage(metric(table, subject.labels()), 2)} (twin {percentage(twin, 2)})")
            if row is not Row.UNCALIBRATED and name in judged:
                difference = metrics.difference(metric.__name__, table, plain, subject.labels())
                parts.append(None if difference is None else _sign(difference))
        words.append(f"{name} in %: {', '.join(cells)}")
    return Finding(_verdict(parts), "; ".join(words))


def _temperature_suffices(subject: Subject) -> Finding:
    parts, words = [], []
    table = subject.probabilities(Row.TEMPERATURE, Inference.MC)
    for row in (Row.VECTOR, Row.AUX):
        difference = _difference(subject, metrics.classwise_uce, table, subject.probabilities(row, Inference.MC))
        parts.append(difference.high < MARGIN)
        words.append(f"temperature minus {row}: {interval(difference)} %")
    return Finding(_verdict(list(parts)), f"cUCE of {'; '.join(words)}")


def _aux_overfits(subject: Subject) -> Finding:
    classes = len(subject.dataset.class_names)
    plain = subject.probabilities(Row.TEMPERATURE, Inference.MC)
    unregularised = subject.probabilities(Row.AUX, Inference.MC, regularise=False)
    difference = _difference(subject, metrics.nll, plain, unregularised)
    fitted = subject.calibration(Row.AUX, Inference.MC, regularise=False).outcome.nll_after
    words = (
        f"aux without weight decay and early stopping: NLL {fitted:.4f} on the calibration images, "
        f"{metrics.nll(unregularised, subject.labels()):.4f} on the test images; "
        f"temperature {metrics.nll(plain, subject.labels()):.4f} there"
    )
    if classes < MANY_CLASSES:
        return Finding("not tested", f"{words}; {classes} classes are few")
    return Finding(_verdict([_sign(difference)]), words)


def _penalty_overestimates(subject: Subject) -> Finding:
    gap, words = _over_or_under(subject, Row.PENALTY)
    return Finding(_verdict([_sign(gap)]), words)


def _straightness(limits: Table, errors: Table) -> float:
    """R² of a straight line."""
    return float(np.corrcoef(limits, errors)[0, 1] ** 2)


def _rejection_lowers(subject: Subject) -> Finding:
    straight = {}
    for row in (Row.UNCALIBRATED, Row.TEMPERATURE):
        kept = metrics.error_at(subject.probabilities(row, Inference.MC), subject.labels(), thresholds=STEPS)
        limits, errors = STEPS[kept.coverage > 0], kept.risk[kept.coverage > 0]
        if len(limits) < 2:
            return Finding(
                "not tested",
                f"{row}: {len(limits)} of the {len(STEPS)} thresholds on H from 0.1 to 0.9 accept an image, and a line "
                "needs two",
            )
        if np.ptp(errors) == 0:
            same = f"the error is {percent(errors[0])} at every threshold on H that accepts an image"
            return Finding("not tested", f"{row}: {same}, so that no threshold can lower it")
        straight[row] = _straightness(limits, errors)
        falls = float(-np.diff(errors).min())
    words = ", ".join(f"{row} {value:.3f}" for row, value in straight.items())
    return Finding(
        _verdict([falls <= FALL, straight[Row.TEMPERATURE] >= STRAIGHT > straight[Row.UNCALIBRATED]]),
        f"R² of a straight line, error against H_max from 0.1 to 0.9: {words}; "
        f"largest fall of the error as H_max rises by 0.1: {percent(max(falls, 0), 2)}",
    )


def _ood_rises(subject: Subject) -> Finding:
    if not subject.has_ood:
        return Finding("not tested", "no out-of-distribution images were given (--ood)")
    rises, words = {}, []
    for row in (Row.UNCALIBRATED, Row.TEMPERATURE):
        inside, outside = (subject.answers(row, Inference.MC, split).uncertainty for split in ("test", "ood"))
        spread = np.sqrt(inside.var() / len(inside) + outside.var() / len(outside))
        rise = outside.mean() - inside.mean()
        rises[row] = None if abs(rise) < 1.96 * spread else bool(rise > 0)
        words.append(f"{row} {inside.mean():.3f} -> {outside.mean():.3f} (rise ± {1.96 * spread:.3f})")
    uncalibrated = rises[Row.UNCALIBRATED]
    return Finding(
        _verdict([rises[Row.TEMPERATURE], None if uncalibrated is None else not uncalibrated]),
        f"mean H, own -> OOD: {', '.join(words)}. The expected curve is a straight line between the two, so a curve "
        "that rises at all also rises past 50 %",
    )


def _mc_is_better(subject: Subject) -> Finding:
    tables = [
        subject.probabilities(Row.UNCALIBRATED, inference) for inference in (Inference.MC, Inference.DETERMINISTIC)
    ]
    difference = _difference(subject, metrics.ece, *tables)
    mc, deterministic = (metrics.ece(table, subject.labels()) for table in tables)
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
    ),
    Claim(
        "Each logit scaling lowers UCE and cUCE towards the twin",
        "T-UCE and cT-UCE, which compare the error with the twin's in every bin, fall for temperature, vector and aux, "
        "by paired intervals; partly: some do. UCE and cUCE themselves also fall when a model becomes overconfident.",
        _to_the_twin,
    ),
    Claim(
        "Temperature is about as good classwise as vector and aux",
        "Its cUCE is less than 1 % (absolute) above that of vector and of aux, by paired intervals.",
        _temperature_suffices,
    ),
    Claim(
        "Auxiliary scaling overfits with many classes",
        f"With {MANY_CLASSES} classes or more, aux without regularisation has a worse test NLL than temperature, by a "
        "paired interval.",
        _aux_overfits,
    ),
    Claim(
        "The confidence penalty overestimates uncertainty",
        "The error is smaller than the probabilities expect: its interval is below.",
        _penalty_overestimates,
    ),
    Claim(
        "Lowering H_max lowers the error, almost linearly once calibrated",
        "With temperature the error falls by at most 0.1 % (absolute) in any step; and R² is at least 0.95 with "
        "temperature and below 0.95 without. Partly: one of the two.",
        _rejection_lowers,
    ),
    Claim(
        "Mean H rises with the OOD share, past 50 % only once calibrated",
        "OOD images have a larger mean H than own ones with temperature and not without calibration; partly: both.",
        _ood_rises,
    ),
    Claim(
        "MC likelihood is better calibrated than deterministic confidence",
        "Uncalibrated, the ECE is lower with Monte Carlo, by a paired interval.",
        _mc_is_better,
    ),
)

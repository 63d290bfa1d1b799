"""The paper's eight claims against what was found. Every verdict follows from numbers by a rule that is stated."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.contract import Inference
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.ood import scores
from uce_edge_train.reproduce.report import Record, interval, markdown_table, percent, write_csv, write_section
from uce_edge_train.reproduce.subject import Row, Subject

MAPS = (Row.TEMPERATURE, Row.VECTOR, Row.AUX)
MANY_CLASSES = 50


@dataclass(frozen=True)
class Finding:
    """What came of a claim."""

    verdict: str
    evidence: str


def run(subject: Subject) -> list[Record]:
    """All claims; also writes scorecard.csv and the section."""
    records: list[Record] = []
    for number, (claim, rule, check) in enumerate(_CLAIMS, 1):
        found = check(subject)
        records.append(
            {"claim": number, "text": claim, "verdict": found.verdict, "evidence": found.evidence, "rule": rule}
        )
    write_csv(subject.folder, Experiment.SCORECARD, records)
    rows = [[str(r["claim"]), r["text"], f"**{r['verdict']}**", r["evidence"]] for r in records]
    rules = "\n".join(f"{r['claim']}. {r['rule']}" for r in records)
    setting = subject.setting
    write_section(
        subject.folder,
        Experiment.SCORECARD,
        f"## Scorecard: the paper's claims\n\n{setting.recipe.arch} on {setting.data} at {setting.scale} scale, one "
        f"training per objective, seed {setting.recipe.seed}; Monte Carlo with N = {setting.samples} unless it says "
        "deterministic. Intervals are 95 % bootstrap intervals over the test images; they do not contain the spread "
        f"between trainings.\n\n{markdown_table(['', 'claim', 'verdict', 'evidence'], rows)}\n\n"
        f"When a claim counts as confirmed:\n\n{rules}",
    )
    return records


def _verdict(parts: list[bool]) -> str:
    return "confirmed" if all(parts) else "partly" if any(parts) else "not confirmed"


def _signed_gap(table: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Error minus mean uncertainty: positive when the uncertainty underestimates."""
    return 1 - metrics.accuracy(table, labels) - float(metrics.normalized_entropy(table).mean())


def _underestimates(subject: Subject) -> Finding:
    table, labels = subject.probabilities(Row.UNCALIBRATED, Inference.MC), subject.labels()
    gap = metrics.bootstrap(_signed_gap, table, labels)
    temperature = subject.calibration(Row.TEMPERATURE, Inference.MC).parameters["temperature"][0]
    return Finding(
        "confirmed" if gap.low > 0 else "not confirmed",
        f"error minus mean H: {interval(gap, 1)} %; T = {temperature:.3f}"
        + (" (below 1: the averaged prediction is too unsure, not too sure)" if temperature < 1 else ""),
    )


def _to_the_twin(subject: Subject) -> Finding:
    labels, parts, words = subject.labels(), [], []
    for name, metric in (("UCE", metrics.uce), ("cUCE", metrics.classwise_uce)):
        above = {}
        for row in (Row.UNCALIBRATED, *MAPS):
            table = subject.probabilities(row, Inference.MC)
            above[row] = metric(table, labels) - metrics.calibrated_twin(metric, table).value
            if row is not Row.UNCALIBRATED:
                parts.append(abs(above[row]) < abs(above[Row.UNCALIBRATED]))
        words.append(f"{name} minus twin: " + ", ".join(f"{row} {percent(value, 2)}" for row, value in above.items()))
    return Finding(_verdict(parts), "; ".join(words) + " (%)")


def _temperature_suffices(subject: Subject) -> Finding:
    labels = subject.labels()
    found = {
        row: metrics.bootstrap(metrics.classwise_uce, subject.probabilities(row, Inference.MC), labels) for row in MAPS
    }
    best = min(value.value for value in found.values())
    own = found[Row.TEMPERATURE]
    words = ", ".join(f"{row} {interval(value)}" for row, value in found.items())
    return Finding("confirmed" if own.value - best <= (own.high - own.low) / 2 else "not confirmed", f"cUCE: {words} %")


def _aux_overfits(subject: Subject) -> Finding:
    labels = subject.labels()
    plain = metrics.nll(subject.probabilities(Row.TEMPERATURE, Inference.MC), labels)
    tamed = metrics.nll(subject.probabilities(Row.AUX, Inference.MC), labels)
    wild = metrics.nll(subject.probabilities(Row.AUX, Inference.MC, "test", False), labels)
    words = f"test NLL: temperature {plain:.4f}, aux {tamed:.4f}, aux as in the paper, unregularised, {wild:.4f}"
    classes = len(subject.dataset.class_names)
    if classes < MANY_CLASSES:
        return Finding("not tested", f"{words}; {classes} classes are few")
    return Finding("confirmed" if wild > plain else "not confirmed", words)


def _penalty_overestimates(subject: Subject) -> Finding:
    gap = metrics.bootstrap(_signed_gap, subject.probabilities(Row.PENALTY, Inference.MC), subject.labels())
    return Finding(
        "confirmed" if gap.high < 0 else "not confirmed",
        f"error minus mean H: {interval(gap, 1)} %",
    )


def _rejection_lowers(subject: Subject) -> Finding:
    thresholds = np.arange(0.1, 1.0, 0.1)
    falls, straight = {}, {}
    for row in (Row.UNCALIBRATED, Row.TEMPERATURE):
        kept = metrics.error_at(subject.probabilities(row, Inference.MC), subject.labels(), thresholds=thresholds)
        there = ~np.isnan(kept.risk)
        x, y = thresholds[there], kept.risk[there]
        falls[row] = bool((np.diff(y) >= -1e-3).all())
        straight[row] = float(np.corrcoef(x, y)[0, 1] ** 2) if y.std() > 0 else 0.0
    words = ", ".join(f"{row} {value:.3f}" for row, value in straight.items())
    return Finding(
        _verdict([falls[Row.TEMPERATURE], straight[Row.TEMPERATURE] >= 0.95]),
        f"error rises with H_max throughout: {'yes' if falls[Row.TEMPERATURE] else 'no'}; "
        f"R² of a straight line: {words}",
    )


def _ood_rises(subject: Subject) -> Finding:
    if not subject.has_ood:
        return Finding("not tested", "no foreign images were given (--ood)")
    rises, words = {}, []
    for row in (Row.UNCALIBRATED, Row.TEMPERATURE):
        inside, outside = (scores(subject, row, Inference.MC, split)["H"] for split in ("test", "ood"))
        rises[row] = outside.mean() - inside.mean()
        words.append(f"{row} {inside.mean():.3f} -> {outside.mean():.3f}")
    both = "past 50 % it rises for both: the curve's expectation is a straight line" if min(rises.values()) > 0 else ""
    return Finding(
        _verdict([rises[Row.TEMPERATURE] > 0, rises[Row.UNCALIBRATED] <= 0]),
        f"mean H, own -> foreign: {', '.join(words)}; {both}",
    )


def _mc_is_better(subject: Subject) -> Finding:
    labels, found = subject.labels(), {}
    for inference in (Inference.DETERMINISTIC, Inference.MC):
        found[inference] = metrics.bootstrap(metrics.ece, subject.probabilities(Row.UNCALIBRATED, inference), labels)
    words = ", ".join(f"{kind} {interval(value)}" for kind, value in found.items())
    better = found[Inference.MC].value < found[Inference.DETERMINISTIC].value
    return Finding("confirmed" if better else "not confirmed", f"uncalibrated ECE: {words} %")


_CLAIMS: tuple[tuple[str, str, Callable[[Subject], Finding]], ...] = (
    (
        "Uncalibrated uncertainty underestimates the error",
        "The interval of error minus mean H is above 0.",
        _underestimates,
    ),
    (
        "Each logit scaling lowers UCE and cUCE towards the twin",
        "For temperature, vector and aux, both metrics come closer to their twin's; partly: some do.",
        _to_the_twin,
    ),
    (
        "Temperature is about as good classwise as vector and aux",
        "Its cUCE is at most half an interval above the best.",
        _temperature_suffices,
    ),
    (
        "Auxiliary scaling overfits with many classes",
        f"With {MANY_CLASSES} classes or more, aux without regularisation has a worse test NLL than temperature.",
        _aux_overfits,
    ),
    (
        "The confidence penalty overestimates uncertainty",
        "The interval of error minus mean H is below 0.",
        _penalty_overestimates,
    ),
    (
        "Lowering H_max lowers the error, almost linearly once calibrated",
        "With temperature the error never falls as H_max rises from 0.1 to 0.9, and R² of a line is at least 0.95.",
        _rejection_lowers,
    ),
    (
        "Mean H rises with the foreign share, past 50 % only once calibrated",
        "Foreign images have a larger mean H than own ones with temperature, and not without calibration.",
        _ood_rises,
    ),
    (
        "MC likelihood is better calibrated than deterministic confidence",
        "Uncalibrated, the ECE is lower with Monte Carlo.",
        _mc_is_better,
    ),
)

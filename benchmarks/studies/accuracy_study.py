"""Does the accuracy without labels hold? Prints the tables of docs/monitor.md.

    python benchmarks/studies/accuracy_answers.py      # once, some minutes
    python benchmarks/studies/accuracy_study.py windows [DRAWS]
    python benchmarks/studies/accuracy_study.py corruption [STREAMS]

Windows are drawn from the answers of the bundled `cifar10` to CIFAR-10. For every window the held-out images are drawn
anew from the guarantee and test images, and the window from the others, so that the interval has to allow for both
draws.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from accuracy_answers import DAMAGES, FOLDER, Part, load

from uce_edge import Monitor, models
from uce_edge.calibration import maps
from uce_edge.calibration.class_prior import estimated as estimated_shares
from uce_edge.calibration.class_prior import log_ratio, shares_of, subset
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.contract import Method
from uce_edge.metadata import Calibration, Metadata
from uce_edge.monitor.accuracy import Interval, RunningWindow, outcomes_of
from uce_edge.monitor.state import Window
from uce_edge.rejection import guarantee
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import HeldOut
from uce_edge.rejection.rule import REASONS, RejectRule
from uce_edge.runtime.model import Model

WINDOW, UNLABELLED = 1_000, 2_000
QUIET, AFTER, LAST = 500, 1_000, 500
CATS = (3, 5)  # cats and dogs

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def uncertainty_of(p: Floats) -> npt.NDArray[np.float32]:
    """Normalised entropy."""
    return np.float32(-(p * np.log(np.maximum(p, 1e-30))).sum(-1) / np.log(p.shape[-1]))


def held_out(p: Floats, labels: Integers) -> HeldOut:
    """The counts that a file stores."""
    counts = guarantee.count(np.clip(uncertainty_of(p), 0, 1), p.argmax(-1) != labels).to_document()
    return HeldOut.from_document(counts | {"samples": 1, "seed": 0, "data": ""})


def with_shares(labels: Integers, shares: Floats, images: int, rng: np.random.Generator) -> Integers:
    """Numbers of images with these shares of the classes, without repeats."""
    counts = rng.multinomial(images, shares)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(counts)])


def shifted(p: Floats, shift: Floats) -> Floats:
    """Probabilities for another mix."""
    weighted = p * np.exp(shift)
    result: Floats = weighted / weighted.sum(-1, keepdims=True)
    return result


def limit_of(p: Floats, labels: Integers, target: float = 0.05) -> float | None:
    """The threshold of a promised error."""
    try:
        return guarantee.find(np.clip(uncertainty_of(p), 0, 1), p.argmax(-1) != labels, target, 0.95).threshold
    except NoGuaranteeError:
        return None


class Case:
    """The results of one row."""

    def __init__(self) -> None:
        self.covers: dict[str, list[bool]] = {}
        self.off: dict[str, list[float]] = {}
        self.accepted: list[float] = []
        self.wrong: list[float] = []

    def add(self, name: str, found: Interval, true: float) -> None:
        """Count one interval."""
        self.covers.setdefault(name, []).append(found.low <= true <= found.high)
        self.off.setdefault(name, []).append(abs(found.value - true))


def judge(
    case: Case, metadata: Metadata, known: tuple[Floats, Integers], new: tuple[Floats, Integers], limit: float | None
) -> None:
    """Estimate one window, and compare with its labels."""
    rule = RejectRule() if limit is None else RejectRule(limits=(limit,))
    outcomes = outcomes_of(replace(metadata, outputs=(), rule=rule, sets=None, held_out=held_out(*known)))
    assert outcomes is not None
    p, labels = new
    scores, wrong = np.clip(uncertainty_of(p), 0, 1), p.argmax(-1) != labels
    accepted = scores <= np.float32(-1 if limit is None else limit)
    running = RunningWindow(Window(outcomes, len(p)))
    for score, use in zip(scores.tolist(), accepted.tolist(), strict=True):
        running.add({"uncertainty": score, "decision": "accept" if use else "reject", "reason": "uncertain"})
    found = running.estimate(0.01, alarm=False)
    assert found is not None
    case.add("accuracy", found.accuracy, 1 - float(wrong.mean()))
    if found.accepted_error is not None:
        case.add("accepted", found.accepted_error, float(wrong[accepted].mean()))
        case.wrong.append(float(wrong[accepted].mean()))
    case.accepted.append(float(accepted.mean()))
    # NannyML's CBPE: the mean confidence, plus and minus three standard errors of the accuracy in the reference.
    right = known[0].argmax(-1) == known[1]
    mean, error = float(p.max(-1).mean()), 3 * float(right.std()) / np.sqrt(len(p))
    case.add("CBPE", Interval(mean, mean - error, mean + error), 1 - float(wrong.mean()))


def windows(parts: dict[str, Part], metadata: Metadata, draws: int) -> None:
    """No shift and class-mix shift, with and without correction."""
    p = np.concatenate([parts["guarantee"]["probabilities"], parts["test"]["probabilities"]]).astype(np.float64)
    labels = np.concatenate([parts["guarantee"]["labels"], parts["test"]["labels"]]).astype(np.int64)
    fitted_on = np.log(np.maximum(parts["calibration"]["probabilities"].astype(np.float64), 1e-30))[None]
    none = Calibration(Method.NONE)
    bias = maps.fit_shift(none, ArrayLogits(fitted_on), parts["calibration"]["labels"].astype(np.int64))
    old = shares_of(labels, len(metadata.classes))
    cats = np.isin(np.arange(len(old)), CATS)
    print("| images | held out | correction | coverage | off by | accepted: coverage | accepted | wrong | CBPE |")
    for name, share in (("no shift", None), ("half cats and dogs", 0.5), ("four of five", 0.8)):
        new = old if share is None else np.where(cats, share / cats.sum(), (1 - share) / (~cats).sum())
        for size in (5_000, 500):
            cases: dict[str, Case] = {}
            for draw in range(draws):
                rng = np.random.default_rng(draw)
                order = rng.permutation(len(labels))
                known, rest = order[:size], order[size:]
                pick = rest[with_shares(labels[rest], new, WINDOW, rng)]
                limit = limit_of(p[known], labels[known])
                here = (p[known], labels[known])
                judge(cases.setdefault("none", Case()), metadata, here, (p[pick], labels[pick]), limit)
                if share is None:
                    continue
                likely = new[labels[rest]] / np.bincount(labels[rest])[labels[rest]]
                unlabelled = rng.choice(rest, UNLABELLED, p=likely / likely.sum())
                guessed = estimated_shares(shifted(p[unlabelled], bias), old)
                for how, shares in (("known shares", new), ("estimated shares", guessed)):
                    kept = known[subset(labels[known], shares, metadata.classes)]
                    shift = bias + log_ratio(shares, old)
                    mixed, window = shifted(p[kept], shift), shifted(p[pick], shift)
                    again = limit_of(mixed, labels[kept])
                    judge(cases.setdefault(how, Case()), metadata, (mixed, labels[kept]), (window, labels[pick]), again)
            for how, case in cases.items():
                print(row(name, size, how, case), flush=True)


def row(name: str, size: int, how: str, case: Case) -> str:
    """One line of the table."""
    covers = {key: f"{np.mean(values):.1%}" for key, values in case.covers.items()}
    wrong = f"{np.mean(case.wrong):.1%}" if case.wrong else "–"
    return (
        f"| {name} | {size:,} | {how} | {covers['accuracy']} | {100 * np.mean(case.off['accuracy']):.1f} | "
        f"{covers.get('accepted', '–')} | {np.mean(case.accepted):.1%} | {wrong} | {covers['CBPE']} |"
    )


def corruption(parts: dict[str, Part], model: Model, streams: int) -> None:
    """Which comes first: the doubt, or an estimate that is off by five points?"""
    print(
        "| images after the change | accuracy | estimate at the end | off by 5 points after | doubt after | "
        "doubt first | off first | neither |"
    )
    foreign, test = parts["foreign"], parts["test"]
    cases = {name: (parts[name], 1.0) for name in DAMAGES}
    cases |= {f"{share:.0%} CIFAR-100": (foreign, share) for share in (0.1, 0.3, 1.0)}
    for name, (changed, share) in cases.items():
        off, doubts, ends, trues = [], [], [], []
        for stream in range(streams):
            rng = np.random.default_rng(stream)
            monitor = Monitor.of(model, seed=stream, window=LAST)
            right: list[bool] = []
            found = [np.inf, np.inf]
            for image in range(QUIET + AFTER):
                source = changed if image >= QUIET and rng.random() < share else test
                index = int(rng.integers(len(source["labels"])))
                monitor.add_scores(answer(source, index), "")
                right.append(int(source["probabilities"][index].argmax()) == int(source["labels"][index]))
                if image < QUIET:
                    continue
                estimate = monitor.report().estimate
                assert estimate is not None
                wide = abs(estimate.accuracy.value - float(np.mean(right[-LAST:]))) > 0.05
                for kind, holds in enumerate((wide, bool(estimate.doubts))):
                    if holds and found[kind] == np.inf:
                        found[kind] = image - QUIET + 1
            off.append(found[0])
            doubts.append(found[1])
            ends.append(estimate.accuracy.value)
            trues.append(float(np.mean(right[-LAST:])))
        print(
            f"| {name} | {np.mean(trues):.1%} | {np.mean(ends):.1%} | {_images(off)} | {_images(doubts)} | "
            f"{' | '.join(map(str, which_first(off, doubts)))} |",
            flush=True,
        )


def which_first(off: Sequence[float], doubts: Sequence[float]) -> tuple[int, int, int]:
    """In how many streams the doubt came first, the estimate was off first, and neither happened.

    Args:
        off: The image at which the estimate of each stream was off; infinite where it never was.
        doubts: The image of its first doubt, likewise.
    """
    came = list(zip(off, doubts, strict=True))
    doubt, neither = sum(b < a for a, b in came), sum(a == b == np.inf for a, b in came)
    return doubt, len(came) - doubt - neither, neither


def answer(part: Part, index: int) -> dict[str, object]:
    """One answer, as JSON has it."""
    code = int(part["codes"][index])
    scores = {name: float(part[name][index]) for name in ("uncertainty", "model_uncertainty", "novelty_score")}
    return scores | {"decision": "reject" if code else "accept", "reason": REASONS[code]}


def _images(values: list[float]) -> str:
    middle = float(np.median(values))
    return f"{middle:,.0f}" if np.isfinite(middle) else f"more than {AFTER:,}"


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parts, model = load(FOLDER), Model(models.bundled(name="cifar10"), "cpu")
    table, times = arguments[0], int(arguments[1]) if len(arguments) > 1 else None
    if table == "windows":
        windows(parts, model.metadata, times or 200)
    else:
        corruption(parts, model, times or 5)


if __name__ == "__main__":
    main(sys.argv[1:])

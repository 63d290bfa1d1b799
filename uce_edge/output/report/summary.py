"""The results of an evaluation in sentences."""

from uce_edge.evaluation import Evaluation, Score
from uce_edge.evaluation.ood import OutOfDistribution
from uce_edge.evaluation.rejection_results import Kept
from uce_edge.evaluation.shift import Shift
from uce_edge.evaluation.threshold_curves import Operating
from uce_edge.metrics import Calibration, CalibrationTest
from uce_edge.output.wording import METRICS, at_most, count, interval, number, percent, threshold


def headline(evaluation: Evaluation) -> str:
    """The result of the threshold in use, in one sentence."""
    kept = evaluation.rejection[0].measured
    start = f"At uncertainty ≤ {threshold(kept.threshold)} it accepts"
    if not kept.accepted:
        return f"{start} none of the {count(evaluation.images, 'image')}."
    bound = f"{at_most(kept.error_bound)} of them ({percent(kept.confidence, 0)} bound)"
    return f"{start} {percent(kept.coverage)} of the images and is wrong on at most {bound}."


def measured(point: Operating, evaluation: Evaluation) -> str:
    """The counts at a threshold, and the error without rejection."""
    kept, errors = point.measured, point.errors + point.rejected_errors
    without = f"Without rejection it is wrong on {percent(errors / evaluation.images)}."
    if not kept.accepted:
        return without
    accepted = count(kept.accepted, "accepted image")
    text = f"Counted: {point.errors:,} of {accepted} wrong, {percent(kept.error)}. {without}"
    rejected = kept.images - kept.accepted
    if errors and rejected:
        text += (
            f" The {count(rejected, 'rejected image')} hold {point.rejected_errors:,} of its {count(errors, 'error')}."
        )
    return text


def promise(kept: Kept) -> str:
    """The promise of the stored rule, and whether these images agree."""
    text = (
        f"The stored rule accepts images with {kept.accepts} and promises an error of at most "
        f"{percent(kept.target_error)} among them, with {percent(kept.confidence, 0)} confidence"
    )
    if kept.error is None:
        return f"{text}. None of these images is accepted."
    verdict = "these images agree" if kept.error <= kept.target_error else "these images have more"
    accepted = count(int(kept.accepted.sum()), "accepted image")
    return f"{text}; {verdict}: {percent(kept.error)} of {accepted}."


def findings(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Other results, each a topic and a sentence or two."""
    scores = evaluation.metrics
    images = count(evaluation.images, "image")
    right = f"It labels {percent(scores['accuracy'].value)} of {images} right{_range(scores['accuracy'])}."
    answers = [("Accuracy", right), ("Confidence", _confidence(evaluation))]
    answers.append(("Uncertainty", _uncertainty(evaluation)))
    if evaluation.kept is not None:
        answers.append(("Promise", promise(evaluation.kept)))
    answers += [("Out of distribution", _out_of_distribution(ood)) for ood in evaluation.ood]
    if evaluation.shift is not None:
        answers.append(("Damaged images", _worst(evaluation.shift)))
    return answers


def _out_of_distribution(ood: OutOfDistribution) -> str:
    area = percent(ood.detection["uncertainty"].auroc.value)
    return (
        f"Of {count(ood.images, 'out-of-distribution image')} ({ood.name}) it accepts {percent(ood.accepted)} at the "
        f"same threshold. The AUROC of the uncertainty is {area}."
        + ("" if ood.gated is None else f" With the cutoff on novelty it accepts {percent(ood.gated)}.")
    )


def calibration(test: CalibrationTest) -> str:
    """The verdict of the test, with the observed and the expected error."""
    found = {
        Calibration.CONSISTENT: "consistent with calibration, as far as these images can show",
        Calibration.OVERCONFIDENT: "overconfident",
        Calibration.UNDERCONFIDENT: "underconfident",
        Calibration.UNEVEN: "not calibrated in places, although the total error is near the expected one",
    }[test.verdict]
    return f"{found}: error {percent(test.error)}, expected by its probabilities {percent(test.expected)}"


def _confidence(evaluation: Evaluation) -> str:
    test, ece = evaluation.reliability["confidence"].test, evaluation.metrics["ece"]
    return f"By confidence it is {calibration(test)}. ECE {_beside(ece)}."


def _uncertainty(evaluation: Evaluation) -> str:
    test, tuce, uce = evaluation.reliability["uncertainty"].test, evaluation.metrics["tuce"], evaluation.metrics["uce"]
    return f"By uncertainty it is {calibration(test)}. T-UCE {_beside(tuce)}; the paper's UCE {_beside(uce)}."


def _beside(score: Score) -> str:
    """A value with its twin's."""
    return f"{percent(score.value)} (a calibrated model: {percent(score.twin)})"


def _worst(shift: Shift) -> str:
    conditions = [(kind, one) for kind, curve in shift.curves.items() for one in curve]
    kind, worst = min(conditions, key=lambda pair: pair[1].accuracy)
    clean = shift.curves[kind][0]
    text = (
        f"Of {len(shift.curves)} kinds of damage, {kind} at severity {worst.severity} costs most: accuracy "
        f"{percent(clean.accuracy)} → {percent(worst.accuracy)}, mean uncertainty {number(clean.uncertainty, 2)} → "
        f"{number(worst.uncertainty, 2)}. It accepts {percent(worst.coverage)} of those images"
    )
    return text + (f", and {percent(worst.error)} of the accepted are wrong." if worst.error is not None else ".")


def _range(score: Score) -> str:
    return "" if score.low is None else f" ({interval(score.low, score.high, METRICS['accuracy'])})"

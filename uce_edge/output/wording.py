"""Number formats and descriptions of metrics, for terminal and report."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from uce_edge.evaluation.ood import Detection
    from uce_edge.evaluation.rejection_results import KeptClass
    from uce_edge.evaluation.set_results import Sets
    from uce_edge.metrics import Proportion
    from uce_edge.runtime.prediction import ImagePrediction

MISSING = "–"

INTERVALS = (
    "A 95 % interval is for infinitely many images of the same kind. With few images ECE, T-UCE and UCE are too large, "
    "so their intervals reach further down than up. All intervals allow for errors that are too rare to be among these "
    "images. The debiased errors are root mean squares: compare them with each other and not with ECE or T-UCE."
)
"""The meaning of the intervals."""

_RIGHT, _CONFIDENCE = "Right or wrong", "Calibration of the confidence"
_UNCERTAINTY, _RANKING = "Calibration of the uncertainty", "Ranking: are errors uncertain?"


class Words(NamedTuple):
    """A metric in words."""

    title: str
    meaning: str
    group: str
    percent: bool = True
    digits: int = 1


METRICS: dict[str, Words] = {
    "accuracy": Words("Accuracy", "Share of images with the right label. The twin's is the mean confidence.", _RIGHT),
    "nll": Words("NLL", "Surprise at the true label, in nats; lower is better.", _RIGHT, percent=False, digits=3),
    "brier": Words(
        "Brier score", "Squared distance to the truth, from 0 to 2; lower is better.", _RIGHT, percent=False, digits=3
    ),
    "ece": Words("ECE", "Mean gap between confidence and accuracy, 15 bins of equal width.", _CONFIDENCE),
    "adaptive_ece": Words("Adaptive ECE", "The same over 15 bins with equally many images.", _CONFIDENCE),
    "mce": Words("MCE", "The worst bin's gap; one sparse bin can make it large.", _CONFIDENCE),
    "debiased_ece": Words(
        "Debiased ECE",
        "Root mean squared gap over 15 bins of equal mass, less the part that chance puts there.",
        _CONFIDENCE,
    ),
    "classwise_ece": Words("cECE", "ECE per predicted class, averaged over the classes.", _CONFIDENCE),
    "skce": Words(
        "SKCE",
        "Kernel calibration error of all probabilities, no bins; 0 if calibrated.",
        _CONFIDENCE,
        percent=False,
        digits=5,
    ),
    "tuce": Words(
        "T-UCE",
        "Mean gap between the error and the error that the probabilities expect, 15 bins of the uncertainty.",
        _UNCERTAINTY,
    ),
    "debiased_tuce": Words(
        "Debiased T-UCE",
        "Root mean squared gap over the same bins, less the part that chance puts there.",
        _UNCERTAINTY,
    ),
    "classwise_tuce": Words("cT-UCE", "T-UCE per predicted class, averaged over the classes.", _UNCERTAINTY),
    "uce": Words(
        "UCE",
        "The paper's: mean gap between uncertainty and error, 15 bins. Not 0 for a calibrated model, and smaller than "
        "that for some overconfident ones.",
        _UNCERTAINTY,
    ),
    "adaptive_uce": Words("Adaptive UCE", "The same over 15 bins with equally many images.", _UNCERTAINTY),
    "classwise_uce": Words("cUCE", "UCE per predicted class, averaged over the classes.", _UNCERTAINTY),
    "aurc": Words(
        "AURC", "Mean error as the most uncertain images are rejected first; lower is better.", _RANKING, digits=2
    ),
    "auroc": Words("AUROC of errors", "Chance that a wrong image is more uncertain than a right one.", _RANKING),
    "fpr_at_95": Words("FPR95 of errors", "Share of errors accepted where 95 % of the right ones are.", _RANKING),
}

SHARE = Words("", "", "")
"""The format of a share that is not a metric."""

SCORES = {
    "uncertainty": "uncertainty H",
    "confidence": "max probability",
    "model_uncertainty": "model part",
    "novelty": "novelty",
    "both": "uncertainty H and novelty",
}
"""The names of the scores."""


def percent(value: float | None, digits: int = 1) -> str:
    """A share with its unit: 0.1234 is 12.3 %."""
    text = percentage(value, digits)
    return text if text == MISSING else f"{text} %"


def percentage(value: float | None, digits: int = 1) -> str:
    """A share in percent without its unit, never rounded to 0 or 100."""
    if value is None or math.isnan(value):
        return MISSING
    text, step = f"{100 * value:.{digits}f}", 10.0**-digits
    if value > 0 and float(text) == 0:
        return f"< {step:.{digits}f}"
    if value < 1 and float(text) == 100:
        return f"> {100 - step:.{digits}f}"
    return text


def at_most(value: float | None) -> str:
    """An upper bound in percent, rounded up."""
    if value is None:
        return MISSING
    digits = 1 if value >= 0.001 else 2
    return f"{math.ceil(round(value * 100 * 10**digits, 6)) / 10**digits:.{digits}f} %"


def odds(probability: float) -> str:
    """A probability of error as odds: 1 in 12."""
    if probability < 0.001:
        return "< 1 in 1000"
    return f"1 in {1 / probability:.0f}" if probability < 0.4 else f"{probability:.0%}"


def wrong_about(prediction: "ImagePrediction") -> str:
    """The odds of an error; unknown for an out-of-distribution image."""
    return "odds unknown" if prediction.out_of_distribution else f"wrong about {odds(prediction.error_probability)}"


def spread(prediction: "ImagePrediction") -> str:
    """The uncertainty, with its standard error for a file with noise."""
    error = f" ± {prediction.standard_error:.3f}" if prediction.standard_error > 0 else ""
    return f"{prediction.uncertainty:.3f}{error}"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash."""
    return MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def score(value: float | None, words: Words, signed: bool = False) -> str:
    """The value of a metric in a table."""
    if value is None:
        return MISSING
    text = f"{100 * value if words.percent else value:{'+' if signed else ''}.{words.digits}f}"
    if float(text) == 0:
        text = text.replace("-", "").replace("+", "")
    return text.replace("-", "−") + (" %" if words.percent else "")


def interval(low: float | None, high: float | None, words: Words) -> str:
    """Both ends of an interval, with one unit."""
    if low is None or high is None:
        return MISSING
    return f"{score(low, words).removesuffix(' %')} to {score(high, words)}"


def proportion(counted: "Proportion") -> str:
    """A proportion with its interval, in percent without the unit."""
    if math.isnan(counted.value):
        return MISSING
    return f"{percentage(counted.value)} ({interval(counted.low, counted.high, SHARE).removesuffix(' %')})"


RATES = ("sensitivity", "specificity", "ppv", "npv")
"""The rates of every class, as in `ClassRates`."""
RATE_TITLES = ("sensitivity", "specificity", "PPV", "NPV")


def separation(name: str, detection: "Detection") -> tuple[str, ...]:
    """A table row: the score, and AUROC and FPR at 95 % with intervals."""
    cells = [SCORES[name]]
    for part in (detection.auroc, detection.fpr_at_95):
        cells += [score(part.value, SHARE), interval(part.low, part.high, SHARE)]
    return tuple(cells)


def known(seen: bool | None) -> str:
    """Whether a network was trained with a kind of images."""
    return MISSING if seen is None else "seen in training" if seen else "unseen"


def marked(kind: str, seen: bool | None) -> str:
    """A kind of images, marked if the network was trained with it."""
    return f"{kind} ({known(seen)})" if seen else kind


def threshold(value: float) -> str:
    """A threshold on the uncertainty, with two or three digits."""
    return f"{value:.2f}" if round(value, 2) == value else f"{value:.3f}"


LIMITS = ("stored limit of the label", "uncertainty at most", "promised error", "accepted", "error", "95 % bound")
"""The columns of `limits`."""


def limits(kept: Iterable["KeptClass"]) -> list[list[str]]:
    """The rows of a table of the limits by class, with their results."""
    return [
        [
            one.label,
            threshold(one.threshold) if one.target_error is not None else "never accepted",
            MISSING if one.target_error is None else at_most(one.target_error),
            f"{one.accepted:,} of {one.images:,}",
            percent(one.error),
            at_most(one.error_bound) if one.accepted else MISSING,
        ]
        for one in kept
    ]


SETS = ("prediction sets", "images", "with the true label, %", "mean size")
"""The columns of `sets`."""


def sets(measured: "Sets", shown: Iterable[str]) -> list[list[str]]:
    """The coverage of prediction sets: of all, by size, and of some classes."""
    promised = f"at least {100 * (1 - measured.alpha):.4g} {'of every class' if measured.by_class else 'promised'}"
    size = f"{measured.size.value:.2f} ({measured.size.low:.2f} to {measured.size.high:.2f})"
    rows = [[f"all ({measured.score}; {promised})", f"{measured.covered.of:,}", proportion(measured.covered), size]]
    names = set(shown)
    for what, parts in (("size", measured.by_size), ("class", measured.classes)):
        rows += [
            [f"{what} {part.name}", f"{part.images:,}", proportion(part.covered), number(part.size, 2)]
            for part in parts
            if what == "size" or part.name in names
        ]
    return rows


def count(value: int, noun: str) -> str:
    """A number with its noun: 1 image, 1,000 images, 2 passes."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{value:,} {noun if value == 1 else plural}"

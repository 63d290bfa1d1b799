"""What do promises about the confidence, and promises for every label, accept? Writes two tables of docs/guide.md.

    python benchmarks/studies/promise_quality.py

The promises are found on the guarantee images of the bundled moments file, without the cutoff on novelty, and
counted on its test images and on images of CIFAR-100.
"""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge.contract import Inference
from uce_edge.datasets import labelled, load
from uce_edge.metrics import aurc, bootstrap
from uce_edge.models import bundled
from uce_edge.rejection import class_limits, guarantee
from uce_edge.rejection.rule import inverse_confidence, within
from uce_edge.runtime.model import Model
from uce_edge.runtime.prediction import Prediction

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "guide.md"
TARGETS = (0.05, 0.02)
CONFIDENCE = 0.95
WORDS = {"uncertainty": "uncertainty at most {:.3f}", "inverse_confidence": "confidence at least {:.1%}"}
OOD = 1_000
REQUESTED = {"other=0.05": {"other": 0.05}, "cat=0.05,other=0.1": {"cat": 0.05, "other": 0.1}}
"""As in --target-error."""


class Scored:
    """Scores, predicted labels and errors of some images."""

    def __init__(self, prediction: Prediction, labels: npt.NDArray[np.int64]) -> None:
        """Compare predictions with labels."""
        self.uncertainty, self.label = prediction.uncertainty, prediction.class_ids
        self.inverse_confidence = inverse_confidence(prediction.probabilities)
        self.wrong = prediction.class_ids != labels


def main() -> None:
    """Predict once, and write the tables."""
    dataset, model = load("cifar10"), Model(bundled(Inference.MOMENTS, "cifar10"), "cpu")
    held_out, test = dataset.splits["guarantee"], dataset.splits["test"]
    prediction = model.predict(test.images)
    promised, own = Scored(model.predict(held_out.images), held_out.labels), Scored(prediction, test.labels)
    others = model.predict(labelled.load_ood("cifar100", model.metadata.image).images[:OOD])
    outside = Scored(others, np.zeros(OOD, np.int64))
    write("| promised error", by_score(promised, own, outside))
    write("| asked for", by_label(promised, own, model.metadata.classes))
    gain = bootstrap(lambda p, y: aurc(p, y) - aurc(p, y, score="confidence"), prediction.probabilities, test.labels)
    by = (aurc(prediction.probabilities, test.labels, score=score) for score in ("confidence", "uncertainty"))
    print("AURC by confidence {:.2%}, by uncertainty {:.2%}".format(*by))
    print(f"difference {gain.value:.2%} ({gain.low:.2%} to {gain.high:.2%})")


def by_score(promised: Scored, own: Scored, outside: Scored) -> list[str]:
    """Rows: one promise about the uncertainty and one about the confidence."""
    rows = []
    for target in TARGETS:
        for score, words in (
            ("uncertainty", "uncertainty at most {:.3f}"),
            ("inverse_confidence", "confidence at least {:.1%}"),
        ):
            most = guarantee.find(getattr(promised, score), promised.wrong, target, CONFIDENCE).threshold
            accepted = within(getattr(own, score), most)
            ood = within(getattr(outside, score), most).mean()
            what = words.format(most if score == "uncertainty" else 1 - most)
            rows.append(f"| {target:.0%} | {what} | {counted(own, accepted)} | {ood:.1%} |")
    return rows


def by_label(promised: Scored, own: Scored, classes: tuple[str, ...]) -> list[str]:
    """Rows: one error for all labels, and errors by label."""
    one = guarantee.find(promised.uncertainty, promised.wrong, TARGETS[0], CONFIDENCE).threshold
    rows = [label_row(f"{TARGETS[0]}", own, np.full(len(classes), one), classes)]
    for requested, errors in REQUESTED.items():
        targets = [errors.get(name, errors["other"]) for name in classes]
        found = class_limits.find(promised.uncertainty, promised.wrong, promised.label, targets, CONFIDENCE, classes)
        rows.append(label_row(requested, own, np.array(found.limits), classes))
    return rows


def label_row(requested: str, own: Scored, limits: npt.NDArray[np.float64], classes: tuple[str, ...]) -> str:
    """What is accepted, and how often each label is wrong."""
    accepted = within(own.uncertainty, limits[own.label])
    named = [accepted & (own.label == index) for index in range(len(classes))]
    rates = sorted(((own.wrong[rows].mean(), name) for rows, name in zip(named, classes, strict=True) if rows.any()))
    never = [name for rows, name in zip(named, classes, strict=True) if not rows.any()]
    text = ", ".join(f"{name} {rate:.1%}" for rate, name in reversed(rates[-3:]))
    text += f", ..., {rates[0][1]} {rates[0][0]:.1%}"
    if never:
        text += f"; always rejected: {', '.join(never)}"
    return f"| `{requested}` | {counted(own, accepted)} | {text} |"


def counted(own: Scored, accepted: npt.NDArray[np.bool_]) -> str:
    """The share that is accepted, and the share of these that is wrong."""
    return f"{accepted.mean():.1%} | {own.wrong[accepted].mean():.2%}"


def write(first_cell: str, rows: list[str]) -> None:
    """Put rows into the table of the page whose head begins so."""
    text = PAGE.read_text()
    table = re.search(rf"^{re.escape(first_cell)} .*\n\|[ :|-]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    spaced = "\n".join(re.sub(r"(\d)%", r"\1 %", row) for row in rows)
    PAGE.write_text(f"{text[: table.start(1)]}{spaced}\n{text[table.end(1) :]}")
    print(spaced)


if __name__ == "__main__":
    main()

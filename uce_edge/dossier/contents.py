"""What a dossier contains, collected from one model file and its test images."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from uce_edge import __version__
from uce_edge.dossier import change_control, promises, regulation, software, subgroups
from uce_edge.dossier.promises import PromiseCheck
from uce_edge.dossier.subgroups import Subgroup
from uce_edge.evaluation import Evaluation
from uce_edge.evaluation.evaluation_data import EvaluationData, arguments
from uce_edge.integrity.model_check import Verified, verify_model
from uce_edge.output import model_summary
from uce_edge.output.wording import percent
from uce_edge.runtime.model import Model

FORMAT = "uce-edge dossier 1"
_CORRUPTED = 500  # images; each is damaged in thirty ways


@dataclass(frozen=True)
class DataCard:
    """The test images."""

    name: str
    part: str
    images: int
    by_class: dict[str, int]
    groups: int | None
    """How many patients, scenes or devices they are from; None for independent images."""
    sha256: str
    """Of pixels and labels, as the model reads them."""
    training: dict[str, str]
    """The digests of the splits that the network was trained and calibrated on, by name."""


@dataclass(frozen=True, eq=False)
class Dossier:
    """All evidence about one model file."""

    created: str
    intended_use: str | None
    model: dict[str, list[str]]
    verified: Verified
    data: DataCard
    evaluation: Evaluation = field(repr=False)
    subgroups: dict[str, list[Subgroup]]
    promises: list[PromiseCheck]
    limits: list[str]
    checks: list[change_control.Check]
    bill: str = field(repr=False)
    """The software bill of materials, as CycloneDX JSON."""

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "format": FORMAT,
            "created": self.created,
            "uce_edge": __version__,
            "intended_use": self.intended_use,
            "model": self.model,
            "sha256": self.evaluation.model_sha256,
            "verified": asdict(self.verified),
            "data": asdict(self.data),
            "metrics": self.evaluation.as_dict(),
            "subgroups": {name: [asdict(one) for one in found] for name, found in self.subgroups.items()},
            "promises": [asdict(one) for one in self.promises],
            "limits": self.limits,
            "change_control": {
                "may_change": change_control.MAY_CHANGE,
                "must_not_change": list(change_control.MUST_NOT_CHANGE),
                "checks": [asdict(one) for one in self.checks],
            },
            "questions": [one._asdict() for one in regulation.QUESTIONS],
        }


def collect(
    model: Path,
    data: str,
    *,
    by: Sequence[str] = (),
    ood: Sequence[str] = (),
    corrupt: bool = True,
    group: str | None = None,
    intended_use: str | None = None,
    root: Path | None = None,
) -> Dossier:
    """Verify and measure a model file.

    Args:
        model: The file.
        data: Labelled test images, as for `evaluate`.
        by: Columns of a manifest, for results by subgroup.
        ood: Sets of out-of-distribution images, as for `evaluate`.
        corrupt: Whether to measure on damaged images, too.
        group: The column or pattern that groups the images.
        intended_use: A sentence of the maker.
        root: The folder of public datasets.

    Raises:
        UceEdgeError: The file, the images or an argument cannot be used. Nothing slow has run before.
    """
    verified = verify_model(model)
    loaded = Model(model, "cpu")
    test = EvaluationData.load(data, loaded.metadata, ood=ood, root=root, group=group)
    columns = {column: subgroups.values_of(data, column, test.names) for column in by}
    bill = software.bill_of_materials(model.name, loaded.sha256, metadata=loaded.metadata)
    damaged = _CORRUPTED if corrupt and loaded.metadata.image.dtype == "uint8" else 0
    evaluation = test.evaluate(loaded, names=test.names, corrupt=damaged)
    rule, checked = loaded.metadata.rule, promises.check(evaluation, test.split.units())
    return Dossier(
        created=datetime.now(UTC).strftime("%Y-%m-%d"),
        intended_use=intended_use,
        model=model_summary.summarize(loaded, everything=True),
        verified=verified,
        data=_card(test, loaded),
        evaluation=evaluation,
        subgroups={name: subgroups.measure(evaluation, rule, values) for name, values in columns.items()},
        promises=checked,
        limits=_limits(evaluation),
        checks=change_control.checks(evaluation, checked, arguments(data, root=root, group=group)),
        bill=bill,
    )


def _card(test: EvaluationData, model: Model) -> DataCard:
    split = test.split
    counts = np.bincount(split.labels, minlength=len(model.classes))
    return DataCard(
        name=test.name,
        part=test.part,
        images=len(split),
        by_class=dict(zip(model.classes, counts.tolist(), strict=True)),
        groups=None if split.groups is None else len(np.unique(split.groups)),
        sha256=split.sha256(),
        training=model.metadata.hashes.named(),
    )


def _limits(evaluation: Evaluation) -> list[str]:
    """Known limits: those of the method, and what was measured here."""
    limits = [
        "Uncertainty is calibrated for images like the calibration images. Other places, seasons, devices and "
        "populations need an evaluation of their own.",
        "A promise holds for images drawn like those that proved it, with the stored seed and number of passes.",
        *evaluation.notes,
    ]
    for ood in evaluation.ood:
        accepted = ood.accepted if ood.gated is None else ood.gated
        limits.append(f"Of the out-of-distribution images {ood.name}, {percent(accepted)} are accepted.")
    if not evaluation.ood:
        limits.append("Out-of-distribution images were not measured: add --ood.")
    if evaluation.shift is None:
        limits.append("Damaged images were not measured.")
    else:
        worst = max(
            ((kind, one) for kind, curve in evaluation.shift.curves.items() for one in curve[1:]),
            key=lambda pair: pair[1].error or 0.0,
        )
        limits.append(
            f"Damage: the largest error among accepted images is {percent(worst[1].error)}, by {worst[0]} of severity "
            f"{worst[1].severity}."
        )
    return limits

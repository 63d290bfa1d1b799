"""Export several runs as one calibrated ensemble."""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from uce_edge.calibration import conformal
from uce_edge.calibration.label_sets import SetPromise
from uce_edge.contract import Inference, Method, NoiseKind
from uce_edge.datasets.splits import Dataset
from uce_edge.errors import UsageError
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import AUTO_FEATURES, NoveltyPromise, Promise
from uce_edge_export.graph import ensemble, heatmap
from uce_edge_export.options import FileKind
from uce_edge_export.pipeline import Exported, default_samples
from uce_edge_export.publish.draft import check_name
from uce_edge_export.recalibration import Recalibrated, recalibrate
from uce_edge_train.calibration import check_gate
from uce_edge_train.export import COUNTED, ExportedRun, export_run
from uce_edge_train.runs import Run

_USUAL = NoveltyPromise()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """How an ensemble is calibrated."""

    method: Method = Method.TEMPERATURE
    samples: int | None = None
    """Seeds; None for those of the kind of graph."""
    promise: Promise | None = None
    novelty: NoveltyPromise | None = _USUAL
    sets: SetPromise | None = None


@dataclass(frozen=True)
class ExportedEnsemble:
    """An exported ensemble."""

    members: tuple[ExportedRun, ...]
    """The members before they were combined."""
    combined: Exported
    """The ensemble before it was calibrated."""
    calibrated: Recalibrated


def export_ensemble(
    folders: Sequence[Path],
    out: str | Path,
    wanted: FileKind = FileKind(),
    promise: Promise | None = None,
    *,
    level: float | None = None,
    sets: SetPromise | None = None,
) -> ExportedEnsemble:
    """Export several runs as one file.

    Args:
        folders: The runs; all were trained on the same splits of the same dataset.
        out: The `.onnx` file.
        wanted: The kind of file. Without samples of its own, those that the runs were calibrated at.
        promise: The error that the threshold must keep; None for that of the runs.
        level: The share of familiar images that the novelty gate may reject; None for that of the runs.
        sets: The prediction sets; None for those of the runs.
    """
    out = check_name(out)
    if wanted.options.heatmap:
        raise heatmap.several_networks(str(folders[0]))
    runs = [Run.load(folder) for folder in folders]
    plan = plan_of(runs, folders, wanted.inference)
    plan = replace(plan, promise=promise or plan.promise, sets=sets or plan.sets)
    if level is not None:
        plan = replace(plan, novelty=replace(plan.novelty or _USUAL, level=level))
    dataset = shared_dataset(runs, folders)
    data, held_out = dataset.splits["calibration"], dataset.splits["guarantee"].one_per_group()
    if plan.promise is not None:
        plan.promise.targets(runs[0].class_names)
        guarantee.check_possible(len(held_out), plan.promise, grouped=held_out.groups is not None)
    if plan.sets is not None:
        conformal.check_possible(held_out.labels, plan.sets, runs[0].class_names)
    if plan.novelty is not None:
        for run in runs:
            check_gate(run, data, plan.novelty)
    if wanted.noise is NoiseKind.INPUT:
        raise UsageError(
            "Noise as graph inputs goes with one network: export the runs one by one.", "ensemble.noise-input"
        )
    inference, options = wanted.inference, wanted.options
    own = plan.samples if inference is Inference.MC else None
    samples = wanted.samples or own or default_samples(inference)
    unbaked = replace(options, bake=False)  # the whole is baked
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"member-{number}.onnx" for number in range(len(runs))]
        members = tuple(
            export_run(run, file, dataset, inference, wanted.noise, samples, unbaked, wanted.precision, member=True)
            for run, file in zip(folders, files, strict=True)
        )
        whole = Path(folder) / out.name
        combined = ensemble.combine(files, whole, data.images, samples=samples, baked=options.bake)
        counted = held_out if plan.promise or plan.sets else held_out.at_most(COUNTED)
        alike = len({member.metadata.novelty_layers for member in members}) == 1
        training = dataset.splits["train"] if alike and all(member.untrained_features for member in members) else None
        gate = None if plan.novelty is None else replace(plan.novelty, features=AUTO_FEATURES)  # the members have them
        fitted = recalibrate(
            whole, out, data, plan.method, None, 0, plan.promise, gate, counted, training=training, sets=plan.sets
        )
    return ExportedEnsemble(members, combined, fitted)


def plan_of(runs: Sequence[Run], folders: Sequence[Path], inference: Inference = Inference.MC) -> Plan:
    """The calibration that all calibrated runs share.

    The ensemble gets a map of its own, so those of the runs need not agree: with several methods, it is a temperature.
    Their number of passes counts for mc only.
    """
    counts = inference is Inference.MC
    plans = {
        folder: Plan(
            run.calibration.method, run.calibration.samples if counts else None, run.promise, run.novelty, run.sets
        )
        for run, folder in zip(runs, folders, strict=True)
        if run.calibration.samples is not None
    }
    if not plans:
        return Plan()
    if len(methods := {plan.method for plan in plans.values()}) > 1:
        _log.info(
            "The runs have maps of several methods (%s). The ensemble gets a temperature.", ", ".join(sorted(methods))
        )
        plans = {folder: replace(plan, method=Method.TEMPERATURE) for folder, plan in plans.items()}
    (first, plan), *others = plans.items()
    for folder, other in others:
        if other != plan:
            raise UsageError(
                f"An ensemble is calibrated as its runs were, but {first} and {folder} were calibrated in different "
                f"ways. Calibrate them alike: uce-edge calibrate {folder}",
                "ensemble.calibration",
            )
    return plan


def shared_dataset(runs: Sequence[Run], folders: Sequence[Path]) -> Dataset:
    """The shared dataset; rejects runs with different splits."""
    for run, folder in zip(runs, folders, strict=True):
        if run.split_hashes != runs[0].split_hashes or run.class_names != runs[0].class_names:
            raise UsageError(
                f"{folders[0]} and {folder} were trained on different images, so none are left for calibrating both. "
                "Export each, and calibrate them as a whole on images that neither has seen: "
                "uce-edge export --from a.onnx b.onnx --data FOLDER",
                "ensemble.data",
            )
    dataset = runs[0].dataset()
    if dataset.hashes() != runs[0].split_hashes:
        raise UsageError(
            f"The images of {dataset.name} are not those that {folders[0]} was trained on. Restore the data, or train "
            "again.",
            "split.changed",
        )
    return dataset

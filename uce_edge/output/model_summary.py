"""The metadata of a model file as text, row by row."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from uce_edge.calibration import label_sets
from uce_edge.calibration.error_map import EntropyErrorMap, ErrorMap
from uce_edge.contract import Inference, NoiseKind, PerturbationKind, Precision, PriorFrom
from uce_edge.errors import UsageError
from uce_edge.metadata import Calibration, Metadata, NoisyLayer, StoredScore
from uce_edge.monitor import LabelCheck, Monitor
from uce_edge.output.wording import count, percent
from uce_edge.rejection.description import describe, describe_threshold
from uce_edge.rejection.guarantee import counted_error_at
from uce_edge.runtime.model import Model

_FEW = 12  # class names: some models have a thousand
_SEARCHED = (
    "This threshold may accept fewer images than a fixed one, such as 0.3, that looks equally good. It was searched "
    "for on these images, and the proof must allow for the search. A fixed number was chosen before the images "
    "were seen."
)
"""Why `auto` may accept fewer images than a fixed number."""


def summarize(
    model: Model, *, everything: bool = False, thresholds: Sequence[float] = (), monitor: Path | None = None
) -> dict[str, list[str]]:
    """Describe a model file: the lines of every row, by its name.

    Args:
        model: The model.
        everything: Also thresholds, costs, all metrics, the model card and hashes.
        thresholds: Thresholds whose accepted errors to show.
        monitor: The state file of a monitor, to show its last check.

    Raises:
        UsageError: The file stores no errors of thresholds, or the state belongs to another model.
    """
    path, metadata = Path(model.path), model.metadata
    rows: dict[str, str | list[str]] = {}
    rows |= _essential(path, metadata, len(metadata.classes) if everything else _FEW)
    shown = thresholds or ((0.1, 0.3, 0.5) if everything else ())
    rows |= _thresholds(path, metadata, shown, required=bool(thresholds))
    if metadata.rule is not None:
        searched = metadata.promise is not None and metadata.held_out is not None
        lines = describe(metadata.rule, metadata.classes).split("\n")
        rows["reject auto"] = lines + ([_SEARCHED] if searched and everything else [])
    if metadata.sets is not None:
        rows["sets"] = label_sets.describe(metadata.sets, metadata.classes)
    if monitor is not None:
        rows |= _promise(metadata) | {"last checked": _last_checked(model, monitor)}
    if everything:
        rows |= _rest(metadata)
    rows["digests"] = _integrity(model)
    return {name: [value] if isinstance(value, str) else value for name, value in rows.items()}


def layer_lines(metadata: Metadata) -> list[str]:
    """Describe every noisy layer in a line."""
    kinds = ["" if _is_gaussian(layer) else f" ({layer.kind})" for layer in metadata.layers]
    return [f"  p = {layer.p:<5g} {layer.name}{kind}" for layer, kind in zip(metadata.layers, kinds, strict=True)]


def describe_check(check: LabelCheck, alpha: float) -> str:
    """Describe the test of a promised error with labelled images."""
    promised = percent(check.target_error)
    counted = f"{check.errors} of {check.images:,} labelled and accepted images are wrong"
    if check.is_broken(alpha):
        result = f"the promised error of at most {promised} is BROKEN"
    elif check.is_kept(alpha):
        result = f"the promised error of at most {promised} is kept"
    else:
        result = f"these are too few to confirm or refute the promised error of at most {promised}: label more images"
    return f"Checked {check.time}: {counted}; {result} (at alpha {alpha:g})."


def _essential(model: Path, metadata: Metadata, shown: int) -> dict[str, str]:
    """The summary, with this many class names."""
    others = ", ..." if len(metadata.classes) > shown else ""
    spec, calibration = metadata.image, metadata.calibration
    drawn = "draw" if metadata.inference is Inference.MOMENTS else "pass"
    passes = f"{metadata.inference}, {count(metadata.samples, drawn)} by default"
    passes += f", in each of {metadata.members} networks" if metadata.members > 1 else ""
    fitted = f"{calibration.method}, fitted at N = {calibration.samples}" if calibration.samples else "none"
    if calibration.temperature is not None:
        fitted += f", T = {calibration.temperature:.4f}"
    accuracy = metadata.metrics.get("accuracy")
    return {
        "file": f"{model} ({model.stat().st_size / 1e6:.2f} MB), contract {metadata.contract}",
        "classes": f"{len(metadata.classes)}: {', '.join(metadata.classes[:shown])}{others}",
        "image": spec.words,
        "network": f"{_network(metadata)}; noise: {_noise(metadata)}",
        "inference": passes + ("" if metadata.precision is Precision.FP32 else f", {metadata.precision}"),
        "calibration": fitted,
    } | ({} if accuracy is None else {"accuracy": _score_text(accuracy)})


def _thresholds(model: Path, metadata: Metadata, limits: Sequence[float], *, required: bool) -> dict[str, str]:
    """The errors that thresholds accept, if the file stores them."""
    counted = metadata.held_out
    if counted is not None:
        return {
            f"reject {limit:g}": describe_threshold(counted_error_at(counted, limit, 0.95), grouped=counted.grouped)
            for limit in limits
        }
    if required:
        raise UsageError(
            f"{model} has no stored errors of held-out images. Measure them on your own images: uce-edge evaluate "
            f"{shlex.quote(str(model))} --data FOLDER --reject {limits[0]:g}",
            "metadata.no-held-out",
            path=model,
        )
    return {}


def _rest(metadata: Metadata) -> dict[str, str | list[str]]:
    """The rows of `--all`."""
    calibration, costs = metadata.calibration, metadata.costs
    rows: dict[str, str | list[str]] = {}
    rows |= _promise(metadata) | {"monitor": _reference(metadata), "noise": _SOURCES[metadata.noise]}
    error = _expected_error(calibration)
    if error is not None:
        rows["error"] = error
    if costs is not None:
        once, each, total = costs.macs_once, costs.macs_per_pass, costs.macs(metadata.samples)
        rows["FLOPs"] = f"{2 * once / 1e6:,.1f} M once, {2 * each / 1e6:,.1f} M a pass, {2 * total / 1e6:,.1f} M in all"
    rows |= {name: _score_text(score) for name, score in metadata.metrics.items() if name != "accuracy"}
    for name, entry in metadata.card.items():
        rows[name] = list(map(str, entry)) if isinstance(entry, list) else str(entry)
    if metadata.pretrained is not None:
        rows["pretrained"] = f"{metadata.pretrained.name}, {metadata.pretrained.licence}, {metadata.pretrained.source}"
    rows |= {f"sha256 {name}": digest for name, digest in metadata.hashes.named().items()}
    rows["tools"] = ", ".join(f"{name} {version}" for name, version in sorted(metadata.tools.items()))
    return rows


def _score_text(score: StoredScore) -> str:
    return f"{_number(score.value)} ({_number(score.low)} to {_number(score.high)}) on test images"


_SOURCES = {
    NoiseKind.TABLE: "from the older table in the file (table)",
    NoiseKind.TABLE_2: "from the table in the file (table-2)",
    NoiseKind.RANDN: "from the runtime: no pass can be repeated (randn)",
    NoiseKind.INPUT: "from inputs of the file (input)",
    NoiseKind.NONE: "none",
}


def _network(metadata: Metadata) -> str:
    name = metadata.architecture or "unknown"
    return name if metadata.members == 1 else f"an ensemble of {metadata.members}: {name}"


def _integrity(model: Model) -> str:
    """Whether the file was compared with its digests."""
    if model.digests is None and model.metadata.digests is None:
        return "none: the file was written before digests existed"
    probes = len(model.metadata.probe)
    state = "the file is as published" if model.digests is not None else "not compared"
    return f"{state}; {probes} probe {'image' if probes == 1 else 'images'}"


def _noise(metadata: Metadata) -> str:
    """The number of noisy layers and their kinds."""
    if metadata.laplace is not None:
        fit = metadata.laplace
        source = "training" if fit.prior_from == PriorFrom.MARGINAL_LIKELIHOOD else "labelled"
        return (
            f"draws of the last layer, Laplace posterior of {fit.images:,} {source} images, prior "
            f"precision {fit.prior_precision:.3g}"
        )
    if not metadata.layers:
        return "none"
    count = len(metadata.layers)
    masks = sum(not _is_gaussian(layer) for layer in metadata.layers)
    parts = [f"{count} {'layer' if count == 1 else 'layers'}"]
    if masks < count:
        parts.append(f"{metadata.sigma} sigma")
    if masks:
        parts.append(f"{'all' if masks == count else masks} with Bernoulli masks")
    return ", ".join(parts)


def _promise(metadata: Metadata) -> dict[str, str]:
    """The date and images of the promised error."""
    stored = metadata.promise
    if stored is None:
        return {}
    when = "promised at an unknown date" if stored.date is None else f"promised on {stored.date}"
    check = "to see when a monitor last checked it: info --monitor state.json"
    return {"promise": f"{when}, for images like the {stored.images:,} that it was proved on; {check}"}


def _expected_error(calibration: Calibration) -> str | None:
    """The error map at some values; None for a file without one."""
    if calibration.confidence_error is not None:
        by_confidence = ErrorMap(*calibration.confidence_error)
        errors = ", ".join(f"{by_confidence([share])[0]:.1%} at {share:.0%}" for share in (0.5, 0.8, 0.95))
        return f"{errors} (expected error at that confidence)"
    if calibration.error is None:
        return None
    by_entropy = EntropyErrorMap(*calibration.error)
    errors = ", ".join(f"{by_entropy([h])[0]:.1%} at {h:g}" for h in (0.1, 0.3, 0.5))
    return f"{errors} (expected error at that uncertainty)"


def _reference(metadata: Metadata) -> str:
    """The stored reference of a monitor."""
    stored = metadata.monitor
    if stored is None:
        return "no stored reference: uce-edge calibrate MODEL.onnx --data labelled/ --monitor"
    return f"a reference of {stored.images:,} images, counted on {stored.date or 'an unknown date'}"


def _last_checked(model: Model, state: Path) -> list[str]:
    """The report of a monitor of this file."""
    running = Monitor.load(state)
    if running.state.model != model.sha256:
        message = f"{state} belongs to another model file than {model.path}. Give the state of this model."
        raise UsageError(message, "monitor.another-model", path=state)
    report = running.report()
    lines = [f"{running.state.updated or 'never'}: {report.sentence}", report.estimated]
    if running.state.labels is not None:
        lines.append(describe_check(running.state.labels, running.state.alpha))
    return lines


def _is_gaussian(layer: NoisyLayer) -> bool:
    return layer.kind is None or layer.kind.startswith(PerturbationKind.GAUSSIAN)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"

"""`uce-edge info`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.options import InferenceOption, JsonOption, ModelArgument, NoVerifyOption, choose_model
from uce_edge.cli.words import describe, describe_auto, describe_check, quote
from uce_edge.contract import PerturbationKind, Precision, PriorFrom
from uce_edge.errors import UsageError
from uce_edge.metadata import Metadata, NoisyLayer

if TYPE_CHECKING:
    from uce_edge.model import Model


def info(
    model: ModelArgument = None,
    inference: InferenceOption = None,
    reject: Annotated[
        list[float] | None,
        typer.Option(help="What does this threshold let through? Two decimals; repeat it; default: 0.1, 0.3, 0.5."),
    ] = None,
    monitor: Annotated[
        Path | None, typer.Option(help="The state of a monitor: says when the promise was last checked.")
    ] = None,
    no_verify: NoVerifyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a model file says of itself, and what thresholds let through.

    Example: uce-edge info digits.onnx --reject 0.3
    """
    model = choose_model(model, inference)
    from uce_edge.calibration.error_map import ErrorMap
    from uce_edge.calibration.guarantee import counted_error_at
    from uce_edge.model import Model

    if as_json and reject:
        raise UsageError("--reject goes with the table; --json has the counts of all thresholds under held_out.")
    loaded = Model(model, "cpu", verify=not no_verify)
    metadata = loaded.metadata
    if as_json:
        typer.echo(metadata.to_json(indent=2))
        return
    spec, calibration, costs = metadata.image, metadata.calibration, metadata.costs
    passes = f"{metadata.inference}, {metadata.samples} {'pass' if metadata.samples == 1 else 'passes'} by default"
    passes += f", in each of {metadata.members} networks" if metadata.members > 1 else ""
    rows = {
        "file": f"{model} ({model.stat().st_size / 1e6:.2f} MB), contract {metadata.contract}",
        "classes": f"{len(metadata.classes)}: {', '.join(metadata.classes)}",
        "image": spec.words,
        "network": _network(metadata),
        "inference": passes + ("" if metadata.precision is Precision.FP32 else f", {metadata.precision}"),
        "noise": _noise(metadata),
        "calibration": f"{calibration.method}, fitted at N = {calibration.samples}" if calibration.samples else "none",
    }
    counted = metadata.held_out
    if counted is None and reject:
        raise UsageError(
            f"{model} does not know its error on held-out images. "
            f"Measure it on images of yours: uce-edge evaluate {quote(model)} --data FOLDER --reject {reject[0]:g}"
        )
    if counted is not None:
        limits = reject or (0.1, 0.3, 0.5)
        rows |= {f"reject {limit:g}": describe(counted_error_at(counted, limit, 0.95)) for limit in limits}
    rows |= _promises(metadata) | {"monitor": _usual(metadata)}
    if monitor is not None:
        rows["last checked"] = _last_checked(model, monitor)
    if calibration.error is not None:
        error = ErrorMap(*calibration.error)
        rows["error"] = (
            ", ".join(f"{error([h])[0]:.1%} at {h:g}" for h in (0.1, 0.3, 0.5)) + " (expected, at that uncertainty)"
        )
    if calibration.temperature is not None:
        rows["calibration"] += f", T = {calibration.temperature:.4f}"
    if costs is not None:
        once, each, total = costs.macs_once, costs.macs_per_pass, costs.macs(metadata.samples)
        rows["FLOPs"] = f"{2 * once / 1e6:,.1f} M once, {2 * each / 1e6:,.1f} M a pass, {2 * total / 1e6:,.1f} M in all"
    for name, score in metadata.metrics.items():
        rows[name] = f"{_number(score.value)} ({_number(score.low)} to {_number(score.high)}) on test images"
    for name, told in metadata.card.items():
        rows[name] = "\n".join(told) if isinstance(told, list) else str(told)
    rows |= {f"sha256 {name}": digest for name, digest in metadata.hashes.named().items()}
    rows["digests"] = _integrity(loaded)
    rows["tools"] = ", ".join(f"{name} {version}" for name, version in sorted(metadata.tools.items()))
    width = max(map(len, rows)) + 2
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}" + value.replace("\n", "\n" + " " * width))
    for layer in metadata.layers:
        kind = "" if _is_gaussian(layer) else f" ({layer.kind})"
        typer.echo(f"  p = {layer.p:<5g} {layer.name}{kind}")


def _network(metadata: Metadata) -> str:
    name = metadata.architecture or "unknown"
    return name if metadata.members == 1 else f"an ensemble of {metadata.members}: {name}"


def _integrity(model: "Model") -> str:
    """Whether the file can be, and was, compared with what was published."""
    if model.digests is None and model.metadata.digests is None:
        return "none: the file is from before there were any"
    probes = len(model.metadata.probe)
    state = "the file is as published" if model.digests is not None else "not compared"
    return f"{state}; {probes} probe {'image' if probes == 1 else 'images'}"


def _noise(metadata: Metadata) -> str:
    """Where the noise comes from, how many layers have it, and of which kind."""
    if metadata.laplace is not None:
        fit = metadata.laplace
        source = "training" if fit.prior_from == PriorFrom.MARGINAL_LIKELIHOOD else "labelled"
        return (
            f"{metadata.noise}, draws of the last layer: Laplace posterior of {fit.images:,} {source} images, prior "
            f"precision {fit.prior_precision:.3g}"
        )
    if not metadata.layers:
        return "none"
    count = len(metadata.layers)
    masks = sum(not _is_gaussian(layer) for layer in metadata.layers)
    parts = [f"{metadata.noise}", f"{count} {'layer' if count == 1 else 'layers'}"]
    if masks < count:
        parts.append(f"{metadata.sigma} sigma")
    if masks:
        parts.append(f"{'all' if masks == count else masks} with Bernoulli masks")
    return ", ".join(parts)


def _promises(metadata: Metadata) -> dict[str, str]:
    """What `--reject auto` does, and when its error was promised."""
    auto = describe_auto(metadata)
    if auto is None:
        return {}
    stored = metadata.promised
    if stored is None:
        return {"reject auto": auto}
    when = "promised at an unknown date" if stored.date is None else f"promised on {stored.date}"
    check = "a monitor checks it: info --monitor state.json"
    return {"reject auto": auto, "promise": f"{when}, for images like the {stored.images:,} it was found with; {check}"}


def _usual(metadata: Metadata) -> str:
    """Whether a monitor can compare."""
    stored = metadata.monitor
    if stored is None:
        return "its usual answers are not stored: uce-edge calibrate MODEL.onnx --data labelled/ --monitor"
    return f"usual answers of {stored.images:,} images, counted on {stored.date or 'an unknown date'}"


def _last_checked(model: Path, state: Path) -> str:
    """What a monitor of this file knows."""
    from uce_edge.logged import sha256
    from uce_edge.monitor import Monitor

    running = Monitor.load(state)
    if running.state.model != sha256(model):
        raise UsageError(f"{state} is about another model file than {model}. Name the state of this one.")
    told = [f"{running.state.updated or 'never'}: {running.report().sentence}"]
    if running.state.labels is not None:
        told.append(describe_check(running.state.labels, running.state.alpha))
    return "\n".join(told)


def _is_gaussian(layer: NoisyLayer) -> bool:
    return layer.kind is None or layer.kind.startswith(PerturbationKind.GAUSSIAN)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"

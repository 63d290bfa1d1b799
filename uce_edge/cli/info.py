"""`uce-edge info`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.messages import describe_auto, describe_check, echo, quote, say
from uce_edge.cli.shared_options import InferenceOption, JsonOption, ModelArgument, NoVerifyOption, choose_model
from uce_edge.contract import Inference, NoiseKind, PerturbationKind, Precision, PriorFrom
from uce_edge.errors import UsageError
from uce_edge.metadata import Calibration, Metadata, NoisyLayer, StoredScore
from uce_edge.output.wording import count

if TYPE_CHECKING:
    from uce_edge.runtime.model import Model


_FEW = 12  # class names: some models have a thousand
_SEARCHED = (
    "This threshold may accept fewer images than a fixed one, such as 0.3, that looks equally good. It was searched "
    "for on these images, and the proof must allow for the search. A fixed number was chosen before anybody saw the "
    "images."
)
"""Why `auto` may lose against a number that a user names."""


def info(
    model: ModelArgument = None,
    inference: InferenceOption = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also show thresholds, costs, all metrics, the model card, hashes and noisy layers."
        ),
    ] = False,
    reject: Annotated[
        list[float] | None,
        typer.Option(
            help="Show how many errors this threshold on the uncertainty lets through (0 to 1, two decimals). Can be "
            "repeated. With --all: 0.1, 0.3 and 0.5."
        ),
    ] = None,
    monitor: Annotated[
        Path | None, typer.Option(help="The state file of a monitor. Shows when the promised error was last checked.")
    ] = None,
    no_verify: NoVerifyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is stored in a model file: a summary, or everything with --all.

    Example: uce-edge info digits.onnx

    Example: uce-edge info digits.onnx --all

    Example: uce-edge info digits.onnx --reject 0.3
    """
    asked = model
    model = choose_model(model, inference)
    from uce_edge.runtime.model import Model

    if as_json and reject:
        raise UsageError(
            "--reject does not go with --json, which has the counts of all thresholds under held_out. Leave --reject "
            "out."
        )
    loaded = Model(model, "cpu", verify=not no_verify)
    metadata = loaded.metadata
    if as_json:
        typer.echo(metadata.to_json(indent=2))
        return
    rows: dict[str, str | list[str]] = {}
    rows |= _essential(model, metadata, len(metadata.classes) if everything else _FEW)
    rows |= _thresholds(model, metadata, reject or ([0.1, 0.3, 0.5] if everything else []), asked=bool(reject))
    if auto := describe_auto(metadata):
        searched = metadata.promise is not None and metadata.held_out is not None
        rows["reject auto"] = auto.split("\n") + ([_SEARCHED] if searched and everything else [])
    if monitor is not None:
        rows |= _promise(metadata) | {"last checked": _last_checked(loaded, monitor)}
    if everything:
        rows |= _rest(metadata)
    rows["digests"] = _integrity(loaded)
    width = max(map(len, rows)) + 2
    for name, value in rows.items():
        for number, line in enumerate([value] if isinstance(value, str) else value):
            echo(f"{'' if number else name:<{width}}{line}")
    for layer in metadata.layers if everything else ():
        kind = "" if _is_gaussian(layer) else f" ({layer.kind})"
        echo(f"  p = {layer.p:<5g} {layer.name}{kind}")
    if not everything:
        named = "" if asked is None and inference is None else f" {quote(asked or model)}"
        say(f"More: uce-edge info{named} --all")


def _essential(model: Path, metadata: Metadata, shown: int) -> dict[str, str]:
    """What every user wants to know, with so many of the class names."""
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
    } | ({} if accuracy is None else {"accuracy": _told(accuracy)})


def _thresholds(model: Path, metadata: Metadata, limits: list[float], *, asked: bool) -> dict[str, str]:
    """What thresholds let through, where the file knows."""
    from uce_edge.rejection.description import describe_threshold
    from uce_edge.rejection.guarantee import counted_error_at

    counted = metadata.held_out
    if counted is not None:
        return {
            f"reject {limit:g}": describe_threshold(counted_error_at(counted, limit, 0.95), grouped=counted.grouped)
            for limit in limits
        }
    if asked:
        raise UsageError(
            f"{model} has no stored errors of held-out images. "
            f"Measure them on your own images: uce-edge evaluate {quote(model)} --data FOLDER --reject {limits[0]:g}"
        )
    return {}


def _rest(metadata: Metadata) -> dict[str, str | list[str]]:
    """What some users want to know."""
    calibration, costs = metadata.calibration, metadata.costs
    rows: dict[str, str | list[str]] = {}
    rows |= _promise(metadata) | {"monitor": _usual(metadata), "noise": _SOURCES[metadata.noise]}
    error = _expected_error(calibration)
    if error is not None:
        rows["error"] = error
    if costs is not None:
        once, each, total = costs.macs_once, costs.macs_per_pass, costs.macs(metadata.samples)
        rows["FLOPs"] = f"{2 * once / 1e6:,.1f} M once, {2 * each / 1e6:,.1f} M a pass, {2 * total / 1e6:,.1f} M in all"
    rows |= {name: _told(score) for name, score in metadata.metrics.items() if name != "accuracy"}
    for name, told in metadata.card.items():
        rows[name] = list(map(str, told)) if isinstance(told, list) else str(told)
    rows |= {f"sha256 {name}": digest for name, digest in metadata.hashes.named().items()}
    rows["tools"] = ", ".join(f"{name} {version}" for name, version in sorted(metadata.tools.items()))
    return rows


def _told(score: StoredScore) -> str:
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


def _integrity(model: "Model") -> str:
    """Whether the file can be, and was, compared with what was published."""
    if model.digests is None and model.metadata.digests is None:
        return "none: the file was written before digests existed"
    probes = len(model.metadata.probe)
    state = "the file is as published" if model.digests is not None else "not compared"
    return f"{state}; {probes} probe {'image' if probes == 1 else 'images'}"


def _noise(metadata: Metadata) -> str:
    """How many layers have noise, and of which kind."""
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
    """When the error of `--reject auto` was promised."""
    stored = metadata.promise
    if stored is None:
        return {}
    when = "promised at an unknown date" if stored.date is None else f"promised on {stored.date}"
    check = "to see when a monitor last checked it: info --monitor state.json"
    return {"promise": f"{when}, for images like the {stored.images:,} that it was proved on; {check}"}


def _expected_error(calibration: Calibration) -> str | None:
    """What the map of a file says of some answers; None for a file without one."""
    from uce_edge.calibration.error_map import EntropyErrorMap, ErrorMap

    if calibration.confidence_error is not None:
        by_confidence = ErrorMap(*calibration.confidence_error)
        told = ", ".join(f"{by_confidence([share])[0]:.1%} at {share:.0%}" for share in (0.5, 0.8, 0.95))
        return f"{told} (expected error at that confidence)"
    if calibration.error is None:
        return None
    by_entropy = EntropyErrorMap(*calibration.error)
    told = ", ".join(f"{by_entropy([h])[0]:.1%} at {h:g}" for h in (0.1, 0.3, 0.5))
    return f"{told} (expected error at that uncertainty)"


def _usual(metadata: Metadata) -> str:
    """Whether a monitor can compare."""
    stored = metadata.monitor
    if stored is None:
        return "its usual answers are not stored: uce-edge calibrate MODEL.onnx --data labelled/ --monitor"
    return f"usual answers of {stored.images:,} images, counted on {stored.date or 'an unknown date'}"


def _last_checked(model: "Model", state: Path) -> list[str]:
    """What a monitor of this file knows."""
    from uce_edge.monitor import Monitor

    running = Monitor.load(state)
    if running.state.model != model.sha256:
        raise UsageError(f"{state} belongs to another model file than {model.path}. Give the state of this model.")
    told = [f"{running.state.updated or 'never'}: {running.report().sentence}"]
    if running.state.labels is not None:
        told.append(describe_check(running.state.labels, running.state.alpha))
    return told


def _is_gaussian(layer: NoisyLayer) -> bool:
    return layer.kind is None or layer.kind.startswith(PerturbationKind.GAUSSIAN)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"

"""`uce-edge export`."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from uce_edge.cli.options import parse_size
from uce_edge.cli.parts import need_torch
from uce_edge.cli.words import describe, quote, say
from uce_edge.contract import Inference, NoiseKind, Precision
from uce_edge.errors import MissingPartError, UsageError, expected
from uce_edge_export.options import Expand, Layout, OutputIs
from uce_edge_train.choices import Architecture

if TYPE_CHECKING:
    from uce_edge_export.export import Exported
    from uce_edge_export.options import Options

_FOREIGN = "Third-party models"
_FOREIGN_DEFAULTS = (None, 255.0, "0", "1", Layout.AUTO, None, OutputIs.AUTO)
_NOISE = "Noise"


class _Wanted(NamedTuple):
    """What every source is exported as."""

    inference: Inference
    noise: NoiseKind
    samples: int
    precision: Precision
    p: list[str]
    options: "Options"


def export(
    run: Annotated[
        Path | None, typer.Argument(help="A folder made by `uce-edge train`; default: the newest under runs/.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; default: named after the source.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Any ONNX image classifier instead of a run.")] = None,
    untrained: Annotated[
        str | None,
        typer.Option(help=f"A network with random weights, for benchmarks: {', '.join(Architecture)}, or your own."),
    ] = None,
    inference: Annotated[
        Inference, typer.Option(help="mc samples; moments does it in one pass, nearly; deterministic has no noise.")
    ] = Inference.MC,
    samples: Annotated[
        int | None, typer.Option(help="Default number of passes; a calibrated run has its own. 25; moments: 100.")
    ] = None,
    bake_samples: Annotated[
        int | None, typer.Option(help="Fix the number of passes: the file then takes an image and no seeds.")
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="Of the network: fp16 for graphics cards, int8 for processors.")
    ] = Precision.FP32,
    noise: Annotated[
        NoiseKind, typer.Option(help="table replays every pass, randn does not.", rich_help_panel=_NOISE)
    ] = NoiseKind.TABLE,
    p: Annotated[
        list[str] | None,
        typer.Option(help="Rate (0.2), or PATTERN=RATE by weight name; repeat it.", rich_help_panel=_NOISE),
    ] = None,
    from_layer: Annotated[
        str | None, typer.Option(help="First noisy weight layer: number or name pattern.", rich_help_panel=_NOISE)
    ] = None,
    sample_from: Annotated[
        str | None,
        typer.Option(help="moments: draw from this layer on; default: the last.", rich_help_panel=_NOISE),
    ] = None,
    expand: Annotated[
        Expand, typer.Option(help="early suits runtimes that cannot broadcast later.", rich_help_panel=_NOISE)
    ] = Expand.LATE,
    classes: Annotated[
        str | None, typer.Option(help="Class names: a,b,c or a file with one per line.", rich_help_panel=_FOREIGN)
    ] = None,
    scale: Annotated[float, typer.Option(help="Pixels are divided by this.", rich_help_panel=_FOREIGN)] = 255.0,
    mean: Annotated[str, typer.Option(help="Then this is subtracted: 0.5 or r,g,b.", rich_help_panel=_FOREIGN)] = "0",
    std: Annotated[str, typer.Option(help="Then divided by this.", rich_help_panel=_FOREIGN)] = "1",
    layout: Annotated[Layout, typer.Option(help="Order of its dimensions.", rich_help_panel=_FOREIGN)] = Layout.AUTO,
    size: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH, if the model leaves it open.", rich_help_panel=_FOREIGN)
    ] = None,
    output_is: Annotated[
        OutputIs, typer.Option(help="Whether the output is before or after the softmax.", rich_help_panel=_FOREIGN)
    ] = OutputIs.AUTO,
) -> None:
    """Write a model as one ONNX file that samples, calibrates and measures its own uncertainty.

    Example: uce-edge export runs/digits --out digits.onnx

    Example: uce-edge export --from resnet.onnx --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --out bayes.onnx
    """
    if sum(given is not None for given in (run, source, untrained)) > 1:
        raise UsageError("Choose one of a run, --from and --untrained.")
    if noise is NoiseKind.NONE:
        raise UsageError("A model without noise is made with: --inference deterministic")
    if p and source is None and untrained is None:
        raise UsageError("A trained run has its own dropout rate; --p goes with --from and --untrained.")
    if source is None and (classes, scale, mean, std, layout, size, output_is) != _FOREIGN_DEFAULTS:
        raise UsageError("--classes, --scale, --mean, --std, --layout, --size and --output-is go with --from.")
    need_torch("Exporting")
    for package in ("onnxscript", "onnx"):
        try:
            import_module(package)
        except ImportError:
            raise MissingPartError("Exporting", package, "train,export") from None
    from uce_edge_export.export import default_samples
    from uce_edge_export.options import Options

    if bake_samples is not None:
        if samples is not None:
            raise UsageError("Choose one of --samples and --bake-samples.")
        samples = bake_samples
    passes = default_samples(inference) if samples is None or inference is Inference.DETERMINISTIC else samples
    wanted = _Wanted(
        inference,
        noise,
        passes,
        precision,
        p or ["0.2"],
        Options(from_layer, expand, bake_samples is not None, sample_from),
    )
    suffix = "" if inference is Inference.MC else f"-{inference}"
    suffix += "" if precision is Precision.FP32 else f"-{precision}"
    if source is not None:
        out = out or Path(f"{source.stem}-uce{suffix}.onnx")
        description = {
            "classes": _names(classes), "scale": scale, "mean": _numbers("mean", mean), "std": _numbers("std", std),
        }  # fmt: skip
        _export_foreign(source, out, wanted, description, layout, parse_size(size), output_is)
        following = f"calibrate {quote(out)} --data FOLDER --method temperature"
    elif untrained is not None:
        out = out or Path(f"{untrained}{suffix}.onnx")
        _export_untrained(untrained, out, wanted)
        following = f"bench --model {quote(out)}"
    else:
        out, threshold = _export_run(run, out, suffix, wanted)
        following = f"predict --model {quote(out)} image.png --reject {threshold}"
    say(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB) and {out.with_suffix('.json')}.")
    say(f"Next: uce-edge {following}")


def _export_run(run: Path | None, out: Path | None, suffix: str, wanted: _Wanted) -> tuple[Path, str]:
    """Returns the file and a threshold to try."""
    from uce_edge_train.export import export_run
    from uce_edge_train.runs import Run, newest

    if run is None:
        run = newest()
        say(f"Exporting the newest run: {run}")
    out = out or Path(f"{run.resolve().name}{suffix}.onnx")
    dataset = Run.load(run).dataset()
    done = export_run(
        run, out, dataset, wanted.inference, wanted.noise, wanted.samples, wanted.options, wanted.precision
    )
    _say_parity(done)
    if done.change is not None:
        (nll_before, nll_after), (uce_before, uce_after) = done.change.nll, done.change.uce
        say(f"{wanted.precision}: NLL {nll_before:.4f} -> {nll_after:.4f}, UCE {uce_before:.4f} -> {uce_after:.4f}.")
    if wanted.noise is not NoiseKind.INPUT:
        original = "" if done.torch_nll is None else f" (PyTorch: {done.torch_nll:.4f})"
        say(f"NLL on the calibration images: {done.file_nll:.4f}{original}.")
    if isinstance(done.promised, Exception):
        say(f"warning: no threshold was stored. {done.promised}")
    elif done.promised is not None:
        say(describe(done.promised))
    return out, "0.3" if done.metadata.reject is None else "auto"


def _export_foreign(
    source: Path,
    out: Path,
    wanted: _Wanted,
    description: dict[str, Any],
    layout: Layout,
    size: tuple[int, int] | None,
    output_is: OutputIs,
) -> None:
    from uce_edge_export import third_party
    from uce_edge_export.description import check_name
    from uce_edge_export.export import export_third_party

    check_name(out)
    found = third_party.load(source, layout=layout, output_is=output_is, size=size)
    description |= {"samples": wanted.samples, "inference": wanted.inference, "noise": wanted.noise}
    metadata = third_party.metadata(found, source, **description)
    metadata = replace(metadata, precision=wanted.precision)
    done = export_third_party(found, metadata, out, wanted.p, wanted.options)
    for note in found.notes:
        say(f"Note: {note}.")
    if wanted.inference is not Inference.DETERMINISTIC:
        say("Note: it was not trained with noise. `calibrate` shows its accuracy with it; if that has fallen, export")
        say("      again with a smaller --p, or with --from-layer for the last layers alone.")
    _say_parity(done)


def _export_untrained(name: str, out: Path, wanted: _Wanted) -> None:
    import torch

    from uce_edge.contract import pass_seeds
    from uce_edge.metadata import ImageSpec, Metadata
    from uce_edge_train import architectures, gaussianize
    from uce_edge_train.export import export_module

    if len(wanted.p) > 1 or "=" in wanted.p[0]:
        raise UsageError(expected("`p`", "one rate for an untrained network", wanted.p, "Use: --p 0.2"))
    pass_seeds(wanted.samples, 0)
    torch.manual_seed(0)
    model = gaussianize(architectures.build(name, 10, 3), _numbers("p", wanted.p[0])[0])
    metadata = Metadata(
        tuple(str(i) for i in range(10)),
        ImageSpec(32, 32, 3),
        inference=wanted.inference,
        noise=wanted.noise,
        precision=wanted.precision,
        architecture=f"{name} (untrained)",
        samples=wanted.samples,
    )
    _say_parity(export_module(model, metadata, out, options=wanted.options))


def _say_parity(done: "Exported") -> None:
    if done.metadata.inference is Inference.MOMENTS:
        say(f"Mean probabilities within {done.parity.largest_difference:.3f} of 32 exact passes, on two images.")
        return
    z = done.parity.largest_z
    statistic = "" if z is None else f", {z:.1f} standard errors from random noise"
    say(f"Parity: logits within {done.parity.largest_difference:.1e} of the original{statistic}.")


def _numbers(argument: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            expected(f"`{argument}`", "numbers separated by commas", text, f"For example: --{argument} 0.5,0.5,0.5")
        ) from None


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise UsageError(expected("`classes`", "names, or a text file in UTF-8", text, "Save it as UTF-8")) from None
    except OSError:  # not a file: the names themselves, which may be longer than a file name can be
        return [name.strip() for name in text.split(",")]
    return [line.strip() for line in lines if line.strip()]

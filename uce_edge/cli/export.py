"""`uce-edge export`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli import ensembles, exporting, packaging
from uce_edge.cli.options import RANGE, TARGETS, GroupOption
from uce_edge.cli.parts import need_onnx, need_torch_export
from uce_edge.cli.words import say, show_log
from uce_edge.contract import Inference, NoiseKind, Precision, Sigma
from uce_edge.errors import UsageError
from uce_edge_export.options import ChannelOrder, Expand, Layout, Options, OutputIs, PostHoc, Wanted
from uce_edge_train.choices import Architecture

_FOREIGN = "Third-party models"
_NOISE = "Noise"


def export(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Folders made by `uce-edge train`; default: the newest under runs/. Several become one ensemble. Or a "
            "file made by this program, for --triton, --hub and --ort.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; default: named after the source.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Any ONNX image classifier instead of a run; several become one ensemble."),
    ] = None,
    untrained: Annotated[
        str | None,
        typer.Option(help=f"A network with random weights, for benchmarks: {', '.join(Architecture)}, or your own."),
    ] = None,
    inference: Annotated[
        Inference | None,
        typer.Option(
            help="mc samples; moments does it in one pass, nearly; deterministic has no noise. Default: mc, or "
            "deterministic for --from with --data."
        ),
    ] = None,
    posterior: Annotated[
        PostHoc | None,
        typer.Option(help="With --from and --data: draw the weights of the last layer; the network runs once."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Default number of passes; a calibrated run has its own. 25; moments, laplace: 100."),
    ] = None,
    bake_samples: Annotated[
        int | None, typer.Option(help="Fix the number of passes: the file then takes an image and no seeds.")
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="Of the network: fp16 for graphics cards, int8 for processors.")
    ] = Precision.FP32,
    ort: Annotated[
        bool, typer.Option("--ort", help="Also write NAME.ort, ONNX Runtime's own format, which loads faster.")
    ] = False,
    triton: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write a model repository for NVIDIA Triton.")
    ] = None,
    hub: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write a folder with a model card for the Hugging Face hub.")
    ] = None,
    noise: Annotated[
        NoiseKind, typer.Option(help="table replays every pass, randn does not.", rich_help_panel=_NOISE)
    ] = NoiseKind.TABLE,
    p: Annotated[
        list[str] | None,
        typer.Option(help="Gaussian: rate (0.2), or PATTERN=RATE by weight name; repeat it.", rich_help_panel=_NOISE),
    ] = None,
    dropout: Annotated[
        list[str] | None,
        typer.Option(
            help="keep: dropout inside the network stays random. --from: PATTERN=RATE masks values; repeat it.",
            rich_help_panel=_NOISE,
        ),
    ] = None,
    from_layer: Annotated[
        str | None, typer.Option(help="First noisy weight layer: number or name pattern.", rich_help_panel=_NOISE)
    ] = None,
    sample_from: Annotated[
        str | None,
        typer.Option(help="moments: draw from this layer on; default: the last.", rich_help_panel=_NOISE),
    ] = None,
    sigma: Annotated[
        Sigma | None,
        typer.Option(help="factored is faster; default: as the run was trained, or exact.", rich_help_panel=_NOISE),
    ] = None,
    expand: Annotated[
        Expand, typer.Option(help="early suits runtimes that cannot broadcast later.", rich_help_panel=_NOISE)
    ] = Expand.LATE,
    classes: Annotated[
        str | None, typer.Option(help="Class names: a,b,c or a file with one per line.", rich_help_panel=_FOREIGN)
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Pixels are divided by this: 255, or what fits the images of --data.", rich_help_panel=_FOREIGN
        ),
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="Then this is subtracted: 0.5 or r,g,b; default: 0.", rich_help_panel=_FOREIGN)
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Then divided by this: 0.25 or r,g,b; default: 1.", rich_help_panel=_FOREIGN)
    ] = None,
    channels: Annotated[
        ChannelOrder | None,
        typer.Option(help="Colours as the network takes them; default: rgb.", rich_help_panel=_FOREIGN),
    ] = None,
    layout: Annotated[Layout, typer.Option(help="Order of its dimensions.", rich_help_panel=_FOREIGN)] = Layout.AUTO,
    range_: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar=RANGE,
            help="Gray values of more than 8 bits that become black and white; default: auto, by the images of --data.",
            rich_help_panel=_FOREIGN,
        ),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH, if the model leaves it open.", rich_help_panel=_FOREIGN)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled images: the file is calibrated on them, and learns what is foreign.",
            rich_help_panel=_FOREIGN,
        ),
    ] = None,
    group: GroupOption = None,
    target_error: Annotated[
        str | None,
        typer.Option(
            metavar=TARGETS,
            help="With --data, or of several runs: promise this error, for --reject auto; or one for every label.",
            rich_help_panel=_FOREIGN,
        ),
    ] = None,
    output_is: Annotated[
        OutputIs, typer.Option(help="Whether the output is before or after the softmax.", rich_help_panel=_FOREIGN)
    ] = OutputIs.AUTO,
) -> None:
    """Write a model as one ONNX file that samples, calibrates and measures its own uncertainty.

    Example: uce-edge export runs/digits --out digits.onnx

    Example: uce-edge export --from resnet.onnx --data labelled/ --target-error 0.05 --out sure.onnx

    Example: uce-edge export --from resnet.onnx --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --out bayes.onnx

    Example: uce-edge export --from resnet.onnx --posterior laplace --data labelled/ --out bayes.onnx

    Example: uce-edge export --from network_with_dropout.onnx --dropout keep --out mc.onnx

    Example: uce-edge export runs/a runs/b runs/c --out ensemble.onnx

    Example: uce-edge export --from a.onnx b.onnx c.onnx --data labelled/ --out ensemble.onnx

    Example: uce-edge export digits.onnx --triton models/
    """
    show_log()
    runs = runs or []
    forms = packaging.Forms(ort, triton, hub)
    forms.check()
    if source is None and untrained is None and packaging.is_file(runs):
        packaging.package(context, runs, forms)
        return
    reading = exporting.Reading(
        classes, scale, mean, std, channels, layout, size, output_is, data, target_error, group, range_
    )
    sources = [] if source is None else [source, *runs]
    mixed = any(path.is_dir() or path.suffix != ".onnx" for path in sources[1:])
    if mixed or (untrained is not None and (runs or sources)):
        raise UsageError("Choose one of a run, --from and --untrained. Several ONNX files: --from a.onnx b.onnx")
    if noise is NoiseKind.NONE:
        raise UsageError("A model without noise is made with: --inference deterministic")
    if p and source is None and untrained is None:
        raise UsageError("A trained run has its own dropout rate; --p goes with --from and --untrained.")
    known = exporting.Reading(target_error=None if untrained else target_error)  # several runs may promise an error
    if source is None and reading != known:
        raise UsageError(
            "--classes, --scale, --mean, --std, --channels, --layout, --size, --range, --output-is, --data, --group go "
            "with --from, and --target-error with it or with several runs."
        )
    if samples is not None and bake_samples is not None:
        raise UsageError("Choose one of --samples and --bake-samples.")
    passes = samples if bake_samples is None else bake_samples
    options = Options(from_layer, expand, bake_samples is not None, sample_from, sigma, tuple(dropout or ()))
    noisy = bool(p or posterior) or passes is not None or noise is not NoiseKind.TABLE or options != Options()
    inference, chosen = exporting.kind_for_data(inference, noisy, data)
    if inference is Inference.DETERMINISTIC:
        passes = None
    wanted = Wanted(inference, noise, passes, precision, options, posterior, chosen)
    exporting.refuse_posterior(wanted, sources, p)
    if forms != packaging.Forms() and noise is NoiseKind.INPUT:
        raise UsageError(
            "A file with noise as graph inputs is for experiments: leave out --noise input, or --ort, --triton, --hub."
        )
    if sources:
        need_onnx("Exporting an ONNX file")
        out, following = ensembles.export_files(sources, out, wanted, p, reading)
    else:
        need_torch_export("Exporting")
        if untrained is not None:
            out, following = exporting.export_untrained(untrained, out, wanted, p)
        else:
            out, following = ensembles.export_runs(runs, out, wanted, target_error)
    say(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB) and {out.with_suffix('.json')}.")
    forms.write(out)
    say(f"Next: uce-edge {following}")

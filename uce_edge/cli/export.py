"""`uce-edge export`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli import export_ensemble, export_formats, export_source
from uce_edge.cli.extras import need_onnx, need_torch_export
from uce_edge.cli.messages import say, show_log
from uce_edge.cli.shared_options import RANGE, TARGETS, GroupOption, NoveltyLevelOption
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
            help="The folder of a training run. Default: the newest run under runs/. Several runs become one ensemble. "
            "With --out, --triton, --hub or --ort, also a model file made by this program: --out converts it to the "
            "present model contract.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: a name made from the source.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Export any ONNX image classifier instead of a run. Several files become one ensemble."
        ),
    ] = None,
    untrained: Annotated[
        str | None,
        typer.Option(
            help=f"Export a network with random weights, for benchmarks: {', '.join(Architecture)}, or your own."
        ),
    ] = None,
    inference: Annotated[
        Inference | None,
        typer.Option(
            help="How the file computes its uncertainty. mc: runs one noisy pass per sample. moments: approximates mc; "
            "runs the network once and samples only the last layers. deterministic: adds no noise. Default: mc, or "
            "deterministic for --from with --data."
        ),
    ] = None,
    posterior: Annotated[
        PostHoc | None,
        typer.Option(
            help="With --from and --data: add a Laplace posterior over the weights of the last layer. The network "
            "below that layer runs once per image."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Monte Carlo passes that the file makes by default. Default: the number that a run was calibrated "
            "with, or 25; 100 for moments and laplace."
        ),
    ] = None,
    bake_samples: Annotated[
        int | None, typer.Option(help="Fix the number of passes. The file then takes an image only, and no seeds.")
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="Number format of the network. fp16 is for GPUs, int8 for CPUs.")
    ] = Precision.FP32,
    ort: Annotated[
        bool, typer.Option("--ort", help="Also write NAME.ort in ONNX Runtime's own format, which loads faster.")
    ] = False,
    triton: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write a model repository for NVIDIA Triton.")
    ] = None,
    hub: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write a folder with a model card for the Hugging Face hub.")
    ] = None,
    noise: Annotated[
        NoiseKind,
        typer.Option(
            help="Where the noise comes from. table: the same seed gives the same pass. randn: every call differs. "
            "input: extra graph inputs, for experiments. none is refused: use --inference deterministic.",
            rich_help_panel=_NOISE,
        ),
    ] = NoiseKind.TABLE,
    p: Annotated[
        list[str] | None,
        typer.Option(
            help="Rate of Gaussian dropout: one number, or PATTERN=RATE for the layers whose weight name matches. Can "
            "be repeated. Default: 0.2, or none with --dropout.",
            rich_help_panel=_NOISE,
        ),
    ] = None,
    dropout: Annotated[
        list[str] | None,
        typer.Option(
            help="keep: the network's own dropout stays random. PATTERN=RATE, with --from: dropout on the values whose "
            "name matches. Can be repeated. Default: dropout is removed.",
            rich_help_panel=_NOISE,
        ),
    ] = None,
    from_layer: Annotated[
        str | None,
        typer.Option(help="The first weight layer with noise: its number, or a name pattern.", rich_help_panel=_NOISE),
    ] = None,
    sample_from: Annotated[
        str | None,
        typer.Option(
            help="For moments: the first layer that is sampled. Default: the last layer.", rich_help_panel=_NOISE
        ),
    ] = None,
    sigma: Annotated[
        Sigma | None,
        typer.Option(
            help="How the standard deviation of the noise is computed. factored: faster, approximate. Default: as in "
            "training, or exact.",
            rich_help_panel=_NOISE,
        ),
    ] = None,
    expand: Annotated[
        Expand,
        typer.Option(
            help="Where one image becomes N. late: at the first noisy layer. early: at the input, for runtimes that "
            "cannot broadcast later.",
            rich_help_panel=_NOISE,
        ),
    ] = Expand.LATE,
    classes: Annotated[
        str | None,
        typer.Option(help="Class names: a,b,c or a text file with one name per line.", rich_help_panel=_FOREIGN),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Divide the pixels (0 to 255) by this number. Default: 255, or what fits the images of --data.",
            rich_help_panel=_FOREIGN,
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="After --scale, subtract this: 0.5 or r,g,b. Default: 0.", rich_help_panel=_FOREIGN),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(help="After --mean, divide by this: 0.25 or r,g,b. Default: 1.", rich_help_panel=_FOREIGN),
    ] = None,
    channels: Annotated[
        ChannelOrder | None,
        typer.Option(help="The order of the colours that the network expects. Default: rgb.", rich_help_panel=_FOREIGN),
    ] = None,
    layout: Annotated[
        Layout, typer.Option(help="The order of the dimensions of the network's input.", rich_help_panel=_FOREIGN)
    ] = Layout.AUTO,
    range_: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar=RANGE,
            help="For gray images of more than 8 bits: the values that are shown as black and as white. Default: auto, "
            "which chooses them by the images of --data.",
            rich_help_panel=_FOREIGN,
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="The image size, HEIGHTxWIDTH in pixels, if the ONNX file does not fix it.", rich_help_panel=_FOREIGN
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled images. The file is calibrated on them, and its novelty gate is fitted on them.",
            rich_help_panel=_FOREIGN,
        ),
    ] = None,
    group: GroupOption = None,
    target_error: Annotated[
        str | None,
        typer.Option(
            metavar=TARGETS,
            help="With --data, or for several runs: the largest share of wrong labels among the images that --reject "
            "auto accepts (0 to 1). Can differ by predicted label.",
            rich_help_panel=_FOREIGN,
        ),
    ] = None,
    novelty_level: NoveltyLevelOption = None,
    output_is: Annotated[
        OutputIs,
        typer.Option(
            help="Whether the network's output is logits or probabilities (after a softmax).", rich_help_panel=_FOREIGN
        ),
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

    Example: uce-edge export old.onnx --out new.onnx
    """
    show_log()
    runs = runs or []
    forms = export_formats.Forms(ort, triton, hub)
    forms.check()
    if source is None and untrained is None and export_formats.is_file(runs):
        export_formats.package(context, runs, forms, out)
        return
    reading = export_source.Reading(
        classes, scale, mean, std, channels, layout, size, output_is, data, target_error, group, range_, novelty_level
    )
    sources = [] if source is None else [source, *runs]
    mixed = any(path.is_dir() or path.suffix != ".onnx" for path in sources[1:])
    if mixed or (untrained is not None and (runs or sources)):
        raise UsageError(
            "Choose one of a run, --from and --untrained. For several ONNX files, use: --from a.onnx b.onnx"
        )
    if noise is NoiseKind.NONE:
        raise UsageError("--noise none is refused. For a model without noise, use: --inference deterministic")
    if p and source is None and untrained is None:
        raise UsageError("--p goes with --from and --untrained: a trained run has its own dropout rate. Leave --p out.")
    known = export_source.Reading(target_error=None if untrained else target_error)  # several runs may promise an error
    if source is None and reading != known:
        raise UsageError(
            "--classes, --scale, --mean, --std, --channels, --layout, --size, --range, --output-is, --data, --group "
            "and --novelty-level need --from. --target-error needs --from or several runs."
        )
    if samples is not None and bake_samples is not None:
        raise UsageError("Choose one of --samples and --bake-samples.")
    passes = samples if bake_samples is None else bake_samples
    options = Options(from_layer, expand, bake_samples is not None, sample_from, sigma, tuple(dropout or ()))
    noisy = bool(p or posterior) or passes is not None or noise is not NoiseKind.TABLE or options != Options()
    inference, chosen = export_source.kind_for_data(inference, noisy, data)
    if inference is Inference.DETERMINISTIC:
        passes = None
    wanted = Wanted(inference, noise, passes, precision, options, posterior, chosen)
    export_source.refuse_posterior(wanted, sources, p)
    if forms != export_formats.Forms() and noise is NoiseKind.INPUT:
        raise UsageError(
            "--noise input makes a file for experiments, which --ort, --triton and --hub do not take. Leave out "
            "--noise input, or these options."
        )
    if sources:
        need_onnx("Exporting an ONNX file")
        out, following = export_ensemble.export_files(sources, out, wanted, p, reading)
    else:
        need_torch_export("Exporting")
        if untrained is not None:
            out, following = export_source.export_untrained(untrained, out, wanted, p)
        else:
            out, following = export_ensemble.export_runs(runs, out, wanted, target_error)
    say(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB) and {out.with_suffix('.json')}.")
    forms.write(out)
    say(f"Next: uce-edge {following}")

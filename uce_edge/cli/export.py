"""`uce-edge export`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli import export_formats, export_runs
from uce_edge.cli.export_steps import tell_exported, tell_step
from uce_edge.cli.extras import need_onnx, need_torch_export
from uce_edge.cli.messages import say, show_log
from uce_edge.cli.shared_options import (
    RANGE,
    TARGETS,
    GroupOption,
    NoveltyFeaturesOption,
    NoveltyLevelOption,
    SetsByOption,
    SetsOption,
    SetsScoreOption,
    SourceResizeOption,
    noisy_option,
    parse_names,
    parse_novelty,
    parse_numbers,
    parse_promise,
    parse_range,
    parse_resize,
    parse_sets,
    parse_size,
)
from uce_edge.contract import Inference, NoiseKind, Precision, Sigma
from uce_edge.errors import UsageError
from uce_edge_export.options import ChannelOrder, Expand, FileKind, Layout, Options, OutputIs, PostHoc, SourceSpec
from uce_edge_train.choices import Architecture

_THIRD_PARTY = "Third-party models"
_NOISE = "Noise"
_FROM_ONLY = (
    "classes", "scale", "mean", "std", "channels", "layout", "size", "range_", "resize", "output", "output_is",
    "preprocessor", "data", "group", "novelty_features",
)  # fmt: skip


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
        Precision,
        typer.Option(
            help="Number format of the network. fp16 is for GPUs, int8 for CPUs. fp16-weights halves the file and "
            "computes in float32."
        ),
    ] = Precision.FP32,
    heatmap: Annotated[
        bool,
        typer.Option(
            "--heatmap",
            help="Add a map of the places that speak for the predicted class, which predict --save draws. Needs one "
            "network with a feature map, or a transformer.",
        ),
    ] = False,
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
            "be repeated. Default with --from: 0.02 in the tail (see --noisy), or none with --dropout.",
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
    noisy: Annotated[list[str] | None, noisy_option(_NOISE)] = None,
    sample_from: Annotated[
        str | None,
        typer.Option(
            help="For moments: the first layer that is sampled. Default: the last layer.", rich_help_panel=_NOISE
        ),
    ] = None,
    sigma: Annotated[
        Sigma | None,
        typer.Option(
            help="How the standard deviation of the noise is computed. factored: faster, approximate. channel: "
            "multiply every input channel of a convolution by one number. Default: as in training, or exact.",
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
        typer.Option(help="Class names: a,b,c or a text file with one name per line.", rich_help_panel=_THIRD_PARTY),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Divide the pixels (0 to 255) by this number. Default: 255, or what fits the images of --data.",
            rich_help_panel=_THIRD_PARTY,
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="After --scale, subtract this: 0.5 or r,g,b. Default: 0.", rich_help_panel=_THIRD_PARTY),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(help="After --mean, divide by this: 0.25 or r,g,b. Default: 1.", rich_help_panel=_THIRD_PARTY),
    ] = None,
    channels: Annotated[
        ChannelOrder | None,
        typer.Option(
            help="The order of the colours that the network expects. Default: rgb.", rich_help_panel=_THIRD_PARTY
        ),
    ] = None,
    layout: Annotated[
        Layout, typer.Option(help="The order of the dimensions of the network's input.", rich_help_panel=_THIRD_PARTY)
    ] = Layout.AUTO,
    range_: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar=RANGE,
            help="For gray images of more than 8 bits: the values that are shown as black and as white. Default: auto, "
            "which chooses them by the images of --data.",
            rich_help_panel=_THIRD_PARTY,
        ),
    ] = None,
    resize: SourceResizeOption = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="The image size, HEIGHTxWIDTH in pixels, if the ONNX file does not fix it.",
            rich_help_panel=_THIRD_PARTY,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled images. The file is calibrated on them, and its novelty gate is fitted on them.",
            rich_help_panel=_THIRD_PARTY,
        ),
    ] = None,
    group: GroupOption = None,
    target_error: Annotated[
        str | None,
        typer.Option(
            metavar=TARGETS,
            help="With --data, or for several runs: the largest share of wrong labels among the images that --reject "
            "auto accepts (0 to 1). Can differ by predicted label.",
            rich_help_panel=_THIRD_PARTY,
        ),
    ] = None,
    novelty_level: NoveltyLevelOption = None,
    novelty_features: NoveltyFeaturesOption = None,
    sets: SetsOption = None,
    sets_score: SetsScoreOption = None,
    sets_by: SetsByOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name of the class scores, if the ONNX file has several outputs. Any value of its graph will do.",
            rich_help_panel=_THIRD_PARTY,
        ),
    ] = None,
    preprocessor: Annotated[
        Path | None,
        typer.Option(
            help="A preprocessor_config.json of Hugging Face, or its folder: size, crop, filter, scaling, and the "
            "class names of the config.json beside it.",
            rich_help_panel=_THIRD_PARTY,
        ),
    ] = None,
    output_is: Annotated[
        OutputIs,
        typer.Option(
            help="Whether the network's output is logits or probabilities (after a softmax). sigmoid: separate "
            "probabilities, of which exactly one class is right for every image.",
            rich_help_panel=_THIRD_PARTY,
        ),
    ] = OutputIs.AUTO,
) -> None:
    """Write a model as one ONNX file that samples, calibrates and measures its own uncertainty.

    Example: uce-edge export runs/digits --out digits.onnx

    Example: uce-edge export --from resnet.onnx --data labelled/ --target-error 0.05 --out sure.onnx

    Example: uce-edge export --from resnet.onnx --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --out bayes.onnx

    Example: uce-edge export --from vit.onnx --preprocessor preprocessor_config.json --out bayes.onnx

    Example: uce-edge export --from resnet.onnx --posterior laplace --data labelled/ --out bayes.onnx

    Example: uce-edge export --from network_with_dropout.onnx --dropout keep --out mc.onnx

    Example: uce-edge export runs/a runs/b runs/c --out ensemble.onnx

    Example: uce-edge export --from a.onnx b.onnx c.onnx --data labelled/ --out ensemble.onnx

    Example: uce-edge export runs/digits --heatmap --out digits.onnx

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
    sources = [] if source is None else [source, *runs]
    mixed = any(path.is_dir() or path.suffix != ".onnx" for path in sources[1:])
    if mixed or (untrained is not None and (runs or sources)):
        raise UsageError(
            "Choose one of a run, --from and --untrained. For several ONNX files, use: --from a.onnx b.onnx",
            "export.several-sources",
        )
    if noise is NoiseKind.NONE:
        raise UsageError(
            "--noise none is refused. For a model without noise, use: --inference deterministic", "export.noise-none"
        )
    if samples is not None and bake_samples is not None:
        raise UsageError("Choose one of --samples and --bake-samples.", "export.samples-twice")
    if forms != export_formats.Forms() and noise is NoiseKind.INPUT:
        raise UsageError(
            "--noise input makes a file for experiments, which --ort, --triton and --hub do not take. Leave out "
            "--noise input, or these options.",
            "export.noise-input",
        )
    passes = samples if bake_samples is None else bake_samples
    options = Options(
        tuple(noisy or ()), expand, bake_samples is not None, sample_from, sigma, tuple(dropout or ()), heatmap
    )
    if sources:
        spec = SourceSpec(
            classes=parse_names("classes", classes),
            scale=scale,
            mean=None if mean is None else parse_numbers("mean", mean),
            std=None if std is None else parse_numbers("std", std),
            channels=channels,
            layout=layout,
            size=parse_size(size),
            output_is=output_is,
            output=output,
            preprocessor=preprocessor,
            range=parse_range(range_),
            resize=parse_resize(resize),
        )
        need_onnx("Exporting an ONNX file")
        from uce_edge_export.file_pipeline import export_file

        done = export_file(
            sources,
            out,
            data=data,
            group=group,
            promise=None if target_error is None else parse_promise(target_error),
            novelty=parse_novelty(novelty_level, features=novelty_features),
            sets=parse_sets(sets, sets_score, sets_by),
            inference=inference,
            posterior=posterior,
            samples=passes,
            precision=precision,
            noise=noise,
            p=p or (),
            options=options,
            spec=spec,
            report=tell_step,
        )
        out, following = done.path, tell_exported(done)
    else:
        _check_run_options(context, p if untrained is None else None, posterior)
        asked = export_runs.Asked(target_error, novelty_level, sets, sets_score, sets_by)
        if untrained is not None and asked.words:
            raise UsageError(f"{asked.words.split()[0]} needs --from or several runs.", "export.needs-from")
        passes = None if inference is Inference.DETERMINISTIC else passes
        kind = FileKind(inference or Inference.MC, noise, passes, precision, options)
        need_torch_export("Exporting")
        if untrained is not None:
            out, following = export_runs.export_untrained(untrained, out, kind, p)
        else:
            out, following = export_runs.export_runs(runs, out, kind, asked)
    say(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB) and {out.with_suffix('.json')}.")
    forms.write(out)
    say(f"Next: uce-edge {following}")


def _check_run_options(context: typer.Context, rates: list[str] | None, posterior: PostHoc | None) -> None:
    """Reject options of `--from` without it."""
    if any(export_formats.is_given(context, name) for name in _FROM_ONLY):
        raise UsageError(
            "--classes, --scale, --mean, --std, --channels, --layout, --size, --range, --resize, --output, "
            "--output-is, --preprocessor, --data, --group and --novelty-features need --from.",
            "export.needs-from",
        )
    if rates:
        raise UsageError(
            "--p goes with --from and --untrained: a trained run has its own dropout rate. Leave --p out.",
            "export.rate-of-run",
        )
    if posterior is not None:
        raise UsageError(
            "--posterior goes with --from. A run gets its posterior when it is calibrated: uce-edge calibrate RUN "
            "--posterior laplace, then uce-edge export RUN",
            "export.needs-from",
        )

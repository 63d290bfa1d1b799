"""`uce-edge build`: labelled photos to a promised file."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uce_edge.cli import build_refusals
from uce_edge.cli.build_refusals import NONE, SETS, Asked
from uce_edge.cli.command import forget
from uce_edge.cli.dataset_summary import tell_dataset
from uce_edge.cli.extras import need_torch_export
from uce_edge.cli.messages import echo, quote, say, show_log
from uce_edge.cli.shared_options import TARGETS, GroupOption, parse_range, parse_size, parse_time

if TYPE_CHECKING:
    from uce_edge.datasets.splits import Dataset
    from uce_edge_train.runs import Run

TRUNK_LEVEL = 0.05
"""The level of a gate on the pretrained layers of a backbone, which tell far images apart at little cost.

A promise with 95 % confidence is kept with room to spare: with 209 reference images, a level of 3 % really rejects
1.4 % of own photos, and 5 % rejects 2.9 %. With TrashNet's photos, such a gate accepts 14 to 22 % of ImageNet's where
it rejects 1 to 2 % of the own, and 8.5 % where it rejects 3 % (docs/novelty.md). The level is the same for all photos:
one that these chose would cost the promise its confidence.
"""
_TRAINING = 0.6  # of the time; the rest is for the features of held-out images, the checks and the report


def build(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="Labelled photos: a folder with one sub-folder per class, a manifest, or an .npz file.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The model file. Default: NAME.onnx, after the photos.")] = None,
    target_error: Annotated[
        str | None,
        typer.Option(
            metavar=TARGETS,
            help="The largest share of wrong labels among accepted photos (0 to 1), or one per label: "
            "glioma=0.02,other=0.1. Default: no promise.",
        ),
    ] = None,
    sets: Annotated[
        str | None,
        typer.Option(
            metavar=f"FLOAT|{NONE}",
            help="The largest share of prediction sets, such as `cat or dog`, that may lack the true label (0 to 1). "
            f"Default: {SETS}, if there are enough photos.",
        ),
    ] = None,
    novelty_level: Annotated[
        float | None,
        typer.Option(
            help="The largest share of photos like yours that may be rejected as out of distribution (0 to 1). "
            f"Default: {TRUNK_LEVEL} for a gate on the pretrained layers of --backbone, or that of calibrate.",
        ),
    ] = None,
    group: GroupOption = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="About how long all of it may take: 10m or 2h.")] = "10m",
    backbone: Annotated[
        str,
        typer.Option(help=f"The pretrained network, by its name in `uce-edge backbones`; {NONE} to train a small one."),
    ] = "efficientnet-lite0",
    members: Annotated[
        int,
        typer.Option(
            help="Build an ensemble of this many networks without noise. With a backbone, they share its trunk, which "
            "the file runs once.",
            min=1,
        ),
    ] = 1,
    size: Annotated[
        str | None, typer.Option(help="Height and width of the images, as 64x64. Default: that of --backbone.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder of the training. Default: runs/NAME, after the photos.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Train again, and replace the training in --run.")
    ] = False,
    ood: Annotated[str, typer.Option(help="Out-of-distribution images of the report, as for evaluate.")] = "far",
) -> None:
    """Make a model file from labelled photos: train, calibrate, export and evaluate, in one command.

    Each stage is a command that you can repeat alone; build prints it before it runs. Photos that cannot keep the
    promise are refused before training starts. If build is stopped, the same command goes on where it was. A training
    of other photos, or of another network, size or group, is never taken: choose another --run, or --overwrite.

    Example: uce-edge build photos/ --target-error 0.05 --out photos.onnx

    Example: uce-edge build photos/ --members 5 --target-error 0.05 --out photos.onnx

    Example: uce-edge build scans.csv --group patient --target-error 0.1 --budget 20m --out scans.onnx
    """
    need_torch_export("Building a model file")
    show_log("uce_edge")
    name = Path(data).resolve().stem
    out, run = out or Path(f"{name}.onnx"), run or Path("runs") / name
    seconds = parse_time(budget)
    report = out.with_suffix(".html")
    build_refusals.check_out(out, report)
    asked = _load(data, group, backbone, size, members)
    dataset = asked.dataset
    tell_dataset(dataset)
    build_refusals.check_promise(dataset, target_error)
    alpha = build_refusals.check_sets(dataset, sets)
    build_refusals.check_level(asked, novelty_level)
    build_refusals.check_run(run, asked, overwrite=overwrite)
    build_refusals.check_ood(ood, dataset)
    if overwrite:
        build_refusals.discard(run)
        forget(context, "--overwrite")  # from here on, the command without it continues
    started = time.monotonic()
    network = [] if backbone == NONE else ["--backbone", backbone]
    promise = [*_given("--target-error", target_error), *_given("--sets", alpha)]
    if members > 1:
        network += ["--dropout", "none", "--members", str(members), *([] if backbone == NONE else ["--share-trunk"])]

    def promises() -> list[str]:
        return [*promise, *_level(run, dataset, novelty_level)]

    stages: dict[str, Callable[[], list[str]]] = {
        "train": lambda: [
            "train", "--data", data, *network, *_given("--size", size), *_given("--group", group),
            "--budget", f"{_TRAINING * seconds:.0f}s", "--out", str(run), "--resume",
        ],
        "calibrate": lambda: ["calibrate", str(run), *promises()],
        "export": lambda: [
            "export", str(run), "--out", str(out),
            *(["--inference", "deterministic", *promises()] if members > 1 else []),
        ],
        "evaluate": lambda: ["evaluate", str(out), "--data", data, "--ood", ood, "--report", str(report)],
    }  # fmt: skip
    if members > 1:
        del stages["calibrate"]  # an ensemble is calibrated as a whole, by its export
    for number, (stage, following) in enumerate(stages.items(), 1):
        words = following()
        spent = time.monotonic() - started
        left = seconds - spent
        more = f"{left:.0f} s left" if left >= 0 else f"{-left:.0f} s more than allowed"
        echo(err=True)
        echo(f"[{number}/{len(stages)}] uce-edge {shlex.join(words)}", bold=True, err=True)
        say(f"{stage.capitalize()}: {spent:.0f} s spent, {more} (--budget {budget}).")
        _run(context, words)
        if stage == "export" and target_error is not None and not _is_promised(out):
            raise typer.Exit(1)  # the export has said why, as `calibrate` says it for one network
    _tell_decisions(run, out, budget, dataset)
    say("", f"Built {quote(out)} in {time.monotonic() - started:.0f} s. Read {quote(report)}, then try:")
    say(f"    uce-edge predict PHOTO.jpg --model {quote(out)} --reject {'0.3' if target_error is None else 'auto'}")


def _given(option: str, value: str | None) -> list[str]:
    return [] if value is None else [option, value]


def _load(data: str, group: str | None, backbone: str, size: str | None, members: int) -> Asked:
    """The training, with its photos; refuses a network that is not installed first."""
    from uce_edge.datasets import splits
    from uce_edge.images.resize import STRETCH
    from uce_edge_train.networks import backbones
    from uce_edge_train.recipe import Recipe

    shape, resize = parse_size(size), STRETCH
    start: dict[str, Any] = {"arch": Recipe.arch, "init": None}
    if backbone != NONE:
        chosen = backbones.named(backbone)
        start = chosen.recipe()  # refuses missing weights
        shape, resize = shape or (chosen.image.height, chosen.image.width), chosen.image.resize
    dataset = splits.load(data, size=shape, group=group, range_=parse_range(None), resize=resize)
    return Asked(dataset, start["arch"], start["init"], members)


def _first(run: Path) -> "Run":
    """The run, or the first one of an ensemble."""
    from uce_edge_train.runs import DESCRIPTION, MEMBER, Run

    return Run.load(run if (run / DESCRIPTION).exists() else run / f"{MEMBER}0")


def _level(run: Path, dataset: "Dataset", given: float | None) -> list[str]:
    """The option for the level of the gate, which a kept trunk decides."""
    if given is None and _first(run).features(None).frozen:
        from uce_edge.calibration.novelty import smallest_level
        from uce_edge.rejection.promises import NoveltyPromise

        reference = len(dataset.splits["calibration"].one_per_group())
        if smallest_level(reference, NoveltyPromise().confidence) <= TRUNK_LEVEL:
            given = TRUNK_LEVEL
    return [] if given is None else ["--novelty-level", f"{given:g}"]


def _tell_decisions(run: Path, out: Path, budget: str, dataset: "Dataset") -> None:
    """Print what was decided and why, as the run and the file store it."""
    from uce_edge.cli.build_decisions import decisions
    from uce_edge.runtime.model import Model

    each = len(dataset.splits["train"]) // len(dataset.class_names)
    found = decisions(_first(run), Model(out, "cpu").metadata, budget, each)
    width = max(map(len, found))
    say("", "What was decided, and why:", *(f"  {name.ljust(width)}  {text}." for name, text in found.items()))


def _is_promised(out: Path) -> bool:
    from uce_edge.runtime.model import Model

    return Model(out, "cpu").metadata.promise is not None


def _run(context: typer.Context, words: list[str]) -> None:
    """Run a command as it is printed."""
    program = context.find_root()
    code = program.command.main(words, program.info_name, standalone_mode=False)
    if code:
        raise typer.Exit(code)

"""`uce-edge train` and `uce-edge calibrate`."""

import json
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.options import (
    DataOption,
    DownloadOption,
    JsonOption,
    RootOption,
    SizeOption,
    describe,
    parse_size,
    quote,
    say,
)
from uce_edge.contract import Method
from uce_edge.errors import MissingPartError, UsageError
from uce_edge_train.choices import Optimiser, Precision, Rates, Schedule, TrainDevice

_DROPOUT, _AUGMENTATION, _OPTIMISATION, _MACHINE = "Uncertainty", "Augmentation", "Optimisation", "Network and machine"

if TYPE_CHECKING:
    from uce_edge.metadata import Calibration


def need_torch(what: str) -> None:
    """Say how to install the training part when it is not there."""
    for package in ("torch", "safetensors"):
        try:
            import_module(package)
        except ImportError:
            raise MissingPartError(what, package, "train,export") from None


def train(
    data: DataOption = "digits",
    out: Annotated[Path | None, typer.Option(help="The folder of the run; default: runs/ and the data's name.")] = None,
    arch: Annotated[
        str, typer.Option(help="resnet8/18/20/34/50/101, densenet121/169, or your package.module:function.")
    ] = "resnet8",
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Images per step, over all processes.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Its peak.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and noise.", min=0, max=2**32 - 1)] = 0,
    root: RootOption = None,
    download: DownloadOption = False,
    size: SizeOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out, if any.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in --out already.")] = False,
    p: Annotated[float, typer.Option(help="Gaussian dropout rate.", rich_help_panel=_DROPOUT)] = 0.2,
    rates: Annotated[
        Rates, typer.Option(help="Keep p, or learn it: one for the model, or one per layer.", rich_help_panel=_DROPOUT)
    ] = Rates.FIXED,
    penalty: Annotated[
        float, typer.Option(help="Beta of the confidence penalty; the paper's is 0.1.", rich_help_panel=_DROPOUT)
    ] = 0.0,
    shift: Annotated[
        int | None, typer.Option(help="Move by up to so many pixels; default: width/8.", rich_help_panel=_AUGMENTATION)
    ] = None,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror half of them.", rich_help_panel=_AUGMENTATION)] = False,
    erase: Annotated[float, typer.Option(help="Probability of a gray rectangle.", rich_help_panel=_AUGMENTATION)] = 0.0,
    optimiser: Annotated[
        Optimiser, typer.Option(help="What takes the steps.", rich_help_panel=_OPTIMISATION)
    ] = Optimiser.ADAMW,
    schedule: Annotated[
        Schedule, typer.Option(help="How the learning rate moves.", rich_help_panel=_OPTIMISATION)
    ] = Schedule.ONE_CYCLE,
    weight_decay: Annotated[float, typer.Option(help="Pulls weights to 0.", rich_help_panel=_OPTIMISATION)] = 0.01,
    clip: Annotated[
        float | None, typer.Option(help="Largest norm of the gradient.", rich_help_panel=_OPTIMISATION)
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after so many epochs without a better held-out NLL.", rich_help_panel=_OPTIMISATION),
    ] = None,
    stem: Annotated[str, typer.Option(help="cifar for small images, imagenet for large.", rich_help_panel=_MACHINE)] = (
        "cifar"
    ),
    device: Annotated[TrainDevice, typer.Option(help="Where to train.", rich_help_panel=_MACHINE)] = TrainDevice.AUTO,
    precision: Annotated[
        Precision, typer.Option(help="Of the forward pass.", rich_help_panel=_MACHINE)
    ] = Precision.FLOAT32,
    channels_last: Annotated[
        bool, typer.Option(help="A memory layout that is faster on most machines.", rich_help_panel=_MACHINE)
    ] = True,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard's files beside log.csv.", rich_help_panel=_MACHINE)
    ] = False,
) -> None:
    """Train a classifier with Gaussian dropout.

    Every epoch is written to log.csv and to a checkpoint: the same command with --resume goes on after a
    kill and ends with the same weights. Several processes or machines share every batch under torchrun.

    Example: uce-edge train --data digits --out runs/digits

    Example: uce-edge train --data photos/ --size 64x64 --arch resnet20 --flip --epochs 30 --out runs/photos

    Example: torchrun --nproc-per-node 2 -m uce_edge train --data cifar10 --arch resnet34 --out runs/cifar10
    """
    out = out or Path("runs") / Path(data).resolve().stem
    unfinished = (out / "checkpoint.safetensors").exists()
    if (out / "run.json").exists() and not overwrite and not (resume and unfinished):
        if resume:
            say(f"{out} is finished. Next: uce-edge calibrate {quote(out)} --method temperature")
            return
        raise UsageError(f"{out} holds a trained run already. Choose another --out, or replace it with --overwrite.")
    if unfinished and not (resume or overwrite):
        raise UsageError(f"{out} holds an unfinished training. Go on with --resume, or start anew with --overwrite.")
    need_torch("Training")
    from uce_edge.datasets import splits as datasets
    from uce_edge_train import training
    from uce_edge_train.recipe import Recipe

    recipe = Recipe(
        arch=arch, stem=stem, p=p, rates=rates, epochs=epochs, batch_size=batch_size, optimiser=optimiser,
        schedule=schedule, learning_rate=learning_rate, weight_decay=weight_decay, penalty=penalty, shift=shift,
        flip=flip, erase=erase, clip=clip, patience=patience, precision=precision, channels_last=channels_last,
        seed=seed,
    )  # fmt: skip
    dataset = datasets.load(data, root, parse_size(size), download)
    run = training.train(dataset, out, recipe, device=device, resume=resume, tensorboard=tensorboard)
    if os.environ.get("RANK", "0") != "0":
        return
    say(
        f"Trained {recipe.arch} on {run.data}: NLL {run.metrics['train_nll']:.3f} in epoch {run.metrics['epochs']}, "
        f"accuracy {run.metrics['held_out_accuracy']:.1%} on the calibration images without noise."
    )
    say(f"Next: uce-edge calibrate {quote(out)} --method temperature")


def calibrate(
    target: Annotated[
        Path, typer.Argument(metavar="RUN|MODEL", help="A training run, or a model file.", show_default=False)
    ],
    method: Annotated[Method, typer.Option(help="The calibration map.")] = Method.TEMPERATURE,
    samples: Annotated[
        int | None,
        typer.Option(help="Passes the map is fitted for; default: 25, or the file's own."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the passes.", min=0, max=2**32 - 1)] = 0,
    rates: Annotated[Rates, typer.Option(help="Also re-optimise p of a run: for the model, or per layer.")] = (
        Rates.FIXED
    ),
    data: Annotated[
        str | None,
        typer.Option(help="Other labelled images: a folder with one sub-folder per class, or an .npz file."),
    ] = None,
    target_error: Annotated[
        float | None,
        typer.Option(help="Find the loosest threshold that keeps the error below this, for --reject auto."),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="How sure the promise of --target-error shall be; default: 0.95.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="For a model file: the new file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a calibration map on held-out images.

    A run is calibrated on the images it set aside, or on --data. A model file is calibrated on --data, without its
    training run, and a new file is written. Images that the network was trained on are refused.

    With --target-error, images that nothing is fitted on (a run's guarantee images, half of --data for a model file)
    decide at which uncertainty to reject: the promise is that no larger share of the accepted images is wrong.

    Example: uce-edge calibrate runs/digits --method temperature

    Example: uce-edge calibrate runs/digits --target-error 0.02 --confidence 0.95

    Example: uce-edge calibrate model.onnx --data labelled/ --out calibrated.onnx
    """
    need_torch("Calibrating")
    promise = _promise(target_error, confidence)
    if target.suffix == ".onnx":
        if rates is not Rates.FIXED:
            raise UsageError("--rates goes with a training run: the rates of a model file are part of its graph.")
        fitted, following = _calibrate_file(target, method, samples, seed, data, out, promise)
    elif out is not None:
        raise UsageError("--out goes with a model file; the calibration of a run is stored in the run.")
    else:
        fitted, following = _calibrate_run(
            target, method, 25 if samples is None else samples, seed, rates, data, promise
        )
    report = fitted.report
    if as_json:
        typer.echo(
            json.dumps({"method": fitted.method, "parameters": fitted.parameters, "samples": fitted.samples} | report)
        )
    if method is Method.TEMPERATURE:
        say(f"Temperature {fitted.parameters['temperature'][0]:.4f} at {fitted.samples} samples.")
    say(
        f"On {report['images']} calibration images: NLL {report['nll_before']:.4f} -> {report['nll_after']:.4f}, "
        f"accuracy {report['accuracy_before']:.1%} -> {report['accuracy_after']:.1%}, "
        f"labels changed: {report['label_flips']}."
    )
    if report["images"] < 100:
        say("warning: fewer than 100 images leave the calibration itself uncertain.")
    if report["nll_after"] > 0.9 * report["nll_of_chance"]:
        say(
            "warning: the model is hardly better than chance on these images. If it is good without noise, the noise "
            "is too strong for it: export again with a smaller --p, or with --from-layer for the last layers alone."
        )
    say(f"Next: uce-edge {following}")


def _promise(target_error: float | None, confidence: float | None) -> dict[str, float] | None:
    """What shall be promised, checked before anything slow happens."""
    if target_error is None:
        if confidence is not None:
            raise UsageError("--confidence is that of a promised error: add --target-error 0.05")
        return None
    from uce_edge.calibration.guarantee import images_needed

    promise = {"target_error": target_error, "confidence": 0.95 if confidence is None else confidence}
    images_needed(**promise)  # refuses impossible numbers
    return promise


def _calibrate_run(
    folder: Path,
    method: Method,
    samples: int,
    seed: int,
    rates: Rates,
    data: str | None,
    promise: dict[str, float] | None,
) -> "tuple[Calibration, str]":
    from uce_edge.datasets import labelled
    from uce_edge_train import calibrate as calibration
    from uce_edge_train.runs import Run

    run = Run.load(folder)
    images = None if data is None else labelled.load(data, run.image, run.class_names, run.split_hashes)
    run = calibration.calibrate(folder, images, method, samples, seed, rates, promise)
    if rates is not Rates.FIXED:
        found = run.tuned_rates or {}
        before = sum(run.rates.values()) / len(run.rates)
        mean = f"{sum(found.values()) / len(found):.4f} (from {before:.4f})" if found else "kept: none was better"
        say(f"Dropout rate p, mean over the layers: {mean}.")
    if promise is not None:
        say("The guarantee images allow a threshold for that error; `export` finds the one of the file as it ships.")
    return run.calibration, f"export {quote(folder)} --out {quote(folder.resolve().name)}.onnx"


def _calibrate_file(
    model: Path,
    method: Method,
    samples: int | None,
    seed: int,
    data: str | None,
    out: Path | None,
    promise: dict[str, float] | None,
) -> "tuple[Calibration, str]":
    if data is None:
        raise UsageError("A model file is calibrated on labelled images: add --data FOLDER or --data FILE.npz")
    from uce_edge.datasets import labelled
    from uce_edge.model import Model
    from uce_edge_export.recalibrate import recalibrate

    metadata = Model(model, "cpu").metadata
    out = out or model.with_name(f"{model.stem}-calibrated.onnx")
    images = labelled.load(data, metadata.image, metadata.classes, metadata.hashes.get("splits", {}))
    done = recalibrate(model, out, images, method, samples, seed, promise)
    if done.promised is not None:
        say(describe(done.promised))
    say(f"Wrote {out} and {out.with_suffix('.json')}.")
    reject = "0.3" if done.promised is None else "auto"
    return done.metadata.calibration, f"predict --model {quote(out)} image.png --reject {reject}"

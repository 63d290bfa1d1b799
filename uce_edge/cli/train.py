"""`uce-edge train` and `uce-edge calibrate`."""

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.options import DataOption, JsonOption, parse_size, quote, say
from uce_edge.contract import Method
from uce_edge.errors import MissingPartError, UsageError

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
    p: Annotated[float, typer.Option(help="Gaussian dropout rate.")] = 0.2,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Peak of the one-cycle schedule.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and noise.", min=0, max=2**32 - 1)] = 0,
    root: Annotated[Path | None, typer.Option(help="Where public datasets lie; default: $UCE_EDGE_DATA.")] = None,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH for the images of a folder; default: 32x32.")] = None,
    shift: Annotated[int | None, typer.Option(help="Augment: move by up to so many pixels; default: width/8.")] = None,
    flip: Annotated[bool, typer.Option("--flip", help="Augment: mirror half of the images.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in --out already.")] = False,
) -> None:
    """Train a classifier with Gaussian dropout.

    Example: uce-edge train --data digits --out runs/digits

    Example: uce-edge train --data photos/ --size 64x64 --arch resnet20 --flip --epochs 30 --out runs/photos
    """
    out = out or Path("runs") / Path(data).resolve().stem
    if (out / "run.json").exists() and not overwrite:
        raise UsageError(f"{out} holds a trained run already. Choose another --out, or replace it with --overwrite.")
    need_torch("Training")
    from uce_edge_train import data as datasets
    from uce_edge_train import fit

    run = fit.train(
        datasets.load(data, root, parse_size(size)), out, arch=arch, p=p, epochs=epochs, batch_size=batch_size,
        learning_rate=learning_rate, seed=seed, shift=shift, flip=flip,
    )  # fmt: skip
    say(
        f"Trained {run.arch} on {run.data}: NLL {run.metrics['train_nll_last_epoch']:.3f} in the last epoch, "
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
    data: Annotated[
        str | None, typer.Option(help="For a model file: a folder with one sub-folder per class, or an .npz file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="For a model file: the new file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a calibration map on held-out images.

    A run is calibrated on the images it set aside. A model file is calibrated on --data, without its training
    run, and a new file is written.

    Example: uce-edge calibrate runs/digits --method temperature

    Example: uce-edge calibrate model.onnx --data labelled/ --out calibrated.onnx
    """
    need_torch("Calibrating")
    if target.suffix == ".onnx":
        fitted, following = _calibrate_file(target, method, samples, seed, data, out)
    elif data is not None or out is not None:
        raise UsageError("--data and --out go with a model file; a run has its own calibration images.")
    else:
        fitted, following = _calibrate_run(target, method, 25 if samples is None else samples, seed)
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


def _calibrate_run(run: Path, method: Method, samples: int, seed: int) -> "tuple[Calibration, str]":
    from uce_edge_train import calibrate as calibration
    from uce_edge_train.runs import Run

    dataset = Run.load(run).dataset()
    fitted = calibration.calibrate(run, dataset, method, samples, seed).calibration
    return fitted, f"export {quote(run)} --out {quote(run.resolve().name)}.onnx"


def _calibrate_file(
    model: Path, method: Method, samples: int | None, seed: int, data: str | None, out: Path | None
) -> "tuple[Calibration, str]":
    if data is None:
        raise UsageError("A model file is calibrated on labelled images: add --data FOLDER or --data FILE.npz")
    from uce_edge.model import Model
    from uce_edge_export.recalibrate import recalibrate
    from uce_edge_train import labelled

    metadata = Model(model, "cpu").metadata
    out = out or model.with_name(f"{model.stem}-calibrated.onnx")
    done = recalibrate(model, out, labelled.load(data, metadata.image, metadata.classes), method, samples, seed)
    say(f"Wrote {out} and {out.with_suffix('.json')}.")
    return done.metadata.calibration, f"predict --model {quote(out)} image.png --reject 0.3"

"""`uce-edge train` and `uce-edge calibrate`."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.options import DataOption, JsonOption, quote, say
from uce_edge.contract import Method
from uce_edge.errors import MissingPartError


def need_torch(what: str) -> None:
    """Say how to install the training part when it is not there."""
    for package in ("torch", "safetensors"):
        try:
            import_module(package)
        except ImportError:
            raise MissingPartError(what, package, "train,export") from None


def train(
    data: DataOption = "digits",
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("runs/digits"),
    arch: Annotated[str, typer.Option(help="The network: resnet8, resnet20 or resnet34.")] = "resnet8",
    p: Annotated[float, typer.Option(help="Gaussian dropout rate.")] = 0.2,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Peak of the one-cycle schedule.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and noise.", min=0, max=2**32 - 1)] = 0,
) -> None:
    """Train a classifier with Gaussian dropout.

    Example: uce-edge train --data digits --out runs/digits
    """
    need_torch("Training")
    from uce_edge_train import data as datasets
    from uce_edge_train import fit

    run = fit.train(
        datasets.load(data), out, arch=arch, p=p, epochs=epochs, batch_size=batch_size,
        learning_rate=learning_rate, seed=seed,
    )  # fmt: skip
    say(f"Trained {run.arch} on {run.data}: NLL {run.metrics['train_nll_last_epoch']:.3f} in the last epoch.")
    say(f"Next: uce-edge calibrate {quote(out)} --method temperature")


def calibrate(
    run: Annotated[Path, typer.Argument(help="A folder made by `uce-edge train`.", show_default=False)],
    method: Annotated[Method, typer.Option(help="The calibration map.")] = Method.TEMPERATURE,
    samples: Annotated[int, typer.Option(help="Monte Carlo passes; the map is optimal for this number.")] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the passes.", min=0, max=2**32 - 1)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Fit a calibration map on the calibration images of a run.

    Example: uce-edge calibrate runs/digits --method temperature
    """
    need_torch("Calibrating")
    import json

    from uce_edge_train import calibrate as calibration
    from uce_edge_train import data as datasets
    from uce_edge_train.runs import Run

    dataset = datasets.load(Run.load(run).data)
    fitted = calibration.calibrate(run, dataset, method, samples, seed).calibration
    report = fitted.report
    if as_json:
        typer.echo(json.dumps({"method": fitted.method, "parameters": fitted.parameters, "samples": samples} | report))
    if method is Method.TEMPERATURE:
        say(f"Temperature {fitted.parameters['temperature'][0]:.4f} at {samples} samples.")
    say(
        f"NLL {report['nll_before']:.4f} -> {report['nll_after']:.4f} on {report['images']} calibration images; "
        f"labels changed: {report['label_flips']}."
    )
    say(f"Next: uce-edge export {quote(run)} --out {quote(run.resolve().name)}.onnx")

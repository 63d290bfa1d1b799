"""`uce-edge export`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.options import quote, say
from uce_edge.cli.train import need_torch
from uce_edge.contract import Inference
from uce_edge.errors import MissingPartError


def export(
    run: Annotated[
        Path | None,
        typer.Argument(help="A folder made by `uce-edge train`; default: the newest under runs/."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; default: NAME.onnx after the run.")] = None,
    inference: Annotated[
        Inference, typer.Option(help="mc samples; deterministic is the same network without noise.")
    ] = Inference.MC,
) -> None:
    """Write a calibrated run as one ONNX file, checked against PyTorch.

    Example: uce-edge export runs/digits --out digits.onnx
    """
    need_torch("Exporting")
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingPartError("Exporting", "onnxscript", "train,export") from None
    from uce_edge_export.export import export_run
    from uce_edge_train import data as datasets
    from uce_edge_train.runs import Run, newest

    if run is None:
        run = newest()
        say(f"Exporting the newest run: {run}")
    suffix = "" if inference is Inference.MC else f"-{inference}"
    out = out or Path(f"{run.resolve().name}{suffix}.onnx")
    done = export_run(run, out, datasets.load(Run.load(run).data), inference)
    z = "" if done.parity.largest_z is None else f", {done.parity.largest_z:.1f} standard errors from random noise"
    say(f"Parity: logits within {done.parity.largest_difference:.1e} of PyTorch{z}.")
    say(f"NLL on the calibration images: {done.file_nll:.4f} (PyTorch: {done.torch_nll:.4f}).")
    say(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB) and {out.with_suffix('.json')}.")
    say(f"Next: uce-edge predict --model {quote(out)} image.png --reject 0.3")

"""`uce-edge info`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.options import JsonOption


def info(
    model: Annotated[Path, typer.Argument(help="A model file made by `uce-edge export`.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Show what a model file says of itself.

    Example: uce-edge info digits.onnx
    """
    from uce_edge.model import Model

    loaded = Model(model, "cpu")
    metadata = loaded.metadata
    if as_json:
        typer.echo(json.dumps(json.loads(metadata.to_json()), indent=2))
        return
    spec, calibration = metadata.image, metadata.calibration
    rates = sorted({layer.p for layer in metadata.layers})
    rows = {
        "file": f"{model} ({model.stat().st_size / 1e6:.2f} MB), contract {metadata.contract}",
        "classes": f"{len(metadata.classes)}: {', '.join(metadata.classes)}",
        "image": f"{spec.height} x {spec.width} x {spec.channels} {spec.dtype}",
        "network": metadata.architecture or "unknown",
        "inference": f"{metadata.inference}, {metadata.samples} samples",
        "noise": f"{len(metadata.layers)} layers, p = {', '.join(map(str, rates))} ({metadata.noise})"
        if rates
        else "none",
        "calibration": f"{calibration.method}, fitted at {calibration.samples} samples"
        if calibration.samples
        else "none",
        "rejection": json.dumps(metadata.reject) if metadata.reject else "no stored threshold",
        "weights": metadata.hashes.get("weights", "unknown"),
        "tools": ", ".join(f"{name} {version}" for name, version in sorted(metadata.tools.items())),
    }
    if temperature := calibration.parameters.get("temperature"):
        rows["calibration"] += f", T = {temperature[0]:.4f}"
    for name, value in rows.items():
        typer.echo(f"{name:<12} {value}")

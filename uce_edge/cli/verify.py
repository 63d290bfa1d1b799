"""`uce-edge verify`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.messages import echo
from uce_edge.cli.shared_options import DeviceOption, InferenceOption, JsonOption, ModelArgument, choose_model
from uce_edge.runtime.device_choice import Device

if TYPE_CHECKING:
    from uce_edge.integrity.model_check import Verified


def verify(
    model: ModelArgument = None,
    inference: InferenceOption = None,
    key: Annotated[
        Path | None, typer.Option(help="Also check the signature, with this public key (PEM) of the maker.")
    ] = None,
    device: DeviceOption = Device.CPU,
    as_json: JsonOption = False,
) -> None:
    """Check that a model file is unchanged since it was published, and that it answers correctly on this computer.

    Compares the file with its stored digests and its description NAME.json, and its answers to the stored probe images
    with the published ones. Exits with 1 if something is wrong, or if the file stores nothing to compare with.

    Example: uce-edge verify digits.onnx

    Example: uce-edge verify digits.onnx --device cuda --key public.pem
    """
    model = choose_model(model, inference)
    from uce_edge.integrity.model_check import verify_model

    verified = verify_model(model, key, device)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(verified), indent=2))
    else:
        _print(verified)


def _print(verified: "Verified") -> None:
    tested = verified.self_test
    probe = "none in this file"
    if tested is not None:
        probe = (
            f"{tested.images} images answered as published, within {tested.difference:.1g} "
            f"(allowed: {tested.allowed:g}), on {tested.provider}"
        )
    rows = {
        "file": verified.file,
        "graph": "no digest" if verified.digests is None else f"as published, sha256 {verified.digests.graph}",
        "metadata": "no digest" if verified.digests is None else f"as published, sha256 {verified.digests.metadata}",
        "description": "that of this file" if verified.description else "none beside it, or one without digests",
        "probe": probe,
        "signature": "not checked (--key)" if verified.signed is None else f"covers {', '.join(verified.signed)}",
    }
    for name, value in rows.items():
        echo(f"{name:<13}{value}")

"""`uce-edge verify`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.messages import echo
from uce_edge.cli.shared_options import DeviceOption, InferenceOption, JsonOption, ModelArgument, choose_model
from uce_edge.errors import IntegrityError, UceEdgeError
from uce_edge.runtime.providers import Device

if TYPE_CHECKING:
    from uce_edge.integrity.digests import Digests
    from uce_edge.integrity.self_test import SelfTest


@dataclasses.dataclass(frozen=True)
class _Found:
    """What a file was found to be; a file that is wrong is not found to be anything."""

    file: str
    digests: "Digests | None"
    """Those that were compared."""
    description: bool
    """Whether the description beside it was compared, too."""
    self_test: "SelfTest | None"
    signed: list[str] | None
    """The files that the owner of the key signed; None where no key was given."""


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
    from uce_edge.integrity import signing, verification
    from uce_edge.runtime.model import Model

    signed = None if key is None else signing.verify(model, key)
    loaded = Model(model, device)
    digests = loaded.digests
    if digests is None and signed is None:
        raise IntegrityError(
            f"{model} has no digests: it was written before digests existed, so nobody can tell whether it was "
            "changed. Export or calibrate it again."
        )
    described = verification.check_description(model, loaded.metadata)
    for path, digest in ((model, loaded.sha256), (model.with_suffix(".json"), described)):
        if signed is not None and digest not in (None, signed.get(path)):
            raise IntegrityError(f"{path} was replaced after its signature was checked. Do not use it.")
    tested = loaded.self_test()
    if tested is not None and not tested.passed:
        raise UceEdgeError(f"{tested.sentence(str(model))} Do not use it here.")
    found = _Found(
        str(model), digests, described is not None, tested, None if signed is None else [path.name for path in signed]
    )
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        _print(found)


def _print(found: _Found) -> None:
    tested = found.self_test
    probe = "none in this file"
    if tested is not None:
        probe = (
            f"{tested.images} images answered as published, within {tested.difference:.1g} "
            f"(allowed: {tested.allowed:g}), on {tested.provider}"
        )
    rows = {
        "file": found.file,
        "graph": "no digest" if found.digests is None else f"as published, sha256 {found.digests.graph}",
        "metadata": "no digest" if found.digests is None else f"as published, sha256 {found.digests.metadata}",
        "description": "that of this file" if found.description else "none beside it, or one without digests",
        "probe": probe,
        "signature": "not asked for (--key)" if found.signed is None else f"covers {', '.join(found.signed)}",
    }
    for name, value in rows.items():
        echo(f"{name:<13}{value}")

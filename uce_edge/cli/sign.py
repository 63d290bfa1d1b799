"""`uce-edge sign`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.messages import quote, say


def sign(
    model: Annotated[Path, typer.Argument(help="A model file made by `uce-edge export`.")],
    key: Annotated[Path, typer.Option(help="Your private elliptic-curve key, as PEM.")],
) -> None:
    """Sign a model file, so that others can tell that it is yours and that nobody changed it.

    The signature covers the .onnx file, and the .json and .ort files of the same name.

    Example: uce-edge sign digits.onnx --key private.pem
    """
    from uce_edge.integrity import signing

    files = signing.covered(model)
    signature = signing.sign(model, key, _checked(model, files))
    say(f"Signed {', '.join(path.name for path in files)}: {signature}")
    say(f"Next: uce-edge verify {quote(model)} --key public.pem")


def _checked(model: Path, files: list[Path]) -> dict[Path, str]:
    """Check all files: who signs a damaged or a foreign one would vouch for it."""
    from dataclasses import replace

    from uce_edge.errors import IntegrityError
    from uce_edge.integrity import verification
    from uce_edge.runtime.model import Model

    description = model.with_suffix(".json")
    loaded = {path: Model(path, "cpu") for path in files if path != description}
    metadata = loaded[model].metadata
    checked = {path: one.sha256 for path, one in loaded.items()}
    described = verification.check_description(model, metadata)
    if described is not None:
        checked[description] = described
    elif description in files and metadata.digests is not None:
        raise IntegrityError(f"{description} is not the description of {model}. Write it again, or remove it.")
    for path, one in loaded.items():
        unknown = metadata.digests is not None and one.digests is None
        if unknown or replace(one.metadata, digests=None) != replace(metadata, digests=None):
            raise IntegrityError(f"{path} is not known to be the model in {model}. Write it again, or remove it.")
    return checked

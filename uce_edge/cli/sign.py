"""`uce-edge sign`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.words import quote, say


def sign(
    model: Annotated[Path, typer.Argument(help="A model file made by `uce-edge export`.")],
    key: Annotated[Path, typer.Option(help="Your private elliptic-curve key, as PEM.")],
) -> None:
    """Sign a model file, so that others can tell that it is yours and that nobody changed it.

    The signature covers the .onnx file, and the .json and .ort files of the same name.

    Example: uce-edge sign digits.onnx --key private.pem
    """
    from uce_edge import signing
    from uce_edge.model import Model

    Model(model, "cpu")  # who signs a damaged file would vouch for it
    signature = signing.sign(model, key)
    names = ", ".join(path.name for path in signing.covered(model))
    say(f"Signed {names}: {signature}")
    say(f"Next: uce-edge verify {quote(model)} --key public.pem")

"""`uce-edge sign`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.messages import quote, say


def sign(
    model: Annotated[Path, typer.Argument(help="A model file made by `uce-edge export`.")],
    key: Annotated[Path, typer.Option(help="Your private elliptic-curve key, as PEM.")],
) -> None:
    """Sign a model file, so that others can verify its author and that it is unchanged.

    The signature covers the .onnx file, and the .json and .ort files of the same name.

    Example: uce-edge sign digits.onnx --key private.pem
    """
    from uce_edge.integrity.model_check import sign_model

    signature, files = sign_model(model, key)
    say(f"Signed {', '.join(path.name for path in files)}: {signature}")
    say(f"Next: uce-edge verify {quote(model)} --key public.pem")

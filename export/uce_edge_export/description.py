"""The names and the description of what an export writes."""

from pathlib import Path

from uce_edge.errors import UsageError, expected
from uce_edge.files import replacing
from uce_edge.metadata import Metadata


def write_description(out: Path, metadata: Metadata) -> None:
    """Write the metadata as `NAME.json` beside the model, for runtimes that cannot read it from the file."""
    with replacing(out.with_suffix(".json")) as path:
        path.write_text(metadata.to_json(indent=2) + "\n")


def check_name(out: str | Path) -> Path:
    """Refuse, before any work, a name that is not that of an ONNX file."""
    out = Path(out)
    if out.suffix != ".onnx":
        raise UsageError(
            expected("`out`", "a file name ending in .onnx", str(out), f"Use: --out {out.stem or 'model'}.onnx")
        )
    return out

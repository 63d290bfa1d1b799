"""From a graph to a published file: nothing takes its place before all that is said about it is known."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from uce_edge.errors import UsageError, expected
from uce_edge.files import removable, replacing
from uce_edge.metadata import Metadata


class Draft:
    """A model file in a temporary place. At any time it says of itself what `metadata` says."""

    def __init__(self, path: Path, model: ir.Model, metadata: Metadata) -> None:
        """Write a first version.

        Args:
            path: The temporary place.
            model: The graph.
            metadata: What the file says of itself.
        """
        self.path = path
        self.metadata = metadata
        self.rewrite(model)

    def rewrite(self, model: ir.Model) -> None:
        """Give the file another graph."""
        model.metadata_props.clear()
        model.metadata_props.update(self.metadata.to_properties())
        ir.save(model, self.path)

    def describe(self, metadata: Metadata) -> None:
        """Let the file say something else of itself; the graph stays."""
        self.metadata = metadata
        self.rewrite(ir.load(self.path))


@contextmanager
def publish(model: ir.Model, metadata: Metadata, out: str | Path) -> Iterator[Draft]:
    """Write a model and its description; both take their places when the block has succeeded.

    Inside the block the file is checked, made smaller, measured. When the block fails, nothing has changed on disk.

    The description is the metadata once more as `NAME.json`, for runtimes that cannot read it from the model. Such a
    runtime could not see that a description belongs to another model, so there is never a wrong one: the old
    description goes away, the new model takes its place, and then the new description does. A process that is killed
    in between leaves a whole model, old or new, without a description, which
    `uce-edge info NAME.onnx --json > NAME.json` writes again.

    Args:
        model: The graph.
        metadata: What the file says of itself, to begin with.
        out: The `.onnx` file.
    """
    out = check_name(out)
    description = out.with_suffix(".json")
    with replacing(description) as described, removable(description) as remove_old, replacing(out) as path:
        draft = Draft(path, model, metadata)
        yield draft
        described.write_text(draft.metadata.to_json(indent=2) + "\n")
        remove_old()


def check_name(out: str | Path) -> Path:
    """Refuse, before any work, a name that is not that of an ONNX file."""
    out = Path(out)
    if out.suffix != ".onnx":
        raise UsageError(
            expected("`out`", "a file name ending in .onnx", str(out), f"Use: --out {out.stem or 'model'}.onnx")
        )
    return out

"""From a graph to a published file: nothing takes its place before all that is said about it is known."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from uce_edge._util.atomic_files import removable, replacing
from uce_edge.contract import KEY, NoiseKind
from uce_edge.errors import UsageError, expected
from uce_edge.integrity.digests import of_model
from uce_edge.integrity.protobuf import fields, with_properties
from uce_edge.integrity.self_test import PASSES, Pattern, Probe
from uce_edge.metadata import Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.graph import decision


class Draft:
    """A model file in a temporary place. At any time it says of itself what `metadata` says, with its digests."""

    def __init__(self, path: Path, content: bytes, metadata: Metadata) -> None:
        """Write a first version.

        Args:
            path: The temporary place.
            content: An ONNX file; its metadata is replaced.
            metadata: What the file says of itself.
        """
        self.path = path
        self._write(content, replace(metadata, probe=()))

    def rewrite(self, model: ir.Model) -> None:
        """Give the file another graph."""
        self._write(ir.to_proto(model).SerializeToString(), replace(self.metadata, probe=()))

    def describe(self, metadata: Metadata) -> None:
        """Let the file say something else of itself; the graph stays."""
        self._write(self.path.read_bytes(), metadata)

    def seal(self) -> None:
        """Give the file its answers to probe images, when nothing of it will change any more."""
        self.describe(replace(self.metadata, probe=probed(self.path, self.metadata)))

    def _write(self, content: bytes, metadata: Metadata) -> None:
        content, self.metadata = sealed(decision.stored(content, metadata.rule, len(metadata.classes)), metadata)
        self.path.write_bytes(content)


def sealed(content: bytes, metadata: Metadata) -> tuple[bytes, Metadata]:
    """An ONNX file that says this of itself, and the metadata with the digests that it has now."""
    # The digest of the graph also covers the plain keys, which other tools read.
    others = metadata.sealed("0" * 64).to_properties()
    del others[KEY]
    content = with_properties(content, others)
    metadata = metadata.sealed(of_model(fields(memoryview(content))))
    return with_properties(content, others | {KEY: metadata.to_json()}), metadata


def graph_of(model: Model) -> ir.Model:
    """The graph of the very bytes that a loaded model was checked and answers with."""
    return ir.from_proto(onnx.load_model_from_string(model.content()))


def probed(path: Path, metadata: Metadata) -> tuple[Probe, ...]:
    """What a file answers to probe images; none for one whose answers cannot be repeated, or are not finite."""
    if metadata.noise in (NoiseKind.RANDN, NoiseKind.INPUT):
        return ()
    model = Model(path, "cpu")
    samples = PASSES if metadata.takes_seeds else metadata.samples
    answers = {pattern: model.answer_probe(pattern, samples) for pattern in Pattern}
    finite = {pattern: outputs for pattern, outputs in answers.items() if _is_finite(outputs)}
    return tuple(Probe(pattern, samples, outputs) for pattern, outputs in finite.items())


def _is_finite(outputs: dict[str, list[float]]) -> bool:
    return all(bool(np.isfinite(values).all()) for values in outputs.values())


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
        model, metadata = decision.upgrade(model, metadata)
        draft = Draft(path, ir.to_proto(model).SerializeToString(), metadata)
        yield draft
        draft.seal()
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

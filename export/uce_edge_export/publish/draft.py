"""Drafts of model files in memory, and their atomic publication."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from uce_edge._util.atomic_files import removable, replacing
from uce_edge.contract import KEY, NoiseKind, Precision
from uce_edge.errors import UsageError, expected
from uce_edge.integrity.digests import of_model
from uce_edge.integrity.protobuf import fields, with_properties
from uce_edge.integrity.self_test import PASSES, Pattern, Probe
from uce_edge.metadata import Metadata
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import open_session
from uce_edge_export.graph import decision
from uce_edge_export.transform import half_weights


class Draft:
    """A model file in memory, with one session per graph."""

    def __init__(self, content: bytes, metadata: Metadata) -> None:
        """Start with a graph.

        Args:
            content: An ONNX file; its metadata is replaced.
            metadata: The metadata of the file.
        """
        self.metadata = replace(metadata, probe=())
        self._graph = content
        self._model: Model | None = None

    @classmethod
    def of(cls, model: ir.Model, metadata: Metadata) -> "Draft":
        """Start with a graph of any contract."""
        model, metadata = decision.upgrade(model, metadata)
        return cls(_written(model, metadata), metadata)

    def rewrite(self, model: ir.Model, metadata: Metadata | None = None) -> None:
        """Replace the graph, and the metadata if given."""
        self.metadata = replace(metadata or self.metadata, probe=())
        self._graph, self._model = _written(model, self.metadata), None

    def describe(self, metadata: Metadata) -> None:
        """Replace the metadata; the graph and its session stay."""
        self.metadata = metadata

    def graph(self) -> ir.Model:
        """A copy of the graph."""
        return _read(self._graph, self.metadata)

    def content(self) -> bytes:
        """The file to publish now; the metadata gets its digests."""
        content = decision.stored(self._graph, self.metadata)
        content, self.metadata = sealed(content, self.metadata)
        return content

    @property
    def model(self) -> Model:
        """The loaded file; its stored rule may be outdated."""
        if self._model is None:
            self._model = Model(self.content(), "cpu", spin=False)  # waiting threads would burn CPU time of others
        return self._model

    @property
    def session(self) -> Any:
        """The ONNX Runtime session of the graph."""
        if self.metadata.noise is NoiseKind.INPUT:  # which `Model` refuses
            return open_session(self.content(), Device.CPU)
        return self.model.session

    def seal(self) -> None:
        """Store the answers to probe images, after the last change."""
        self.describe(replace(self.metadata, probe=_probes(self)))


def sealed(content: bytes, metadata: Metadata) -> tuple[bytes, Metadata]:
    """Add metadata and digests to an ONNX file; returns both."""
    # The digest of the graph also covers the plain keys, which other tools read.
    others = metadata.sealed("0" * 64).to_properties()
    del others[KEY]
    content = with_properties(content, others)
    metadata = metadata.sealed(of_model(fields(memoryview(content))))
    return with_properties(content, others | {KEY: metadata.to_json()}), metadata


def graph_of(model: Model) -> ir.Model:
    """The graph of a loaded model, from its checked bytes."""
    return _read(model.content(), model.metadata)


def _read(content: bytes, metadata: Metadata) -> ir.Model:
    model = ir.from_proto(onnx.load_model_from_string(content))
    return half_weights.unpacked(model) if metadata.precision is Precision.FP16_WEIGHTS else model


def _written(model: ir.Model, metadata: Metadata) -> bytes:
    if metadata.precision is Precision.FP16_WEIGHTS:
        model = half_weights.packed(model)
    content: bytes = ir.to_proto(model).SerializeToString()
    return content


def _probes(draft: Draft) -> tuple[Probe, ...]:
    """Finite answers to probe images; none without replayable noise."""
    metadata = draft.metadata
    if metadata.noise in (NoiseKind.RANDN, NoiseKind.INPUT):
        return ()
    samples = PASSES if metadata.takes_seeds else metadata.samples
    answers = {pattern: draft.model.answer_probe(pattern, samples) for pattern in Pattern}
    return tuple(
        Probe(pattern, samples, outputs)
        for pattern, outputs in answers.items()
        if all(np.isfinite(values).all() for values in outputs.values())
    )


@contextmanager
def destination(out: str | Path) -> Iterator[Callable[[Draft], None]]:
    """Reserve a model's place; gives a function that publishes there.

    Both files appear when the block has succeeded. When it fails, nothing has changed on disk.

    The description is the metadata once more as `NAME.json`, for runtimes that cannot read it from the model. Such a
    runtime cannot detect a description of another model, so there is never a wrong one: the old description is removed,
    the new model takes its place, and then the new description does. A process that is killed in between leaves a whole
    model, old or new, without a description, which `uce-edge info NAME.onnx --json > NAME.json` writes again.

    Args:
        out: The `.onnx` file.
    """
    out = check_name(out)
    description = out.with_suffix(".json")
    with replacing(description) as described, removable(description) as remove_old, replacing(out) as path:

        def save(draft: Draft) -> None:
            draft.seal()
            path.write_bytes(draft.content())
            described.write_text(draft.metadata.to_json(indent=2) + "\n")
            remove_old()

        yield save


@contextmanager
def publish(model: ir.Model, metadata: Metadata, out: str | Path) -> Iterator[Draft]:
    """Publish a graph after the block, which can change it.

    Args:
        model: The graph.
        metadata: Its metadata.
        out: The `.onnx` file.
    """
    with destination(out) as save:
        draft = Draft.of(model, metadata)
        yield draft
        save(draft)


def convert(source: str | Path, out: str | Path) -> int:
    """Write a file in the present contract; returns the contract that it had."""
    model = Model(source, "cpu")
    with publish(graph_of(model), model.metadata, out):
        return model.metadata.contract


def check_name(out: str | Path) -> Path:
    """Reject a name that does not end in .onnx."""
    out = Path(out)
    if out.suffix != ".onnx":
        raise UsageError(
            expected("`out`", "a file name ending in .onnx", str(out), f"Use: --out {out.stem or 'model'}.onnx")
        )
    return out

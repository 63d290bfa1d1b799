"""A rejection threshold with a promise about the error, found for a model file as it ships and stored in it."""

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from uce_edge import guarantee
from uce_edge.guarantee import Guarantee
from uce_edge.metadata import Metadata
from uce_edge.model import Model
from uce_edge_train.data import Split


def find_threshold(model: Model, data: Split, target_error: float, confidence: float) -> tuple[Guarantee, Metadata]:
    """The loosest threshold that keeps the error below a target, and the metadata that say so.

    The promise holds for what the file does by default: its passes, its seeds, its map.

    Args:
        model: The file as it ships.
        data: Labelled images that nothing was fitted on.
        target_error: The largest share of wrong labels among accepted images.
        confidence: How sure the promise is, over the draw of `data`.
    """
    said = model.predict(data.images)
    found = guarantee.find(said.uncertainty, said.class_ids != data.labels, target_error, confidence)
    stored = found.as_dict() | {"samples": said.samples, "seed": said.seed, "data": data.sha256()}
    return found, replace(model.metadata, reject=stored)


def store(path: Path, metadata: Metadata) -> None:
    """Replace the metadata of a file, and nothing else."""
    written = ir.load(path)
    written.metadata_props.clear()
    written.metadata_props.update(metadata.to_properties())
    ir.save(written, path)

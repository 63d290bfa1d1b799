"""What rejection does to a model file as it ships, measured on held-out images and stored in it."""

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from uce_edge.calibration import guarantee
from uce_edge.calibration.guarantee import Counts, Guarantee, NoGuaranteeError
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Metadata
from uce_edge.model import Model


def measure(
    model: Model, data: Split, promise: dict[str, float] | None
) -> tuple[Guarantee | NoGuaranteeError | None, Metadata]:
    """Count what thresholds let through, and find the one that keeps a promise.

    Both hold for what the file does by default: its passes, its seeds, its map.

    Args:
        model: The file as it ships.
        data: Labelled images that nothing was fitted on.
        promise: `target_error`, the largest share of wrong labels among accepted images, and `confidence`, how sure
            the promise is over the draw of `data`; None when nothing shall be promised.

    Returns:
        The threshold, or why there is none, and the metadata that say so.
    """
    said = model.predict(data.images)
    wrong = said.class_ids != data.labels
    how = {"samples": said.samples, "seed": said.seed, "data": data.sha256()}
    counts = Counts.of(said.uncertainty, wrong)
    metadata = replace(
        model.metadata, held_out={"accepted": list(counts.accepted), "errors": list(counts.errors)} | how
    )
    if promise is None:
        return None, metadata
    try:
        found = guarantee.find(said.uncertainty, wrong, **promise)
    except NoGuaranteeError as error:
        return error, metadata
    return found, replace(metadata, reject=found.as_dict() | how)


def store(path: Path, metadata: Metadata) -> None:
    """Replace the metadata of a file, and nothing else."""
    written = ir.load(path)
    written.metadata_props.clear()
    written.metadata_props.update(metadata.to_properties())
    ir.save(written, path)

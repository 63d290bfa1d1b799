"""What rejection does to a model file as it ships, measured on held-out images and stored in it."""

from dataclasses import replace

from uce_edge.calibration import guarantee
from uce_edge.calibration.guarantee import NoGuaranteeError
from uce_edge.calibration.promises import Guarantee, HeldOut, Promise, StoredThreshold
from uce_edge.datasets.splits import Split
from uce_edge.model import Model
from uce_edge_export.publish import Draft


def measure(draft: Draft, data: Split, promise: Promise | None) -> Guarantee | NoGuaranteeError | None:
    """Count what thresholds let through, find the one that keeps a promise, and store both in the file.

    Both hold for what the file does by default: its passes, its seeds, its map.

    Args:
        draft: The file as it ships.
        data: Labelled images that nothing was fitted on.
        promise: What the threshold shall keep; None when nothing shall be promised.

    Returns:
        The threshold, or why there is none; None when nothing was to be promised.
    """
    model = Model(draft.path, "cpu")
    said = model.predict(data.images)
    wrong = said.class_ids != data.labels
    how = {"samples": said.samples, "seed": said.seed, "data": data.sha256()}
    counts = guarantee.count(said.uncertainty, wrong)
    metadata = replace(draft.metadata, held_out=HeldOut.from_document(counts.to_document() | how))
    promised: Guarantee | NoGuaranteeError | None = None
    if promise is not None:
        try:
            promised = guarantee.find(said.uncertainty, wrong, promise.target_error, promise.confidence)
            metadata = replace(metadata, reject=StoredThreshold.from_document(promised.to_document() | how))
        except NoGuaranteeError as error:
            promised = error
    draft.describe(metadata)
    return promised

"""What rejection does to a model file as it ships, measured on held-out images and stored in it."""

from dataclasses import replace

from uce_edge.calibration import guarantee
from uce_edge.calibration.guarantee import Counts, Guarantee, NoGuaranteeError
from uce_edge.datasets.splits import Split
from uce_edge.model import Model
from uce_edge_export.publish import Draft


def measure(draft: Draft, data: Split, promise: dict[str, float] | None) -> Guarantee | NoGuaranteeError | None:
    """Count what thresholds let through, find the one that keeps a promise, and store both in the file.

    Both hold for what the file does by default: its passes, its seeds, its map.

    Args:
        draft: The file as it ships.
        data: Labelled images that nothing was fitted on.
        promise: `target_error`, the largest share of wrong labels among accepted images, and `confidence`, how sure
            the promise is over the draw of `data`; None when nothing shall be promised.

    Returns:
        The threshold, or why there is none; None when nothing was to be promised.
    """
    model = Model(draft.path, "cpu")
    said = model.predict(data.images)
    wrong = said.class_ids != data.labels
    how = {"samples": said.samples, "seed": said.seed, "data": data.sha256()}
    counts = Counts.of(said.uncertainty, wrong)
    metadata = replace(
        draft.metadata, held_out={"accepted": list(counts.accepted), "errors": list(counts.errors)} | how
    )
    promised: Guarantee | NoGuaranteeError | None = None
    if promise is not None:
        try:
            promised = guarantee.find(said.uncertainty, wrong, **promise)
            metadata = replace(metadata, reject=promised.as_dict() | how)
        except NoGuaranteeError as error:
            promised = error
    draft.describe(metadata)
    return promised

"""The outputs of a model for many images, without the passes."""

import warnings
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import contract
from uce_edge._util.progress import progress
from uce_edge.metrics import Probabilities
from uce_edge.runtime.model import Model, SamplesWarning

_CHUNK = 128  # images per request, which bounds the memory of the passes


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """The averaged outputs of every image."""

    probabilities: npt.NDArray[np.floating]
    uncertainty: npt.NDArray[np.floating]
    model_uncertainty: npt.NDArray[np.floating]
    novelty: npt.NDArray[np.floating] | None = None
    """None for a file without out-of-distribution detection, as is the next."""
    novelty_score: npt.NDArray[np.floating] | None = None

    def __len__(self) -> int:
        return len(self.uncertainty)

    def part(self, rows: npt.NDArray[np.integer]) -> "ModelOutputs":
        """Select images."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[rows] for name, value in values.items() if value is not None})

    @cached_property
    def table(self) -> Probabilities:
        """The probabilities as a table that the metrics share."""
        return Probabilities(self.probabilities)

    def scores(self, passes: int) -> dict[str, npt.NDArray[np.float64] | None]:
        """The scores, larger for less certain images; None if undefined."""
        return {
            "uncertainty": self.uncertainty.astype(np.float64),
            "confidence": 1.0 - self.table.confidence,
            "model_uncertainty": self.model_uncertainty.astype(np.float64) if passes > 1 else None,
        }


def predict_all(model: Model, images: npt.NDArray[Any], samples: int | None, seed: int, task: str) -> ModelOutputs:
    """Predict all images, in chunks, with a progress bar.

    Args:
        model: The model.
        images: [n, height, width, channels] of the model's size.
        samples: The number of passes; None for the stored number.
        seed: The seed of the passes.
        task: The text of the progress bar.
    """
    count = len(images)
    probabilities = np.empty((count, len(model.classes)), np.float32)
    uncertainty, model_uncertainty, novelty, novelty_score = (np.empty(count, np.float32) for _ in range(4))
    has_novelty = contract.NOVELTY in model.metadata.outputs
    with warnings.catch_warnings(), progress(task, count) as advance:
        warnings.simplefilter("ignore", SamplesWarning)  # the notes of an evaluation report it once
        for start in range(0, count, _CHUNK):
            rows = slice(start, start + _CHUNK)
            chunk = model.predict(images[rows], samples, seed)
            probabilities[rows] = chunk.probabilities
            uncertainty[rows] = chunk.uncertainty
            model_uncertainty[rows] = chunk.model_uncertainty
            if has_novelty:
                novelty[rows], novelty_score[rows] = chunk.novelty, chunk.novelty_score
            advance(len(chunk))
    optional = (novelty, novelty_score) if has_novelty else ()
    return ModelOutputs(probabilities, uncertainty, model_uncertainty, *optional)

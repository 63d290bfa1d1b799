"""What a model says of many images, in memory that grows by a few numbers per image and by nothing else."""

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

_CHUNK = 128  # images per request: the passes and the decoded answers of more than these are never held


@dataclass(frozen=True, eq=False)
class Answers:
    """The model's answers, image by image, without the passes they are made of."""

    probabilities: npt.NDArray[np.floating]
    uncertainty: npt.NDArray[np.floating]
    model_uncertainty: npt.NDArray[np.floating]
    novelty: npt.NDArray[np.floating] | None = None
    """None for a file that cannot tell what is foreign, like the next."""
    novelty_score: npt.NDArray[np.floating] | None = None

    def __len__(self) -> int:
        return len(self.uncertainty)

    def part(self, rows: npt.NDArray[np.integer]) -> "Answers":
        """Those of some of the images."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[rows] for name, value in values.items() if value is not None})

    @cached_property
    def table(self) -> Probabilities:
        """The probabilities as the metrics share them."""
        return Probabilities(self.probabilities)

    def scores(self, passes: int) -> dict[str, npt.NDArray[np.float64] | None]:
        """What images can be ranked by, larger when less certain; one pass has no model part."""
        return {
            "uncertainty": self.uncertainty.astype(np.float64),
            "confidence": 1.0 - self.table.confidence,
            "model_uncertainty": self.model_uncertainty.astype(np.float64) if passes > 1 else None,
        }


def ask(model: Model, images: npt.NDArray[Any], samples: int | None, seed: int, task: str) -> Answers:
    """Predict all images, chunk by chunk, with a bar on stderr.

    Args:
        model: The model.
        images: [n, height, width, channels] of the model's size.
        samples: Passes; None for the number stored in the file.
        seed: Which passes.
        task: What the bar says.
    """
    count = len(images)
    probabilities = np.empty((count, len(model.classes)), np.float32)
    uncertainty, model_uncertainty, novelty, novelty_score = (np.empty(count, np.float32) for _ in range(4))
    can_tell = contract.NOVELTY in model.metadata.outputs
    with warnings.catch_warnings(), progress(task, count) as advance:
        warnings.simplefilter("ignore", SamplesWarning)  # an evaluation says it once, in its notes
        for start in range(0, count, _CHUNK):
            rows = slice(start, start + _CHUNK)
            chunk = model.predict(images[rows], samples, seed)
            probabilities[rows] = chunk.probabilities
            uncertainty[rows] = chunk.uncertainty
            model_uncertainty[rows] = chunk.model_uncertainty
            if can_tell:
                novelty[rows], novelty_score[rows] = chunk.novelty, chunk.novelty_score
            advance(len(chunk))
    known = (novelty, novelty_score) if can_tell else ()
    return Answers(probabilities, uncertainty, model_uncertainty, *known)

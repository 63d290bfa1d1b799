"""A look at a few answers before a long calibration."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from uce_edge.calibration.logits import Logits
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError

IMAGES, MORE = 100, 500
_BETTER = 2.7  # of a likelihood ratio: a guess exceeds it in 10 % of the cases
_LONG = 2**24  # pixels times passes: some seconds of a small network


def refuse_chance(
    data: Split, samples: int, draw: Callable[[Split, int], Logits | npt.NDArray[np.float32]], remedy: str
) -> None:
    """Refuse a long calibration of a model that guesses.

    Noise may ruin one pass and not the average of many, so that all passes decide. A model that looks like a guess
    over some images gets a second look at more.

    Args:
        data: The calibration images.
        samples: The passes to come. A short calibration ends soon enough with a warning.
        draw: The logits [passes, images, classes] of some images and so many passes.
        remedy: What to do about it, as the end of the message.

    Raises:
        UsageError: The average of all passes is no better than chance.
    """
    if samples * data.images[..., 0].size < _LONG or len(data) < IMAGES:
        return
    for images, passes in dict.fromkeys(((IMAGES, 1), (IMAGES, samples), (MORE, samples))):
        some = data.at_most(images)
        found = fit_map(Method.TEMPERATURE, draw(some, passes), some.labels).outcome
        if 2 * found.images * ((found.nll_of_chance or 0.0) - found.nll_after) > _BETTER:
            return
    raise UsageError(
        f"With {samples} passes over {len(some)} of the calibration images the model is no better than chance: NLL "
        f"{found.nll_after:.2f}, and a guess has {found.nll_of_chance:.2f}. Nothing was calibrated. {remedy}",
        "calibration.near-chance",
    )

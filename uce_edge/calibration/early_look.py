"""A look at a few answers before a long calibration."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from uce_edge.calibration.logits import Logits
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError

IMAGES = 100
_BETTER = 6.6  # of a likelihood ratio: a guess exceeds it in 1 % of the cases
_LONG = 2**24  # pixels times passes: some seconds of a small network


def refuse_chance(
    data: Split, samples: int, draw: Callable[[Split, int], Logits | npt.NDArray[np.float32]], remedy: str
) -> None:
    """Refuse a long calibration of a model that guesses.

    Noise may ruin one pass and not the average of many, so that all passes decide, over some of the images.

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
    some = data.at_most(IMAGES)
    for passes in dict.fromkeys((1, samples)):
        found = fit_map(Method.TEMPERATURE, draw(some, passes), some.labels).outcome
        if 2 * found.images * ((found.nll_of_chance or 0.0) - found.nll_after) > _BETTER:
            return
    raise UsageError(
        f"With {samples} passes over {len(some)} of the calibration images the model is no better than chance: NLL "
        f"{found.nll_after:.2f}, and a guess has {found.nll_of_chance:.2f}. Nothing was calibrated. {remedy}",
        "calibration.near-chance",
    )

"""A look at a few answers before a long calibration."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from uce_edge.calibration.logits import Logits
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
from uce_edge.datasets.splits import Split

IMAGES = 100
_LONG = 2**24  # pixels times passes: some seconds of a small network


def warn_near_chance(
    data: Split, samples: int, draw: Callable[[Split], Logits | npt.NDArray[np.float32]], warn: Callable[[str], None]
) -> None:
    """Warn before a long calibration of a model that guesses.

    Args:
        data: The calibration images.
        samples: The passes to come. A short calibration ends soon enough with the same warning.
        draw: The logits [1, images, classes] of one pass over some images.
        warn: Takes the warning.
    """
    if samples * data.images[..., 0].size < _LONG or len(data) < IMAGES:
        return
    some = data.at_most(IMAGES)
    found = fit_map(Method.TEMPERATURE, draw(some), some.labels).outcome
    if found.near_chance:
        warn(
            f"in one pass over {len(some)} of the images the model is hardly better than chance: NLL "
            f"{found.nll_after:.2f}, and a guess has {found.nll_of_chance:.2f}. All {samples} passes follow. To stop "
            "here, press Ctrl-C, then check the scaling of the pixels, the order of the classes, and the strength of "
            "the noise."
        )

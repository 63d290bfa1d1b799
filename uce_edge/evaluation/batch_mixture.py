"""The mean uncertainty of batches with a growing out-of-distribution share."""

import numpy as np
import numpy.typing as npt

BATCH, BATCHES = 100, 200  # the paper's batch, and the number of random batches
FRACTIONS = np.round(np.linspace(0, 1, 21), 2)
"""The out-of-distribution shares of a batch."""


def mixture(
    inside: npt.ArrayLike, outside: npt.ArrayLike, fractions: npt.NDArray[np.float64], seed: int = 0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation over random batches, at every fraction.

    A growing fraction replaces more images of the same batch, as in the paper's figure.
    """
    rng = np.random.default_rng(seed)
    kinds = [np.asarray(values, np.float64) for values in (inside, outside)]
    # This order of draws, batch by batch and inside before outside, gave the published curves.
    drawn = np.array([[rng.choice(values, BATCH) for values in kinds] for _ in range(BATCHES)])
    sums = np.pad(drawn.cumsum(axis=2), ((0, 0), (0, 0), (1, 0)))
    replaced = np.rint(fractions * BATCH).astype(int)
    means = (sums[:, 1, replaced] + sums[:, 0, -1:] - sums[:, 0, replaced]) / BATCH
    return means.mean(axis=0), means.std(axis=0, ddof=1)

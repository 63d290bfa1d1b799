"""The contract: its rules, each in one place."""

import numpy as np
import pytest

from uce_edge import contract

SMALLEST_ABOVE = np.nextafter(np.float32(0.3), np.float32(1))


@pytest.mark.parametrize(
    ("uncertainty", "threshold", "accepted"),
    [
        (np.float32(0.3), 0.3, True),  # 0.3 as a float32 is larger than as a float64
        (SMALLEST_ABOVE, 0.3, False),
        (0.3, np.float32(0.3), True),
        (0.0, 0.0, True),
        (1.0, 1.0, True),
        (np.nan, 1.0, False),
        (0.0, np.nan, False),
    ],
)
def test_an_answer_is_accepted_up_to_the_threshold_in_float32(
    uncertainty: float, threshold: float, accepted: bool
) -> None:
    assert contract.accepts(uncertainty, threshold) == accepted


def test_a_batch_is_accepted_image_by_image() -> None:
    values = np.array([0.1, 0.3, 0.5, np.nan], np.float32)
    assert contract.accepts(values, 0.3).tolist() == [True, True, False, False]

"""A folder of images is answered about as fast as the slower half of its work."""

from pathlib import Path

import pytest
from throughput import FOLDERS, make, measure


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_is_answered_about_as_fast_as_its_slower_half(kind: str, tmp_path: Path) -> None:
    rates = measure(make(kind, tmp_path))
    print(f"\n{kind}: {rates}; {rates.share:.2f} of the slower half")
    # On cores that decoding and the model share, the sum of both is the floor.
    assert rates.of_sum >= 0.8

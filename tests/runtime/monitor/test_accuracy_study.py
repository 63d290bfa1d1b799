"""The study of docs/monitor.md counts streams as it names them."""

import sys
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "studies"))

from accuracy_study import which_first

sys.path.pop(0)


def test_a_stream_without_doubt_is_not_one_where_the_doubt_came_first() -> None:
    assert which_first([inf, inf], [inf, 20]) == (1, 0, 1)
    assert which_first([100, 100, 100, 100], [99, 100, 101, inf]) == (1, 3, 0)

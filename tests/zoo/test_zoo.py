"""What docs/zoo.csv says of a dozen networks holds for small ones of the same kind."""

import csv
import importlib.util
import sys
from pathlib import Path

import pytest
from conftest import ROOT

ZOO = ROOT / "benchmarks" / "zoo"
sys.path.insert(0, str(ZOO))

from networks import TESTED  # noqa: E402
from route import ROUTES, Cell, run, write_plain  # noqa: E402

MISSING = [name for name in ("torch", "timm", "transformers") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: make test-zoo")


@pytest.fixture(scope="module", params=TESTED)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A network, and the folder with its plain ONNX file."""
    folder = tmp_path_factory.mktemp("zoo")
    write_plain(request.param, folder, small=True)
    return request.param, folder


@pytest.fixture(scope="module")
def promised() -> dict[tuple[str, str], bool]:
    """Whether the page says that a route works."""
    with (ROOT / "docs" / "zoo.csv").open(encoding="utf-8") as file:
        return {(row["network"], row["route"]): row["works"] == "True" for row in csv.DictReader(file)}


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_works_as_the_page_says_or_is_refused(
    network: tuple[str, Path], route: str, promised: dict[tuple[str, str], bool]
) -> None:
    name, folder = network
    cell: Cell = run(name, route, folder, small=True)  # raises what is no refusal
    assert cell.works or cell.code
    if promised.get((name, route)):
        assert cell.works, cell.error
        assert cell.noisy
        assert cell.layers
        # The first layer has no noise; what else has none is named.
        assert cell.noisy >= cell.layers - 1 or cell.notes

"""One page for several datasets: verdicts and Table 1 beside the paper's."""

import csv
from collections.abc import Mapping
from pathlib import Path

from uce_edge._util.atomic_files import replacing
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.paper_table import COLUMNS, PUBLISHED
from uce_edge_train.reproduce.result_files import markdown_table


def write(folder: Path, command: str, results: Mapping[str, Path]) -> None:
    """Write README.md.

    Args:
        folder: Where the page goes.
        command: The command that makes all of it.
        results: The folder of every dataset's results, below `folder`.
    """
    scorecards = {data: _lines(place, Experiment.SCORECARD) for data, place in results.items()}
    claims = next(iter(scorecards.values()))
    header = ["", "claim", *(f"[{data}]({place.name}/README.md)" for data, place in results.items())]
    rows = [
        [line["claim"], line["text"], *(f"**{scorecards[data][index]['verdict']}**" for data in results)]
        for index, line in enumerate(claims)
    ]
    text = [
        "# The paper's experiments, side by side",
        "",
        f"    {command}",
        "",
        "## The claims",
        "",
        markdown_table(header, rows),
        "",
        "The page of each dataset has the evidence, the rules behind the verdicts, and why a claim is not confirmed.",
        "",
        "## Table 1",
        "",
        "Monte Carlo, in percent, means over the seeds; below them the figures of the paper.",
        "",
        markdown_table(
            ["data", "", "network", *(f"{row}: {name}" for row in COLUMNS for name in ("cECE", "cUCE"))],
            [row for data, place in results.items() for row in _table(data, place)],
        ),
    ]
    with replacing(folder / "README.md") as path:
        path.write_text("\n".join(text) + "\n")


def _table(data: str, place: Path) -> list[list[str]]:
    cells = {line["method"]: line for line in _lines(place, Experiment.TABLE1) if line["inference"] == "mc"}
    ours = [f"{100 * float(cells[row][name]):.1f}" for row in COLUMNS for name in ("cece", "cuce")]
    network = next(iter(cells.values()))["arch"]
    rows = [[data, "this run", network, *ours]]
    for name, published in PUBLISHED.get(data, {}).items():
        rows.append([data, "the paper", name, *(f"{number:.1f}" for pair in published for number in pair)])
    return rows


def _lines(place: Path, name: Experiment) -> list[dict[str, str]]:
    with (place / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))

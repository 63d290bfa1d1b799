"""One page for several datasets: verdicts and Table 1 beside the paper's."""

import csv
from collections.abc import Mapping
from pathlib import Path

from uce_edge._util.atomic_files import replacing
from uce_edge_train.choices import Experiment
from uce_edge_train.reproduce.paper_table import COLUMNS, PUBLISHED
from uce_edge_train.reproduce.result_files import markdown_table

_ERRORS = {"ece": "ECE", "uce": "UCE", "tuce": "T-UCE"}


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
        "A paper's claim is confirmed by a rule that was fixed before; the evidence is below.",
        "",
        "## Table 1",
        "",
        "Monte Carlo, in percent, means over the seeds; below them the figures of the paper.",
        "",
        markdown_table(
            ["data", "", "network", *(f"{row}: {name}" for row in COLUMNS for name in ("cECE", "cUCE"))],
            [row for data, place in results.items() for row in _table(data, place)],
        ),
        "",
        "## Error and twin",
        "",
        "In percent, means over the seeds, and *what a perfectly calibrated model with the same probabilities would "
        "score*. UCE can also be low where a model is overconfident; T-UCE compares the error with the twin's in every "
        "bin.",
        "",
        markdown_table(
            ["data", "inference", "", "seeds", "accuracy", "NLL", "T", *_ERRORS.values()],
            [row for data, place in results.items() for row in _errors(data, place)],
        ),
        "",
        "## Evidence",
        "",
        *(line for index, claim in enumerate(claims) for line in _evidence(claim, index, scorecards)),
    ]
    with replacing(folder / "README.md") as path:
        path.write_text("\n".join(text).rstrip() + "\n")


def _table(data: str, place: Path) -> list[list[str]]:
    cells = {line["method"]: line for line in _lines(place, Experiment.TABLE1) if line["inference"] == "mc"}
    ours = [f"{100 * float(cells[row][name]):.1f}" for row in COLUMNS for name in ("cece", "cuce")]
    network = next(iter(cells.values()))["arch"]
    rows = [[data, "this run", network, *ours]]
    for name, published in PUBLISHED.get(data, {}).items():
        rows.append([data, "the paper", name, *(f"{number:.1f}" for pair in published for number in pair)])
    return rows


def _errors(data: str, place: Path) -> list[list[str]]:
    rows = []
    for line in _lines(place, Experiment.TABLE1):
        errors = [f"{100 * float(line[name]):.1f}, *{100 * float(line[f'{name}_twin']):.1f}*" for name in _ERRORS]
        temperature = f"{float(line['temperature']):.2f}" if line["temperature"] else ""
        scores = [f"{100 * float(line['accuracy']):.1f}", f"{float(line['nll']):.3f}", temperature]
        rows.append([data, line["inference"], line["method"], line["seeds"], *scores, *errors])
    return rows


def _evidence(claim: dict[str, str], index: int, scorecards: Mapping[str, list[dict[str, str]]]) -> list[str]:
    """A claim, its rule, and the verdict on every dataset with its numbers and the cause."""
    lines = [f"**{claim['claim']}. {claim['text']}.** Rule: {claim['rule']}", ""]
    for data, found in scorecards.items():
        line = found[index]
        cause = f" *Why it is not confirmed:* {line['cause']}" if line["cause"] else ""
        lines.append(f"- {data}: **{line['verdict']}**. {line['evidence']}.{cause}")
    return [*lines, ""]


def _lines(place: Path, name: Experiment) -> list[dict[str, str]]:
    with (place / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))

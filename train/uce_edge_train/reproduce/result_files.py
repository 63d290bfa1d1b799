"""Result files: CSV, Markdown sections, one page."""

import csv
from collections.abc import Sequence
from pathlib import Path

from uce_edge._util.atomic_files import replacing
from uce_edge._util.printable import cell
from uce_edge.metrics import Interval
from uce_edge.output.wording import percentage
from uce_edge_train.choices import Experiment

Cells = dict[str, str | int | float]
"""One line of a CSV file, by column."""


def write_csv(folder: Path, name: str, lines: Sequence[Cells]) -> None:
    """Write a table; numbers have six significant digits."""
    with replacing(folder / f"{name}.csv") as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        for line in lines:
            writer.writerow({key: cell(_short(value)) for key, value in line.items()})


def write_section(folder: Path, name: Experiment, text: str) -> None:
    """Write a section, and the page of all sections."""
    with replacing(folder / f"{name}.md") as path:
        path.write_text(text.rstrip() + "\n")
    order = [Experiment.SCORECARD, *(kind for kind in Experiment if kind is not Experiment.SCORECARD)]
    sections = [(folder / f"{kind}.md").read_text() for kind in order if (folder / f"{kind}.md").exists()]
    with replacing(folder / "README.md") as path:
        path.write_text(f"# {folder.name}\n\n" + "\n".join(sections))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def interval(measured: Interval, digits: int = 2) -> str:
    """A value and its interval, in percent."""
    value, low, high = (percentage(number, digits) for number in (measured.value, measured.low, measured.high))
    return f"{value} ({low} to {high})"


def _short(value: str | int | float) -> str | int:
    return f"{value:.6g}" if isinstance(value, float) else value

"""Write docs/zoo.md and docs/zoo.csv from the results."""

from route import Cell


def write_pages(cells: dict[tuple[str, str], Cell], tools: dict[str, str]) -> None:
    print(len(cells), tools)

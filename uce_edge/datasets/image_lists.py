"""Parse lists of image files: .csv, .tsv, .jsonl and .txt."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from uce_edge.errors import UsageError, expected

SUFFIXES = (".csv", ".jsonl", ".tsv", ".txt")
PATH = "path"
LABEL = "label"
CLASS_ID = "class_id"
COLUMNS = (PATH, LABEL, CLASS_ID, "group", "split")
"""The columns with a meaning, in upper or lower case."""


_INSIDE = ("labels.csv", "labels.tsv")
"""Manifests that a folder may have inside."""
_HEAD = 10_000  # characters of the first line, at most


class Row(NamedTuple):
    """One row of a list."""

    line: int
    """Its line in a text, or its number in a table."""
    cells: dict[str, str]
    """By column; a missing cell is an empty string."""


def parse(text: str, suffix: str, name: str) -> list[Row]:
    """Parse the rows of a list; skip empty lines.

    A .txt file has a path per line, a .jsonl file an object per line. The first line of a .csv file (with commas, or
    with semicolons as some spreadsheets write it) and of a .tsv file names the columns.

    Args:
        text: The content of the file.
        suffix: One of `SUFFIXES`.
        name: The file's name in messages.

    Raises:
        UsageError: The file is not such a list.
    """
    if suffix == ".txt":
        return [Row(n, {PATH: line.strip()}) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if suffix == ".jsonl":
        return [_of_json(line, n, name) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    head = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(head, suffix), strict=True)
    try:
        columns = columns_of(next(reader, []), name)
        return [_of_cells(cells, reader.line_num, columns, name) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        raise UsageError(
            f"Line {reader.line_num} of {name} cannot be read: {error}. Save it again as CSV.", "manifest.unreadable"
        ) from None


def columns_of(names: Iterable[str], where: str) -> list[str]:
    """Normalize the names of columns; refuse duplicates."""
    columns = [_column(name) for name in names]
    for column, count in Counter(columns).items():
        if column and count > 1:
            raise UsageError(
                expected(f"the columns of {where}", "different", f"{column} twice", "Rename one"), "manifest.columns"
            )
    return columns


def inside(folder: Path) -> Path | None:
    """The manifest in a folder, known by its name and columns."""
    for name in _INSIDE:
        path = folder / name
        try:
            with path.open(encoding="utf-8-sig") as file:
                head = file.readline(_HEAD)
        except (OSError, UnicodeDecodeError):
            continue
        columns = {_column(cell.strip('" \n')) for cell in head.split(_delimiter(head, path.suffix))}
        if PATH in columns and columns & {LABEL, CLASS_ID}:
            return path
    return None


def paths(rows: Iterable[Row], name: str) -> list[str]:
    """The paths of a list, at least one."""
    found = []
    for row in rows:
        if PATH not in row.cells:
            raise UsageError(
                expected(f"the rows of {name}", "with a column `path`", row.cells, "Name it `path`"), "manifest.columns"
            )
        found.append(row.cells[PATH])
    found = [path for path in found if path]
    if not found:
        raise UsageError(expected("the list", "at least one path", name, "Write one per line"), "manifest.empty")
    return found


def beside(path: str, folder: str) -> str:
    """Resolve a path relative to the folder of its list."""
    return path if "://" in path or Path(path).is_absolute() else f"{folder}/{path}"


def text_of(value: Any) -> str:
    """A cell as text."""
    return "" if value is None else str(value)


def _delimiter(head: str, suffix: str) -> str:
    return "\t" if suffix == ".tsv" else ";" if ";" in head and "," not in head else ","


def _column(name: str) -> str:
    name = name.strip()
    return name.lower() if name.lower() in COLUMNS else name


def _of_json(line: str, number: int, name: str) -> Row:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"Line {number} of {name} is not JSON: {error}.", "manifest.row") from None
    if not isinstance(values, dict):
        rule = f"an object such as {{{json.dumps(PATH)}: ...}}"
        raise UsageError(
            expected(f"line {number} of {name}", rule, values, "Write one object per line"), "manifest.row"
        )
    columns = columns_of(values, f"line {number} of {name}")
    cells = [text_of(value) for value in values.values()]
    if not all(map(_is_text, (*columns, *cells))):  # JSON can escape what no text holds
        remedy = "Write each character as one"
        raise UsageError(
            expected(f"line {number} of {name}", "without halves of characters", line, remedy), "manifest.row"
        )
    return Row(number, dict(zip(columns, cells, strict=True)))


def _is_text(cell: str) -> bool:
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True


def _of_cells(cells: list[str], line: int, columns: list[str], name: str) -> Row:
    if len(cells) > len(columns):
        rule = f"{len(columns)} cells, as many as there are columns ({', '.join(columns)})"
        raise UsageError(
            expected(f"line {line} of {name}", rule, len(cells), "Put text with a comma in quotes"), "manifest.row"
        )
    cells = cells + [""] * (len(columns) - len(cells))
    return Row(line, {column: cell for column, cell in zip(columns, cells, strict=True) if column})

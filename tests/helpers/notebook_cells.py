"""Runs a notebook as Jupyter does: its cells one after the other, with the same names."""

import ast
import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ran:
    """What a notebook did."""

    names: dict[str, Any]
    """What its cells have left behind."""
    printed: dict[str, str]
    """What every cell printed, by its id."""
    shown: dict[str, object]
    """The value that every cell ends with, which Jupyter shows; None where a semicolon hides it or there is none."""


def cells(path: Path) -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return list(document["cells"])


def run(path: Path) -> Ran:
    """Run all cells of code; the first error ends it, and names the cell."""
    ran = Ran({"__name__": "__main__"}, {}, {})
    for cell in cells(path):
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                ran.shown[cell["id"]] = _value("".join(cell["source"]), cell["id"], ran.names)
            ran.printed[cell["id"]] = out.getvalue()
    return ran


def _value(source: str, name: str, names: dict[str, Any]) -> object:
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), name, "exec"), names)
    value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    return None if source.rstrip().endswith(";") else value

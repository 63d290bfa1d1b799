"""What import-linter cannot see of the arrows between the packages: names in strings, and imports at start-up.

`make lint` checks the imports themselves, by `tool.importlinter` in pyproject.toml.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGES = {
    "uce_edge": ROOT / "uce_edge",
    "uce_edge_export": ROOT / "export" / "uce_edge_export",
    "uce_edge_train": ROOT / "train" / "uce_edge_train",
}
CHOICES = {"uce_edge_export.options", "uce_edge_train.choices"}
"""What the command line reads to show its help: enums, nothing heavy."""
HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "torch", "PIL", "matplotlib", "sklearn")
"""What `--help` and `--version` do not wait for."""


@dataclass(frozen=True)
class Use:
    """A module that another one uses."""

    name: str
    line: int
    at_top: bool
    """Whether it is imported with the module: not inside a function, and not for types alone."""
    in_string: bool
    """Whether a string names it."""

    def of(self, *packages: str) -> bool:
        """Whether it is one of these packages, or inside of one."""
        return any(self.name == package or self.name.startswith(f"{package}.") for package in packages)


def uses(source: str, module: str, *, is_package: bool = False) -> list[Use]:
    """Everything a module imports, wherever it does, and every package of the project that its strings name."""
    tree = ast.parse(source)
    later = {child for node in ast.walk(tree) if _runs_later(node) for child in ast.walk(node)}
    parent = module.split(".") if is_package else module.split(".")[:-1]
    prose = {statement.value for statement in ast.walk(tree) if isinstance(statement, ast.Expr)}  # docstrings
    return [
        Use(name, node.lineno, node not in later, isinstance(node, ast.Call | ast.Constant))
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call | ast.Constant)
        if not (isinstance(node, ast.Constant) and node in prose)
        for name in _named(node, parent)
    ]


def _runs_later(node: ast.AST) -> bool:
    for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _named(node: ast.Import | ast.ImportFrom | ast.Call | ast.Constant, parent: list[str]) -> Iterator[str]:
    match node:
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(base, names, level):
            start = parent[: len(parent) - level + 1] if level else []
            yield from (".".join([*start, *([base] if base else []), alias.name]) for alias in names)
        case ast.Call(ast.Name(called) | ast.Attribute(attr=called), [ast.Constant(str(name)), *_]):
            if called in ("import_module", "__import__", "find_spec"):
                yield name
        case ast.Constant(str(text)):
            yield from re.findall(r"\buce_edge_(?:export|train)\b[\w.]*", text)


def modules(package: str) -> dict[str, list[Use]]:
    """What each module of a package uses."""
    folder = PACKAGES[package]
    used = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [package, *path.relative_to(folder).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        used[name] = uses(path.read_text(encoding="utf-8"), name, is_package=is_package)
    return used


RUNTIME = {name: used for name, used in modules("uce_edge").items() if not f"{name}.".startswith("uce_edge.cli.")}
CLI = {name: used for name, used in modules("uce_edge").items() if name not in RUNTIME}
COMMANDS = {use.name for use in CLI["uce_edge.cli"] if use.name in CLI}
"""The modules that `uce_edge/cli/__init__.py` registers commands of."""


def offences(used: dict[str, list[Use]], *forbidden: str) -> list[str]:
    return [
        f"{module}, line {use.line}: {use.name}"
        for module, of_module in used.items()
        for use in of_module
        if use.of(*forbidden)
    ]


def in_strings(used: dict[str, list[Use]]) -> dict[str, list[Use]]:
    return {module: [use for use in of_module if use.in_string] for module, of_module in used.items()}


def test_no_string_of_the_runtime_names_export_or_training_or_their_tools():
    forbidden = ("uce_edge_export", "uce_edge_train", "torch", "onnx", "onnx_ir", "onnxscript")
    assert offences(in_strings(RUNTIME), *forbidden) == []


def test_no_string_of_export_names_training_or_torch():
    used = in_strings(modules("uce_edge_export"))
    # The one door: `from uce_edge_export import export_module` finds it on the training side, when it is asked for.
    used["uce_edge_export"] = [use for use in used["uce_edge_export"] if not use.of("uce_edge_train.export")]
    assert offences(used, "uce_edge_train", "torch", "safetensors") == []


def test_commands_import_what_is_heavy_when_they_run():
    tops = {name: [use for use in used if use.at_top] for name, used in CLI.items()}
    assert offences(tops, *HEAVY) == []


def test_of_other_packages_the_command_line_imports_only_choices_at_the_top():
    tops = {
        name: [use for use in used if use.at_top and not use.of(*CHOICES)]
        for name, used in CLI.items()
        if name != "uce_edge.cli.bench_engines"  # a table of workers by name, which imports none of them
    }
    assert offences(tops, "uce_edge_export", "uce_edge_train") == []


def test_no_command_imports_another():
    assert len(COMMANDS) >= 12
    others = {name: [use for use in CLI[name] if not use.of(name)] for name in COMMANDS}
    assert offences(others, *COMMANDS) == []
    shared = {name: used for name, used in CLI.items() if name not in COMMANDS and name != "uce_edge.cli"}
    assert offences(shared, *COMMANDS) == []


@pytest.mark.parametrize(
    ("source", "name", "at_top"),
    [
        ("import torch.nn", "torch.nn", True),
        ("def f():\n    from uce_edge_train import runs", "uce_edge_train.runs", False),
        ("from uce_edge.cli.predict import predict", "uce_edge.cli.predict.predict", True),
        ("from . import predict", "uce_edge.cli.predict", True),
        ("from .predict import predict", "uce_edge.cli.predict.predict", True),
        ("from ..contract import Method", "uce_edge.contract.Method", True),
        ("if TYPE_CHECKING:\n    import onnx", "onnx", False),
        ("import_module('torch')", "torch", True),
        ("def f():\n    importlib.util.find_spec('onnx')", "onnx", False),
        ("WORKER = 'uce_edge_train.bench.pytorch_worker'", "uce_edge_train.bench.pytorch_worker", True),
        ("def f(x):\n    return f'-m uce_edge_export.{x}'", "uce_edge_export.", False),
    ],
)
def test_every_way_to_name_a_module_is_seen(source, name, at_top):
    assert [(use.name, use.at_top) for use in uses(source, "uce_edge.cli.rank")] == [(name, at_top)]


def test_prose_is_no_import():
    source = '"""As uce_edge_train.runs does."""\ndef f():\n    """See uce_edge_export."""\nKEY = "uce_edge"\n'
    assert uses(source, "uce_edge.runtime.model") == []


def test_the_packages_are_read_from_where_they_lie():
    assert {"uce_edge.runtime.model", "uce_edge.datasets.splits", "uce_edge.bench"} <= set(RUNTIME)
    assert {"uce_edge.cli", "uce_edge.cli.calibrate"} <= set(CLI)
    assert Path(uses.__code__.co_filename).parent == ROOT / "tests"

"""Every error has a code, and one snapshot holds every message.

Rewrite the snapshot after a change of words: python tests/test_messages.py
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from uce_edge.errors import noun

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "uce_edge", ROOT / "export" / "uce_edge_export", ROOT / "train" / "uce_edge_train")
SNAPSHOT = ROOT / "tests" / "snapshots" / "messages.json"
BASE = "UceEdgeError"
GENERAL = ROOT / "uce_edge" / "errors.py"
"""Its default codes are too general for a raise site."""
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)+")


@dataclass(frozen=True)
class Site:
    """One place that makes an error."""

    place: str
    code: str | None
    message: str


@dataclass(frozen=True)
class Kind:
    """An error class, as its source defines it."""

    bases: tuple[str, ...]
    has_init: bool
    default_code: str | None


def sites() -> list[Site]:
    """Every place in the three packages that makes an error."""
    trees = {path: ast.parse(path.read_text()) for package in PACKAGES for path in sorted(package.rglob("*.py"))}
    kinds = _kinds(trees)
    return [site for path, tree in trees.items() for site in _sites(path, tree, kinds)]


def messages() -> dict[str, list[str]]:
    """The messages as the source has them, by code."""
    found: dict[str, set[str]] = {}
    for site in sites():
        found.setdefault(site.code or "", set()).add(site.message)
    return {code: sorted(found[code]) for code in sorted(found)}


def _kinds(trees: dict[Path, ast.Module]) -> dict[str, Kind]:
    """The subclasses of the base error, by name."""
    classes = {
        node.name: _kind(node, path) for path, tree in trees.items() for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }  # fmt: skip

    def is_error(name: str) -> bool:
        return name == BASE or (name in classes and any(map(is_error, classes[name].bases)))

    return {name: kind for name, kind in classes.items() if is_error(name)}


def _kind(node: ast.ClassDef, path: Path) -> Kind:
    default = None
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "default_code" and path != GENERAL:
            default = ast.literal_eval(line.value)
    has_init = any(isinstance(line, ast.FunctionDef) and line.name == "__init__" for line in node.body)
    return Kind(
        tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases), has_init and node.name != BASE, default
    )


def _sites(path: Path, tree: ast.Module, kinds: dict[str, Kind]) -> Iterator[Site]:
    for call, kind, scope in _calls(tree, kinds, None, tree):
        message = _resolved(call.args[0], scope) if call.args else ast.Constant("")
        codes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "code")]
        if codes:
            code: str | None = _text(codes[0], scope)
        elif _is_expected(message):
            code = f"argument.{noun(_text(message.args[0], scope))}"  # type: ignore[attr-defined]
        else:
            code = _default_code(kind, kinds)
        yield Site(f"{path.relative_to(ROOT)}:{call.lineno}", code, _text(message, scope))


def _calls(
    node: ast.AST, kinds: dict[str, Kind], inside: str | None, scope: ast.AST
) -> Iterator[tuple[ast.Call, str, ast.AST]]:
    """Calls of an error class, or of the base's __init__ inside one that has its own; with the function around each."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            name = ast.unparse(child.func).rpartition(".")[2]
            if name in kinds and not kinds[name].has_init:
                yield child, name, scope
            if inside is not None and ast.unparse(child.func) == "super().__init__":
                yield child, inside, scope
        own = child.name if isinstance(child, ast.ClassDef) and child.name in kinds and child.name != BASE else inside
        yield from _calls(child, kinds, own, child if isinstance(child, ast.FunctionDef) else scope)


def _default_code(name: str, kinds: dict[str, Kind]) -> str | None:
    kind = kinds.get(name)
    if kind is None or kind.default_code is not None:
        return kind and kind.default_code
    return next((code for base in kind.bases if (code := _default_code(base, kinds)) is not None), None)


def _is_expected(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "expected"


def _resolved(node: ast.expr, scope: ast.AST) -> ast.expr:
    """What a local name was assigned, if that happens in one place."""
    if not isinstance(node, ast.Name):
        return node
    values = [
        line.value for line in ast.walk(scope)
        if isinstance(line, ast.Assign) and [ast.unparse(target) for target in line.targets] == [node.id]
    ]  # fmt: skip
    return values[0] if len(values) == 1 else node


def _text(node: ast.expr, scope: ast.AST) -> str:
    """A text as the source has it, with `{...}` for what is filled in."""
    node = _resolved(node, scope)
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, scope) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, scope) + _text(right, scope)
        case ast.IfExp(body=body, orelse=other):
            return f"{_text(body, scope)} | {_text(other, scope)}"
        case ast.Call(args=[what, rule, value, remedy]) if _is_expected(node):
            what, rule, value, remedy = (_text(part, scope) for part in node.args)
            return f"Expected {what} to be {rule}, but got {value}. {remedy}"
    return f"{{{ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node)}}}"


def test_every_error_has_a_code() -> None:
    bare = [f"{site.place}: {site.message[:60]}" for site in sites() if site.code is None]
    assert not bare, "\n".join(["errors without a code:", *bare])


def test_codes_are_short_and_lower_case() -> None:
    codes = [code for site in sites() for code in (site.code or "").split(" | ") if code and "{" not in code]
    wrong = [code for code in codes if not code.startswith("argument.") and CODE.fullmatch(code) is None]
    assert not wrong


def test_messages_are_those_of_the_snapshot() -> None:
    stored = json.loads(SNAPSHOT.read_text())
    found = messages()
    changed = [code for code in sorted(stored.keys() | found.keys()) if stored.get(code) != found.get(code)]
    assert not changed, "read the new messages, then: python tests/test_messages.py"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(messages(), indent=1, ensure_ascii=False) + "\n")

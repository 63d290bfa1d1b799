"""What the documents show in Python runs as it stands there, and so do the examples of docstrings."""

import doctest
import importlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer
from conftest import GOLDEN, ROOT
from PIL import Image
from typer.core import TyperGroup

import uce_edge
from uce_edge import cli, models

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> Iterator[Any]:
    """Every ```python block, named by its page and line."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if re.search(r"^(import|from) (timm|transformers)\b", block[1], re.MULTILINE):
                continue  # tests/zoo/test_six_lines.py, where these are installed
            line = text.count("\n", 0, block.start()) + 1
            yield pytest.param(block[1], id=f"{page.relative_to(ROOT)}:{line}")


def examples() -> list[str]:
    """The modules of the runtime that have examples."""
    paths = [path for path in sorted((ROOT / "uce_edge").rglob("*.py")) if ">>> " in path.read_text("utf-8")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that documents speak of."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(models.bundled(uce_edge.Inference.MC, "cifar10"), "photos.onnx")
    shutil.copy(GOLDEN / "digits-mc.onnx", "digits.onnx")
    for name, image in (("a.png", "cat.png"), ("b.png", "ship.png")):
        shutil.copy(ROOT / "tests" / "cifar" / image, name)
    pixels = np.frombuffer((GOLDEN / "digit-0.raw").read_bytes(), np.uint8).reshape(8, 8)
    Image.fromarray(pixels).save("three.png")
    Path("broken.png").write_bytes(b"no image")
    return tmp_path


def network() -> Any:
    """A reader's own classifier of two classes."""
    from torch import nn

    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    return nn.Sequential(*layers).eval()


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("code", list(blocks()))
def test_a_block_of_python_in_the_documents_runs(code: str) -> None:
    names: dict[str, Any] = {}
    if re.search(r"\bnetwork\b", code):
        pytest.importorskip("torch")
        names["network"] = network()
    exec(compile(code, "block", "exec"), names)


def test_the_documents_have_blocks_to_run() -> None:
    assert len(list(blocks())) >= 4


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("name", examples())
def test_examples_of_docstrings_give_what_they_show(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    model = uce_edge.Model("digits.onnx", "cpu")
    done = doctest.testmod(module, extraglobs={"model": model}, optionflags=doctest.ELLIPSIS)
    assert done.attempted > 0
    assert done.failed == 0


def test_every_metric_has_an_example() -> None:
    from uce_edge import metrics

    functions = [name for name in metrics.__all__ if name[0].islower()]
    lacking = [name for name in functions if ">>> " not in (getattr(metrics, name).__doc__ or "")]
    assert len(functions) > 20
    assert lacking == []


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("examples/*/README.md")], ids=lambda p: p.name)
def test_links_between_the_documents_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (page.parent / link).exists()] == []


COMMANDS = re.compile(r"\buce-edge ([a-z]+)\b([^`#|;&>\n]*)")


SHOWN = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_options_of_commands_in_the_documents_exist(page: Path) -> None:
    program = typer.main.get_command(cli.app)
    assert isinstance(program, TyperGroup)
    wrong = []
    for shown in COMMANDS.finditer(page.read_text(encoding="utf-8").replace("\\\n", " ")):
        command = program.commands.get(shown[1])
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown[2])
        known = {name for one in command.params for name in one.opts + one.secondary_opts} if command else set()
        wrong += [f"uce-edge {shown[1]} {name}" for name in named if name not in known | {"--help"}]
    assert wrong == []

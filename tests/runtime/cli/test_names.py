"""Names of files, classes and models are data: no output lets them break a line, drive a terminal or compute."""

import ast
import csv
import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, ROOT, Call, Said
from PIL import Image

from uce_edge._util.printable import cell, shown
from uce_edge.output import annotate
from uce_edge.output.notebook import answer_card
from uce_edge.output.report.markup import element
from uce_edge.runtime.model import Model

EVIL = "<b>\x1b[31m\x1b]0;owned\x07\r\n\u202e| x\x85\u2028"
FORMULA = '=HYPERLINK("http://x")'
MODEL = GOLDEN / "digits-moments.onnx"

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such names")


def test_what_a_terminal_acts_upon_is_shown() -> None:
    assert shown("a\nb\tc\x1b[31m\x00\x7f\x9b") == r"a\nb\tc\x1b[31m\x00\x7f\x9b"
    assert shown("rlo\u202egnp\u2066\ufeff\u2028") == r"rlo\u202egnp\u2066\ufeff\u2028"
    assert shown("caf\udce9 \ud800") == r"caf\xe9 \ud800"
    kept = r"C:\new 猫 é ‰ 👩‍🚀 می‌خواهم"
    assert shown(kept) == kept
    assert shown(shown(EVIL)) == shown(EVIL)


@pytest.mark.parametrize("text", [FORMULA, "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", " =1", "＝1", "--model.png"])
def test_a_spreadsheet_takes_no_name_for_a_formula(text: str) -> None:
    assert cell(text) == f"'{text}"


def test_numbers_and_usual_names_stay_as_they_are_in_csv() -> None:
    values = [-1.5, 3, None, True, "-1", "+0.5", "-", "", "cat", "a=b", "1-2"]
    assert list(map(cell, values)) == values
    assert cell("\t=1") == r"\t=1"
    assert cell("\r=1") == r"\r=1"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose own words are all hostile."""
    pytest.importorskip("onnx", reason="a file is sealed with the package onnx")
    from uce_edge_export.publish.draft import Draft

    classes = tuple(f"{number}{EVIL}" if number % 2 else f"{FORMULA}{number}" for number in range(10))
    card = {"data": EVIL, "limits": [EVIL, "two"], EVIL: "key"}
    metadata = Model(MODEL, "cpu").metadata
    changed = replace(metadata, classes=classes, architecture=EVIL, card=card, tools={EVIL: EVIL})
    path = tmp_path_factory.mktemp("hostile") / "evil.onnx"
    path.write_bytes(Draft(MODEL.read_bytes(), changed).content())
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("new\nline", "esc\x1b[31m\x1b]0;own\x07", "rlo\u202egnp", "bad\udcff", "=1+1", "plain"):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(folder / f"{name}.png")
    (folder / "damaged\n\x1b[2J.png").write_bytes(b"nothing")
    return folder


def is_clean(said: Said) -> None:
    """Only line ends of our own, which end lines that are not empty."""
    for text in (said.out.replace("\r\n", "\n"), said.err):
        assert all(line == shown(line) for line in text.split("\n")), text


@linux
@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",), ("--jsonl",)])
def test_predict_and_rank_show_hostile_names(call: Call, hostile: Path, images: Path, form: tuple[object, ...]) -> None:
    for command in ("predict", "rank"):
        said = call(command, images, "--model", hostile, *form)
        is_clean(said)
        assert said.code == 1
        assert len(said.out.splitlines()) >= 6


@linux
def test_every_image_has_one_row_of_csv(call: Call, hostile: Path, images: Path) -> None:
    said = call("predict", images, "--model", hostile, "--csv")
    head, *rows = csv.reader(io.StringIO(said.out, newline=""))
    assert len(rows) == 7
    assert {len(row) for row in rows} == {len(head)}
    for row in rows:
        for name, value in zip(head, row, strict=True):
            assert value[:1] not in ("=", "+", "@", "\t", "\r"), name
            assert not value.startswith("-") or float(value) < 0


@linux
def test_logs_copies_and_sheets_take_hostile_names(call: Call, hostile: Path, images: Path, tmp_path: Path) -> None:
    log, sheet = tmp_path / "log\n\x1b[31m.jsonl", tmp_path / "sheet\n.png"
    said = call("predict", images, "--model", hostile, "--audit", log, "--save", tmp_path / "out", "--sheet", sheet)
    is_clean(said)
    assert said.code == 1
    assert len(list((tmp_path / "out").iterdir())) == 6
    shutil.rmtree(images)
    images.mkdir()
    is_clean(again := call("replay", log, "--images", images, "--model", hostile))
    assert (again.code, len(again.out.splitlines())) == (1, 8)
    assert "0 same, 0 differs, 7 missing" in again.out
    is_clean(call("replay", tmp_path / "no\n\x1blog", "--images", images))


@pytest.mark.parametrize("command", ["info", "info --all", "verify"])
def test_what_a_file_says_of_itself_is_shown(call: Call, hostile: Path, command: str) -> None:
    name, *more = command.split()
    is_clean(call(name, hostile, *more))


def test_evaluate_and_its_report_show_hostile_classes(call: Call, hostile: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.integers(0, 256, (60, 8, 8), np.uint8), y=np.arange(60) % 10)
    said = call("evaluate", hostile, "--data", tmp_path / "d.npz", "--report", tmp_path / "r.html")
    is_clean(said)
    assert said.code == 0, said.err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<b>\\x1b" not in page
    assert not set(page) & set("\x1b\x07\u202e\x85\u2028")


def test_pages_and_pictures_show_hostile_classes(hostile: Path, images: Path) -> None:
    answer = next(Model(hostile, "cpu").answers([images / "plain.png"]))
    assert answer.prediction is not None
    named = replace(answer, prediction=replace(answer.prediction, label=EVIL))
    assert annotate.annotated(named, 64).size > (64, 64)
    for page in (answer_card(named), element("p", EVIL, title=EVIL)):
        assert "<b>" not in page.removeprefix("<b ")
        assert not set(page) & set("\x1b\x07\u202e\n")


def test_triton_and_the_hub_have_a_line_per_class(hostile: Path, tmp_path: Path) -> None:
    from uce_edge_export.publish import huggingface, triton

    folder = triton.write_repository(hostile, tmp_path)
    lines = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()
    assert lines == [shown(name) for name in Model(hostile, "cpu").classes]
    for text in ((folder / "README.md").read_text(), (folder / "config.pbtxt").read_text()):
        assert "owned" not in text
    huggingface.write_hub(hostile, tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8").partition("\n---\n")[2]
    assert all(line == shown(line) for line in card.split("\n"))
    assert json.loads((folder / "1" / "model.json").read_text())["architecture"] == EVIL


def test_commands_print_in_one_place() -> None:
    """`messages.echo` escapes; other output is JSON, which has no control characters."""
    for path in sorted((ROOT / "uce_edge" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or path.name == "messages.py":
                continue
            called = ast.unparse(node.func)
            if called in ("print", "typer.secho", "typer.style", "click.echo"):
                pytest.fail(f"{path.name}:{node.lineno} prints without messages.echo")
            if called == "typer.echo":
                assert ast.unparse(node.args[0]).partition("(")[0].endswith(("json.dumps", ".to_json")), path


@pytest.mark.parametrize(
    "command", ["evaluate m.html --data d.npz --report", "compare m.html o.html --data d.npz --report"]
)
def test_a_page_does_not_replace_its_model(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.html", "o.html"):
        shutil.copy(MODEL, name)
    (tmp_path / "link.html").symlink_to("m.html")
    for report in ("m.html", "link.html", tmp_path / "m.html"):
        said = call(*command.split(), report)
        assert said.code == 2
        assert said.error == "argument.report"
    assert Path("m.html").read_bytes() == MODEL.read_bytes()

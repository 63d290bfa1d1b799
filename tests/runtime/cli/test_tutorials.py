"""The tutorials do what they say: every command of theirs is run, on small data and with a small network."""

import csv
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Call
from PIL import Image

pytest.importorskip("torch", reason="the tutorials train")

from tests.helpers import tiny_backbone

DOCS = ROOT / "docs"


def images(rng: np.random.Generator, count: int, size: int, bright: bool) -> np.ndarray:
    """Two kinds that a network tells apart at once."""
    return rng.integers(120 if bright else 0, 256 if bright else 136, (count, size, size), np.uint8)


def commands(page: str) -> list[list[str]]:
    """The commands of a page, in a short time and with a promise that few images prove."""
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line]
    lines = [line.replace("uce-edge build", "uce-edge build --budget 10s") for line in lines]
    return [shlex.split(re.sub(r"--target-error [\d.]+", "--target-error 0.3", line)) for line in lines]


def run_all(page: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a page; returns what its commands printed."""
    said = []
    for name, *arguments in commands(page):
        if name == "export":
            monkeypatch.setenv(*arguments[0].split("="))
            continue
        if name == "python":
            script = ROOT / arguments[0]
            monkeypatch.setattr(sys, "argv", [str(script), *arguments[1:]])
            runpy.run_path(str(script), run_name="__main__")
            continue
        assert name == "uce-edge"
        done = call(*arguments)
        assert done.code == 0, done.err
        said.append(done.out)
    return said


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and a small network in the place of the pretrained one."""
    monkeypatch.chdir(tmp_path)
    tiny_backbone.install(tmp_path, monkeypatch, "efficientnet-lite0")


def test_pneumonia(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for bright, name, pattern in ((False, "NORMAL", "IM-{:04}-0001"), (True, "PNEUMONIA", "person{}_virus_{}")):
        (tmp_path / "chest_xray" / "train" / name).mkdir(parents=True)
        for number, pixels in enumerate(images(rng, 160, 30, bright), 1):
            file = f"{pattern.format(number, number)}.jpeg"
            Image.fromarray(pixels).save(tmp_path / "chest_xray" / "train" / name / file)
    run_all("tutorial-pneumonia.md", call, monkeypatch)
    assert "</html>" in (tmp_path / "xray.html").read_text()
    assert "</html>" in (tmp_path / "xray-20.html").read_text()
    assert json.loads((tmp_path / "xray.json").read_text())["image"]["range"] == {"low": 0, "high": 4095}
    with (tmp_path / "xrays" / "manifest.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == 304
    assert all((tmp_path / "xrays" / row["path"]).is_file() for row in rows)
    assert len((tmp_path / "decisions.jsonl").read_text().splitlines()) == 16
    assert not {row["path"].split("/")[1] for row in rows} & {path.name for path in (tmp_path / "incoming").iterdir()}


def test_photos(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for name, bright in (("ripe", True), ("unripe", False)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index, pixels in enumerate(images(rng, 120, 30, bright)):
            Image.fromarray(pixels).convert("RGB").save(tmp_path / "photos" / name / f"{index}.png")
    (tmp_path / "new").mkdir()
    for index in range(4):
        Image.fromarray(images(rng, 1, 40, index > 1)[0]).save(tmp_path / "new" / f"{index}.png")
    *_, answers = run_all("tutorial-photos.md", call, monkeypatch)
    assert len(json.loads(answers)) == 4
    assert len(list((tmp_path / "annotated").iterdir())) == 4
    assert (tmp_path / "answers.png").stat().st_size > 1000
    assert "</html>" in (tmp_path / "photos.html").read_text()

"""The tutorials do what they say: every command of theirs is run, on small data and for few epochs."""

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

DOCS = ROOT / "docs"


def images(rng: np.random.Generator, count: int, size: int, bright: bool) -> np.ndarray:
    """Two kinds that a network tells apart at once."""
    return rng.integers(120 if bright else 0, 256 if bright else 136, (count, size, size), np.uint8)


def commands(page: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line]
    return [shlex.split(re.sub(r"--epochs \d+", "--epochs 2", line)) for line in lines]


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


def test_pneumonia(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    parts = {}
    for part, count in (("train", 120), ("val", 240), ("test", 60)):
        parts[f"{part}_images"] = np.concatenate([images(rng, count // 2, 28, bright) for bright in (False, True)])
        parts[f"{part}_labels"] = np.repeat([0, 1], count // 2)
    np.savez(tmp_path / "data" / "pneumoniamnist.npz", **parts)
    run_all("tutorial-pneumonia.md", call, monkeypatch)
    assert "</html>" in (tmp_path / "xray.html").read_text()
    assert len((tmp_path / "decisions.jsonl").read_text().splitlines()) == 50
    assert json.loads((tmp_path / "xray.json").read_text())["image"]["range"] == {"low": 0, "high": 4095}
    with (tmp_path / "xrays" / "manifest.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == 420
    assert all((tmp_path / "xrays" / row["path"]).is_file() for row in rows)
    assert (
        len({row["patient"] for row in rows})
        == len({(row["patient"], row["label"], row["split"]) for row in rows})
        < 420
    )


def test_photos(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, bright in (("ripe", True), ("unripe", False)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index, pixels in enumerate(images(rng, 60, 24, bright)):
            Image.fromarray(pixels).convert("RGB").save(tmp_path / "photos" / name / f"{index}.png")
    (tmp_path / "new").mkdir()
    for index in range(4):
        Image.fromarray(images(rng, 1, 40, index > 1)[0]).save(tmp_path / "new" / f"{index}.png")
    *_, answers = run_all("tutorial-photos.md", call, monkeypatch)
    assert len(json.loads(answers)) == 4
    assert len(list((tmp_path / "annotated").iterdir())) == 4
    assert (tmp_path / "answers.png").stat().st_size > 1000

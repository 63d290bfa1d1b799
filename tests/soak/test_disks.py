"""Disks that are full, and folders that may not be written: a sentence, the old file, and nothing half-written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from PIL import Image
from zygote import Request, Zygote

from uce_edge import chain
from uce_edge.chain import Seal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="disks are mounted as on Linux")

Mounted = Callable[[str], Zygote]


def may_mount() -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@contextmanager
def mounted(commands: str) -> Iterator[Zygote]:
    """Commands run where these mounts are, and nobody else sees them."""
    with Zygote(["unshare", "--mount", "sh", "-e", "-c", f'{commands}; exec "$@"', "sh"]) as process:
        yield process


@pytest.fixture
def place(tmp_path: Path) -> Path:
    if not may_mount():
        pytest.skip("mounting needs root, unshare and a kernel that lets one")
    shutil.copy(GOLDEN / "digits-mc.onnx", tmp_path / "model.onnx")
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(20):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(tmp_path / "images" / f"{number:02d}.png")
    (tmp_path / "disk").mkdir()
    return tmp_path


def predict(options: str) -> list[str]:
    return f"predict images --model model.onnx --reject 0.5 --threads 1 {options}".split()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--save disk/out", "Cannot write disk/out/"),
        ("--sheet disk/sheet.png", "Cannot write disk/sheet.png"),
        ("--audit disk/log.jsonl", "Cannot write the log disk/log.jsonl"),
    ],
)
def test_a_full_disk_is_told_and_holds_nothing_half_written(place: Path, options: str, named: str) -> None:
    with mounted(f"mount -t tmpfs -o size=16k tmpfs {place}/disk") as zygote:
        ended = zygote.run(Request(predict(options), str(place)))
        assert (ended.code, "Traceback" in ended.said) == (1, False), ended.said
        assert named in ended.said
        assert "No space left on device" in ended.said
        disk = zygote.root / (place / "disk").relative_to("/")
        assert list(disk.rglob(".uce-edge-*")) == []
        for picture in disk.rglob("*.png"):
            Image.open(picture).load()
        for log in disk.glob("*.jsonl"):
            lines = list(chain.read([log]))
            assert lines
            assert {line.seal for line in lines} == {Seal.INTACT}


def test_a_full_disk_leaves_the_old_model(place: Path) -> None:
    pytest.importorskip("onnx", reason="a file is calibrated with the package onnx")
    shutil.copy(place / "model.onnx", place / "disk")
    np.savez(place / "data.npz", x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 10)
    size = (place / "model.onnx").stat().st_size
    mount = f"mount -t tmpfs -o size={size + 100_000} tmpfs {place}/disk; cp {place}/model.onnx {place}/disk"
    with mounted(mount) as zygote:
        asked = ["calibrate", "disk/model.onnx", "--data", "data.npz", "--samples", "2", "--method", "temperature"]
        ended = zygote.run(Request(asked, str(place)))
        assert (ended.code, "Traceback" in ended.said) == (1, False), ended.said
        assert "No space left on device. The old file, if any, is intact" in ended.said
        disk = zygote.root / (place / "disk").relative_to("/")
        assert (disk / "model.onnx").read_bytes() == (place / "model.onnx").read_bytes()
        assert list(disk.rglob(".uce-edge-*")) == []


@pytest.mark.parametrize("options", ["--save disk/out", "--sheet disk/sheet.png", "--audit disk/log.jsonl"])
def test_a_folder_that_may_only_be_read_is_told(place: Path, options: str) -> None:
    with mounted(f"mount -t tmpfs -o ro tmpfs {place}/disk") as zygote:
        ended = zygote.run(Request(predict(options), str(place)))
    assert (ended.code, "Traceback" in ended.said) == (1, False), ended.said
    assert "Read-only file system. Choose another place with --" in ended.said


def test_a_model_and_images_that_may_only_be_read_are_used(place: Path) -> None:
    """As on a device whose disk is read-only: nothing is written beside them."""
    with mounted(f"mount --bind {place} {place}; mount -o remount,bind,ro {place}") as zygote:
        ended = zygote.run(Request(predict("--jsonl"), str(place)))
    assert ended.code == 0, ended.said
    assert ended.said.count('"status": "ok"') == 20

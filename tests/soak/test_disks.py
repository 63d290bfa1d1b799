"""Disks that are full, and folders that may not be written: a sentence, the old file, and nothing half-written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from conftest import GOLDEN
from PIL import Image
from zygote import Ended, Request, Zygote

from uce_edge.audit import hash_chain
from uce_edge.audit.hash_chain import Seal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="disks are mounted as on Linux")

MODEL = GOLDEN / "digits-mc.onnx"
# In a folder each, for the processes of these tests alone.
MOUNTS = f"""
mount -t tmpfs -o size=16k tmpfs full-save
mount -t tmpfs -o size=16k tmpfs full-sheet
mount -t tmpfs -o size=16k tmpfs full-audit
mount -t tmpfs -o size={MODEL.stat().st_size + 100_000} tmpfs full-model
cp model.onnx full-model
mount -t tmpfs -o ro tmpfs readable
mount --bind frozen frozen
mount -o remount,bind,ro frozen
"""
FOLDERS = ("full-save", "full-sheet", "full-audit", "full-model", "readable", "frozen")


def may_mount() -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


class Place(NamedTuple):
    """A folder with disks in it, and who sees them."""

    folder: Path
    zygote: Zygote

    def run(self, command: str, inside: str = ".") -> Ended:
        ended = self.zygote.run(Request(command.split(), str(self.folder / inside)))
        assert "Traceback" not in ended.said, ended.said
        return ended

    def disk(self, name: str) -> Path:
        """A disk, for this process, which does not see it."""
        return self.zygote.root / (self.folder / name).relative_to("/")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if not may_mount():
        pytest.skip("mounting needs root, unshare and a kernel that lets one")
    folder = tmp_path_factory.mktemp("disks")
    for name in FOLDERS:
        (folder / name).mkdir()
    rng = np.random.default_rng(0)
    for images in (folder / "images", folder / "frozen" / "images"):
        images.mkdir()
        for number in range(20):
            Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(images / f"{number:02d}.png")
    for model in (folder / "model.onnx", folder / "frozen" / "model.onnx"):
        shutil.copy(MODEL, model)
    np.savez(folder / "data.npz", x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 10)
    script = f'cd {folder}{MOUNTS}cd /\nexec "$@"'
    with Zygote("unshare", "--mount", "sh", "-e", "-c", script, "sh") as zygote:
        yield Place(folder, zygote)


PREDICT = "predict images --model model.onnx --reject 0.5 --threads 1"
OPTIONS = {"save": "out", "sheet": "sheet.png", "audit": "log.jsonl"}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_full_disk_is_told_and_holds_nothing_half_written(place: Place, option: str) -> None:
    ended = place.run(f"{PREDICT} --{option} full-{option}/{OPTIONS[option]}")
    assert ended.code == 1
    assert f"full-{option}/{OPTIONS[option]}" in ended.said
    assert "No space left on device" in ended.said
    disk = place.disk(f"full-{option}")
    assert list(disk.rglob(".uce-edge-*")) == []
    for picture in disk.rglob("*.png"):
        Image.open(picture).load()
    for log in disk.glob("*.jsonl"):
        lines = list(hash_chain.read([log]))
        assert lines
        assert {line.seal for line in lines} == {Seal.INTACT}


def test_a_full_disk_leaves_the_old_model(place: Place) -> None:
    pytest.importorskip("onnx", reason="a file is calibrated with the package onnx")
    ended = place.run("calibrate full-model/model.onnx --data data.npz --samples 2 --method temperature")
    assert ended.code == 1
    assert "No space left on device. The old file, if any, is intact" in ended.said
    assert (place.disk("full-model") / "model.onnx").read_bytes() == MODEL.read_bytes()
    assert list(place.disk("full-model").rglob(".uce-edge-*")) == []


@pytest.mark.parametrize("option", OPTIONS)
def test_a_folder_that_may_only_be_read_is_told(place: Place, option: str) -> None:
    ended = place.run(f"{PREDICT} --{option} readable/{OPTIONS[option]}")
    assert ended.code == 1
    assert f"Read-only file system. Choose another place with --{option}" in ended.said


def test_a_model_and_images_that_may_only_be_read_are_used(place: Place) -> None:
    """As on a device whose disk is read-only: nothing is written beside them."""
    ended = place.run(f"{PREDICT} --jsonl", "frozen")
    assert ended.code == 0, ended.said
    assert ended.said.count('"status": "ok"') == 20

"""Power cuts: a process is killed at every rename and at random moments, and no file is half of anything.

`make soak` kills at 200 random moments, `make test` at a few.
"""

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from PIL import Image
from zygote import Ended, Request, Zygote

from uce_edge import Model
from uce_edge.audit import hash_chain
from uce_edge.audit.hash_chain import Seal

LONG = bool(os.environ.get("UCE_EDGE_SOAK"))
MODEL = GOLDEN / "digits-mc.onnx"
KILLS = 200 if LONG else 6

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and watched as on Linux")


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as process:
        yield process


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, three images, and labelled ones to calibrate on."""
    folder = tmp_path_factory.mktemp("kills")
    shutil.copy(MODEL, folder / "model.onnx")
    shutil.copy(MODEL.with_suffix(".json"), folder / "model.json")
    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    for number in range(3):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(folder / "images" / f"{number}.png")
    np.savez(folder / "data.npz", x=rng.integers(0, 256, (60, 8, 8), np.uint8), y=np.arange(60) % 10)
    return folder


PREDICT = (
    "predict images --model model.onnx --threads 1 --reject 0.5 --save out --sheet sheet.png --audit log.jsonl "
    "--audit-size 0.002"
)
CALIBRATE = "calibrate model.onnx --data data.npz --samples 2 --method temperature"


def whole_outputs(folder: Path) -> None:
    """Every file that has a name is a whole one; of the log every line."""
    for path in [*(folder / "out").glob("*.png"), *folder.glob("sheet.png")]:
        if not path.name.startswith("."):
            Image.open(path).load()
    for log in hash_chain.segments(folder / "log.jsonl"):
        lines = log.read_bytes().splitlines(keepends=True)
        torn = [line for line in lines if not line.endswith(b"\n")]
        assert len(torn) <= 1, "only what was being written may be torn"
        assert all(json.loads(line) for line in lines if line not in torn)


def whole_model(folder: Path) -> None:
    """The file is the old one or the new one, and its description is gone rather than that of another."""
    content = (folder / "model.onnx").read_bytes()
    assert content in (MODEL.read_bytes(), (folder.parent / "sound" / "model.onnx").read_bytes())
    Model(folder / "model.onnx", "cpu", threads=1)
    if (folder / "model.json").exists():
        about = MODEL if content == MODEL.read_bytes() else folder.parent / "sound" / "model.onnx"
        assert (folder / "model.json").read_bytes() == about.with_suffix(".json").read_bytes()


def again(zygote: Zygote, place: Path, folder: Path, command: str) -> Ended:
    """The command in a folder of its own, to its end."""
    if not folder.exists():
        shutil.copytree(place, folder)
    done = zygote.run(Request(command.split(), str(folder)))
    assert done.code == 0, done.said
    return done


@pytest.mark.filterwarnings("ignore::uce_edge.runtime.model.SamplesWarning")
@pytest.mark.parametrize(
    ("command", "check"), [(PREDICT, whole_outputs), (CALIBRATE, whole_model)], ids=["predict", "calibrate"]
)
def test_killed_at_every_rename_nothing_is_half_written(
    zygote: Zygote, place: Path, tmp_path: Path, command: str, check: Callable[[Path], None]
) -> None:
    if command is CALIBRATE:
        pytest.importorskip("onnx", reason="a file is calibrated with the package onnx")
    renames = again(zygote, place, tmp_path / "sound", command).renames
    assert renames >= 2
    for rename in range(1, renames + 1):
        # Before the next one is nearly the same moment as after this one.
        for done in (False, True) if LONG else (False,):
            folder = tmp_path / f"{rename}-{done}"
            shutil.copytree(place, folder)
            ended = zygote.run(Request(command.split(), str(folder), rename, done))
            assert ended.killed, ended.said
            check(folder)
            if LONG:
                again(zygote, place, folder, command)
                check(folder)
    print(f"{command.split(maxsplit=1)[0]}: killed at each of {renames} renames")


def test_killed_at_any_moment_nothing_is_half_written_and_the_log_goes_on(
    zygote: Zygote, place: Path, tmp_path: Path
) -> None:
    rng, killed, folder = random.Random(0), 0, tmp_path / "place"
    started = time.monotonic()
    again(zygote, place, folder, PREDICT)
    lasts = time.monotonic() - started
    for _ in range(KILLS):
        killed += zygote.run(Request(PREDICT.split(), str(folder), after=rng.uniform(0, 1.2 * lasts))).killed
        whole_outputs(folder)
    again(zygote, place, folder, PREDICT)
    lines = list(hash_chain.read(hash_chain.segments(folder / "log.jsonl")))
    assert {line.seal for line in lines} == {Seal.INTACT}, "a kill broke the chain"
    left = [path for path in folder.rglob(".uce-edge-*")]
    print(f"{killed} of {KILLS} runs killed at random; {len(lines)} lines of the log, {len(left)} temporary files left")
    assert len(left) <= killed

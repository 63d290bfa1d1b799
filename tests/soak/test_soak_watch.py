"""A watched folder: half-written, renamed and deleted files, and more of them than memory should hold."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import GOLDEN

LONG = int(os.environ.get("UCE_EDGE_SOAK", "0"))
IMAGES = LONG // 5 or 120
MODEL = GOLDEN / "digits-mc.onnx"
IMAGE = b"P5 8 8 255\n" + bytes(range(0, 256, 4))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")


def kilobytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder; for many files one in memory, where flushing each of them takes no time."""
    memory = Path("/dev/shm")
    if not LONG or not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def reached(count: Callable[[], int], wanted: int) -> bool:
    """Whether a count gets there, as long as it moves at all."""
    before, since = -1, time.monotonic()
    while (now := count()) < wanted:
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > 60:
            return False
        time.sleep(0.05)
    return True


def test_every_image_is_answered_once_when_it_is_whole_and_memory_stays(place: Path) -> None:
    rng, incoming, log = random.Random(0), place / "incoming", place / "log.jsonl"
    incoming.mkdir()
    options = [
        "--jsonl",
        "--samples",
        "25",
        "--threads",
        "1",
        "--reject",
        "0.5",
        "--audit",
        log,
        "--save",
        place / "out",
    ]
    command = [sys.executable, "-m", "uce_edge", "predict", "--model", MODEL, "--watch", incoming, *options]
    # In the background of a shell, Ctrl-C is ignored, and a process inherits that.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    answers, wanted, memory = place / "answers.jsonl", [], []
    with answers.open("wb") as out, subprocess.Popen([*map(str, command)], stdout=out, stderr=subprocess.PIPE) as it:
        signal.signal(signal.SIGINT, ours)

        try:
            count = 0
            while count < IMAGES:
                batch = []
                for _ in range(min(40 if not LONG else 1000, IMAGES - count)):
                    name = f"{count:06d}.pgm"
                    count += 1
                    kind = rng.choice(["whole", "whole", "moved", "deleted", "hidden", "broken"])
                    written(incoming, name, kind)
                    if kind in ("whole", "moved", "broken"):
                        batch.append(name)
                half = incoming / "half.pgm"
                half.write_bytes(IMAGE[:30])
                half.unlink()
                wanted += batch
                assert reached(lambda: answers.read_bytes().count(b"\n"), len(wanted)), it.poll()
                memory.append(kilobytes(it.pid))
                for name in batch:  # taken away by whoever brought them
                    (incoming / name).unlink()
        finally:
            it.send_signal(signal.SIGINT)
        _, told = it.communicate(timeout=60)
    found = [json.loads(line) for line in answers.read_bytes().splitlines()]
    assert sorted(Path(str(answer["path"])).name for answer in found) == wanted, told.decode()
    broken = [answer for answer in found if answer["status"] != "ok"]
    assert 0 < len(broken) < len(found)
    assert all("truncated" in str(answer["error"]) or "cannot be decoded" in str(answer["error"]) for answer in broken)
    assert len(log.read_text().splitlines()) == len(found)
    copies = {path.name for path in (place / "out").iterdir()}
    assert copies == {f"{Path(str(answer['path'])).name}.png" for answer in found if answer["status"] == "ok"}
    assert b"Traceback" not in told
    print(f"watched: {len(found)} of {IMAGES} files answered once, {memory[0]} to {memory[-1]} kB")
    if LONG:
        assert memory[-1] - memory[1] < 3000


def written(folder: Path, name: str, kind: str) -> None:
    """An image as it arrives in real folders."""
    match kind:
        case "whole":
            (folder / name).write_bytes(IMAGE)
        case "moved":  # written under another name first
            (folder / f"{name}.part").write_bytes(IMAGE)
            (folder / f"{name}.part").rename(folder / name)
        case "deleted":  # gone again at once
            (folder / name).write_bytes(IMAGE)
            (folder / name).unlink()
        case "hidden":
            (folder / f".{name}").write_bytes(IMAGE)
            (folder / f".{name}").unlink()
        case "broken":  # its end never comes
            (folder / name).write_bytes(IMAGE[:40])

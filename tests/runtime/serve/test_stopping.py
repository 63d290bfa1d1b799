"""A server whose work does not go on says so, and ends when it is told to; one that nobody listens to goes on."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import GOLDEN
from helpers.served import Server, png

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

MODEL = GOLDEN / "digits-moments.onnx"
IMAGE = png(np.zeros((8, 8, 1), np.uint8))
HANGING = """
import sys, threading
from uce_edge import Model, cli; from uce_edge.images import loader as images
from uce_edge.audit.decision_log import Audit
from uce_edge.serve import server as run
run._GRACE = 0.5
owner, name = {"model": (Model, "predict"), "decoder": (images, "load"), "log": (Audit, "add")}[sys.argv.pop(1)]
setattr(owner, name, lambda *_, **__: threading.Event().wait())
cli.main()
"""


@contextmanager
def hanging(what: str, *arguments: object) -> Iterator[Server]:
    words = [sys.executable, "-c", HANGING, what, "serve", f"m={MODEL}", "--port", "0", "--timeout", "0.3", *arguments]
    process = subprocess.Popen(list(map(str, words)), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    match = re.search(r"127\.0\.0\.1:(\d+)", process.stderr.readline())
    assert match
    process.stderr.readline()
    try:
        yield Server(int(match[1]), process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("what", ["model", "decoder", "log"])
def test_stuck_work_is_told_and_ended(what: str, tmp_path: object) -> None:
    with hanging(what, "--audit", f"{tmp_path}/log.jsonl") as server:
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        for _ in range(2 * (os.cpu_count() or 1)):  # one for every thread that decodes
            assert server.ask("POST", "/v2/models/m/answer", IMAGE)[0] == 504
        time.sleep(0.7)
        for path in ("live", "ready"):
            assert server.ask("GET", f"/v2/health/{path}")[:2] == (503, {path: False})
        assert server.ask("GET", "/v2/models/m/ready")[0] == 503
        start = time.monotonic()
        server.process.terminate()
        assert server.process.wait(30) == 1
        assert time.monotonic() - start < 15
        assert server.process.stderr is not None
        said = server.process.stderr.read()
        assert "given up" in said
        assert "Traceback" not in said


FULL = """
import os, sys, warnings
from uce_edge.serve import stderr
with stderr.detached():
    for number in range(20_000):
        print("a message of Python", file=sys.stderr)
        os.write(2, b"a message of a library\\n")
print("done")
"""


def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    try:
        found = subprocess.run(
            [sys.executable, "-c", FULL], stdout=subprocess.PIPE, stderr=writing, timeout=60, check=True
        )
        os.close(writing)
        told = os.read(reading, 1 << 20)
    finally:
        os.close(reading)
    assert found.stdout.split() == [b"done"]
    assert b"a message of Python" in told
    assert b"library" not in told

"""A server with stuck work reports it and still stops; a full stderr pipe does not block it."""

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


@pytest.mark.parametrize(("what", "code"), [("model", 0), ("decoder", 0), ("log", 1)])
def test_a_server_stops_despite_stuck_work_whose_clients_were_answered(what: str, code: int, tmp_path: object) -> None:
    """Only a decision that may be missing in the log is a failure."""
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
        assert server.process.wait(30) == code
        assert time.monotonic() - start < 15
        assert server.process.stderr is not None
        messages = server.process.stderr.read()
        assert ("abandoned" in messages) == (code == 1)
        assert "Traceback" not in messages


FULL = """
import os, sys, warnings
from uce_edge.serve import stderr
with stderr.detached():
    for number in range(20_000):
        print("a message of Python", file=sys.stderr)
        os.write(2, b"a message of a library\\n")
print("done")
"""


def test_a_full_pipe_does_not_block() -> None:
    reading, writing = os.pipe()
    try:
        found = subprocess.run(
            [sys.executable, "-c", FULL], stdout=subprocess.PIPE, stderr=writing, timeout=60, check=True
        )
        os.close(writing)
        written = os.read(reading, 1 << 20)
    finally:
        os.close(reading)
    assert found.stdout.split() == [b"done"]
    assert b"a message of Python" in written
    assert b"library" not in written

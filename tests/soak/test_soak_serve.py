"""A server under load: every request is answered, and rightly, whoever else breaks off or dawdles; and memory stays.

`make soak` asks for three minutes and prints the table of docs/serving.md; `make test` asks for a second.
"""

import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, ROOT, Call
from helpers.served import Server, started
from PIL import Image

from uce_edge import Model

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")

LONG = int(os.environ.get("UCE_EDGE_SOAK", "0"))
FILE = ROOT / "uce_edge" / "models" / "cifar10-moments.onnx" if LONG else GOLDEN / "digits-moments.onnx"
SECONDS = 30 if LONG else 0.25  # for each number of images, twice
CLIENTS = 8 if LONG else 3
TIMEOUT = 0.06 if LONG else 0.03  # about what an answer takes, so that many are given up at the last moment
IMAGES = (1, 4, 16)
# Kilobytes, in the second half of the load. Memory takes one step of some 7 MB; a short load may meet it then.
GROWTH = 2000 if LONG else 8000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")


def kilobytes(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def processor(server: Server) -> float:
    """Seconds of processor time that the server has taken: what else the machine does is not in it."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def rude_clients(port: int) -> Iterator[list[int]]:
    """Others at the same time: they send a part of a request byte by byte, break off, or do not read the answer."""
    stop, count = threading.Event(), [0]

    def spoil() -> None:
        rng = random.Random(0)
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        while not stop.is_set():
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                for byte in head[: rng.randrange(len(head))]:
                    client.sendall(bytes([byte]))
                    stop.wait(0.002)
                if rng.random() < 0.5:
                    client.sendall(b" " * 50_000)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            count[0] += 1

    thread = threading.Thread(target=spoil)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()


def load(server: Server, pixels: Any, wanted: Any, images: int) -> list[float]:
    """The seconds that each request took, of clients that ask one after the other for a while."""

    def client(number: int) -> list[float]:
        rng, seconds = random.Random(number), []
        asking = triton.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=60, connection_timeout=60)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            first = rng.randrange(len(pixels) - images + 1)
            fed = triton.InferInput("image", [images, *pixels.shape[1:]], "UINT8")
            fed.set_data_from_numpy(pixels[first : first + images])
            start = time.perf_counter()
            answer = asking.infer("m", [fed], outputs=[triton.InferRequestedOutput("uncertainty")])
            seconds.append(time.perf_counter() - start)
            assert np.allclose(answer.as_numpy("uncertainty"), wanted[first : first + images], atol=1e-5)
        asking.close()
        return seconds

    with ThreadPoolExecutor(CLIENTS) as clients:
        return [second for seconds in clients.map(client, range(CLIENTS)) for second in seconds]


def test_a_log_under_overload_replays_clean(tmp_path: Path, call: Call) -> None:
    """Requests that are given up while their line is written, beside damaged images and slow clients."""
    log, folder = tmp_path / "log.jsonl", tmp_path / "images"
    folder.mkdir()
    spec = Model(FILE, "cpu", threads=1).metadata.image
    shape = (spec.height, spec.width, spec.channels) if spec.channels == 3 else (spec.height, spec.width)
    file = folder / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8)).save(file)
    image, found = file.read_bytes(), Counter[int]()

    def client(server: Server, number: int) -> Counter[int]:
        end, rng, statuses = time.monotonic() + 4 * SECONDS, random.Random(number), Counter[int]()
        while time.monotonic() < end:
            content = image if rng.random() < 0.9 else image[: rng.randrange(1, len(image))]
            statuses[server.ask("POST", "/v2/models/m/answer", content)[0]] += 1
        return statuses

    with started(f"m={FILE}", "--audit", log, "--timeout", TIMEOUT) as server, rude_clients(server.port):
        with ThreadPoolExecutor(12) as clients:
            for statuses in clients.map(partial(client, server), range(12)):
                found += statuses
        assert server.ask("GET", "/v2/health/live")[0] == 200
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    print(f"\n{dict(found)}, {len(lines)} lines")
    assert [line["line"] for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) >= found[200] + found[422] > 0
    assert set(found) <= {200, 422, 503, 504}
    said = call("replay", log, "--images", folder)
    assert " 0 differs" in said.out
    assert " 0 edited" in said.out


def test_no_request_is_lost_and_memory_stays() -> None:
    model = Model(FILE, "cpu", threads=1)
    spec = model.metadata.image
    pixels = np.random.default_rng(0).integers(0, 256, (32, spec.height, spec.width, spec.channels), np.uint8)
    wanted = model.predict(pixels).uncertainty
    with started(f"m={FILE}", "--max-queue", 4096) as server, rude_clients(server.port) as broken:
        for images in IMAGES:
            load(server, pixels, wanted, images)  # buffers get as large as they will
        before, answered = (kilobytes(server), descriptors(server)), 0
        rows = []
        for images in IMAGES:
            start = processor(server)
            seconds = load(server, pixels, wanted, images)
            answered += len(seconds)
            each = 1000 * (processor(server) - start) / (images * len(seconds))
            told = [f"{1000 * np.percentile(seconds, share):.0f} ms" for share in (50, 95, 99)]
            rows.append(f"| {images} | {len(seconds)} | {' | '.join(told)} | {each:.1f} ms |")
        after = kilobytes(server), descriptors(server)
        status, _, _ = server.ask("GET", "/v2/health/ready")
        counted = server.ask("GET", "/metrics")[1].decode()
    print(f"\n{CLIENTS} clients, {answered} requests, {broken[0]} others broke off; {before} before, {after} after")
    print(
        "\n".join(
            [
                "| images of a request | requests | median | 95 % | 99 % | processor time per image |",
                "| --- " * 6 + "|",
                *rows,
            ]
        )
    )
    assert (status, answered > 0, broken[0] > 0) == (200, True, True)
    assert 'status="500"' not in counted
    assert 'status="503"' not in counted
    assert after[0] - before[0] < GROWTH
    assert after[1] - before[1] <= CLIENTS + 2  # who just broke off may not be gone yet

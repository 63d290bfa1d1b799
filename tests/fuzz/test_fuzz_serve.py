"""Whatever is sent to `uce-edge serve`, it answers with a status and a sentence, and serves the next client.

The application is asked in this process, without a socket; `make fuzz` asks UCE_EDGE_FUZZ times as often. A real
server gets damaged bytes on its socket.
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from damage import damaged, wrong_values
from helpers.served import Server, png, started

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from uce_edge.errors import UsageError
from uce_edge.serve import protocol
from uce_edge.serve.app import Service
from uce_edge.serve.model_host import Limits, Named
from uce_edge.serve.prometheus_metrics import Gauges
from uce_edge.serve.server import load

pytestmark = pytest.mark.filterwarnings("ignore::uce_edge.runtime.model.SamplesWarning")  # few passes, to be fast

LONG = int(os.environ.get("UCE_EDGE_FUZZ", "0"))
FIRST = int(os.environ.get("UCE_EDGE_FUZZ_FIRST", "0"))
MODEL = GOLDEN / "digits-moments.onnx"
STATUSES = {200, 400, 404, 405, 413, 422, 503}
PIXELS = np.frombuffer((GOLDEN / "digit-0.raw").read_bytes(), np.uint8).reshape(1, 8, 8, 1)


def as_json(**more: Any) -> dict[str, Any]:
    entry = {"name": "image", "shape": [1, 8, 8, 1], "datatype": "UINT8", "data": PIXELS.ravel().tolist()}
    return {"id": "7", "inputs": [entry]} | more


def as_binary() -> tuple[bytes, str]:
    """A request with binary tensors, as Triton's client sends it: the body, and the length of its JSON."""
    image = {"name": "image", "shape": [1, 8, 8, 1], "datatype": "UINT8", "parameters": {"binary_data_size": 64}}
    seeds = {"name": "seeds", "shape": [2], "datatype": "INT32", "parameters": {"binary_data_size": 8}}
    wanted = {"name": "uncertainty", "parameters": {"binary_data": True}}
    text = json.dumps({"inputs": [image, seeds], "outputs": [wanted]}).encode()
    return text + PIXELS.tobytes() + np.arange(2, dtype="<i4").tobytes(), str(len(text))


class Application:
    """The application, asked as a server would ask it."""

    def __init__(self) -> None:
        limits, gauges = Limits(max_samples=8, max_body=1 << 16, timeout=20), Gauges()
        self._app = Service(load([Named("m", 1, MODEL)], limits, gauges, threads=1), limits, gauges).application()
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(task)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def ask(self, path: str, body: bytes, headers: list[tuple[bytes, bytes]] = []) -> tuple[int, bytes]:  # noqa: B006
        where, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": where, "raw_path": where.encode(), "query_string": query.encode(), "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip
        sent: list[dict[str, Any]] = []
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            return next(parts, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            sent.append(message)

        self._loop.run_until_complete(self._app(scope, receive, send))
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture(scope="module")
def application() -> Iterator[Application]:
    application = Application()
    yield application
    application.close()


def check(application: Application, path: str, body: bytes, headers: list[tuple[bytes, bytes]], again: str) -> int:
    status, answer = application.ask(path, body, headers)
    assert status in STATUSES, f"{again}: {status} {answer[:500]!r}"
    if status != 200:
        sentence = json.loads(answer)["error"]
        assert isinstance(sentence, str)
        assert sentence.strip(), again
        assert "Traceback" not in sentence, again
    return status


def test_damaged_requests_get_a_status_and_a_sentence(application: Application) -> None:
    binary, length = as_binary()
    corpus = [json.dumps(as_json()).encode(), json.dumps(as_json(outputs=[{"name": "uncertainty"}])).encode(), binary]
    found: Counter[int] = Counter()
    for number in range(FIRST, FIRST + 150 * (LONG or 1)):
        rng = random.Random(number)
        headers = [] if rng.random() < 0.4 else [(protocol.HEADER.lower().encode(), length.encode())]
        body = damaged(corpus, number)
        found[check(application, "/v2/models/m/infer", body, headers, f"UCE_EDGE_FUZZ_FIRST={number}")] += 1
    for number in range(FIRST, FIRST + 60 * (LONG or 1)):
        body = damaged([png(PIXELS[0])], number)
        found[check(application, "/v2/models/m/answer?samples=2", body, [], f"UCE_EDGE_FUZZ_FIRST={number}")] += 1
    print(f"serve: {sum(found.values())} damaged requests from number {FIRST}: {dict(found)}")
    assert {200, 400, 422} <= set(found)


def test_a_value_of_the_wrong_type_is_told(application: Application) -> None:
    """Every key of a request, and every wrong value."""
    more = {"parameters": {"samples": 2, "seed": 1, "binary_data_output": False}, "outputs": [{"name": "class_id"}]}
    small = as_json(**more)
    small["inputs"][0]["data"] = [0]  # one place is as good as sixty-four
    small["inputs"].append({"name": "seeds", "shape": [1], "datatype": "INT32", "data": [1]})
    found: Counter[int] = Counter()
    for number, document in enumerate(wrong_values(small)):
        again = f"document {number}: {document}"
        found[check(application, "/v2/models/m/infer", json.dumps(document).encode(), [], again)] += 1
    assert set(found) == {400}
    for header in ("-1", "9" * 30, "1e3", "", "٣", "0"):
        raw = [(protocol.HEADER.lower().encode(), header.encode("utf-8"))]
        assert check(application, "/v2/models/m/infer", as_binary()[0], raw, header) == 400
    assert application.ask("/v2/models/m/infer", json.dumps(as_json()).encode())[0] == 200


def test_numbers_are_read_as_python_reads_them() -> None:
    """Whatever is done to an array: it is refused, or it is the array that Python's json reads."""
    corpus = [b"[1, 2, 3, 4]", b"[[1,2],[3,4]]", b"[1.5, -2e3, 0.25, 7]", b"[ [ 1, 2 ],\n [ 3, 4 ] ]"]
    found: Counter[str] = Counter()
    for number in range(FIRST, FIRST + 400 * (LONG or 1)):
        array, datatype = damaged(corpus, number), random.Random(number).choice(["UINT8", "INT32", "FP32"])
        head = f'{{"inputs": [{{"name": "image", "shape": [2, 2], "datatype": "{datatype}", "data": '
        body = head.encode() + array + b"}]}"
        try:
            (values,) = protocol.read(body, None).inputs.values()
        except UsageError:
            found["refused"] += 1
            continue
        found["read"] += 1
        entry = json.loads(body)["inputs"][0]  # what is read is JSON
        numbers = np.asarray(entry["data"], values.dtype)
        assert np.array_equal(numbers.ravel(), values.ravel()), f"UCE_EDGE_FUZZ_FIRST={number}: {array!r}"
        assert "true" not in str(array), f"UCE_EDGE_FUZZ_FIRST={number}"
    print(f"serve: {sum(found.values())} damaged arrays from number {FIRST}: {dict(found)}")
    assert set(found) == {"read", "refused"}


@pytest.mark.parametrize(
    "query", ["samples=" + "9" * 99, "seed=-1", "reject=nan", "reject=1e999", "name=%00%ff", "=&&="]
)
def test_a_damaged_query_is_told(application: Application, query: str) -> None:
    check(application, f"/v2/models/m/answer?{query}", png(PIXELS[0]), [], query)


def test_damaged_bytes_on_the_socket_harm_nobody() -> None:
    body, length = as_binary()
    head = (
        f"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n{protocol.HEADER}: {length}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    corpus = [
        head.encode() + body,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ]
    answered = 0
    with started(f"m={MODEL}", "--max-samples", 8, "--timeout", 2) as server:
        for number in range(FIRST, FIRST + 40 * (LONG or 1)):
            answer = told(server, damaged(corpus, number), random.Random(number))
            answered += bool(answer)
            assert answer[:9] in (b"", b"HTTP/1.1 "), f"UCE_EDGE_FUZZ_FIRST={number}"
            assert b"Traceback" not in answer
        assert server.ask("GET", "/v2/health/ready")[:2] == (200, {"ready": True})
        assert b" 200 OK" in told(server, corpus[0], random.Random(0), rude=False)
        server.process.terminate()
        assert server.process.stderr is not None
        assert "Traceback" not in server.process.stderr.read()
    assert answered > 0


def test_a_body_that_breaks_http_is_told_and_not_logged() -> None:
    broken = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnothing\r\n\r\n"
    with started(f"m={MODEL}") as server:
        assert told(server, broken, random.Random(0), rude=False).startswith(b"HTTP/1.1 400 ")
        assert server.ask("GET", "/v2/health/ready")[:2] == (200, {"ready": True})
        server.process.terminate()
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def told(server: Server, request: bytes, rng: random.Random, *, rude: bool = True) -> bytes:
    """What comes back; rude clients break off, or do not wait for long."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        parts = []
        try:
            client.sendall(request)
            if rude and rng.random() < 0.3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            client.settimeout(0.1 if rude else 30)
            while part := client.recv(1 << 16):
                parts.append(part)
        except (ConnectionError, TimeoutError):
            pass
        return b"".join(parts)

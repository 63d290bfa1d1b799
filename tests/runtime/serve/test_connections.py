"""Clients that keep a server waiting: each has a deadline, and makes room for others."""

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

import uvicorn

from uce_edge.serve import connections
from uce_edge.serve.addresses import client_network
from uce_edge.serve.connections import Connection
from uce_edge.serve.server import Address, listen

MOST = 8
BEGUN, GO = threading.Semaphore(0), threading.Event()


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers /now at once, and others after their body; /big is more than a socket takes."""
    assert scope["type"] == "http"
    more = scope["path"] != "/now"
    while more:
        message = await receive()
        more = message.get("more_body", False)
    if scope["path"] == "/slow":
        BEGUN.release()
        await asyncio.to_thread(GO.wait, 30)
    body = b" " * (1 << 24) if scope["path"] == "/big" else b"here"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[int]:
    for name, seconds in (("HEAD_SECONDS", 0.4), ("IDLE_SECONDS", 0.4), ("TAKE_SECONDS", 0.2)):
        monkeypatch.setattr(connections, name, seconds)
    config = uvicorn.Config(
        application,
        http=partial(Connection, most=MOST, seconds=getattr(request, "param", 0.3)),
        lifespan="off",
        log_level="critical",
    )
    server = uvicorn.Server(config)
    with listen(Address(port=0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


def ask(port: int, path: str = "/now") -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request("GET", path)
    answer = client.getresponse()
    answer.read()
    client.close()
    return answer.status


HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"G", b"E"),
        (HEAD % b"/after", b"x"),
        (HEAD % b"/now", b"x"),
        (b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n", b"G"),
    ],
    ids=[
        "nothing",
        "a slow head",
        "a slow body",
        "a slow body after the answer",
        "an answer not taken",
        "idle",
        "next",
    ],
)
def test_a_client_that_keeps_the_server_waiting_is_let_go(port: int, first: bytes, then: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        start = time.monotonic()
        client.sendall(first)
        try:
            while time.monotonic() - start < 2:  # one byte now and then
                time.sleep(0.1)
                client.sendall(then)
            client.settimeout(5)
            while client.recv(1 << 20):
                pass
        except ConnectionError:
            pass  # it is closed: that is what is wanted
    assert ask(port) == 200


@pytest.mark.parametrize("sent", [b"", b"G", HEAD % b"/after"])
def test_connections_that_wait_make_room_for_others(port: int, sent: bytes) -> None:
    clients = []
    try:
        for _ in range(5 * MOST):
            clients.append(socket.create_connection(("127.0.0.1", port)))
            clients[-1].sendall(sent)
        assert ask(port) == 200
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("port", [60], indirect=True)
def test_a_request_under_way_makes_room_for_nobody(port: int) -> None:
    with ThreadPoolExecutor(MOST) as clients:
        slow = [clients.submit(ask, port, "/slow") for _ in range(MOST // 2)]
        for _ in slow:
            assert BEGUN.acquire(timeout=30)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            assert client.recv(1 << 12).startswith(b"HTTP/1.1 503 ")
        GO.set()
        assert {answer.result() for answer in slow} == {200}


def test_one_client_is_one_network() -> None:
    same = client_network
    assert same("2001:db8::1") == same("2001:db8::ffff:1")
    assert same("2001:db8::1") != same("2001:db8:0:1::1")
    assert same("::ffff:10.0.0.1") == same("10.0.0.1") != same("10.0.0.2")

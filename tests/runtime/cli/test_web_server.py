"""The page's server accepts only its own host names, has deadlines, and survives malformed requests."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from uce_edge.serve import page_server
from uce_edge.serve.addresses import Names
from uce_edge.serve.page_server import Content, Server, listen

SECRET = b"the weights of a model"
LARGE = bytes(30_000_000)  # more than the buffers between two sockets hold
CONTENTS = {
    "/": Content(b"a page", "text/html", {}),
    "/model.onnx": Content(SECRET, "application/octet-stream", {}),
    "/large.onnx": Content(LARGE, "application/octet-stream", {}),
}


@contextmanager
def serving(host: str = "127.0.0.1", **limits: float) -> Iterator[Server]:
    with listen(CONTENTS, host, 0, **limits) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.names.port), timeout=20)


def tell(server: Server, message: str | bytes) -> bytes:
    """What the server answers until it closes the connection; nothing if it breaks it off."""
    with connect(server) as client:
        client.sendall(message if isinstance(message, bytes) else message.encode())
        return heard(client)


def heard(client: socket.socket) -> bytes:
    parts = []
    try:
        while part := client.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def request(host: str, path: str = "/model.onnx", method: str = "GET") -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"


def soon(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


# Who is asked for.


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LocalHost", "localhost.", "[::1]"])
def test_the_names_of_this_computer_are_answered(server: Server, name: str) -> None:
    answer = tell(server, request(f"{name}:{server.names.port}"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(SECRET)


@pytest.mark.parametrize(
    "name",
    [
        "evil.example:{port}", "evil.example", "127.0.0.1.evil.example:{port}", "192.168.0.7:{port}", "127.0.0.1",
        "127.0.0.1:1", "127.0.0.1:{port}@evil.example", "evil.example@127.0.0.1:{port}", "[::1", "[::1]:no", "",
        "127.0.0.1:{port}/", "127.0.0.1:{port} evil.example", "0.0.0.0:{port}", "localhost\xe4:{port}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_another_name_is_rejected(server: Server, name: str, method: str) -> None:
    answer = tell(server, request(name.format(port=server.names.port), method=method))
    assert answer.startswith(b"HTTP/1.1 421 ")
    assert SECRET not in answer
    if method == "GET":
        assert f"http://127.0.0.1:{server.names.port}/".encode() in answer
        assert b"--host NAME" in answer


def test_a_proxy_s_request_names_the_server_in_its_target(server: Server) -> None:
    own = f"127.0.0.1:{server.names.port}"
    assert tell(server, request(own, f"http://{own}/model.onnx")).endswith(SECRET)
    assert tell(server, request(own, "http://evil.example/model.onnx")).startswith(b"HTTP/1.1 421 ")
    assert tell(server, request("evil.example", f"http://{own}/model.onnx")).startswith(b"HTTP/1.1 421 ")


def test_without_one_host_nothing_is_served(server: Server) -> None:
    own = f"Host: 127.0.0.1:{server.names.port}\r\n"
    for hosts in ("", own + own, own + "Host: evil.example\r\n"):
        answer = tell(server, f"GET /model.onnx HTTP/1.1\r\n{hosts}\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"one header Host" in answer


def test_a_server_for_other_devices_answers_addresses_and_the_machine_s_names() -> None:
    with serving("0.0.0.0") as server:
        own = socket.gethostname()
        for name in (
            "127.0.0.1",
            "localhost",
            "192.168.0.7",
            "[fe80::1]",
            own,
            own.upper(),
            f"{own.split('.')[0]}.local",
        ):
            assert tell(server, request(f"{name}:{server.names.port}")).endswith(SECRET), name
        assert tell(server, request(f"evil.example:{server.names.port}")).startswith(b"HTTP/1.1 421 ")


def test_the_name_it_listens_on_is_one_of_its_own() -> None:
    assert "lab.example:8000" in Names("lab.example", 8000)
    assert "10.0.0.9:8000" in Names("lab.example", 8000)
    assert "evil.example:8000" not in Names("lab.example", 8000)
    assert "localhost" in Names("127.0.0.1", 80), "80 is what a Host without a port means"


@pytest.mark.parametrize(
    ("host", "address", "local"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000/", True),
        ("127.0.0.9", "http://127.0.0.9:8000/", True),
        ("localhost", "http://localhost:8000/", True),
        ("::1", "http://[::1]:8000/", True),
        ("0.0.0.0", "http://127.0.0.1:8000/", False),
        ("::", "http://[::1]:8000/", False),
        ("10.0.0.9", "http://10.0.0.9:8000/", False),
    ],
)
def test_the_page_s_address_can_be_opened_and_is_answered(host: str, address: str, local: bool) -> None:
    names = Names(host, 8000)
    assert (names.address, names.local) == (address, local)
    assert address.removeprefix("http://").rstrip("/") in names


# Who keeps it waiting.


@pytest.mark.parametrize("said", [b"", b"GET /model", b"GET / HTTP/1.1\r\nHost: "], ids=["nothing", "target", "header"])
def test_a_silent_client_is_let_go(said: bytes) -> None:
    with serving(silence=0.2) as server, connect(server) as client:
        client.sendall(said)
        assert heard(client) == b""


def test_a_client_that_says_a_byte_now_and_then_is_let_go() -> None:
    with serving(silence=0.3) as server, connect(server) as client:
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nSlow: " + b"a" * 100:
                client.sendall(bytes([byte]))
                time.sleep(0.05)
                if time.monotonic() - started > 10:
                    break
        assert time.monotonic() - started < 10
        assert heard(client) == b""


def test_a_client_that_takes_nothing_is_let_go() -> None:
    with serving(silence=0.2, connections=1) as server, connect(server) as client:
        own = f"127.0.0.1:{server.names.port}"
        client.sendall(request(own, "/large.onnx").encode())
        assert soon(lambda: tell(server, request(own)).endswith(SECRET)), "its place was not given back"
        assert len(heard(client)) < len(LARGE)


def test_a_slow_client_gets_all_of_a_large_answer() -> None:
    with serving(silence=1.5) as server, connect(server) as client:
        client.sendall(request(f"127.0.0.1:{server.names.port}", "/large.onnx").encode())
        taken, started = 0, time.monotonic()
        while part := client.recv(1 << 20, socket.MSG_WAITALL):
            taken += len(part)
            time.sleep(0.08)
        assert time.monotonic() - started > 1.5
        assert taken > len(LARGE)


@pytest.mark.parametrize(("connections", "share"), [(4, 2), (2, 9)], ids=["per client", "in all"])
def test_connections_above_the_limit_are_rejected_until_one_closes(
    connections: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "share_of", lambda _: share)
    with serving(connections=connections) as server:
        asked = request(f"127.0.0.1:{server.names.port}")
        held = [connect(server), connect(server)]
        for client in held:  # answered, and still there
            client.sendall(asked.replace("Connection: close\r\n", "").encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        answer = tell(server, asked)
        assert not answer or answer.startswith(b"HTTP/1.1 503 ")
        held[0].close()
        assert soon(lambda: tell(server, asked).endswith(SECRET))
        held[1].close()


# Whatever is sent.

NONSENSE = {
    "letters": b"hello\r\n\r\n",
    "bytes": bytes(range(256)) + b"\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(64) + b"\n",
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "no version": b"GET /model.onnx\r\n\r\n",
    "target": b"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "long": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    "wide header": b"GET / HTTP/1.1\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
    "method": b"BREW / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_refused_without_a_traceback(server: Server, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer = tell(server, NONSENSE[kind])
    assert SECRET not in answer
    if answer.startswith(b"HTTP/1.1"):
        assert answer.split()[1] in (b"400", b"414", b"421", b"431", b"501", b"505")
        assert b"text/plain" in answer
    assert tell(server, request(f"localhost:{server.names.port}")).endswith(SECRET), "it does not serve any more"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("path", ["", "/large.onnx"], ids=["before the request", "during the answer"])
def test_a_client_that_breaks_off_leaves_no_traceback(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(connections=1) as server:
        own = f"127.0.0.1:{server.names.port}"
        with connect(server) as client:
            client.sendall(request(own, path).encode() if path else b"GET / HT")
            if path:
                client.recv(1000)
            # Closed like this, the other side gets a reset instead of an end.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert soon(lambda: tell(server, request(own)).endswith(SECRET))
    assert capfd.readouterr().err == ""


def test_an_unread_body_is_never_taken_for_a_request(server: Server) -> None:
    own = f"127.0.0.1:{server.names.port}"
    inner = request(own)
    for method in ("GET", "POST"):
        head = f"{method} / HTTP/1.1\r\nHost: {own}\r\nContent-Length: {len(inner)}\r\n\r\n"
        assert SECRET not in tell(server, head + inner)

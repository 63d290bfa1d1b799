"""Whatever is sent to the page's server, it serves the next client, and says nothing on stderr."""

import os
import random
import socket
import struct
import threading

import pytest
from damage import damaged

from uce_edge.serve.page_server import Content, Server, listen

LONG = int(os.environ.get("UCE_EDGE_FUZZ", "0"))
SECRET = b"the content"
REQUESTS = [
    b"GET /file HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\r\n",
    b"HEAD /file?query HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nAccept: */*\r\n\r\n",
    b"POST /file HTTP/1.1\r\nHost: localhost:PORT\r\nContent-Length: 12\r\n\r\nhello, world",
    b"GET http://localhost:PORT/file HTTP/1.0\r\nHost: localhost:PORT\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
]


def test_damaged_requests_are_answered_or_let_go(capfd: pytest.CaptureFixture[str]) -> None:
    content = {"/file": Content(SECRET, "text/plain", {})}
    server = listen(content, "127.0.0.1", 0, silence=0.2, connections=8)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    wanted, answered = 150 * (LONG or 1), 0
    corpus = [request.replace(b"PORT", str(server.names.port).encode()) for request in REQUESTS]
    try:
        for number in range(wanted):
            answer = told(server, damaged(corpus, number), random.Random(number))
            if answer:
                answered += 1
                assert answer.startswith(b"HTTP/1.1 ")
                assert b"\r\nX-Content-Type-Options: nosniff\r\n" in answer or b" 503 " in answer[:20]
        assert told(server, corpus[0], random.Random(0), rude=False).endswith(SECRET), "it does not serve any more"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert capfd.readouterr().err == ""
    print(f"web: {wanted} damaged requests, {answered} answered")
    assert answered > 0


def told(server: Server, request: bytes, rng: random.Random, *, rude: bool = True) -> bytes:
    """What comes back; some clients break off, and get nothing."""
    with socket.create_connection(("127.0.0.1", server.names.port), timeout=10) as client:
        client.sendall(request)
        if rude and rng.random() < 0.3:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return b""
        parts = []
        try:
            client.shutdown(socket.SHUT_WR)  # fails where the server has closed the connection already
            while part := client.recv(1 << 16):
                parts.append(part)
        except OSError:
            pass
    return b"".join(parts)

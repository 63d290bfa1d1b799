"""The HTTP server of the browser page, with a closed list of contents.

It uses the standard library, because `uce-edge web` is in the base install and Starlette with uvicorn is an extra. It
rejects host names other than its own: with DNS rebinding, a third-party page could otherwise read the model. Every
request has a deadline, and the connections of one client are bounded.
"""

import errno
import io
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.serve.addresses import Names, client_network, share_of

SILENCE = 30.0
"""Seconds that a client has to send a request, or to receive the next part of an answer."""
CONNECTIONS = 64
"""The largest number of connections; a browser opens about ten."""

_BLOCK = 1 << 20  # bytes that a client must receive within `SILENCE`, so that a large model can take longer
_PLAIN = "text/plain; charset=utf-8"

_HEADERS = {
    # Cross-origin isolation: browsers require it for WebAssembly threads.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The browser blocks requests to other servers.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
        "style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class Content(NamedTuple):
    """One response of the server."""

    source: Path | bytes
    kind: str
    """The Content-Type."""
    headers: Mapping[str, str]


class Server(ThreadingHTTPServer):
    """An HTTP server with bounded connections, in all and per client."""

    allow_reuse_address = sys.platform != "win32"  # there, it would share the port with another program
    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, contents: Mapping[str, Content], host: str, port: int, silence: float, connections: int) -> None:
        self.contents, self.silence = contents, silence
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._connections, self._open, self._lock = connections, Counter[str](), threading.Lock()
        super().__init__((host, port), Handler)
        self.names = Names(host, self.server_address[1])

    def server_bind(self) -> None:
        """Skip the name lookup of http.server, which may ask a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or reject it with 503."""
        if not self._acquire(client_network(client_address[0])):
            request.setblocking(False)  # the few bytes fit into the socket's buffer, or are lost
            request.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started that would release the connection
            self._release(client_network(client_address[0]))
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then release it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(client_network(client_address[0]))

    def _acquire(self, client: str) -> bool:
        """Count a connection, unless there are too many."""
        with self._lock:
            if self._open.total() >= self._connections or self._open[client] >= share_of(self._connections):
                return False
            self._open[client] += 1
            return True

    def _release(self, client: str) -> None:
        with self._lock:
            self._open -= Counter([client])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, except those of a client that left."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _DeadlineReader(io.RawIOBase):
    """A socket reader with a deadline for the whole request."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self.begin()

    def begin(self) -> None:
        """Restart the deadline for the next request."""
        self._end = time.monotonic() + self._seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes.

        Raises:
            TimeoutError: The deadline has passed.
        """
        self._connection.settimeout(max(self._end - time.monotonic(), 1e-3))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._seconds)


class Handler(BaseHTTPRequestHandler):
    """One connection, which answers GET and HEAD only."""

    server: Server
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # a malformed version gets an error response with headers, too
    server_version = "uce-edge"
    sys_version = ""

    def setup(self) -> None:
        """Set the deadline."""
        super().setup()
        self.connection.settimeout(self.server.silence)
        self._reader = _DeadlineReader(self.connection, self.server.silence)
        self.rfile = io.BufferedReader(self._reader)

    def handle(self) -> None:
        """Answer until the client closes, leaves or misses its deadline."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):  # the page was closed or reloaded
            self.close_connection = True

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self._reader.begin()
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the head of a request; False if an error was sent already."""
        return super().parse_request() and self._check_address()

    def do_GET(self) -> None:
        """Send the content."""
        self._answer()

    def do_HEAD(self) -> None:
        """Send the headers only."""
        self._answer()

    def _refuse(self) -> None:
        self._send_text(405, "Use GET or HEAD.", Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _check_address(self) -> bool:
        """Whether the request has a host name of this server; sends an error if not."""
        try:
            self._target: SplitResult = urlsplit(self.path)
        except ValueError:
            self.send_error(400, "Bad request target")
            return False
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # an unread body would be parsed as the next request
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            self.send_error(400, "Expected one header Host")
            return False
        # A request through a proxy also has the host in its target.
        if any(host not in self.server.names for host in (hosts[0], self._target.netloc or hosts[0])):
            self.close_connection = True
            self._send_text(
                421,
                f"This server does not accept that host name. Open {self.server.names.address} instead, "
                "or start it with the name you use: uce-edge web --host NAME",
            )
            return False
        return True

    def _answer(self) -> None:
        content = self.server.contents.get(self._target.path)
        try:
            if content is None:
                raise FileNotFoundError
            data = content.source if isinstance(content.source, bytes) else content.source.read_bytes()
        except OSError:
            self._send_text(404, "There is no such file.")
            return
        self._send(200, data, {"Content-Type": content.kind, **content.headers})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as plain text."""
        self.close_connection = True
        self._send_text(code, f"Malformed request: {message or self.responses[code][0]}.")

    def _send_text(self, status: int, message: str, **headers: str) -> None:
        self._send(status, f"{message}\n".encode(), {"Content-Type": _PLAIN, **headers})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | dict(headers) | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for block in _blocks(data):
                self.wfile.write(block)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log single requests."""


def listen(
    contents: Mapping[str, Content], host: str, port: int, *, silence: float = SILENCE, connections: int = CONNECTIONS
) -> Server:
    """Open a server of these contents.

    Args:
        contents: By path, such as "/model.onnx"; there is nothing else.
        host: The address to listen on.
        port: The port; 0 for a free one.
        silence: As `SILENCE`.
        connections: The largest number of connections. One client may have half of them.

    Raises:
        UceEdgeError: The port cannot be opened.
    """
    try:
        return Server(contents, host, port, silence, connections)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            remedy = f"Choose another: --port {port + 1 if port < 65535 else 8000}, or --port 0 for any free one"
            message = f"Another program uses port {port} of {host}. {remedy}"
            raise UceEdgeError(message, "server.port", host=host, port=port) from None
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            rule = "an address of this computer"
            raise UsageError(expected("`host`", rule, host, "For this computer only: --host 127.0.0.1")) from None
        message = f"Port {port} of {host} cannot be opened: {error.strerror}. Choose another: --port 8000"
        raise UceEdgeError(message, "server.port", host=host, port=port) from None


def _blocks(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + _BLOCK] for start in range(0, len(data), _BLOCK))

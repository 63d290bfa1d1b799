"""The server of the browser page: a closed list of contents, for a bounded number of clients on this computer's names.

A page elsewhere can make its own name point to this computer (DNS rebinding) and would then read the model. Its
browser still sends that name as Host, so a request for a name that is not ours is refused. A client that says nothing
is let go.
"""

import errno
import io
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from uce_edge.errors import UceEdgeError, UsageError, expected

SILENCE = 30.0
"""Seconds that a client may keep the server waiting: for all of a request, or to take the next part of an answer."""
CONNECTIONS = 64
"""Clients at a time; a browser opens about ten."""

_BLOCK = 1 << 20  # bytes that a client must take within `SILENCE`: a large model over a slow network is no silence
_PLAIN = "text/plain; charset=utf-8"
_HTTP_PORT = 80  # what a Host without a port means
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})

_HEADERS = {
    # Together they isolate the page, and only then does a browser give WebAssembly its threads.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The browser itself sees to it that nothing is loaded from, or sent to, anywhere else.
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
    """One answer of the server."""

    source: Path | bytes
    kind: str
    """The Content-Type."""
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Names:
    """The names under which a server may be asked for."""

    host: str
    """What it listens on."""
    port: int

    def __contains__(self, authority: str) -> bool:
        """Whether a Host header means this server: one of its names, with its port."""
        name, port = self.parse(authority) or ("", None)
        if port != self.port:
            return False
        if name in _HERE or name == self.host.lower():
            return True
        # No name can be made to point here by a page that was opened under a number.
        return not self.local and (number_of(name) is not None or name in self._machine)

    @staticmethod
    def parse(authority: str) -> tuple[str, int] | None:
        """Name and port of a Host header; None for what is no such header."""
        try:
            asked = urlsplit(f"//{authority}")
            name, port = (asked.hostname or "").rstrip("."), asked.port or _HTTP_PORT
        except ValueError:  # such as a bracket that is not closed, or a port that is no number
            return None
        return None if "@" in authority or asked.path or asked.query or asked.fragment else (name, port)

    @property
    def local(self) -> bool:
        """Whether only this computer can reach it."""
        number = number_of(self.host)
        return self.host == "localhost" or (number is not None and number.is_loopback)

    @property
    def address(self) -> str:
        """Where the page is, for a browser on this computer."""
        shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}/"

    @cached_property
    def _machine(self) -> frozenset[str]:
        """What this computer is called in its network; asking for the full name may take seconds, so once."""
        own = socket.gethostname().lower()
        short = own.split(".")[0]
        return frozenset({own, short, f"{short}.local", socket.getfqdn().lower()}) - {""}


class Server(ThreadingHTTPServer):
    """Refuses a port that another program listens on, and clients beyond a number."""

    allow_reuse_address = sys.platform != "win32"  # there, it would share the port with that program
    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, contents: Mapping[str, Content], host: str, port: int, silence: float, connections: int) -> None:
        self.contents, self.silence = contents, silence
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(connections)
        super().__init__((host, port), Handler)
        self.names = Names(host, self.server_address[1])

    def server_bind(self) -> None:
        """Without the name of the address, for which http.server may ask a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for this client, or an answer that there are too many."""
        if not self._free.acquire(blocking=False):
            request.setblocking(False)  # the few bytes fit into the socket's buffer, or are lost
            request.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started, so none will give the place back
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve this client, then give its place to another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away; anything else is a fault of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Said(io.RawIOBase):
    """What a client says, as long as it has time: one byte now and then is no request."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self.begin()

    def begin(self) -> None:
        """All of the time is there again, for the next request."""
        self._end = time.monotonic() + self._seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes.

        Raises:
            TimeoutError: The time is over.
        """
        self._connection.settimeout(max(self._end - time.monotonic(), 1e-3))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._seconds)


class Handler(BaseHTTPRequestHandler):
    """One connection: answers GET and HEAD for the server's contents, and nothing else."""

    server: Server
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # what is no version gets a refusal with its headers, too
    server_version = "uce-edge"
    sys_version = ""

    def setup(self) -> None:
        """Wait for this client no longer than for any other."""
        super().setup()
        self.connection.settimeout(self.server.silence)
        self._said = _Said(self.connection, self.server.silence)
        self.rfile = io.BufferedReader(self._said)

    def handle(self) -> None:
        """Answer until the client has nothing more to ask, says nothing, or is gone."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):  # the page was closed or reloaded meanwhile
            self.close_connection = True

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it."""
        self._said.begin()
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the request's head; False if it was answered already, because something is wrong with it."""
        return super().parse_request() and self._addressed()

    def do_GET(self) -> None:
        """Answer with the content."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer with the headers alone."""
        self._answer()

    def _refuse(self) -> None:
        self._say(405, "Only GET and HEAD are answered.", Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _addressed(self) -> bool:
        """Whether the request is meant for this server."""
        try:
            self._target: SplitResult = urlsplit(self.path)
        except ValueError:
            self.send_error(400, "Bad request target")
            return False
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # an unread body would be taken for the next request
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            self.send_error(400, "Expected one header Host")
            return False
        # A proxy's request names the host in the target, too.
        if any(host not in self.server.names for host in (hosts[0], self._target.netloc or hosts[0])):
            self.close_connection = True
            self._say(
                421,
                f"This address is not one of this server's. Open {self.server.names.address} instead, "
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
            self._say(404, "There is no such file here.")
            return
        self._send(200, data, {"Content-Type": content.kind, **content.headers})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no proper request, in plain text as all else is refused."""
        self.close_connection = True
        self._say(code, f"This request cannot be understood: {message or self.responses[code][0]}.")

    def _say(self, status: int, sentence: str, **headers: str) -> None:
        self._send(status, f"{sentence}\n".encode(), {"Content-Type": _PLAIN, **headers})

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
        """Say nothing of single requests."""


def listen(
    contents: Mapping[str, Content], host: str, port: int, *, silence: float = SILENCE, connections: int = CONNECTIONS
) -> Server:
    """A server of these contents.

    Args:
        contents: By path, such as "/model.onnx"; nothing else can be reached.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        silence: Seconds that a client may keep the server waiting.
        connections: Clients that are served at a time.

    Raises:
        UceEdgeError: The port cannot be opened; it says why.
    """
    try:
        return Server(contents, host, port, silence, connections)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            remedy = f"Take another: --port {port + 1 if port < 65535 else 8000}, or --port 0 for any free one"
            raise UceEdgeError(f"Port {port} of {host} is taken by another program. {remedy}") from None
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            rule = "an address of this computer"
            raise UsageError(expected("`host`", rule, host, "For this computer alone: --host 127.0.0.1")) from None
        raise UceEdgeError(
            f"Port {port} of {host} cannot be opened: {error.strerror}. Take another: --port 8000"
        ) from None


def _blocks(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + _BLOCK] for start in range(0, len(data), _BLOCK))


def number_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a name is; None for other names."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None

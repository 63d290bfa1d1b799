"""`uce-edge web`: the browser page with a model, from this computer."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from uce_edge.cli.options import InferenceOption, ModelOption, choose_model
from uce_edge.cli.words import quote, say
from uce_edge.errors import MissingPartError, UceEdgeError, UsageError, expected

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".onnx": "application/octet-stream",
}
"""What is served; no other file of the folder is."""

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
    headers: Mapping[str, str]


def web(
    model: ModelOption = None,
    inference: InferenceOption = None,
    port: Annotated[int, typer.Option(help="The port of the page; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 lets other devices in.")] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve a page that runs a model in the browser; images never leave the device.

    Example: uce-edge web --open

    Example: uce-edge web --model digits.onnx --port 8080
    """
    if not 0 <= port <= 65535:
        raise UsageError(expected("`port`", "between 0 and 65535", port, "For example: --port 8000"))
    model = choose_model(model, inference)
    folder = assets()
    with listen(contents(folder, model), host, port) as server:
        try:
            _announce(model, host, server.server_address[1], open_page)
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped.")


def _announce(model: Path, host: str, port: int, open_page: bool) -> None:
    """Say where the page is, and open it when that was asked for."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "") else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    say(f"{model} in the browser: {address}   (stop with Ctrl+C)")
    if host not in ("127.0.0.1", "localhost", "::1"):
        say("note: over plain http, browsers give other devices neither the camera nor threads.")
    if open_page:
        import webbrowser

        webbrowser.open(address)


def assets() -> Path:
    """The folder of the page: in a source tree, or as installed."""
    import importlib.util

    tree = Path(__file__).resolve().parents[2] / "examples" / "web"
    spec = importlib.util.find_spec("uce_edge_web")
    installed = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    for folder in (tree / "uce_edge_web", *installed):
        if (folder / "index.html").is_file() and any((folder / "vendor").glob("*.wasm")):
            return folder
    if (tree / "fetch.py").is_file():
        raise UceEdgeError(
            f"The page needs onnxruntime-web, which is not in this source tree. Run: python {quote(tree / 'fetch.py')}"
        )
    raise MissingPartError("The page", "uce-edge-web", "web")


def contents(folder: Path, model: Path) -> dict[str, Content]:
    """Everything that can be asked for, by its path; a closed list, so that nothing else can be reached."""
    import base64
    import hashlib

    from uce_edge.model import Model

    document = Model(model, "cpu").metadata.to_json()
    weights = model.read_bytes()  # once: metadata, checksum and bytes are of the same file, whatever is exported later
    digest = base64.b64encode(hashlib.sha256(weights).digest()).decode()
    found = {
        f"/{path.relative_to(folder).as_posix()}": Content(path, _TYPES[path.suffix], {})
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES and path.is_file()
    }
    return found | {
        "/": found["/index.html"],
        "/model.json": Content(document.encode(), _TYPES[".json"], {}),
        "/model.onnx": Content(weights, _TYPES[".onnx"], {"Repr-Digest": f"sha-256=:{digest}:"}),
    }


def listen(found: Mapping[str, Content], host: str, port: int) -> "ThreadingHTTPServer":
    """A server of these contents."""
    import errno
    import socket
    import sys
    from http.server import ThreadingHTTPServer

    class Server(ThreadingHTTPServer):
        """Refuses a port that another program listens on."""

        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        allow_reuse_address = sys.platform != "win32"  # there, it would share the port with that program
        daemon_threads = True

    try:
        return Server((host, port), _handler(found))
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


def _handler(found: Mapping[str, Content]) -> "type[BaseHTTPRequestHandler]":
    """Answers GET and HEAD for these contents, and nothing else."""
    from http.server import BaseHTTPRequestHandler
    from urllib.parse import urlsplit

    class Handler(BaseHTTPRequestHandler):
        """One connection."""

        protocol_version = "HTTP/1.1"
        server_version = "uce-edge"
        sys_version = ""

        def do_GET(self) -> None:
            """Answer with the content."""
            self._answer(body=True)

        def do_HEAD(self) -> None:
            """Answer with the headers alone."""
            self._answer(body=False)

        def _refuse(self) -> None:
            self.close_connection = True  # an unread body would be taken for the next request
            self._say(405, "Only GET and HEAD are answered.", Allow="GET, HEAD")

        do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

        def _answer(self, body: bool) -> None:
            content = found.get(urlsplit(self.path).path)
            try:
                if content is None:
                    raise FileNotFoundError
                data = content.source if isinstance(content.source, bytes) else content.source.read_bytes()
            except OSError:
                self._say(404, "There is no such file here.", body)
                return
            self._send(200, data, {"Content-Type": content.kind, **content.headers}, body)

        def _say(self, status: int, sentence: str, body: bool = True, **headers: str) -> None:
            self._send(status, f"{sentence}\n".encode(), {"Content-Type": _TYPES[".txt"], **headers}, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in (_HEADERS | headers | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            try:
                if body:
                    self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):  # the page was closed or reloaded meanwhile
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing of single requests."""

    return Handler

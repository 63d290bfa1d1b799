"""`uce-edge web`: the browser page with a model, from this computer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli.messages import quote, say
from uce_edge.cli.shared_options import InferenceOption, ModelOption, choose_model
from uce_edge.errors import UceEdgeError, UsageError, expected

if TYPE_CHECKING:
    from uce_edge.serve.page_server import Content, Names

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


def web(
    model: ModelOption = None,
    inference: InferenceOption = None,
    port: Annotated[int, typer.Option(help="The port of the page. 0 chooses a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on. 0.0.0.0 admits other devices.")] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve a web page that runs a model in the browser. Images never leave the device.

    Example: uce-edge web --open

    Example: uce-edge web --model digits.onnx --port 8080
    """
    if not 0 <= port <= 65535:
        raise UsageError(expected("`port`", "between 0 and 65535", port, "For example: --port 8000"))
    model = choose_model(model, inference)
    from uce_edge.serve.page_server import listen

    with listen(contents(assets(), model), host, port) as server:
        try:
            _announce(model, server.names, open_page)
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped.")


def _announce(model: Path, names: "Names", open_page: bool) -> None:
    """Say where the page is, and open it when that was asked for."""
    say(f"{model} in the browser: {names.address}   (stop with Ctrl+C)")
    if not names.local:
        say("note: over plain http, browsers on other devices allow neither the camera nor threads.")
    if open_page:
        import webbrowser

        webbrowser.open(names.address)


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
    raise UceEdgeError(
        "The page needs the package uce-edge-web, which is not on PyPI. In a checkout of uce-edge, build its wheel and "
        "install it: python -m build --wheel examples/web"
    )


def contents(folder: Path, model: Path) -> "dict[str, Content]":
    """Everything that can be asked for, by its path; a closed list, so that nothing else can be reached."""
    import base64

    from uce_edge.runtime.model import Model
    from uce_edge.serve.page_server import Content

    loaded = Model(model, "cpu")
    document, weights = loaded.metadata.to_json(), loaded.content()
    digest = base64.b64encode(bytes.fromhex(loaded.sha256)).decode()
    page = {
        f"/{path.relative_to(folder).as_posix()}": Content(path, _TYPES[path.suffix], {})
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES and path.is_file()
    }
    return page | {
        "/": page["/index.html"],
        "/model.json": Content(document.encode(), _TYPES[".json"], {}),
        "/model.onnx": Content(weights, _TYPES[".onnx"], {"Repr-Digest": f"sha-256=:{digest}:"}),
    }

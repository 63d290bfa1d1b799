"""The files of the browser page, and the model that it runs."""

import base64
import importlib.util
import shlex
from pathlib import Path

from uce_edge.errors import UceEdgeError
from uce_edge.runtime.model import Model
from uce_edge.serve.page_server import Content

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
"""The kinds of files that are served."""


def assets() -> Path:
    """Find the folder of the page, in a source tree or installed."""
    tree = Path(__file__).resolve().parents[2] / "examples" / "web"
    spec = importlib.util.find_spec("uce_edge_web")
    installed = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    for folder in (tree / "uce_edge_web", *installed):
        if (folder / "index.html").is_file() and any((folder / "vendor").glob("*.wasm")):
            return folder
    if (tree / "fetch.py").is_file():
        raise UceEdgeError(
            f"The page needs onnxruntime-web, which is not in this source tree. Run: python "
            f"{shlex.quote(str(tree / 'fetch.py'))}",
            "page.incomplete",
        )
    raise UceEdgeError(
        "The page needs the package uce-edge-web, which is not on PyPI. In a checkout of uce-edge, build its wheel and "
        "install it: python -m build --wheel examples/web",
        "page.missing",
    )


def contents(folder: Path, model: Path) -> dict[str, Content]:
    """List everything that the server serves, by path."""
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

"""The server of the browser page, without a browser."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import http.client
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import GOLDEN
from helpers.errors import raises
from helpers.web_page import MC, serve  # noqa: F401

from uce_edge import Model
from uce_edge.cli import web
from uce_edge.errors import ModelFileError
from uce_edge.serve import page_contents


def ask(address: str, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/app.js?again", "text/javascript; charset=utf-8"),
        ("/vendor/ort.wasm.min.mjs", "text/javascript; charset=utf-8"),
        ("/vendor/ort-wasm-simd-threaded.wasm", "application/wasm"),
        ("/model.json", "application/json; charset=utf-8"),
        ("/model.onnx", "application/octet-stream"),
    ],
)
def test_every_answer_isolates_the_page_and_names_its_type(serve: Callable[[str], str], path: str, kind: str) -> None:
    status, headers, body = ask(serve(MC), path)
    assert (status, headers["Content-Type"]) == (200, kind)
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert len(body) == int(headers["Content-Length"])


def test_the_model_and_its_own_metadata_are_served(serve: Callable[[str], str]) -> None:
    assert ask(serve(MC), "/model.onnx")[2] == (GOLDEN / MC).read_bytes()
    assert ask(serve(MC), "/model.json")[2].decode() == Model(GOLDEN / MC, "cpu").metadata.to_json()
    status, headers, body = ask(serve(MC), "/model.onnx", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) == (GOLDEN / MC).stat().st_size


@pytest.mark.parametrize("path", ["/vendor/", "/vendor", "/../pyproject.toml", "/%2e%2e/fetch.py", "/__init__.py"])
def test_nothing_else_is_served(serve: Callable[[str], str], path: str) -> None:
    assert ask(serve(MC), path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_and_head_are_answered(serve: Callable[[str], str], method: str) -> None:
    status, headers, _ = ask(serve(MC), "/", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_a_used_port_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with raises("server.port"):
            web.web(GOLDEN / MC, port=port)


def test_wrong_requests_are_refused_before_anything_is_served(tmp_path: Path) -> None:
    with raises("argument.port"):
        web.web(GOLDEN / MC, port=70000)
    with raises("argument.host"):
        web.web(GOLDEN / MC, port=0, host="203.0.113.7")
    (tmp_path / "broken.onnx").write_bytes((GOLDEN / MC).read_bytes()[:1000])
    with pytest.raises(ModelFileError):
        web.web(tmp_path / "broken.onnx", port=0)


def test_missing_parts_are_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(page_contents, "__file__", str(tmp_path / "uce_edge" / "serve" / "page_contents.py"))
    with raises("page.missing"):
        page_contents.assets()
    (tmp_path / "examples" / "web").mkdir(parents=True)
    (tmp_path / "examples" / "web" / "fetch.py").touch()
    with raises("page.incomplete"):
        page_contents.assets()

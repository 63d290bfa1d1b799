"""The page in a headless Chromium, for its tests: what serves it, what opens it, and what reads it.

A module of tests imports the fixtures `serve`, `playwright`, `launch`, `visit` and `golden_page` from here.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

PAGE = ROOT / "examples" / "web" / "uce_edge_web"
MC, MOMENTS, GATED = "digits-mc.onnx", "digits-moments.onnx", "digits-novelty.onnx"
ENSEMBLE = "digits-ensemble.onnx"
WAIT = 120_000  # milliseconds; a browser without a graphics card on a busy computer takes its time

if not list((PAGE / "vendor").glob("*.wasm")):
    pytest.skip("onnxruntime-web is not here: python examples/web/fetch.py", allow_module_level=True)


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[str | Path], str]]:
    """Start `uce-edge web` with a model; the same model is served once."""
    running: dict[str, tuple[subprocess.Popen[str], str]] = {}

    def served(model: str | Path) -> str:
        path = str(GOLDEN / model)
        if path not in running:
            command = [sys.executable, "-m", "uce_edge", "web", "--model", path, "--port", "0"]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
            assert process.stderr is not None
            said = process.stderr.readline()
            found = re.search(r"http://\S+", said)
            assert found, said + process.stderr.read()
            running[path] = (process, found[0])
        return running[path][1]

    yield served
    for process, _ in running.values():
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def playwright() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def launch(playwright: Any) -> Iterator[Callable[..., Any]]:
    """A browser with these switches: Playwright's own, or the system's."""
    own = playwright.chromium.executable_path
    names = ("chromium", "chromium-browser", "google-chrome")
    path = own if Path(own).exists() else next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("there is no Chromium")
    browsers = {}

    def launched(*switches: str) -> Any:
        if switches not in browsers:
            # Inside containers, the browser's own sandbox has nothing to stand on.
            browsers[switches] = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *switches])
        return browsers[switches]

    yield launched
    for browser in browsers.values():
        browser.close()


class Visit:
    """A page, with everything it asked for and complained of."""

    def __init__(self, browser: Any, address: str, change: Callable[[Any], None] | None = None, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        if change:
            change(self.page)
        self.page.goto(address)
        self.page.wait_for_selector("body[data-state=ready], body[data-state=failed]")

    def set(self, field: str, value: object) -> None:
        """Type a value, as a user does."""
        self.page.fill(f"#{field}", str(value))
        self.page.locator(f"#{field}").blur()

    def give(self, name: str, data: bytes) -> None:
        """Choose a file."""
        self.page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": data})

    def drop(self, name: str, data: bytes) -> None:
        """Drop a file."""
        script = """([name, data]) => {
            const moved = new DataTransfer();
            moved.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
            document.getElementById("drop").dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true}));
        }"""
        self.page.evaluate(script, [name, base64.b64encode(data).decode()])

    def answer(self, **wanted: object) -> dict[str, Any]:
        """What the page shows when it is done, and what it saves."""
        marks = "".join(f'[data-{name}="{value}"]' for name, value in wanted.items())
        self.page.wait_for_selector(f"#answer{marks}[data-complete=true]")
        self.page.wait_for_selector("#save[href^='blob:']", state="attached")
        self.page.eval_on_selector("#record", "details => { details.open = true; }")
        with self.page.expect_download() as saved:
            self.page.click("#save")
        document: dict[str, Any] = json.loads(Path(saved.value.path()).read_text())
        shown = {
            name: float(self.page.get_attribute(f"#{name.replace('_', '-')}", "data-value"))
            for name in ("confidence", "uncertainty", "model_uncertainty", "standard_error", "error_probability")
        }
        assert {name: document[name] for name in shown} == shown
        assert self.page.get_attribute("#answer", "data-state") == document["decision"]
        return document

    def refusal(self) -> str:
        """The sentence of a refusal."""
        self.page.wait_for_selector("#refusal:not([hidden])")
        return str(self.page.inner_text("#refusal"))

    def seen(self) -> np.ndarray:
        """The pixels the model took, RGB."""
        script = """() => {
            const canvas = document.getElementById("seen");
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return [canvas.height, canvas.width, [...data]];
        }"""
        height, width, values = self.page.evaluate(script)
        return np.array(values, np.uint8).reshape(height, width, 4)[..., :3]


@contextlib.contextmanager
def visits(launch: Callable[..., Any], serve: Callable[[str], str]) -> Iterator[Callable[..., Visit]]:
    """Visit pages of models; all their requests must go to the server that gave them. They are closed at the end."""
    pages: list[tuple[Visit, str]] = []

    def visited(model: str | Path = MC, *switches: str, change: Any = None, **options: Any) -> Visit:
        address = serve(model)
        pages.append((Visit(launch(*switches), address, change, **options), address))
        return pages[-1][0]

    yield visited
    for page, address in pages:
        page.context.close()
        elsewhere = [url for url in page.requests if not url.startswith((address, f"blob:{address}"))]
        assert elsewhere == []


@pytest.fixture
def visit(launch: Callable[..., Any], serve: Callable[[str], str]) -> Iterator[Callable[..., Visit]]:
    """Pages of one test: many open ones would be more clients than the server takes."""
    with visits(launch, serve) as visited:
        yield visited


@pytest.fixture(scope="module")
def golden_page(launch: Callable[..., Any], serve: Callable[[str], str]) -> Iterator[Callable[[str], Visit]]:
    """One page a model, on the processor, for all its cases."""
    pages: dict[str, Visit] = {}
    with visits(launch, serve) as visited:

        def opened(model: str) -> Visit:
            if model not in pages:
                pages[model] = visited(model)
                pages[model].page.click("summary:has-text('Seed and device')")
            return pages[model]

        yield opened


def give_golden(visited: Visit, name: str) -> dict[str, Any]:
    visited.give(f"{name}.raw", (GOLDEN / f"{name}.raw").read_bytes())
    return visited.answer(source=f"{name}.raw")


def damaged(path: str, damage: Callable[[bytes], bytes], drop_digest: bool = False) -> Callable[[Any], None]:
    """A change of what the server sends."""

    def change(page: Any) -> None:
        def answer(route: Any) -> None:
            found = route.fetch()
            headers = {k: v for k, v in found.headers.items() if not (drop_digest and k == "repr-digest")}
            route.fulfill(status=found.status, headers=headers, body=damage(found.body()))

        page.route(f"**/{path}", answer)

    return change


def edited(**values: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps(json.loads(data) | values).encode()

"""The browser page against the goldens, in a headless Chromium, and the server that gives it out."""

import base64
import contextlib
import http.client
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import port_cases
import pytest
from conftest import GOLDEN, ROOT
from pictures import no_photos
from PIL import Image

from uce_edge import Model, images
from uce_edge.cli import web
from uce_edge.errors import MissingPartError, ModelFileError, UceEdgeError, UsageError
from uce_edge.metadata import ImageSpec
from uce_edge.models import BUNDLED, bundled
from uce_edge.prediction import summarise

PAGE = ROOT / "examples" / "web" / "uce_edge_web"
CASES = json.loads((GOLDEN / "cases.json").read_text())
MC, MOMENTS, GATED = "digits-mc.onnx", "digits-moments.onnx", "digits-novelty.onnx"
PER_IMAGE = ("probabilities", "class_id", "uncertainty", "model_uncertainty", "standard_error", "error_probability")
WAIT = 120_000  # milliseconds; a browser without a graphics card on a busy computer takes its time
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")

if not list((PAGE / "vendor").glob("*.wasm")):
    pytest.skip("onnxruntime-web is not here: python examples/web/fetch.py", allow_module_level=True)


# The server, without a browser.


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


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UceEdgeError, match=rf"Port {port} of 127\.0\.0\.1 is taken .* --port 0 for any free one"):
            web.web(GOLDEN / MC, port=port)


def test_wrong_requests_are_refused_before_anything_is_served(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`port`"):
        web.web(GOLDEN / MC, port=70000)
    with pytest.raises(UsageError, match="`host`"):
        web.web(GOLDEN / MC, port=0, host="203.0.113.7")
    (tmp_path / "broken.onnx").write_bytes((GOLDEN / MC).read_bytes()[:1000])
    with pytest.raises(ModelFileError):
        web.web(tmp_path / "broken.onnx", port=0)


def test_missing_parts_are_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(web, "__file__", str(tmp_path / "uce_edge" / "cli" / "web.py"))
    with pytest.raises(MissingPartError, match=r'pip install "uce-edge\[web\]"'):
        web.assets()
    (tmp_path / "examples" / "web").mkdir(parents=True)
    (tmp_path / "examples" / "web" / "fetch.py").touch()
    with pytest.raises(UceEdgeError, match=r"Run: python .*fetch\.py"):
        web.assets()


# The page.


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


def compare(document: dict[str, Any], case: dict[str, Any], tolerance: float) -> None:
    """No number may be farther from the golden one."""
    assert document["seeds"] == case["seeds"]
    assert (document["label"], document["decision"]) == (case["label"], case["decision"])
    assert document["reason"] == case.get("reason", "uncertain" if case["decision"] == "reject" else None)
    differences = {
        name: float(np.abs(np.array(document[name], float).ravel() - np.array(case["outputs"][name]["values"])).max())
        for name in (*PER_IMAGE, "pass_probabilities")
        if name in case["outputs"]
    }
    print("largest difference", max(differences.values()))  # shown by pytest -rP
    assert max(differences.values()) <= tolerance, differences


def gray_png(case: dict[str, Any]) -> bytes:
    """A golden image as a file, of the same pixels."""
    pixels = np.frombuffer((GOLDEN / case["image"]).read_bytes(), np.uint8).reshape(case["shape"][1:3])
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']}-{case['image']}-{case['seeds'][0]}")
def test_the_page_gives_the_golden_answers(golden_page: Callable[[str], Visit], case: dict[str, Any]) -> None:
    page = golden_page(case["model"])
    samples, seed = len(case["seeds"]), case["seeds"][0] // 4096
    page.set("samples", samples)
    page.set("seed", seed)
    page.give(case["image"], (GOLDEN / case["image"]).read_bytes())
    document = page.answer(source=case["image"], samples=samples, seed=seed)
    compare(document, case, 1e-5)
    port_cases.check_novelty(document, {name: output["values"] for name, output in case["outputs"].items()})
    assert (document["threshold"], document["cutoff"]) == (case["threshold"], case.get("cutoff"))
    bars = page.page.eval_on_selector_all(
        "#bars li", "rows => rows.map((row) => [row.dataset.class, row.dataset.value])"
    )
    assert {int(index): float(value) for index, value in bars} == dict(enumerate(document["probabilities"]))
    assert page.complaints == []


def test_a_dropped_picture_gives_the_golden_answer_of_its_pixels(golden_page: Callable[[str], Visit]) -> None:
    case = next(case for case in CASES if (case["model"], case["image"]) == (MC, "two-digits.raw"))
    page = golden_page(MC)
    page.set("samples", 25)
    page.set("seed", 0)
    page.drop("dropped.png", gray_png(case))
    compare(page.answer(source="dropped.png", samples=25, seed=0), case, 1e-5)


def test_merged_calls_give_what_python_merges(golden_page: Callable[[str], Visit]) -> None:
    page = golden_page(MC)
    page.set("samples", 101)  # no multiple of what one call draws
    page.set("seed", 3)
    page.give("noise.raw", (GOLDEN / "noise.raw").read_bytes())
    document = page.answer(source="noise.raw", samples=101, seed=3)
    passes = np.array(document["pass_probabilities"], np.float32)
    assert passes.shape == (101, 10)
    summary = summarise(passes[:, None])
    for name in ("probabilities", "uncertainty", "model_uncertainty", "standard_error"):
        np.testing.assert_allclose(np.array(document[name]), getattr(summary, name)[0], atol=1e-7)
    pixels = np.frombuffer((GOLDEN / "noise.raw").read_bytes(), np.uint8).reshape(1, 8, 8, 1)
    with pytest.warns(UserWarning, match="calibrated at 25"):
        wanted = Model(GOLDEN / MC, "cpu").predict(pixels, samples=101, seed=3)
    np.testing.assert_allclose(document["probabilities"], wanted.probabilities[0], atol=1e-5)
    np.testing.assert_allclose(document["error_probability"], wanted.error_probability[0], atol=1e-5)


def test_passes_appear_as_they_come(visit: Callable[..., Visit]) -> None:
    visited = visit()
    visited.page.evaluate(
        """() => {
            window.progress = [];
            const label = document.getElementById("progress");
            new MutationObserver(() => window.progress.push(label.textContent)).observe(label, {childList: true});
        }"""
    )
    visited.give("noise.raw", (GOLDEN / "noise.raw").read_bytes())
    visited.answer(source="noise.raw")
    drawn = visited.page.evaluate("window.progress")
    assert drawn[:3] == ["3 of 25 passes", "6 of 25 passes", "9 of 25 passes"]
    assert "25 passes, seed 0" in drawn[-1]
    assert (
        visited.page.locator("#passes svg").get_attribute("aria-label").startswith("Probability in each of 25 passes")
    )


def test_a_deterministic_model_has_one_pass_and_no_standard_error(visit: Callable[..., Visit], digits: Any) -> None:
    visited = visit(digits.deterministic)
    assert visited.page.locator("#samples").is_disabled()
    visited.give("digit.png", digits.image.read_bytes())
    document = visited.answer(source="digit.png")
    wanted = Model(digits.deterministic, "cpu").predict([digits.image])
    np.testing.assert_allclose(document["probabilities"], wanted.probabilities[0], atol=1e-5)
    assert (document["samples"], document["standard_error"], document["model_uncertainty"]) == (1, 0, 0)
    assert visited.complaints == []


def test_baked_passes_come_all_at_once(visit: Callable[..., Visit], tmp_path: Path) -> None:
    visited = visit(port_cases.baked(tmp_path))
    assert visited.page.locator("#samples").is_disabled()
    visited.give("noise.raw", (GOLDEN / "noise.raw").read_bytes())
    document = visited.answer(source="noise.raw")
    wanted = next(case for case in port_cases.CASES if (case["model"], case["image"]) == (MC, "noise.raw"))
    np.testing.assert_allclose(document["probabilities"], wanted["outputs"]["probabilities"]["values"], atol=1e-5)
    assert document["samples"] == 25


def test_a_file_of_a_later_minor_version_is_answered_as_today(visit: Callable[..., Visit], tmp_path: Path) -> None:
    file = port_cases.from_the_future(tmp_path)
    # The server sends what Python knows of the metadata; the page must do as well with all that is in the file.
    whole = damaged("model.json", lambda _: file.with_suffix(".json").read_bytes())
    visited = visit(file, change=whole)
    visited.give("noise.raw", (GOLDEN / "noise.raw").read_bytes())
    wanted = next(case for case in CASES if (case["model"], case["image"]) == (MC, "noise.raw"))
    compare(visited.answer(source="noise.raw"), wanted, 1e-5)
    assert visited.complaints == []


def test_the_page_spells_the_contract_as_python_does(golden_page: Callable[[str], Visit]) -> None:
    script = """async (edges) => {
        const page = await import("/contract.js");
        const { VERSION: contract, MAX_SAMPLES: max_samples, MAX_SEED: max_seed } = page;
        const { OUTPUTS: outputs, OPTIONAL: optional, REQUIRED: required } = page;
        const { INFERENCE: inference, SCORES: score, REASONS: reasons } = page;
        const accepted = edges.accept.map((c) => page.accepts(c.uncertainty ?? NaN, c.threshold));
        const foreign = edges.foreign.map((c) => page.isForeign(c.novelty ?? NaN, c.cutoff));
        const names = { outputs, optional, required, inference, score, reasons };
        return { contract, max_samples, max_seed, ...names, accepted, foreign };
    }"""
    said = golden_page(MC).page.evaluate(script, port_cases.CONTRACT)
    port_cases.check_contract(said)
    assert ["contract", *said["required"]] == port_cases.CONTRACT["metadata"]["required"]


def test_webgpu_gives_the_golden_answers(visit: Callable[..., Visit]) -> None:
    visited = visit(GATED, *SOFTWARE_GPU)
    if not visited.page.evaluate("async () => Boolean(await navigator.gpu?.requestAdapter())"):
        pytest.skip("there is no WebGPU here, not even in software")
    visited.page.click("summary:has-text('Seed and device')")
    visited.page.select_option("#device", "webgpu")
    visited.page.wait_for_selector("body[data-state=ready][data-device=webgpu]")
    worker = next(worker for worker in visited.page.workers if worker.url.endswith("/worker.js"))
    worker.evaluate(
        """() => {
            const submit = GPUQueue.prototype.submit;
            self.submitted = 0;
            GPUQueue.prototype.submit = function (...values) { self.submitted++; return submit.apply(this, values); };
        }"""
    )
    for case in (
        case for case in CASES if case["model"] == GATED and len(case["seeds"]) == 25 and not case["seeds"][0]
    ):
        visited.give(case["image"], (GOLDEN / case["image"]).read_bytes())
        document = visited.answer(source=case["image"])
        compare(document, case, 2e-3)
        assert document["novelty_score"] == pytest.approx(case["outputs"]["novelty_score"]["values"][0], rel=1e-3)
    assert worker.evaluate("self.submitted") > 0  # it was not the processor that answered


# What is foreign.


def give_golden(visited: Visit, name: str) -> dict[str, Any]:
    visited.give(f"{name}.raw", (GOLDEN / f"{name}.raw").read_bytes())
    return visited.answer(source=f"{name}.raw")


def test_a_person_is_told_what_is_foreign(visit: Callable[..., Visit]) -> None:
    visited = visit(GATED)
    page = visited.page
    give_golden(visited, "black")
    assert page.inner_text("#headline") == "Rejected: unlike anything it was calibrated on"
    said = page.inner_text("#reason")
    assert "Only 0.7\u00a0% of the images that the model was calibrated on are as far away" in said
    assert "and what has 1.1\u00a0% or less is foreign." in said
    assert "But for that, it would be 1: its uncertainty, 0.025, is not above the threshold, 0.156." in said
    assert page.inner_text("#novelty") == "0.7\u00a0%"
    assert page.inner_text("#novelty-score") == "distance 395"
    assert page.inner_text("#error-probability") == "2.0\u00a0% if it were familiar"
    spoken = page.locator("#spoken").inner_text()
    assert spoken.startswith("Rejected: unlike anything it was calibrated on. Best guess 1, ")
    give_golden(visited, "stripes")
    assert page.inner_text("#headline") == "Rejected: unlike anything it was calibrated on"
    assert "Besides, its uncertainty, 0.450, is above the threshold, 0.156." in page.inner_text("#reason")
    give_golden(visited, "two-digits")
    assert page.inner_text("#headline") == "Rejected: the model does not know"
    assert page.inner_text("#reason").startswith(
        "The image is like what the model was calibrated on, but its uncertainty"
    )
    give_golden(visited, "digit-0")
    assert page.inner_text("#headline") == "Accepted: 3"
    assert page.inner_text("#reason").startswith(
        "The image is like what the model was calibrated on, and its uncertainty"
    )
    assert visited.complaints == []


def test_the_gate_may_be_left_open(visit: Callable[..., Visit]) -> None:
    visited = visit(GATED)
    page = visited.page
    assert "At most 2.2\u00a0% of the images that are like those" in page.inner_text("#gate-note")
    give_golden(visited, "black")
    page.uncheck("#gate")
    document = visited.answer(state="accept")
    assert (document["reason"], document["cutoff"]) == (None, None)
    assert document["novelty"] == pytest.approx(1 / 136)
    page.check("#gate")
    assert visited.answer(state="reject")["reason"] == "foreign"
    visited.set("threshold", 0.01)
    assert visited.answer(reason="both")["threshold"] == 0.01
    assert "by the uncertainty alone" in page.inner_text("#threshold-note")
    page.click("#own-threshold")
    assert visited.answer(reason="foreign")["threshold"] == CASES[-1]["threshold"]


def test_a_file_that_cannot_tell_what_is_foreign_shows_nothing_of_it(golden_page: Callable[[str], Visit]) -> None:
    visited = golden_page(MC)
    document = give_golden(visited, "black")
    assert [document[name] for name in ("novelty", "novelty_score", "cutoff")] == [None, None, None]
    assert visited.page.locator("#novelty-view").is_hidden()
    assert visited.page.locator("#gate-setting").is_hidden()
    assert visited.page.inner_text("#reason").startswith("Its uncertainty, ")


def test_a_rule_without_a_threshold_rejects_what_is_foreign_alone(visit: Callable[..., Visit], tmp_path: Path) -> None:
    golden = GOLDEN / GATED
    file = port_cases.variant(tmp_path, lambda about: about["rule"].update(uncertain=None), source=golden)
    visited = visit(file)
    assert give_golden(visited, "noise")["decision"] == "accept"
    assert give_golden(visited, "stripes")["reason"] == "foreign"


def test_a_novelty_that_is_not_a_number_is_foreign(visit: Callable[..., Visit], tmp_path: Path) -> None:
    def damage(graph: Any) -> None:
        port_cases.not_a_number(graph, "novelty.weights")

    visited = visit(port_cases.variant(tmp_path, graph=damage, source=GOLDEN / GATED))
    document = give_golden(visited, "digit-0")
    assert (document["novelty"], document["reason"]) == (None, "foreign")
    assert "is not a number, and what has 1.1\u00a0% or less is foreign" in visited.page.inner_text("#reason")


@pytest.mark.parametrize("kind", BUNDLED)
def test_the_bundled_file_rejects_what_is_no_photo_and_not_all_photos(visit: Callable[..., Visit], kind: str) -> None:
    visited = visit(bundled(kind))
    for what, frames in no_photos().items():
        visited.give(f"{what}.raw", frames[0].tobytes())
        assert visited.answer(source=f"{what}.raw")["reason"] in ("foreign", "both"), what
        assert visited.page.inner_text("#headline") == "Rejected: unlike anything it was calibrated on"
    decisions = set()
    for path in sorted((ROOT / "examples" / "images").glob("*.png")):
        visited.give(path.name, path.read_bytes())
        decisions.add(visited.answer(source=path.name)["decision"])
    assert decisions == {"accept", "reject"}


# Pixels.


@pytest.mark.parametrize(
    ("size", "to", "mode"),
    [
        ((53, 37), (8, 8), "L"),
        ((640, 480), (32, 32), "RGB"),
        ((5, 4), (32, 28), "RGB"),
        ((32, 100), (32, 32), "L"),
        ((100, 32), (32, 32), "L"),
        ((8, 200), (32, 32), "L"),
        ((1, 1), (3, 2), "L"),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_the_page_resizes_as_pillow_does(
    golden_page: Callable[[str], Visit], size: tuple[int, int], to: tuple[int, int], mode: str, dtype: str
) -> None:
    channels = 3 if mode == "RGB" else 1
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], channels)).astype(np.uint8)
    pixels[: size[1] // 2] = 255 * (pixels[: size[1] // 2] > 127)  # with hard edges
    wanted = images.prepare(pixels, ImageSpec(to[1], to[0], channels, dtype))
    script = """async ([data, width, height, channels, to, whole]) => {
        const {resizeRows} = await import("/resize.js");
        const pixels = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
        const rows = (top, count) => pixels.subarray(top * width * channels, (top + count) * width * channels);
        return [...resizeRows(rows, {width, height, channels}, to, {whole, rowsAtOnce: 7})];
    }"""
    data = base64.b64encode(pixels.tobytes()).decode()
    shape = {"width": to[0], "height": to[1]}
    found = golden_page(MC).page.evaluate(script, [data, *size, channels, shape, dtype == "uint8"])
    if dtype == "uint8":
        # Pillow's versions differ in which pass they make first, and so in the last rounding.
        np.testing.assert_allclose(np.array(found).reshape(wanted.shape), wanted.astype(int), atol=1)
    else:
        np.testing.assert_allclose(np.array(found).reshape(wanted.shape), wanted, atol=1e-3)


def photo(kind: str) -> bytes:
    """A smooth picture with edges: transparent, turned by EXIF, in colour, or larger than a phone's canvas tile."""
    width, height = (5000, 300) if kind == "panorama" else (300, 200)
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([127 + 120 * np.sin(x / 23 + c) * np.cos(y / (11 + c)) for c in range(3)], -1)
    waves[40:90, 60:200] = (250, 20, 90)
    picture = Image.fromarray(waves.astype(np.uint8))
    buffer = io.BytesIO()
    if kind == "transparent":
        picture.putalpha(Image.fromarray((255 * x / width).astype(np.uint8)))
        picture.save(buffer, "PNG")
    elif kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(buffer, "JPEG", quality=92, exif=exif)
    else:
        picture.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["colour", "transparent", "turned", "panorama"])
def test_a_photo_gives_the_pixels_that_python_gives(golden_page: Callable[[str], Visit], kind: str) -> None:
    data = photo(kind)
    page = golden_page(MOMENTS)
    page.give(f"{kind}.jpg", data)
    page.answer(source=f"{kind}.jpg")
    wanted = images.load(data, Model(GOLDEN / MOMENTS, "cpu").metadata.image)
    assert np.abs(page.seen().astype(int) - wanted.astype(int)).max() <= 1


# Refusals.


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("notes.png", b"no image at all", "notes.png is not an image that this browser can read"),
        ("cut.png", photo("colour")[:60], "cut.png is not an image that this browser can read"),
        ("empty.png", b"", "empty.png is empty (0 bytes)"),
        ("short.raw", bytes(63), "Expected short.raw to be 64 bytes, 8 x 8 x 1 of uint8, but got 63 bytes"),
    ],
)
def test_files_that_are_no_images_are_refused(
    golden_page: Callable[[str], Visit], name: str, data: bytes, sentence: str
) -> None:
    page = golden_page(MC)
    page.give(name, data)
    assert sentence in page.refusal()
    page.give("black.raw", bytes(64))
    page.answer(source="black.raw")
    assert page.page.locator("#refusal").is_hidden()


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("samples", "0", "whole number from 1 to 4096, but got 0."),
        ("samples", "4097", "whole number from 1 to 4096, but got 4097."),
        ("samples", "2.5", "whole number from 1 to 4096, but got 2.5."),
        ("samples", "", "whole number from 1 to 4096, but got no number."),
        ("seed", "4096", "whole number from 0 to 4095, but got 4096."),
        ("seed", "-1", "whole number from 0 to 4095, but got -1."),
        ("threshold", "1.5", "a number from 0 to 1, but got 1.5."),
    ],
)
def test_numbers_out_of_range_are_refused(
    golden_page: Callable[[str], Visit], field: str, value: str, sentence: str
) -> None:
    page = golden_page(MC)
    good = page.page.input_value(f"#{field}")
    page.set(field, value)
    assert sentence in page.refusal()
    assert page.page.get_attribute(f"#{field}", "aria-invalid") == "true"
    page.set(field, good)
    page.page.wait_for_selector("#refusal", state="hidden")
    assert page.page.get_attribute(f"#{field}", "aria-invalid") is None


def test_an_image_is_not_taken_while_a_setting_is_wrong(golden_page: Callable[[str], Visit]) -> None:
    page = golden_page(MC)
    page.set("samples", 25)
    page.set("seed", 0)
    page.give("black.raw", bytes(64))
    page.answer(source="black.raw", samples=25, seed=0)
    page.set("samples", 0)
    page.give("noise.raw", (GOLDEN / "noise.raw").read_bytes())
    assert "whole number from 1 to 4096, but got 0." in page.refusal()
    assert not page.seen().any()
    page.set("samples", 25)
    page.answer(source="black.raw", samples=25, seed=0)


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


IMAGE = json.loads((GOLDEN / "digits-mc.json").read_text())["image"]
RULE = json.loads((GOLDEN / "digits-novelty.json").read_text())["rule"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (damaged("model.json", edited(contract=2)), "follows contract 2, and this page reads contract 1"),
        (damaged("model.json", edited(noise="input")), "takes its noise as inputs"),
        (damaged("model.json", edited(samples=0)), "its samples are 0"),
        (damaged("model.json", edited(reject={"threshold": 5})), "its threshold is not between 0 and 1"),
        (damaged("model.json", edited(rule={})), "its rule needs the output novelty"),
        (
            damaged("model.json", edited(rule=RULE | {"score": "energy"}, outputs=["novelty"])),
            "its rule compares energy",
        ),
        (
            damaged("model.json", edited(rule={"foreign": {"cutoff": 1}}, outputs=["novelty"])),
            "its cutoff is not strictly between 0 and 1",
        ),
        (damaged("model.json", edited(rule=RULE, outputs=["novelty"])), "which is not contract 1"),
        (damaged("model.json", lambda data: data[:100]), "model.json is damaged"),
        (damaged("model.json", lambda data: b"{}"), "follows contract null"),
        (damaged("model.json", edited(image=IMAGE | {"height": 9})), "of another model than model.json"),
        (damaged("model.json", edited(inference="deterministic")), "which is not contract 1"),
        (damaged("model.onnx", lambda data: data[:-1] + b"x"), "its checksum is not the one the server tells"),
        (damaged("model.onnx", lambda data: data[:5000], drop_digest=True), "The model does not load"),
        (lambda page: page.route("**/model.onnx", lambda route: route.abort()), "the server does not answer"),
        (lambda page: page.route("**/vendor/**", lambda route: route.fulfill(status=404)), "The model does not load"),
    ],
    ids=[
        "contract",
        "noise",
        "samples",
        "threshold",
        "no-novelty",
        "score",
        "cutoff",
        "outputs",
        "json",
        "empty",
        "shape",
        "inputs",
        "checksum",
        "cut",
        "gone",
        "vendor",
    ],
)
def test_models_that_cannot_be_trusted_are_refused(
    visit: Callable[..., Visit], change: Callable[[Any], None], sentence: str
) -> None:
    visited = visit(MC, change=change)
    assert sentence in visited.refusal()
    assert visited.page.get_attribute("body", "data-state") == "failed"
    assert visited.page.inner_text("#about") == "No model is running."
    assert visited.page.locator("#file").is_disabled()


# People.


def test_everything_can_be_done_with_the_keyboard(visit: Callable[..., Visit]) -> None:
    page = visit(MC).page
    order = []
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id"))
    assert order[:-1] == ["file", "camera", "noise", "samples", "samples-slider", "threshold", "threshold-slider"]
    outlines = "() => getComputedStyle(document.activeElement).outlineStyle"
    for _ in range(6):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.id") != "file":
            assert page.evaluate(outlines) == "solid"
        if page.evaluate("document.activeElement.id") == "noise":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer[data-source=noise][data-complete=true]")
    page.focus("#threshold-slider")
    page.keyboard.press("Home")
    page.wait_for_selector("#answer[data-state=reject]")
    assert "Rejected" in page.inner_text("#headline")
    assert page.locator("#spoken").inner_text().startswith("Rejected. Best guess")
    page.keyboard.press("End")
    page.wait_for_selector("#answer[data-state=accept]")
    assert "Accepted: " in page.inner_text("#headline")
    assert page.locator("#spoken").inner_text().startswith("Accepted: ")
    page.focus("#own-threshold")
    page.keyboard.press("Enter")
    page.wait_for_selector("#own-threshold", state="hidden")
    assert page.evaluate("document.activeElement.id") == "threshold"
    assert float(page.input_value("#threshold")) == CASES[0]["threshold"]


def test_everything_has_a_name_for_those_who_listen(golden_page: Callable[[str], Visit]) -> None:
    page = golden_page(MC).page
    for role, name in [
        ("button", "Use the camera"),
        ("button", "Try random noise"),
        ("slider", "Passes, N"),
        ("slider", "Reject above"),
        ("spinbutton", "Passes, N"),
        ("spinbutton", "Reject above"),
        ("spinbutton", "Seed"),
        ("combobox", "Run on"),
        ("heading", "The passes"),
    ]:
        assert page.get_by_role(role, name=name, exact=True).count() == 1
    assert page.get_by_label("Choose an image").get_attribute("type") == "file"
    drawings = page.locator(".chart svg")
    assert drawings.count() == 4
    assert all(drawings.nth(i).get_attribute("aria-label") for i in range(4))
    assert page.get_attribute("#refusal", "role") == "alert"
    assert page.get_attribute("#spoken", "aria-live") == "polite"


def test_a_phone_in_the_dark_needs_no_sideways_scrolling(visit: Callable[..., Visit]) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "reduced_motion": "reduce"}
    visited = visit(MC, **phone, has_touch=True, is_mobile=True)
    visited.give("noise.raw", (GOLDEN / "noise.raw").read_bytes())
    visited.answer(source="noise.raw")
    page = visited.page
    assert page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]") == [360, 360]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 21, 27)"
    assert page.evaluate("getComputedStyle(document.querySelector('.fresh')).animationName") == "none"
    low = "nodes => nodes.filter((n) => n.offsetParent && n.getBoundingClientRect().height < 24).map((n) => n.id)"
    assert page.eval_on_selector_all("button, select, input:not(#file, #live), .button", low) == []


def test_the_camera_gives_pictures_until_it_is_closed(visit: Callable[..., Visit]) -> None:
    visited = visit(MC, *FAKE_CAMERA)
    page = visited.page
    page.click("#camera")
    page.wait_for_selector("#camera[aria-expanded=true]")
    page.click("#shoot")
    assert visited.answer(source="camera")["samples"] == 25
    page.check("#live")
    for _ in range(2):
        page.wait_for_selector("#answer[data-complete=false]")
        page.wait_for_selector("#answer[data-complete=true]")
    page.click("#camera")
    page.wait_for_selector("#camera[aria-expanded=false]")
    assert page.evaluate("document.getElementById('video').srcObject") is None
    assert not page.is_checked("#live")
    assert page.locator("#refusal").is_hidden()
    assert visited.complaints == []


def test_a_page_without_isolation_runs_with_one_thread(visit: Callable[..., Visit]) -> None:
    def plain(page: Any) -> None:
        def answer(route: Any) -> None:
            found = route.fetch()
            headers = {k: v for k, v in found.headers.items() if not k.startswith("cross-origin")}
            route.fulfill(status=found.status, headers=headers, body=found.body())

        page.route("**/*", answer)

    visited = visit(MC, change=plain)
    assert "WebAssembly, 1 thread)" in visited.page.inner_text("#about")

"""The answers of the browser page against the goldens, in a headless Chromium."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from helpers import port_cases
from helpers.web_page import ENSEMBLE, GATED, MC, Visit, damaged, golden_page, launch, playwright, serve, visit  # noqa: F401
from PIL import Image

from uce_edge import Model
from uce_edge.runtime.prediction import summarise

CASES = port_cases.CASES
PER_IMAGE = ("probabilities", "class_id", "uncertainty", "model_uncertainty", "standard_error", "error_probability")
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")


def compare(document: dict[str, Any], case: dict[str, Any], tolerance: float) -> None:
    """No number may be farther from the golden one."""
    assert document["seeds"] == (case["seeds"] or [0])
    decision = port_cases.decision_of(case)
    assert (document["label"], document["decision"], document["reason"]) == (case["label"], decision, case["reason"])
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


def test_the_page_shows_where_the_model_looked(golden_page: Callable[[str], Visit]) -> None:
    case = next(case for case in CASES if case["model"] == "digits-heatmap.onnx" and case["image"] == "digit-1.raw")
    page = golden_page(case["model"])
    page.set("samples", len(case["seeds"]))
    page.give(case["image"], (GOLDEN / case["image"]).read_bytes())
    document = page.answer(source=case["image"], samples=len(case["seeds"]), seed=0)
    for name in ("heatmap", "heatmap_spread"):  # of several calls, which the page makes to show passes as they come
        np.testing.assert_allclose(document[name], case["outputs"][name]["values"], atol=1e-4)
    assert page.page.is_visible("#heatmap")
    assert page.page.is_visible("#heatmap-spread")
    colours = page.page.evaluate(
        """() => {
          const { width, height } = document.getElementById("heatmap");
          const { data } = document.getElementById("heatmap").getContext("2d").getImageData(0, 0, width, height);
          let most = 0;
          for (let i = 0; i < data.length; i += 4) most = Math.max(most, data[i] - data[i + 2]);
          return most;
        }"""
    )
    assert colours > 50  # yellow, where the digit itself is gray


@pytest.mark.parametrize("case", CASES, ids=port_cases.case_id)
def test_the_page_gives_the_golden_answers(golden_page: Callable[[str], Visit], case: dict[str, Any]) -> None:
    page = golden_page(case["model"])
    samples, seed = (len(case["seeds"]), case["seeds"][0] // 4096) if case["seeds"] else (1, 0)
    if case["seeds"]:
        page.set("samples", samples)
        page.set("seed", seed)
    if case["model"] in port_cases.RULELESS:  # nothing is rejected but NaN
        page.set("threshold", 1)
    page.give(case["image"], (GOLDEN / case["image"]).read_bytes())
    document = page.answer(source=case["image"], samples=samples, seed=seed)
    compare(document, case, 1e-5)
    wanted = {name: output["values"] for name, output in case["outputs"].items()}
    port_cases.check_novelty(document, wanted)
    port_cases.check_set(document, wanted)
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


@pytest.mark.parametrize(("model", "members"), [(MC, 1), (ENSEMBLE, 2)])
def test_merged_calls_give_what_python_merges(golden_page: Callable[[str], Visit], model: str, members: int) -> None:
    page = golden_page(model)
    page.set("samples", 101)  # no multiple of what one call draws
    page.set("seed", 3)
    page.give("noise.raw", (GOLDEN / "noise.raw").read_bytes())
    document = page.answer(source="noise.raw", samples=101, seed=3)
    passes = np.array(document["pass_probabilities"], np.float32)
    assert passes.shape == (101 * members, 10)
    summary = summarise(passes[:, None], members)
    for name in ("probabilities", "uncertainty", "model_uncertainty", "standard_error"):
        np.testing.assert_allclose(np.array(document[name]), getattr(summary, name)[0], atol=1e-7)
    pixels = np.frombuffer((GOLDEN / "noise.raw").read_bytes(), np.uint8).reshape(1, 8, 8, 1)
    with pytest.warns(UserWarning, match="calibrated at 25"):
        wanted = Model(GOLDEN / model, "cpu").predict(pixels, samples=101, seed=3)
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
    assert not visited.page.is_visible("#latency")
    assert not visited.page.is_visible("#passes")
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
        const { OUTPUTS: outputs, REQUIRED: required } = page;
        const optional = [...page.OPTIONAL, ...page.MAPS];
        const { INFERENCE: inference, REASONS: reasons } = page;
        const decided = (c) => page.decide(page.ruleOf(c.threshold), { uncertainty: c.uncertainty ?? NaN, classId: 0 });
        const accepted = edges.accept.map((c) => decided(c) === 0);
        return { contract, max_samples, max_seed, outputs, optional, required, inference, reasons, accepted };
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

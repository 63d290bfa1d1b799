"""The browser page as people use it: pixels of any photo, refusals in one sentence, keyboard, phone and camera."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from helpers.web_page import MC, MOMENTS, Visit, damaged, edited, golden_page, launch, playwright, serve, visit  # noqa: F401
from PIL import Image

from uce_edge import Model
from uce_edge.images import loader
from uce_edge.metadata import ImageSpec

FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
ABOUT = json.loads((GOLDEN / "digits-mc.json").read_text())
SQUEEZED = {"resize": {"mode": "squeeze"}}
RULE = json.loads((GOLDEN / "digits-novelty.json").read_text())["rule"]


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
    wanted = loader.prepare(pixels, ImageSpec(to[1], to[0], channels, dtype))
    script = """async ([data, width, height, channels, to, whole]) => {
        const {resizeRows} = await import("/resize.js");
        const pixels = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
        const rows = (top, count) => pixels.subarray(top * width * channels, (top + count) * width * channels);
        return [...resizeRows(rows, {width, height, channels}, to, {exact: !whole, rowsAtOnce: 7})];
    }"""
    data = base64.b64encode(pixels.tobytes()).decode()
    shape = {"width": to[0], "height": to[1]}
    found = golden_page(MC).page.evaluate(script, [data, *size, channels, shape, dtype == "uint8"])
    if dtype == "uint8":
        # Pillow's versions differ in which pass they make first, and so in the last rounding.
        np.testing.assert_allclose(np.array(found).reshape(wanted.shape), wanted.astype(int), atol=1)
    else:
        np.testing.assert_allclose(np.array(found).reshape(wanted.shape), wanted, atol=1e-3)


@pytest.mark.parametrize("kind", ["colour", "transparent", "turned", "panorama"])
def test_a_photo_gives_the_pixels_that_python_gives(golden_page: Callable[[str], Visit], kind: str) -> None:
    data = photo(kind)
    page = golden_page(MOMENTS)
    page.give(f"{kind}.jpg", data)
    page.answer(source=f"{kind}.jpg")
    wanted = loader.load(data, Model(GOLDEN / MOMENTS, "cpu").metadata.image)
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


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (damaged("model.json", edited(contract=3)), "follows contract 3, and this page reads contract 2"),
        (damaged("model.json", edited(contract=1)), "Convert it: uce-edge export old.onnx --out new.onnx"),
        (damaged("model.json", edited(noise="input")), "takes its noise as inputs"),
        (damaged("model.json", edited(samples=0)), "its samples are 0"),
        (damaged("model.json", edited(image=ABOUT["image"] | SQUEEZED)), "its resize mode is squeeze"),
        (damaged("model.json", edited(rule=RULE)), "its rule needs the output novelty"),
        (damaged("model.json", edited(rule=RULE | {"score": "energy"})), "its rule compares energy"),
        (damaged("model.json", edited(rule=RULE | {"limits": [0, 1]})), "its rule has not one limit for every class"),
        (damaged("model.json", edited(rule=RULE, outputs=["novelty"])), "which is not contract 2"),
        (damaged("model.json", lambda data: data[:100]), "model.json is damaged"),
        (damaged("model.json", lambda data: b"{}"), "follows contract null"),
        (damaged("model.json", edited(image=ABOUT["image"] | {"height": 9})), "of another model than model.json"),
        (damaged("model.json", edited(inference="deterministic")), "which is not contract 2"),
        (damaged("model.onnx", lambda data: data[:-1] + b"x"), "its checksum is not the one the server tells"),
        (damaged("model.onnx", lambda data: data[:5000], drop_digest=True), "The model does not load"),
        (lambda page: page.route("**/model.onnx", lambda route: route.abort()), "the server does not answer"),
        (lambda page: page.route("**/vendor/**", lambda route: route.fulfill(status=404)), "The model does not load"),
    ],
    ids=[
        "contract",
        "contract-1",
        "noise",
        "samples",
        "resize",
        "no-novelty",
        "score",
        "limits",
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
    page.focus("#own-rule")
    page.keyboard.press("Space")
    assert page.is_checked("#own-rule")  # by which the noise may be accepted or rejected


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
    assert page.eval_on_selector_all("button, select, input:not(#file, #live, #own-rule), .button", low) == []


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

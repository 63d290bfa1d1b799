"""The pixel goldens in the browser: the files that it decodes, and those of plain pixels as PNG."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.port_frame_cases import CASES, FOLDER, NARROW, RESIZES, asking, photo, python_answer, wanted_of
from helpers.web_page import MC, Visit, golden_page, launch, playwright, serve, visit  # noqa: F401
from PIL import Image

SCRIPT = """async ([name, data, spec]) => {
    const { decode, fit } = await import("/pixels.js");
    const file = new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name);
    const bitmap = await decode(file, spec);
    return [...fit(bitmap, spec)];
}"""


READ = [case for case in CASES if not case["file"].endswith(".tif")]


def as_png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("case", READ, ids=lambda case: case["expected"])
def test_a_file_gives_the_golden_pixels(golden_page: Callable[[str], Visit], case: dict[str, Any]) -> None:
    path, plain = FOLDER / case["file"], case["file"].endswith((".ppm", ".pgm"))
    data = base64.b64encode(as_png(Image.open(path)) if plain else path.read_bytes()).decode()
    found = golden_page(MC).page.evaluate(SCRIPT, [case["file"], data, case])
    # A browser keeps the high byte of 16-bit gray, and may round what is half transparent otherwise.
    assert np.abs(np.array(found) - wanted_of(case).astype(int).ravel()).max() <= (0 if plain else 1)


@pytest.mark.parametrize("resize", RESIZES, ids=lambda resize: resize["mode"])
def test_a_photo_of_any_size_is_answered_as_python_does(
    visit: Callable[..., Visit], tmp_path: Path, resize: dict[str, Any]
) -> None:
    file = asking(tmp_path, resize)
    visited = visit(file)
    visited.give("photo.png", as_png(Image.fromarray(photo())))
    said, wanted = visited.answer(source="photo.png"), python_answer(file, photo())
    assert said["class_id"] == wanted.class_id
    np.testing.assert_allclose(said["probabilities"], wanted.probabilities, rtol=0, atol=1e-5)
    visited.give("thread.png", as_png(Image.new("L", (1, 20_000))))
    if resize["mode"] == "crop":
        assert f"The image is 1 x 20000 pixels, and would be 10 x 200000 {NARROW}" in visited.refusal()

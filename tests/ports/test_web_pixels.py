"""The pixel goldens in the browser: the files that it decodes."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from helpers.web_page import MC, Visit, golden_page, launch, playwright, serve  # noqa: F401

FOLDER = GOLDEN / "pixels"
CASES = [case for case in json.loads((FOLDER / "cases.json").read_text()) if case["file"].endswith((".png", ".jpg"))]
SCRIPT = """async ([name, data, spec]) => {
    const { decode, fit } = await import("/pixels.js");
    const file = new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name);
    const bitmap = await decode(file, spec);
    return [...fit(bitmap, spec)];
}"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["expected"])
def test_a_file_gives_the_golden_pixels(golden_page: Callable[[str], Visit], case: dict[str, Any]) -> None:
    spec = {key: case[key] for key in ("height", "width", "channels")}
    data = base64.b64encode((FOLDER / case["file"]).read_bytes()).decode()
    found = golden_page(MC).page.evaluate(SCRIPT, [case["file"], data, spec])
    expected = np.frombuffer((FOLDER / case["expected"]).read_bytes(), np.uint8)
    # A browser keeps the high byte of 16-bit gray, and may round what is half transparent otherwise.
    assert np.abs(np.array(found) - expected.astype(int)).max() <= 1

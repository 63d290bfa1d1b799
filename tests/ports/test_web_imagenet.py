"""The browser page with the default model: the answers of Python, soon after the page is there."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import re
import time
from collections.abc import Callable

import pytest
from conftest import ROOT
from helpers.web_page import Visit, launch, playwright, serve, visit  # noqa: F401

from uce_edge import Model
from uce_edge.models import bundled

PHOTOS = [ROOT / "examples" / "images" / name for name in ("cat.jpg", "bee.jpg", "page.jpg")]
MOST_SECONDS = 3.0


def test_the_first_answer_comes_soon_after_the_page_is_loaded(visit: Callable[..., Visit]) -> None:
    data, loads, answers = PHOTOS[0].read_bytes(), [], []
    for _ in range(3):  # a browser's cache belongs to its context, and every visit has its own
        started = time.perf_counter()
        visited = visit(bundled())
        loaded = time.perf_counter()
        visited.give(PHOTOS[0].name, data)
        visited.page.wait_for_selector(f"#answer[data-source='{PHOTOS[0].name}'][data-complete=true]")
        loads.append(loaded - started)
        answers.append(time.perf_counter() - loaded)
        assert re.fullmatch(r"1 pass, [\d.]+ m?s", visited.page.inner_text("#progress"))
        assert visited.page.is_hidden("#latency")  # a chart against N says nothing where N is always 1
    print("seconds to a loaded page", *(f"{taken:.2f}" for taken in loads))  # shown by pytest -rP
    print("seconds from there to the first answer", *(f"{taken:.2f}" for taken in answers))
    assert min(answers) < MOST_SECONDS


def test_the_default_model_answers_photos_as_python_does(visit: Callable[..., Visit]) -> None:
    visited, model = visit(bundled()), Model(None, "cpu")
    for path, wanted in zip(PHOTOS, model.predict(PHOTOS, reject="auto"), strict=True):
        visited.give(path.name, path.read_bytes())
        found = visited.answer(source=path.name)
        assert (found["label"], found["decision"], found["reason"]) == (wanted.label, wanted.decision, wanted.reason)
        assert found["set"] == list(wanted.label_set or ())
        for name in ("confidence", "uncertainty", "error_probability", "novelty"):
            # A browser decodes a JPEG with other rounding than Pillow.
            assert found[name] == pytest.approx(getattr(wanted, name), abs=0.02), name
    # Its rule compares the confidence: no part of the scale of the uncertainty is accepted.
    assert visited.page.locator("#gauge .zone").count() > 0
    assert visited.page.locator("#gauge .zone.accept").count() == 0
    assert visited.complaints == []

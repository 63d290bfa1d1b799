"""The browser page about out-of-distribution images and the rule of a file."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, ROOT
from helpers import port_cases
from helpers.pictures import no_photos
from helpers.web_page import GATED, MC, Visit, give_golden, golden_page, launch, playwright, serve, visit  # noqa: F401

from uce_edge.models import bundled, kinds

RULE = json.loads((GOLDEN / GATED).with_suffix(".json").read_text())["rule"]


def test_a_person_reads_why_an_image_is_rejected(visit: Callable[..., Visit]) -> None:
    visited = visit(GATED)
    page = visited.page
    give_golden(visited, "black")
    assert page.inner_text("#headline") == "Rejected: unlike anything it was calibrated on"
    said = page.inner_text("#reason")
    assert "Only 0.7\u00a0% of the calibration images are at least this unusual" in said
    assert "and at 1.1\u00a0% or less an image is out of distribution." in said
    assert "But for that, it would be 1: its uncertainty, 0.163, is not above the threshold, 0.207." in said
    assert page.inner_text("#novelty") == "0.7\u00a0%"
    assert page.inner_text("#novelty-view dd") == "0.7\u00a0% of the calibration images are at least this unusual"
    assert page.inner_text("#record #novelty-score") == "655.7"  # `give_golden` opened all numbers
    assert page.inner_text("dd:has(#error-probability)") == "15.1\u00a0% if it were in-distribution"
    spoken = page.locator("#spoken").inner_text()
    assert spoken.startswith("Rejected: unlike anything it was calibrated on. Best guess 1, ")
    give_golden(visited, "stripes")
    assert page.inner_text("#headline") == "Rejected: unlike anything it was calibrated on"
    assert "Besides, its uncertainty, 0.398, is above the threshold, 0.207." in page.inner_text("#reason")
    give_golden(visited, "two-digits")
    assert page.inner_text("#headline") == "Rejected: the model does not know"
    assert page.inner_text("#reason").startswith(
        "The image is like what the model was calibrated on, but its uncertainty"
    )
    give_golden(visited, "digit-0")
    assert page.is_hidden("#error-supposed")
    assert page.inner_text("#headline") == "Accepted: 3"
    assert page.inner_text("#reason").startswith(
        "The image is like what the model was calibrated on, and its uncertainty"
    )
    assert visited.complaints == []


def test_a_threshold_of_ones_own_replaces_the_rule(visit: Callable[..., Visit]) -> None:
    visited = visit(GATED)
    page = visited.page
    assert "at most 2.2\u00a0% of the images like those" in page.inner_text("#own-rule-note")
    assert "At most 1.5\u00a0% of the accepted images are wrong" in page.inner_text("#own-rule-note")
    give_golden(visited, "black")
    visited.set("threshold", 0.5)
    document = visited.answer(state="accept")
    assert not page.is_checked("#own-rule")
    assert (document["reason"], document["threshold"], document["cutoff"]) == (None, 0.5, None)
    assert document["novelty"] == pytest.approx(1 / 136)
    visited.set("threshold", 0.01)
    assert visited.answer(reason="uncertain")["threshold"] == 0.01
    page.check("#own-rule")
    document = visited.answer(reason="out-of-distribution")
    assert (document["threshold"], document["cutoff"]) == (RULE["limits"][0], RULE["cutoff"])


def test_a_file_without_novelty_shows_nothing_of_it(golden_page: Callable[[str], Visit]) -> None:
    visited = golden_page(MC)
    document = give_golden(visited, "black")
    assert [document[name] for name in ("novelty", "novelty_score", "cutoff")] == [None, None, None]
    assert visited.page.locator("#novelty-view").is_hidden()
    assert visited.page.locator("#novelty-score-view").is_hidden()
    assert visited.page.inner_text("#reason").startswith("Its uncertainty, ")


def test_a_file_without_a_rule_takes_a_threshold(golden_page: Callable[[str], Visit]) -> None:
    visited = golden_page("digits-rule-none.onnx")
    document = give_golden(visited, "black")
    assert (document["threshold"], document["cutoff"]) == (0.3, None)
    assert visited.page.locator("#own-rule-setting").is_hidden()


@pytest.mark.parametrize("kind", ["confidence", "classes", "cutoff", "all"])
def test_every_kind_of_rule_is_drawn_and_explained(golden_page: Callable[[str], Visit], kind: str) -> None:
    visited = golden_page(f"digits-rule-{kind}.onnx")
    document = give_golden(visited, "two-digits")
    assert document["threshold"] == (pytest.approx(0.5) if kind == "classes" else None) or document["threshold"] == -1
    assert visited.page.inner_text("#reason")
    assert visited.complaints == []


def test_a_novelty_that_is_not_a_number_is_out_of_distribution(visit: Callable[..., Visit], tmp_path: Path) -> None:
    def damage(graph: Any) -> None:
        port_cases.not_a_number(graph, "novelty.weights")

    visited = visit(port_cases.variant(tmp_path, graph=damage, source=GOLDEN / GATED))
    document = give_golden(visited, "digit-0")
    assert (document["novelty"], document["reason"]) == (None, "out-of-distribution")
    assert visited.page.inner_text("#novelty-view dd") == "not a number"
    assert "is not a number, and at 1.1\u00a0% or less an image is out of distribution" in visited.page.inner_text(
        "#reason"
    )


@pytest.mark.parametrize("kind", kinds("cifar10"))
def test_the_bundled_file_rejects_what_is_no_photo_and_not_all_photos(visit: Callable[..., Visit], kind: str) -> None:
    visited = visit(bundled(kind, "cifar10"))
    for what, frames in no_photos().items():
        visited.give(f"{what}.raw", frames[0].tobytes())
        assert visited.answer(source=f"{what}.raw")["reason"] in ("out-of-distribution", "both"), what
        assert visited.page.inner_text("#headline") == "Rejected: unlike anything it was calibrated on"
    decisions = set()
    for path in sorted((ROOT / "tests" / "cifar").glob("*.png")):
        visited.give(path.name, path.read_bytes())
        decisions.add(visited.answer(source=path.name)["decision"])
    assert decisions == {"accept", "reject"}

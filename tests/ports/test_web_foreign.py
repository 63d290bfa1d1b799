"""What the browser page says of images that are unlike anything the model was calibrated on."""

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

from uce_edge.models import BUNDLED, bundled

RULE = json.loads((GOLDEN / GATED).with_suffix(".json").read_text())["rule"]


def test_a_person_is_told_what_is_foreign(visit: Callable[..., Visit]) -> None:
    visited = visit(GATED)
    page = visited.page
    give_golden(visited, "black")
    assert page.inner_text("#headline") == "Rejected: unlike anything it was calibrated on"
    said = page.inner_text("#reason")
    assert "Only 0.7\u00a0% of the images that the model was calibrated on are as far away" in said
    assert "and what has 1.1\u00a0% or less is foreign." in said
    assert "But for that, it would be 1: its uncertainty, 0.163, is not above the threshold, 0.207." in said
    assert page.inner_text("#novelty") == "0.7\u00a0%"
    assert page.inner_text("#novelty-score") == "distance 656"
    assert page.inner_text("#error-probability") == "15.1\u00a0% if it were familiar"
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
    assert visited.answer(reason="foreign")["threshold"] == RULE["uncertain"]["threshold"]


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
    assert visited.page.inner_text("#novelty") == "not a number"
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

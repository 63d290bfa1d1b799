"""The reject rule: what it accepts, and what it says about it. One table for all kinds."""

from dataclasses import replace

import numpy as np
import pytest

from uce_edge.contract import RuleScore
from uce_edge.errors import UsageError
from uce_edge.rejection import description
from uce_edge.rejection.promises import ClassPromise, ErrorPromise, NoveltyGuarantee
from uce_edge.rejection.rule import REASONS, Code, Decision, Reason, RejectRule, threshold_rule

GATE = NoveltyGuarantee(0.02, 0.95, 135, data="")
PROMISE = ErrorPromise(0.05, 0.95, 0.049, 0.03, 0.8, 80, 100, samples=25, seed=0, data="")
UNCERTAINTY, CONFIDENCE = RuleScore.UNCERTAINTY, RuleScore.CONFIDENCE
NAN, EDGE = np.float32(np.nan), np.float32(0.3)
ABOVE, BELOW = np.nextafter(EDGE, np.float32(1)), np.nextafter(EDGE, np.float32(0))

RULES = {
    "nothing": RejectRule(),
    "uncertainty": RejectRule(limits=(0.3,)),
    "confidence": RejectRule(CONFIDENCE, (0.25,)),
    "classes": RejectRule(limits=(0.3, -1.0)),
    "cutoff": RejectRule(cutoff=0.01, gate=GATE),
    "both": RejectRule(limits=(0.3,), cutoff=0.01, gate=GATE),
    "all": RejectRule(CONFIDENCE, (0.25, 0.5), 0.01, gate=GATE),
}
CASES = [
    # kind, uncertainty, probabilities, novelty, code
    ("nothing", 1.0, (0.5, 0.5), 0.5, 0),
    ("nothing", NAN, (0.5, 0.5), 0.5, 1),
    ("uncertainty", EDGE, (0.9, 0.1), 0.0, 0),
    ("uncertainty", ABOVE, (0.9, 0.1), 0.0, 1),
    ("uncertainty", BELOW, (0.9, 0.1), 0.0, 0),
    ("uncertainty", NAN, (0.9, 0.1), 0.0, 1),
    ("confidence", 0.9, (0.75, 0.25), 0.0, 0),
    ("confidence", 0.1, (np.nextafter(np.float32(0.75), np.float32(0)), 0.25), 0.0, 1),
    ("confidence", 0.1, (NAN, NAN), 0.0, 1),
    ("classes", EDGE, (0.9, 0.1), 0.0, 0),
    ("classes", 0.0, (0.1, 0.9), 0.0, 1),
    ("cutoff", 1.0, (0.5, 0.5), np.float32(0.01), 2),
    ("cutoff", 1.0, (0.5, 0.5), np.nextafter(np.float32(0.01), np.float32(1)), 0),
    ("cutoff", NAN, (0.5, 0.5), 0.5, 1),
    ("cutoff", 0.5, (0.5, 0.5), NAN, 2),
    ("both", 0.2, (0.9, 0.1), 0.5, 0),
    ("both", 0.4, (0.9, 0.1), 0.5, 1),
    ("both", 0.2, (0.9, 0.1), 0.001, 2),
    ("both", 0.4, (0.9, 0.1), 0.001, 3),
    ("all", 0.0, (0.4, 0.6), 0.5, 0),
    ("all", 0.0, (0.6, 0.4), 0.5, 1),
    ("all", 0.0, (0.6, 0.4), 0.0, 3),
]


@pytest.mark.parametrize(("kind", "uncertainty", "probabilities", "novelty", "code"), CASES)
def test_every_kind_of_rule_decides_as_the_table_says(
    kind: str, uncertainty: float, probabilities: tuple[float, ...], novelty: float, code: int
) -> None:
    given = (
        np.array([uncertainty], np.float32),
        np.array([probabilities], np.float32),
        np.array([novelty], np.float32),
    )
    (decided,) = RULES[kind].decide(*given)
    assert decided == code
    assert RULES[kind].accept(*given).tolist() == [code == Code.ACCEPT]


@pytest.mark.parametrize(
    ("kind", "class_id", "reason", "words"),
    [
        ("uncertainty", 0, None, "its uncertainty is at most 0.3"),
        ("uncertainty", 0, Reason.UNCERTAIN, "its uncertainty is above 0.3"),
        ("confidence", 0, None, "its confidence is at least 75 %"),
        ("confidence", 0, Reason.UNCERTAIN, "its confidence is below 75 %"),
        ("classes", 0, None, "its uncertainty is at most 0.3, the limit for cat"),
        ("classes", 1, Reason.UNCERTAIN, "nothing that is labelled dog is accepted"),
        ("cutoff", 0, None, "like what it was calibrated on"),
        ("cutoff", 0, Reason.OUT_OF_DISTRIBUTION, "unlike anything it was calibrated on"),
        ("both", 0, None, "like what it was calibrated on, and its uncertainty is at most 0.3"),
        ("both", 0, Reason.BOTH, "unlike anything it was calibrated on, and its uncertainty is above 0.3"),
        ("all", 1, Reason.UNCERTAIN, "its confidence is below 50 %, the limit for dog"),
    ],
)
def test_the_grounds_of_a_decision_in_words(kind: str, class_id: int, reason: Reason | None, words: str) -> None:
    assert description.why(RULES[kind], class_id, ("cat", "dog")[class_id], reason) == words


@pytest.mark.parametrize(
    ("kind", "reason", "words"),
    [
        ("uncertainty", Reason.UNCERTAIN, "above 0.3"),
        ("confidence", Reason.UNCERTAIN, "confidence below 75 %"),
        ("classes", Reason.UNCERTAIN, "above 0.3, the limit for cat"),
        ("both", Reason.BOTH, "unlike anything it was calibrated on, and uncertainty above 0.3"),
    ],
)
def test_a_row_of_a_table_has_the_grounds_in_brief(kind: str, reason: Reason, words: str) -> None:
    assert description.why(RULES[kind], 0, "cat", reason, brief=True) == words


@pytest.mark.parametrize(
    ("kind", "decision", "ood", "title"),
    [
        ("nothing", None, False, "3 images"),
        ("uncertainty", Decision.REJECT, False, "3 uncertain: uncertainty above 0.3"),
        ("confidence", Decision.ACCEPT, False, "3 accepted: confidence at least 75 %"),
        ("classes", Decision.REJECT, False, "3 uncertain: uncertainty above the limit of the label"),
        ("both", Decision.REJECT, True, "3 out of distribution: unlike anything it was calibrated on"),
        ("both", Decision.ACCEPT, False, "3 accepted: uncertainty at most 0.3"),
    ],
)
def test_the_title_of_a_group(kind: str, decision: Decision | None, ood: bool, title: str) -> None:
    assert description.title(RULES[kind], decision, 3, ood=ood) == title


@pytest.mark.parametrize(
    ("kind", "class_id", "columns"),
    [
        ("nothing", 0, (None, None, None)),
        ("uncertainty", 0, (0.3, None, None)),
        ("uncertainty", None, (0.3, None, None)),
        ("confidence", 0, (None, None, 0.25)),
        ("classes", 1, (-1.0, None, None)),
        ("classes", None, (None, None, None)),
        ("all", 1, (None, 0.01, 0.5)),
    ],
)
def test_answers_tell_what_was_compared(kind: str, class_id: int | None, columns: tuple[float | None, ...]) -> None:
    assert tuple(RULES[kind].columns(class_id).values()) == columns


def test_a_threshold_of_ones_own_is_one_limit_on_the_uncertainty() -> None:
    assert threshold_rule(0.3) == RULES["uncertainty"]
    assert not threshold_rule(None).decides
    with pytest.raises(UsageError):
        threshold_rule(1.5)


def test_reasons_follow_the_codes() -> None:
    assert [REASONS[code] for code in Code] == [None, *Reason]


def test_a_description_has_both_promises() -> None:
    told = description.describe(replace(RULES["both"], promise=PROMISE), ("cat", "dog"))
    assert "At most 2.0 % of the images that are like those of the calibration" in told
    assert "at most 5.0 % are wrong, with 95 % confidence" in told
    assert "No error is promised" in description.describe(RULES["cutoff"], ("cat", "dog"))
    each = ClassPromise(0.05, 0.049, 0.03, 0.8, 40, 50)
    never = ClassPromise(0.01, 1.0, None, 0.0, 0, 50)
    classes = replace(PROMISE, classes=(each, never), tested=2)
    told = description.describe(replace(RULES["classes"], promise=classes), ("cat", "dog"))
    assert "cat: accepted up to an uncertainty of 0.3" in told
    assert "dog: always rejected" in told


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cutoff": 0.0}, "cutoff"),
        ({"cutoff": 1.5}, "cutoff"),
        ({"limits": (1.5,)}, "limits"),
        ({"limits": ()}, "limits"),
        ({"gate": None}, "gate"),
        ({"score": "energy"}, "score"),
        ({"limits": None, "promise": PROMISE}, "limits"),
    ],
    ids=str,
)
def test_a_rule_that_makes_no_sense_is_refused(change: dict[str, object], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(RULES["both"], **change)
    assert f"`{field}" in str(caught.value)


@pytest.mark.parametrize("change", [{"level": 1}, {"confidence": 0}, {"images": 0}], ids=str)
def test_a_promise_that_makes_no_sense_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        replace(GATE, **change)
    assert f"`{next(iter(change))}`" in str(caught.value)


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_survives_its_document(kind: str) -> None:
    assert RejectRule.from_document(RULES[kind].to_document()) == RULES[kind]

"""The contract: its comparisons, its page and its golden file."""

import json
import re
import runpy

import numpy as np
import pytest
from conftest import GOLDEN, ROOT

from uce_edge import contract
from uce_edge.contract import Merge, Per
from uce_edge.rejection.rule import is_out_of_distribution, within

SMALLEST_ABOVE = np.nextafter(np.float32(0.3), np.float32(1))


@pytest.mark.parametrize(
    ("uncertainty", "threshold", "accepted"),
    [
        (np.float32(0.3), 0.3, True),  # 0.3 as a float32 is larger than as a float64
        (SMALLEST_ABOVE, 0.3, False),
        (0.3, np.float32(0.3), True),
        (0.0, 0.0, True),
        (1.0, 1.0, True),
        (np.nan, 1.0, False),
        (0.0, np.nan, False),
    ],
)
def test_an_answer_is_accepted_up_to_the_threshold_in_float32(
    uncertainty: float, threshold: float, accepted: bool
) -> None:
    assert within(uncertainty, threshold) == accepted


def test_a_batch_is_accepted_image_by_image() -> None:
    values = np.array([0.1, 0.3, 0.5, np.nan], np.float32)
    assert within(values, 0.3).tolist() == [True, True, False, False]


def test_an_image_is_out_of_distribution_up_to_the_cutoff_and_when_it_is_not_a_number() -> None:
    values = np.array([0.0, 0.01, 0.02, np.nan], np.float32)
    assert is_out_of_distribution(values, 0.01).tolist() == [True, True, False, True]


def test_contract_json_is_what_the_contract_says() -> None:
    made = runpy.run_path(str(GOLDEN / "make.py"))["contract_document"]()
    kept = json.loads((GOLDEN / "contract.json").read_text())
    assert kept == json.loads(json.dumps(made)), "it is stale: python tests/golden/make.py contract"


def test_the_golden_edges_of_the_accept_rule_are_kept() -> None:
    cases = json.loads((GOLDEN / "contract.json").read_text())["accept"]
    assert {case["accepted"] for case in cases} == {True, False}
    for case in cases:
        uncertainty = np.nan if case["uncertainty"] is None else case["uncertainty"]
        assert within(uncertainty, case["threshold"]) == case["accepted"], case


def test_optional_outputs_come_last() -> None:
    names = [output.name for output in contract.OUTPUTS]
    assert len(set(names)) == len(names)
    required = [output.required for output in contract.OUTPUTS]
    assert required == sorted(required, reverse=True)
    for output in contract.OUTPUTS:
        assert (output.per is Per.PASS) == (output.merge is Merge.CONCATENATED)


def test_the_page_about_the_contract_has_the_table_of_outputs() -> None:
    text = (ROOT / "docs" / "contract.md").read_text()
    section = text[text.index("\n## Outputs") : text.index("To merge calls")]
    row = r"^\| `(\w+)` \| (\w+) `\[(.*)\]` \| (every file|optional)[^|]*\| (.+?) \|"
    rows = re.findall(row, section, re.MULTILINE)
    assert rows == [
        (
            output.name,
            output.dtype,
            ", ".join(output.dimensions),
            "every file" if output.required else "optional",
            output.merge,
        )
        for output in contract.OUTPUTS
    ]
    assert f"version {contract.VERSION}" in text.splitlines()[0]

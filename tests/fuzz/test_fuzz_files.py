"""Damaged files end in a sentence: no crash, no other exception, no hang, no memory beyond a limit.

`make fuzz` reads UCE_EDGE_FUZZ times as many damaged files as `make test`.
"""

import contextlib
import itertools
import json
import os
import sys
import warnings

import pytest
from damage import damaged, wrong_values
from fuzzing import fuzz
from targets import TARGETS

from uce_edge.errors import UceEdgeError

LONG = int(os.environ.get("UCE_EDGE_FUZZ", "0"))
FIRST = int(os.environ.get("UCE_EDGE_FUZZ_FIRST", "0"))
_BATCH = 2000  # a process of its own for so many: what one file leaves behind must not spoil a hundred thousand

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")


@pytest.mark.parametrize(
    ("kind", "few", "most"),
    [
        ("images", 300, 100),
        ("medical", 100, 100),
        ("models", 60, 200),
        ("ort", 60, 200),
        ("archives", 200, 100),
        ("logs", 25, 50),
        ("states", 100, 20),
        ("manifests", 60, 20),
        ("continued", 100, 20),
    ],
)
def test_a_damaged_file_is_read_or_refused(kind: str, few: int, most: int) -> None:
    """And takes at most so many megabytes."""
    check(kind, few, most)


def test_a_damaged_third_party_graph_is_exported_or_refused() -> None:
    pytest.importorskip("onnx_ir", reason="exporting needs onnx-ir")
    check("third-party", 60, 300)


def test_a_damaged_list_of_names_is_read_or_refused() -> None:
    here("names") if not LONG else check("names", 200, 10)


def test_a_hostile_name_is_one_harmless_line() -> None:
    here("hostile", "as it is") if not LONG else check("hostile", 500, 10)


RAW = {
    "nesting": b'{"a": ' * 100_000,
    "a long number": b'{"line": ' + b"9" * 5000 + b"}",
    "no UTF-8": b"\xff\xfe\x00",
    "half a character": b'{"path": "\\ud800", "model_sha256": "\\ud800"}',
    "NaN": b'{"line": NaN}',
    "zeros": bytes(1000),
    "no object": b"[]",
    "a hash of nothing": b'{"x": 1, "line_sha256": "' + b"0" * 64 + b'"}',
    "a line longer than any": b'{"a": "' + b"x" * (1 << 25) + b'"}',
}


@pytest.mark.filterwarnings("ignore:this model was calibrated")
@pytest.mark.parametrize("what", RAW)
def test_a_hostile_line_is_told_and_the_others_are_computed(what: str) -> None:
    log, _, bare, _ = TARGETS["logs"].corpus()
    assert TARGETS["logs"].read(log) == "the same"
    for text in (log + RAW[what], RAW[what] + b"\n" + log, bare + RAW[what] + b"\n"):
        assert TARGETS["logs"].read(text) == "changed"
        with pytest.raises(UceEdgeError):
            TARGETS["continued"].read(log + RAW[what] + b"\n")


def test_a_damaged_description_of_a_run_is_read_or_refused() -> None:
    pytest.importorskip("torch", reason="torch is not installed, and runs are read with it")
    # A process of its own would import torch for seconds.
    here("runs") if not LONG else check("runs", 200, 100)


def test_a_damaged_file_of_tensors_is_read_or_refused() -> None:
    pytest.importorskip("torch", reason="torch is not installed, and reads them")
    here("tensors") if not LONG else check("tensors", 100, 200)


def here(kind: str, word: str = "read") -> None:
    """A few files in this process, whose readers are Python alone."""
    target, read = TARGETS[kind], 0
    corpus = target.corpus()
    for number in range(FIRST, FIRST + 200):
        with contextlib.suppress(UceEdgeError):
            read += target.read(damaged(corpus, number)) == word
    assert 0 < read < 200


@pytest.mark.parametrize(("kind", "step"), [("runs", 3), ("logs", 60), ("states", 15)])
def test_a_value_of_the_wrong_type_is_told_or_told_apart(kind: str, step: int) -> None:
    """Every key of the document, and every wrong value; of slow readers, a part of them."""
    if kind == "runs":
        pytest.importorskip("torch", reason="torch is not installed, and runs are read with it")
    target, tried = TARGETS[kind], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = target.corpus()[0 if kind == "states" else 1]
        documents = wrong_values(json.loads(text.splitlines()[0] if kind == "logs" else text))
        for document in itertools.islice(documents, 0, None, 1 if LONG else step):
            tried += 1
            with contextlib.suppress(UceEdgeError):
                target.read(json.dumps(document).encode() + b"\n")
    print(f"{kind}: {tried} documents with one wrong value")
    assert tried > 5


def check(kind: str, few: int, most: int) -> None:
    totals: dict[str, int] = {}
    peak, wanted = 0, few * (LONG or 1)
    for first in range(FIRST, FIRST + wanted, _BATCH):
        outcome = fuzz(kind, first, min(_BATCH, FIRST + wanted - first))
        assert outcome.failure is None, outcome.failure
        totals = {word: totals.get(word, 0) + outcome.counts.get(word, 0) for word in totals | outcome.counts}
        peak = max(peak, outcome.peak)
    print(f"{kind}: {wanted} damaged files from number {FIRST}: {totals}, at most {peak} MB")
    assert sum(totals.values()) == wanted
    assert len(totals) > 1, "all ended alike: damage was too small, or nothing behind the first check was tried"
    assert peak <= most

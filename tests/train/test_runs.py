"""`run.json`: written as ever, and checked when it is read."""

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.errors import raises
from uce_edge.contract import Method
from uce_edge.rejection.promises import Promise
from uce_edge_train.choices import Arithmetic, Optimiser, Rates, Schedule
from uce_edge_train.runs import Run

DOCUMENT: dict[str, Any] = {
    "data": "digits",
    "root": None,
    "recipe": {
        "arch": "resnet8",
        "stem": "cifar",
        "p": 0.2,
        "rates": "layer",
        "epochs": 20,
        "batch_size": 64,
        "optimiser": "sgd",
        "schedule": "one-cycle",
        "learning_rate": 0.01,
        "weight_decay": 0.01,
        "penalty": 0.0,
        "shift": None,
        "flip": False,
        "erase": 0.0,
        "clip": None,
        "patience": 5,
        "precision": "bfloat16",
        "channels_last": True,
        "seed": 0,
    },
    "class_names": ["0", "1"],
    "image": {
        "height": 8, "width": 8, "channels": 1, "dtype": "uint8", "scale": 255.0, "mean": [0.3], "std": [0.4]
    },
    "split_hashes": {"train": "aa", "calibration": "bb", "guarantee": "cc", "test": "dd"},
    "trained_on": {"one_in": 1, "blake2b_64": base64.b64encode(bytes(range(16))).decode()},
    "rates": {"blocks.0.conv1": 0.2, "classifier": 0.05},
    "metrics": {"epochs": 20, "train_nll": 0.25, "held_out_nll": 0.125, "held_out_accuracy": 1.0},
    "calibration": {
        "method": "temperature",
        "parameters": {"temperature": [0.75]},
        "samples": 25,
        "report": {
            "images": 270,
            "nll_of_chance": 0.693147,
            "nll_before": 0.08,
            "nll_after": 0.07,
            "label_flips": 1,
            "accuracy_before": 0.977778,
            "accuracy_after": 0.974074,
            "rates_tuned": True,
        },
        "error": [0.1, 1.0, 0.5],
    },
    "tuned_rates": {"blocks.0.conv1": 0.1, "classifier": 0.05},
    "promise": {"target_error": 0.05, "confidence": 0.95},
    "tools": {"uce_edge": "0.1.0", "torch": "2.13.0", "device": "cpu", "processes": "1"},
}  # fmt: skip


def written(folder: Path, document: object) -> Path:
    text = document if isinstance(document, bytes) else (json.dumps(document, indent=2) + "\n").encode()
    (folder / "run.json").write_bytes(text)
    return folder


def changed(key: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    *places, last = key.split(".")
    inner = document
    for place in places:
        inner = inner[place]
    inner[last] = value
    return document


def test_a_run_is_written_back_byte_for_byte(tmp_path: Path) -> None:
    run = Run.load(written(tmp_path, DOCUMENT))
    before = (tmp_path / "run.json").read_bytes()
    run.save(tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before
    assert (run.recipe.rates, run.recipe.optimiser) == (Rates.LAYER, Optimiser.SGD)
    assert (run.recipe.schedule, run.recipe.precision) == (Schedule.ONE_CYCLE, Arithmetic.BFLOAT16)
    assert run.calibration.method is Method.TEMPERATURE
    assert run.promise == Promise(0.05)


def test_an_uncalibrated_run_is_written_back_byte_for_byte(tmp_path: Path) -> None:
    empty = {"method": "none", "parameters": {}, "samples": None, "report": {}, "error": None}
    run = Run.load(written(tmp_path, DOCUMENT | {"calibration": empty, "tuned_rates": None, "promise": None}))
    before = (tmp_path / "run.json").read_bytes()
    run.save(tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_run_without_later_keys_loads_and_unknown_ones_are_ignored(tmp_path: Path) -> None:
    later = ("metrics", "calibration", "tuned_rates", "promise", "tools")
    document = {key: value for key, value in DOCUMENT.items() if key not in later} | {"unknown": 1}
    document["recipe"] = {"arch": "resnet8", "p": 0.1, "unknown": 1}
    run = Run.load(written(tmp_path, document))
    assert (run.metrics, run.promise, run.calibration.report) == (None, None, None)
    assert (run.recipe.p, run.recipe.epochs) == (0.1, 20)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("recipe.epochs", 0, "an integer of at least 1"),
        ("recipe.epochs", "20", "an integer of at least 1"),
        ("recipe.learning_rate", -1, "a number above 0"),
        ("recipe.precision", "fp16", "one of float32, bfloat16, float16"),
        ("recipe.flip", 1, "true or false"),
        ("recipe", [], "an object"),
        ("class_names", ["0"], "a list of at least 2 names"),
        ("image.height", 0, "an integer of at least 1"),
        ("rates.classifier", 1.5, "a number strictly between 0 and 1"),
        ("tuned_rates.classifier", "0.2", "a number strictly between 0 and 1"),
        ("trained_on.one_in", 0, "an integer of at least 1"),
        ("promise.target_error", 5, "a number strictly between 0 and 1"),
        ("promise.confidence", True, "a number strictly between 0.5 and 1"),
        ("calibration.samples", 0, "an integer between 1 and 4096"),
        ("metrics.held_out_accuracy", 2, "a number between 0 and 1"),
        ("split_hashes", None, "an object"),
        ("data", 3, "text"),
    ],
)
def test_a_damaged_value_is_refused_by_name(tmp_path: Path, key: str, value: object, rule: str) -> None:
    with raises("run.unreadable") as caught:
        Run.load(written(tmp_path, changed(key, value)))
    fields = caught.value.fields
    assert (fields["argument"], fields["rule"], fields["value"]) == (key, rule, value)
    assert str(tmp_path / "run.json") in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b"[" * 100_000, b'{"data": "\xff\xfe"}'],
    ids=["nothing", "list", "deep", "bytes"],
)
def test_a_file_that_is_no_document_is_refused(tmp_path: Path, content: bytes) -> None:
    with raises("run.unreadable"):
        Run.load(written(tmp_path, content))


def test_infinite_numbers_and_missing_keys_are_refused_by_name(tmp_path: Path) -> None:
    with raises("run.unreadable") as caught:
        Run.load(written(tmp_path, changed("metrics.train_nll", float("nan"))))
    assert caught.value.fields["argument"] == "metrics.train_nll"
    without = {key: value for key, value in DOCUMENT.items() if key != "rates"}
    with raises("run.unreadable") as caught:
        Run.load(written(tmp_path, without))
    assert caught.value.fields["argument"] == "rates"

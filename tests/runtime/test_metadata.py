"""What a file says of itself is checked when it is read, and written back as it was."""

import copy
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.errors import raises

from uce_edge import contract
from uce_edge.contract import Inference, Method, NoiseKind, Precision
from uce_edge.errors import ModelFileError, UsageError
from uce_edge.metadata import Calibration, CalibrationReport, Costs, Hashes, ImageSpec, Metadata
from uce_edge.models import bundled, kinds
from uce_edge.rejection.promises import ErrorPromise, HeldOut, Promise
from uce_edge.runtime.model import Model

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
CONTRACT_1 = "digits-minor-0"
"""A file of contract 1, which is read and not written."""
FILES = [
    *sorted(set(GOLDEN.glob("digits-*.onnx")) - {GOLDEN / f"{CONTRACT_1}.onnx"}),
    *(bundled(kind, "cifar10") for kind in kinds("cifar10")),
]
DOCUMENT: dict[str, Any] = json.loads((GOLDEN / "digits-moments.json").read_text())
LEAST = {
    "contract": 2,
    "classes": ["cat", "dog"],
    "image": {"height": 8, "width": 6, "channels": 3},
    "inference": "mc",
    "samples": 25,
}


def text_of(path: Path) -> str:
    """The document inside a model file."""
    return next(entry.value for entry in onnx.load(path).metadata_props if entry.key == contract.KEY)


def read(document: Any) -> Metadata:
    text = document if isinstance(document, str) else json.dumps(document)
    return Metadata.from_properties({contract.KEY: text}, "m.onnx")


def changed(key: str, value: object) -> dict[str, Any]:
    """The document with one value replaced, which a path such as `layers.0.p` names."""
    document = copy.deepcopy(DOCUMENT)
    *places, last = key.split(".")
    inner: Any = document
    for place in places:
        inner = inner[int(place) if isinstance(inner, list) else place]
    inner[int(last) if isinstance(inner, list) else last] = value
    return document


# As before


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_written_back_byte_for_byte(path: Path) -> None:
    text = text_of(path)
    assert Metadata.from_properties({contract.KEY: text}, path.name).to_json() == text


@pytest.mark.parametrize("path", [path for path in FILES if path.parent == GOLDEN], ids=lambda path: path.stem)
def test_a_description_is_written_back_byte_for_byte(path: Path) -> None:
    text = path.with_suffix(".json").read_text()
    assert read(text).to_json(indent=2) + "\n" == text


def test_empty_records_stay_empty_objects() -> None:
    document = json.loads(read(LEAST).to_json())
    assert document["costs"] == document["trained_on"] == document["hashes"] == document["metrics"] == {}
    assert document["calibration"] == {"error": None, "method": "none", "parameters": {}, "report": {}, "samples": None}
    assert document["held_out"] is None
    assert "rule" not in document
    assert read(document) == read(LEAST)


@pytest.mark.parametrize("key", sorted(set(DOCUMENT) - set(Metadata.REQUIRED)))
def test_a_file_without_an_optional_key_loads(key: str) -> None:
    document = {name: value for name, value in DOCUMENT.items() if name != key}
    assert getattr(read(document), key) == getattr(read(LEAST), key)


@pytest.mark.parametrize("key", Metadata.REQUIRED)
def test_a_file_without_a_required_key_is_refused(key: str) -> None:
    with raises("metadata.version" if key == "contract" else "metadata.incomplete", ModelFileError):
        read({name: value for name, value in DOCUMENT.items() if name != key})


def test_what_older_versions_did_not_write_is_unknown() -> None:
    document = copy.deepcopy(DOCUMENT)
    del document["costs"]["bytes_per_pass"]
    for name in ("nll_of_chance", "accuracy_before", "accuracy_after"):
        del document["calibration"]["report"][name]
    metadata = read(document)
    assert metadata.costs == Costs(1516544, 1280, None)
    assert metadata.calibration.outcome.nll_of_chance is None
    assert not metadata.calibration.outcome.near_chance
    assert json.loads(metadata.to_json()) == document


def test_keys_of_later_versions_are_ignored() -> None:
    def grown(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: grown(inner) for name, inner in value.items()} | {"later": [1, {"more": None}]}
        return [grown(inner) for inner in value] if isinstance(value, list) else value

    document = copy.deepcopy(DOCUMENT)
    for key in ("image", "calibration", "rule", "held_out", "costs", "trained_on", "hashes", "layers"):
        document[key] = grown(document[key])
    # These are named by the user: every key of theirs counts.
    document["calibration"]["parameters"].pop("later")
    document["hashes"]["splits"].pop("later")
    assert read(document | {"later": 1}) == read(DOCUMENT)


# Made in Python


def test_names_of_choices_become_choices() -> None:
    spec = ImageSpec(8, 8, 1)
    calibration = Calibration(method="temperature")  # type: ignore[arg-type]
    metadata = Metadata(("a", "b"), spec, inference="moments", noise="randn", precision="fp16", calibration=calibration)  # type: ignore[arg-type]
    assert metadata.inference is Inference.MOMENTS
    assert metadata.noise is NoiseKind.RANDN
    assert metadata.precision is Precision.FP16
    assert metadata.calibration.method is Method.TEMPERATURE
    assert replace(metadata, inference="deterministic").takes_seeds is False  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("inference", "one of mc, moments, deterministic"),
        ("noise", "one of table, table-2, randn, input, none"),
        ("precision", "one of fp32, fp16, fp16-weights, int8"),
    ],
)
def test_a_wrong_choice_is_refused_with_the_right_ones(name: str, choices: str) -> None:
    with raises(f"argument.{name}", UsageError) as caught:
        Metadata(("a", "b"), ImageSpec(8, 8, 1), **{name: "Moments"})  # type: ignore[arg-type]
    assert (caught.value.fields["rule"], caught.value.fields["value"]) == (choices, "Moments")
    with raises("argument.method", UsageError) as caught:
        Calibration("T")  # type: ignore[arg-type]
    assert caught.value.fields["rule"] == "one of none, temperature, vector, aux"


def test_a_promise_must_be_possible() -> None:
    assert Promise(0.05).to_document() == {"target_error": 0.05, "confidence": 0.95}
    for values in ((0, 0.9), (1, 0.9), (0.1, 0.5), (0.1, 1), (True, 0.9), ("0.1", 0.9), (float("nan"), 0.9)):
        with pytest.raises(UsageError) as caught:
            Promise(*values)  # type: ignore[arg-type]
        assert caught.value.code in ("argument.target_error", "argument.confidence")


def test_numbers_of_numpy_become_plain() -> None:
    import numpy as np

    costs = Costs(np.int64(3), np.int32(0), np.uint8(7))
    report = CalibrationReport(
        images=np.int64(5), nll_before=np.float32(0.5), nll_after=np.float64(0.25), label_flips=0
    )
    assert json.dumps(costs.to_document()) == '{"macs_once": 3, "macs_per_pass": 0, "bytes_per_pass": 7}'
    assert json.dumps(report.to_document()).startswith('{"images": 5, "nll_before": 0.5, "nll_after": 0.25')


def test_hashes_have_names() -> None:
    assert Hashes(weights="w", splits={"train": "t"}, source="s").named() == {
        "source": "s",
        "splits/train": "t",
        "weights": "w",
    }


# Refused

DAMAGED: list[tuple[str, object, str]] = [
    *(("rule.limits.0", value, "a number between -1 and 1") for value in (5, -1.1, True, "0.3", None)),
    ("rule.promise.confidence", 2, "a number strictly between 0 and 1"),
    ("rule.promise.accepted", 271, "at most 270, the images"),
    ("rule.promise.samples", 0, "an integer between 1 and 4096"),
    ("rule.promise.seed", -1, "an integer between 0 and 4095"),
    ("rule", [], "an object"),
    ("held_out.accepted", [1, 2], "a list of 101 counts that never fall"),
    ("held_out.errors", [5, *[4] * 100], "a list of 101 counts that never fall"),
    ("held_out.errors", [999] * 101, "at most the accepted images"),
    ("costs.macs_once", -1, "an integer of at least 0"),
    ("costs.macs_per_pass", "12", "an integer of at least 0"),
    ("costs.bytes_per_pass", 0, "an integer of at least 1"),
    *(("samples", value, "an integer between 1 and 4096") for value in (0, 4097, 2.0, "25", True, None)),
    *(("classes", value, "a list of at least 2 names") for value in ([], ["one"], "ab", {"0": "a"}, None)),
    ("classes.1", 7, "text that is not empty"),
    ("classes.1", "", "text that is not empty"),
    *(("image.height", value, "an integer of at least 1") for value in (0, -8, 8.0, "8", None)),
    ("image.width", 0, "an integer of at least 1"),
    ("image.channels", True, "an integer of at least 1"),
    ("image.dtype", "int8", "text that is uint8 or float32"),
    ("image.scale", 0, "a number above 0"),
    ("image.mean", [0.1, 0.2], "one number"),
    ("image.std", [], "one number"),
    ("image.std.0", 0, "a number above 0"),
    ("image", None, "an object"),
    *(("layers.2.p", value, "a number strictly between 0 and 1") for value in (0, 1, -0.5, "0.2", None)),
    ("layers.0", "conv1", "an object"),
    *(("baked", value, "true or false") for value in (1, 0, "yes", None)),
    ("inference", "magic", "one of mc, moments, deterministic"),
    ("inference", ["mc"], "one of mc, moments, deterministic"),
    ("noise", None, "one of table, table-2, randn, input, none"),
    ("calibration.method", "T", "one of none, temperature, vector, aux"),
    ("calibration.samples", 0, "an integer between 1 and 4096"),
    ("calibration.error", [1.0, 2.0], "a list of 3, each a number"),
    ("calibration.parameters.temperature", [], "one number above 0"),
    ("calibration.parameters.temperature", [0], "one number above 0"),
    ("calibration.parameters.temperature", 1.5, "a list"),
    ("calibration.parameters.variance_scale", [-1], "one number above 0"),
    ("calibration.report.images", 0, "an integer of at least 1"),
    ("trained_on.one_in", 0, "an integer of at least 1"),
    ("trained_on.blake2b_64", "not base64!", "base64 of 8 bytes per image"),
    ("trained_on.blake2b_64", "AAAA", "base64 of 8 bytes per image"),
    ("hashes.weights", 3, "text"),
    ("hashes.splits", ["a"], "an object"),
    ("metrics", {"nll": {"value": "low"}}, "a number"),
    ("tools", {"onnx": 1}, "text"),
]


@pytest.mark.parametrize(("key", "value", "rule"), DAMAGED, ids=lambda value: str(value)[:40])
def test_a_damaged_value_is_refused_by_name(key: str, value: object, rule: str) -> None:
    with raises("metadata.damaged", ModelFileError) as caught:
        read(changed(key, value))
    fields = caught.value.fields
    assert rule in str(fields["rule"])
    assert str(fields["argument"]).startswith(key.split(".", maxsplit=1)[0])
    assert fields["value"] == value or key in ("held_out.errors", "metrics", "tools")


def test_the_message_names_the_place() -> None:
    report = {"images": 3, "nll_before": 1, "label_flips": 0}
    for document, place in (
        (changed("layers.2.p", 2), "layers[2].p"),
        (LEAST | {"image": {"width": 8, "channels": 1}}, "image.height"),
        (changed("calibration.report", report), "calibration.report.nll_after"),
    ):
        with raises("metadata.damaged", ModelFileError) as caught:
            read(document)
        assert caught.value.fields["argument"] == place
        assert f"`{place}`" in str(caught.value)


def test_the_message_is_short_however_long_the_value() -> None:
    for value in ("x" * 10**6, ["x" * 1000] * 1000, {str(i): i for i in range(10000)}):
        with pytest.raises(ModelFileError) as refused:
            read(changed("image.height", value))
        assert len(str(refused.value)) < 10_000


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("key", ["rule.limits.0", "held_out.errors.100", "image.mean.0", "card.x", "later", "tools.y"])
def test_numbers_that_json_does_not_know_are_refused(key: str, literal: str) -> None:
    text = json.dumps(changed(key, "HERE")).replace('"HERE"', literal)
    place = re.sub(r"\.(\d+)", r"[\1]", key)
    with raises("metadata.damaged", ModelFileError) as caught:
        read(text)
    fields = caught.value.fields
    assert (fields["argument"], fields["rule"]) == (place, "a finite number")
    assert repr(fields["value"]) == repr(float(literal))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", "it is not a JSON object"),
        ("3", "it is not a JSON object"),
        ("null", "it is not a JSON object"),
        ('{"contract": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "it is nested too deeply"),
        ('{"contract": 1, "x": ' + "[" * 70 + "]" * 70 + "}", "it is nested too deeply"),
        ('{"contract": 1' + "0" * 10_000 + "}", "digits"),
    ],
    ids=["nothing", "torn", "list", "number", "null", "deep", "less deep", "long number"],
)
def test_a_text_that_is_no_document_is_refused(text: str, why: str) -> None:
    with raises("metadata.damaged", ModelFileError) as caught:
        read(text)
    assert why in str(caught.value)


@pytest.mark.parametrize("version", [3, "1", 1.0, True, None])
def test_another_contract_is_refused(version: object) -> None:
    with raises("metadata.version", ModelFileError):
        read(LEAST | {"contract": version})


def refusal(document: Any) -> str | None:
    """Why a document is refused; None when it is read, and can be written again."""
    try:
        read(document).to_properties()
    except ModelFileError as error:
        return str(error)
    return None


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in list(parts)[: 3 if isinstance(value, list) else None]:
        yield from leaves(inner, (*path, name))


def test_whatever_stands_in_a_document_it_is_read_or_refused_with_a_sentence() -> None:
    full = json.loads(text_of(bundled(Inference.MC, "cifar10")))
    odd = [None, True, -1, 0, 0.5, 10**400, "", "x", [], {}, [[]], [None], {"a": None}]
    sentences = []
    for path in leaves(full):
        for value in odd if path else ():
            document = copy.deepcopy(full)
            inner = document
            for name in path[:-1]:
                inner = inner[name]
            inner[path[-1]] = value
            sentences.append(refusal(document))
    refused = [sentence for sentence in sentences if sentence is not None]
    assert len(sentences) - len(refused) > 100
    assert len(refused) > 100
    assert all(sentence.startswith("m.onnx ") and "\n" not in sentence for sentence in refused)


JSON_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),), "boolean": (bool,), "number": (int, float), "text": (str,), "list": (list,),
    "object": (dict,),
}  # fmt: skip
VALUES: dict[str, Any] = {"null": None, "boolean": True, "number": 0.5, "text": "x", "list": [], "object": {}}
NULLABLE = {
    "calibration": ["confidence_error", "report", "samples"],
    "calibration.report": ["accuracy_after", "accuracy_before", "nll_of_chance", "rates_tuned"],
    "costs": ["bytes_per_draw", "bytes_per_pass"],
    "digests": ["ort"],
    "hashes": ["calibration_data", "source", "weights"],
    **{f"layers.{number}": ["kind"] for number in range(3)},
    "monitor": ["date"],
    "rule": ["promise"],
    "rule.promise": ["date", "error", "target_error"],
    "": ["costs", "digests", "held_out", "monitor", "posterior", "rule", "trained_on"],
}


def test_every_key_refuses_every_other_type() -> None:
    """But for null where nothing need be known; `card` is free, and a score may be unknown whatever its name."""
    full = json.loads(text_of(bundled(Inference.MC, "cifar10")))
    full |= {"posterior": "dropout", "members": 1, "seen": ["noise"], "sigma": "exact"}
    full["hashes"] |= {"source": "", "calibration_data": ""}
    full["digests"]["ort"] = "0" * 64
    full["calibration"]["report"]["rates_tuned"] = False
    bins = {"edges": [0.1, 0.5], "counts": [3, 4, 5]}
    full["monitor"] = {"statistics": {"uncertainty": bins}, "samples": 25, "seed": 0, "data": "", "date": ""}
    assert refusal(full) is None
    accepted = set()
    for path in leaves(full):
        if not path or path[0] == "card" or (path[0] == "metrics" and len(path) == 3):
            continue
        document = copy.deepcopy(full)
        inner = document
        for name in path[:-1]:
            inner = inner[name]
        own = next(kind for kind, types in JSON_TYPES.items() if type(inner[path[-1]]) in types)
        for kind in VALUES.keys() - {own}:
            inner[path[-1]] = VALUES[kind]
            if refusal(document) is None:
                accepted.add((".".join(map(str, path)), kind))
    assert accepted == {(f"{part}.{key}".lstrip("."), "null") for part, keys in NULLABLE.items() for key in keys}


def test_a_flipped_byte_is_read_or_refused_with_a_sentence() -> None:
    dice, text = random.Random(0), text_of(GOLDEN / "digits-mc.onnx")
    for _ in range(1000):
        place = dice.randrange(len(text))
        broken = text[:place] + chr(ord(text[place]) ^ 1 << dice.randrange(7)) + text[place + 1 :]
        sentence = refusal(broken)
        assert sentence is None or sentence.startswith("m.onnx ")


# In files


def damaged_file(path: Path, **changes: object) -> Path:
    model = onnx.load(GOLDEN / "digits-mc.onnx")
    (entry,) = (entry for entry in model.metadata_props if entry.key == contract.KEY)
    entry.value = json.dumps(json.loads(entry.value) | changes)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("limit", [5, True, "0.3", float("nan"), float("inf")])
def test_reject_auto_never_applies_a_damaged_limit(tmp_path: Path, limit: object) -> None:
    stored = json.loads(text_of(GOLDEN / "digits-mc.onnx"))["rule"] | {"limits": [limit]}
    path = damaged_file(tmp_path / "m.onnx", rule=stored)
    with raises("metadata.damaged", ModelFileError) as caught:
        Model(path, "cpu", verify=False)
    assert caught.value.fields["argument"] == "rule.limits[0]"


@pytest.mark.parametrize(
    ("text", "damaged"),
    [(b'"architecture"', b'"architectur\xe5"'), (b"samples", b"s\xe1mples")],
    ids=["in the metadata", "in every name of the dimension"],
)
def test_a_text_that_is_not_utf8_is_refused_with_a_sentence(tmp_path: Path, text: bytes, damaged: bytes) -> None:
    content = (GOLDEN / "digits-mc.onnx").read_bytes()
    assert text in content
    path = tmp_path / "m.onnx"
    path.write_bytes(content.replace(text, damaged))
    with pytest.raises(ModelFileError) as caught:
        Model(path, "cpu")
    assert caught.value.code in ("model.damaged", "model.unloadable")
    assert "not UTF-8" in str(caught.value)


def test_the_plain_keys_follow_the_records() -> None:
    metadata = read(DOCUMENT)
    assert isinstance(metadata.promise, ErrorPromise)
    assert isinstance(metadata.held_out, HeldOut)
    properties = metadata.to_properties()
    assert json.loads(properties["imgsz"]) == [8, 8]
    assert json.loads(properties["names"])["0"] == metadata.classes[0]


def test_the_records_need_no_numpy() -> None:
    code = "import sys, uce_edge.metadata; heavy = {'numpy', 'onnxruntime', 'PIL'} & set(sys.modules); assert not heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""What the command of every port must pass: all goldens, and what it must refuse."""

import json
import os
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import GOLDEN

from uce_edge import Model, contract
from uce_edge.contract import Per

CASES = [case for case in json.loads((GOLDEN / "cases.json").read_text()) if contract.DECISION in case["outputs"]]
"""Of files of contract 2."""
CONTRACT = json.loads((GOLDEN / "contract.json").read_text())
MODEL, IMAGE = GOLDEN / "digits-mc.onnx", GOLDEN / "digit-0.raw"
OLD = GOLDEN / "digits-minor-0.onnx"
"""A file of contract 1."""
GATED = GOLDEN / "digits-novelty.onnx"
"""A file that rejects out-of-distribution images."""
REFERENCE_IMAGES = json.loads(GATED.with_suffix(".json").read_text())["rule"]["gate"]["images"]
SETS = json.loads((GOLDEN / "digits-sets-raps.json").read_text())["sets"]
RULELESS = ("digits-rule-none.onnx", "digits-sets-lac.onnx", "digits-sets-aps.onnx")
"""Files without a stored rule."""
PER_IMAGE = [output.name for output in contract.outputs_of(()) if output.per is Per.IMAGE]
NUMBERS = [output.name for output in contract.outputs_of(()) if output.is_number]

Port = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*prefix: object) -> Port:
    """A port's program, to be called with its arguments."""
    # Ports switch ONNX Runtime's telemetry off by themselves.
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment["OMP_NUM_THREADS"] = "1"

    def run(*arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        words = [str(word) for word in (*prefix, *arguments)]
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=60, env=environment | variables
        )

    return run


def answer(port: Port, *arguments: object) -> dict[str, Any]:
    said = port(*arguments)
    assert said.returncode == 0, said.stderr
    document: dict[str, Any] = json.loads(said.stdout)
    return document


def refusal(port: Port, *arguments: object) -> str:
    """The one sentence on stderr; nothing may be on stdout."""
    said = port(*arguments)
    assert said.returncode in (1, 2)
    assert said.stdout == ""
    assert said.stderr.startswith("error: ")
    assert said.stderr.count("\n") == 1
    return said.stderr.removeprefix("error: ").strip()


def variant(
    folder: Path,
    document: Callable[[dict[str, Any]], object] = lambda _: None,
    graph: Callable[[onnx.GraphProto], object] = lambda _: None,
    source: Path = MODEL,
) -> Path:
    """A golden file with another metadata document or graph, and its description beside it."""
    model = onnx.load(source)
    entry = next(item for item in model.metadata_props if item.key == contract.KEY)
    metadata = json.loads(entry.value)
    del model.metadata_props[:]  # the mark of a file with digests, which would not fit
    metadata["digests"] = None
    document(metadata)
    graph(model.graph)
    model.metadata_props.add(key=contract.KEY, value=json.dumps(metadata))
    onnx.save(model, folder / "variant.onnx")
    (folder / "variant.json").write_text(json.dumps(metadata))
    return folder / "variant.onnx"


def baked(folder: Path) -> Path:
    """A golden file with its passes baked in."""

    def bake(graph: onnx.GraphProto) -> None:
        graph.input.remove(next(value for value in graph.input if value.name == contract.SEEDS))
        graph.initializer.append(onnx.numpy_helper.from_array(np.arange(25, dtype=np.int32), contract.SEEDS))

    return variant(folder, lambda document: document.update(baked=True), bake)


def from_the_future(folder: Path) -> Path:
    """A golden file as a later minor version may write it: an output, keys and values that nobody here knows."""

    def add_keys(document: dict[str, Any]) -> None:
        document.update(minor=7, outputs=["from_the_future"], unknown=[{}, [], True, -1e-3, None])
        for part in (document["image"], document["calibration"], document["rule"], document["costs"]):
            part["unknown"] = {"of": "minor 7"}
        for layer in document["layers"]:
            layer["unknown"] = "of minor 7"

    def add_output(graph: onnx.GraphProto) -> None:
        graph.node.append(onnx.helper.make_node("Neg", [contract.UNCERTAINTY], ["from_the_future"]))
        graph.output.append(onnx.helper.make_tensor_value_info("from_the_future", onnx.TensorProto.FLOAT, ["batch"]))

    return variant(folder, add_keys, add_output)


def not_a_number(graph: onnx.GraphProto, name: str = "calibration.temperature") -> None:
    """Damage a weight, so that every answer is NaN."""
    weight = next(item for item in graph.initializer if item.name == name)
    damaged = np.full_like(onnx.numpy_helper.to_array(weight), np.nan)
    weight.CopyFrom(onnx.numpy_helper.from_array(damaged, name))


def unrunnable(graph: onnx.GraphProto) -> None:
    """Cut the noise table off: the file loads, and the first pass reads beyond its end."""
    table = next(item for item in graph.initializer if item.name == "noise.table")
    table.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(table)[:1], table.name))


def reference(model: Path, feed: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return dict(zip(PER_IMAGE, session.run(PER_IMAGE, feed), strict=True))


def check_numbers(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["class_id"] == int(wanted[contract.CLASS_ID][0])
    differences = {
        name: float(np.abs(np.array(found[name], np.float32) - np.array(wanted[name], np.float32).ravel()).max())
        for name in (contract.PROBABILITIES, *NUMBERS)
    }
    print("largest difference", max(differences.values()))  # shown by pytest -rP
    assert max(differences.values()) <= 1e-6, differences


def check_novelty(said: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The score to 1e-5 of itself, and the p-value to one image of the reference; nothing for a file without them."""
    for name in (contract.NOVELTY, contract.NOVELTY_SCORE):
        if name not in wanted:
            assert said[name] is None
    if contract.NOVELTY in wanted:
        within = 1 / (REFERENCE_IMAGES + 1) + 1e-6
        assert said[contract.NOVELTY] == pytest.approx(wanted[contract.NOVELTY][0], rel=0, abs=within)
        assert said[contract.NOVELTY_SCORE] == pytest.approx(wanted[contract.NOVELTY_SCORE][0], rel=1e-5)


def check_set(said: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The labels of the set, the likeliest first; nothing for a file without sets."""
    if contract.IN_SET not in wanted:
        assert said["set"] is None
        return
    chances = wanted[contract.PROBABILITIES]
    inside = [label for label, contained in enumerate(wanted[contract.IN_SET]) if contained]
    assert said["set"] == [str(label) for label in sorted(inside, key=lambda label: -chances[label])]


def check_maps(said: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Height, width and values of the maps; nothing for a file without them."""
    for name in contract.MAPS:
        if wanted.get(name) is None:
            assert said[name] is None
            continue
        places = np.asarray(wanted[name], np.float32)
        found = np.reshape(said[name]["values"], (said[name]["height"], said[name]["width"]))
        np.testing.assert_allclose(found.ravel(), places.ravel(), rtol=1e-4, atol=1e-5)


def check_contract(said: dict[str, Any]) -> None:
    """What a port spells must be what Python spells; it may leave the outputs of single passes alone."""
    assert said["contract"] == CONTRACT["contract"]
    for limit in ("max_samples", "max_seed"):
        assert said[limit] == CONTRACT["limits"][limit]
    others = {output["name"] for output in CONTRACT["outputs"] if output["per"] == "pass"}
    for key, required in (("outputs", True), ("optional", False)):
        outputs = [item["name"] for item in CONTRACT["outputs"] if item["required"] == required]
        assert [name for name in said[key] if name not in others] == [name for name in outputs if name not in others]
    assert said["inference"] == CONTRACT["metadata"]["inference"]
    assert [reason or None for reason in said["reasons"]] == list(CONTRACT["decisions"].values())
    assert said["accepted"] == [case["accepted"] for case in CONTRACT["accept"]]


def case_id(case: dict[str, Any]) -> str:
    return "-".join(map(str, (case["model"], case["image"], *case["seeds"][:1])))


def decision_of(case: dict[str, Any]) -> str:
    return "reject" if case["decision"] else "accept"


class PortTests:
    """Inherited by the tests of each port, whose module has the fixture `port`."""

    @pytest.mark.parametrize("case", CASES, ids=case_id)
    def test_every_golden_is_answered_as_python_does(self, port: Port, case: dict[str, Any]) -> None:
        files = GOLDEN / case["model"], GOLDEN / case["image"]
        seed, samples = (case["seeds"][0] // contract.MAX_SAMPLES, len(case["seeds"])) if case["seeds"] else (0, 1)
        has_rule = case["model"] not in RULELESS
        passes = ("--seed", seed, "--samples", samples)
        said = answer(port, *files, *passes, *(("--reject", "auto") if has_rule else ()))
        assert (said["label"], said["decision"]) == (case["label"], decision_of(case) if has_rule else None)
        assert (said["reason"], said["samples"], said["seed"]) == (case["reason"], samples, seed)
        wanted = {name: output["values"] for name, output in case["outputs"].items()}
        check_numbers(said, wanted)
        check_novelty(said, wanted)
        check_set(said, wanted)
        check_maps(said, wanted)

    def test_the_file_itself_says_how_many_passes_and_which_threshold(self, port: Port) -> None:
        plain, stored = port(MODEL, IMAGE), port(MODEL, IMAGE, "--reject", "auto")
        assert (plain.stderr, stored.stderr) == ("", "")
        assert json.loads(plain.stdout)["samples"] == 25
        assert [json.loads(plain.stdout)[key] for key in ("decision", "reason")] == [None, None]
        assert json.loads(stored.stdout)["decision"] == "accept"

    def test_nothing_is_left_on_disk(self, port: Port, tmp_path: Path) -> None:
        places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(tmp_path))
        said = port(MODEL, IMAGE, **places)
        assert said.returncode == 0, said.stderr
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []

    def test_an_uncertainty_equal_to_the_threshold_is_accepted(self, port: Port) -> None:
        image = GOLDEN / "noise.raw"
        exact = np.float32(answer(port, MODEL, image)["uncertainty"])
        below = np.nextafter(exact, np.float32(0))
        assert answer(port, MODEL, image, "--reject", f"{exact:.9g}")["decision"] == "accept"
        assert answer(port, MODEL, image, "--reject", f"{below:.9g}")["decision"] == "reject"

    @pytest.mark.parametrize("reject", [1, "auto"])
    @pytest.mark.parametrize("samples", [25, 101])
    def test_an_uncertainty_that_is_not_a_number_is_rejected(
        self, port: Port, tmp_path: Path, reject: object, samples: int
    ) -> None:
        file = variant(tmp_path, graph=not_a_number)
        said = answer(port, file, IMAGE, "--reject", reject, "--samples", samples)
        assert (said["uncertainty"], said["decision"], said["reason"]) == (None, "reject", "uncertain")

    def test_other_passes_than_the_fitted_ones_are_announced(self, port: Port) -> None:
        said = port(MODEL, IMAGE, "--samples", 3, "--reject", "auto")
        assert said.returncode == 0
        assert "calibrated at 25 samples and runs with 3" in said.stderr
        assert "promise" in said.stderr

    @pytest.mark.parametrize(
        ("option", "value", "rule"),
        [
            ("samples", "0", "between 1 and 4096"),
            ("samples", "4097", "between 1 and 4096"),
            ("samples", "2.5", "between 1 and 4096"),
            ("samples", "99999999999999999999", "between 1 and 4096"),
            ("samples", "", "between 1 and 4096"),
            ("seed", "-1", "between 0 and 4095"),
            ("seed", "4096", "between 0 and 4095"),
            ("seed", "x", "between 0 and 4095"),
            ("reject", "1.5", "between 0 and 1, or auto"),
            ("reject", "-0.1", "between 0 and 1, or auto"),
            ("reject", "nan", "between 0 and 1, or auto"),
            ("reject", "0.3x", "between 0 and 1, or auto"),
        ],
    )
    def test_a_wrong_request_is_refused(self, port: Port, option: str, value: str, rule: str) -> None:
        said = refusal(port, MODEL, IMAGE, f"--{option}", value)
        assert said == f"Expected `{option}` to be {rule}, but got {value}."

    def test_the_ends_of_the_seeds_are_served(self, port: Port) -> None:
        assert answer(port, MODEL, IMAGE, "--samples", 1, "--seed", 4095)["standard_error"] == 1
        assert answer(port, GOLDEN / "digits-moments.onnx", IMAGE, "--samples", 4096)["samples"] == 4096

    def test_a_wrong_number_of_arguments_is_refused(self, port: Port) -> None:
        assert refusal(port, MODEL).startswith("Usage: ")
        assert refusal(port, MODEL, IMAGE, "--seed").startswith("Usage: ")

    @pytest.mark.parametrize("size", [0, 63, 65, 192])
    def test_an_image_of_the_wrong_size_is_refused(self, port: Port, tmp_path: Path, size: int) -> None:
        image = tmp_path / "image.raw"
        image.write_bytes(bytes(size))
        assert refusal(port, MODEL, image) == f"Expected `image` to be 64 bytes (8 x 8 x 1, uint8), but got {size}."

    def test_files_that_are_not_there_are_named(self, port: Port, tmp_path: Path) -> None:
        nothing = tmp_path / "nothing"
        assert refusal(port, nothing, IMAGE) == f"There is no model file {nothing}."
        assert refusal(port, MODEL, nothing) == f"There is no image file {nothing}."

    @pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:-1], lambda _: b"", lambda _: b"text"])
    def test_a_damaged_model_is_refused(self, port: Port, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
        file = variant(tmp_path)
        file.write_bytes(damage(file.read_bytes()))
        rule = "is not an ONNX file that can be loaded: it is damaged, incomplete or something else."
        said = refusal(port, file, IMAGE)
        assert said.startswith(f"{file} {rule} ONNX Runtime says: ")
        assert not said.endswith(": ")

    def test_help_is_no_mistake(self, port: Port) -> None:
        for words in (["--help"], ["-h"], [MODEL, "--help"]):
            said = port(*words)
            assert (said.returncode, said.stderr) == (0, "")
            assert said.stdout.startswith("Usage: ")
            assert "--samples N" in said.stdout

    @pytest.mark.parametrize(
        "model", ["digits-mc", "digits-novelty", "digits-ensemble", "digits-moments", "digits-sets-raps"]
    )
    def test_many_passes_are_split_and_merged_as_in_python(self, port: Port, model: str) -> None:
        file, image = GOLDEN / f"{model}.onnx", GOLDEN / "noise.raw"
        said = answer(port, file, image, "--samples", 101, "--seed", 3)
        pixels = np.frombuffer(image.read_bytes(), np.uint8).reshape(1, 8, 8, 1)
        with warnings.catch_warnings(action="ignore"):
            wanted = Model(file, "cpu").predict(pixels, samples=101, seed=3)
        assert said["class_id"] == wanted.class_ids[0]
        for name in (contract.PROBABILITIES, *NUMBERS):
            np.testing.assert_allclose(said[name], getattr(wanted, name)[0], rtol=0, atol=1e-6)
        if wanted.novelty_score is not None:
            assert said["novelty_score"] == pytest.approx(float(wanted.novelty_score[0]), rel=1e-5)
        assert said["set"] == (None if wanted.in_set is None else list(wanted[0].label_set or ()))

    @pytest.mark.parametrize("image", ["digit-1.raw", "noise.raw"])
    def test_maps_of_several_calls_are_pooled(self, port: Port, image: str) -> None:
        file, pixels = GOLDEN / "digits-heatmap.onnx", np.frombuffer((GOLDEN / image).read_bytes(), np.uint8)
        said = answer(port, file, GOLDEN / image, "--samples", 101)
        with warnings.catch_warnings(action="ignore"):
            wanted = Model(file, "cpu").predict(pixels.reshape(1, 8, 8, 1), samples=101)[0]
        if image == "noise.raw":  # calls predict different classes
            assert (said["heatmap"], said["heatmap_spread"]) == (None, None)
        else:
            check_maps(said, {name: getattr(wanted, name) for name in contract.MAPS})

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"sets": None}, "its sets and its outputs contradict each other"),
            ({"sets": SETS | {"score": "dreams"}}, "its sets compare dreams"),
            ({"sets": SETS | {"limits": [0.5, 0.5]}}, "its sets have not one limit for every label"),
        ],
    )
    def test_damaged_sets_are_refused(self, port: Port, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
        file = variant(tmp_path, lambda document: document.update(change), source=GOLDEN / "digits-sets-raps.onnx")
        assert refusal(port, file, IMAGE).endswith(f"has damaged metadata: {reason}.")

    def test_numbers_that_are_not_numbers_have_an_empty_set(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, graph=not_a_number, source=GOLDEN / "digits-sets-raps.onnx")
        assert [answer(port, file, IMAGE, "--samples", samples)["set"] for samples in (25, 101)] == [[], []]

    @pytest.mark.parametrize(
        ("error", "of_confidence"), [(None, [0.3, 0.8]), ([0.1, 1.2, 0.4], [0.3, 0.8]), ([0.1, 1.2, 0.4], None)]
    )
    def test_split_passes_have_the_error_probability_of_either_map(
        self, port: Port, tmp_path: Path, error: list[float] | None, of_confidence: list[float] | None
    ) -> None:
        """Calls that are merged compute it from the metadata alone."""
        maps = {"error": error, "confidence_error": of_confidence}
        file, image = variant(tmp_path, lambda about: about["calibration"].update(maps)), GOLDEN / "noise.raw"
        said = answer(port, file, image, "--samples", 101)
        pixels = np.frombuffer(image.read_bytes(), np.uint8).reshape(1, 8, 8, 1)
        with warnings.catch_warnings(action="ignore"):
            wanted = Model(file, "cpu").predict(pixels, samples=101)
        assert said["error_probability"] == pytest.approx(float(wanted.error_probability[0]), rel=0, abs=1e-6)

    def test_a_file_of_a_later_minor_version_is_answered_as_today(self, port: Port, tmp_path: Path) -> None:
        request = (IMAGE, "--reject", "auto")
        later, today = port(from_the_future(tmp_path), *request), port(MODEL, *request)
        assert (later.returncode, later.stderr) == (0, "")
        assert later.stdout == today.stdout

    def test_a_file_of_contract_1_is_refused_with_the_command_that_converts_it(self, port: Port) -> None:
        remedy = f"Convert it: uce-edge export {OLD} --out new.onnx"
        rule = f"{OLD} follows model contract 1, and this program reads contract 2."
        assert refusal(port, OLD, IMAGE) == f"{rule} {remedy}"

    @pytest.mark.parametrize(("version", "shown"), [(3, "3"), (None, "null")])
    def test_another_contract_is_refused(self, port: Port, tmp_path: Path, version: int | None, shown: str) -> None:
        file = variant(tmp_path, lambda document: document.update(contract=version))
        said = refusal(port, file, IMAGE)
        assert said == f"{file} follows model contract {shown}, and this program reads contract 2."

    def test_a_way_of_inference_that_is_not_known_is_refused(self, port: Port, tmp_path: Path) -> None:
        file = variant(tmp_path, lambda document: document.update(inference="dreams"))
        assert refusal(port, file, IMAGE).endswith("has damaged metadata: its inference is dreams.")

    @pytest.mark.parametrize("key", [key for key in CONTRACT["metadata"]["required"] if key != "contract"])
    def test_metadata_that_lacks_something_is_refused(self, port: Port, tmp_path: Path, key: str) -> None:
        file = variant(tmp_path, lambda document: document.pop(key))
        assert f"has damaged metadata: it lacks the key {key}." in refusal(port, file, IMAGE)

    def test_a_graph_that_is_not_what_the_metadata_says_is_refused(self, port: Port, tmp_path: Path) -> None:
        rule = "breaks the contract: its graph is not what its metadata says."
        for change in (
            lambda document: document["image"].update(height=9),
            lambda document: document.update(inference="deterministic"),
            lambda document: document["classes"].pop(),
        ):
            file = variant(tmp_path, change)
            (tmp_path / "image.raw").write_bytes(bytes(64))
            assert refusal(port, file, tmp_path / "image.raw") == f"{file} {rule}"

    def test_without_a_stored_rule_auto_is_refused(self, port: Port) -> None:
        file = GOLDEN / "digits-rule-none.onnx"
        assert refusal(port, file, IMAGE, "--reject", "auto").startswith(f"{file} has no stored reject rule")

    def test_any_class_name_survives(self, port: Port, tmp_path: Path) -> None:
        name = 'Käse "\\/\n\t\x01 猫 🐈'
        file = variant(tmp_path, lambda document: document.update(classes=[name] * 10, unknown=[{}, [], True, -1e-3]))
        assert answer(port, file, IMAGE)["label"] == name

    def test_a_deterministic_model_takes_no_seeds(self, port: Port, tmp_path: Path) -> None:
        def freeze(graph: onnx.GraphProto) -> None:
            graph.input.remove(next(value for value in graph.input if value.name == contract.SEEDS))
            graph.initializer.append(onnx.numpy_helper.from_array(np.array([5], np.int32), contract.SEEDS))

        file = variant(tmp_path, lambda document: document.update(inference="deterministic", samples=1), freeze)
        pixels = np.frombuffer(IMAGE.read_bytes(), np.uint8).reshape(1, 8, 8, 1)
        check_numbers(answer(port, file, IMAGE), reference(file, {contract.IMAGE: pixels}))
        rule = "Expected `samples` to be left out for a deterministic model, but got 25."
        assert refusal(port, file, IMAGE, "--samples", 25) == rule

    def test_passes_that_are_baked_in_need_no_seeds(self, port: Port, tmp_path: Path) -> None:
        file = baked(tmp_path)
        assert answer(port, file, IMAGE) == answer(port, MODEL, IMAGE)
        rule = "to be left out for a model with its passes baked in, but got"
        assert refusal(port, file, IMAGE, "--samples", 5) == f"Expected `samples` {rule} 5."
        assert refusal(port, file, IMAGE, "--seed", 1) == f"Expected `seed` {rule} 1."

    def test_a_model_may_take_float32(self, port: Port, tmp_path: Path) -> None:
        def widen(graph: onnx.GraphProto) -> None:
            image = next(value for value in graph.input if value.name == contract.IMAGE)
            image.type.tensor_type.elem_type = onnx.TensorProto.FLOAT

        file = variant(tmp_path, lambda document: document["image"].update(dtype="float32"), widen)
        pixels = np.frombuffer(IMAGE.read_bytes(), np.uint8).reshape(1, 8, 8, 1).astype("<f4") + np.float32(0.25)
        (tmp_path / "image.raw").write_bytes(pixels.tobytes())
        wanted = reference(file, {contract.IMAGE: pixels, contract.SEEDS: np.arange(25, dtype=np.int32)})
        check_numbers(answer(port, file, tmp_path / "image.raw"), wanted)
        assert "256 bytes (8 x 8 x 1, float32), but got 64." in refusal(port, file, IMAGE)

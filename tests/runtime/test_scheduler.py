"""Outputs that can grow: what a file of another minor version is asked for, and how split calls are merged."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import GOLDEN, Digits
from helpers import port_cases
from helpers.errors import raises

from uce_edge import Model, contract
from uce_edge.contract import Inference, Merge, Output, Per
from uce_edge.errors import ModelFileError
from uce_edge.metadata import Metadata
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.providers import Device, open_session
from uce_edge.runtime.scheduler import Calls
from uce_edge.runtime.session import Runner

BRIGHTNESS = Output("brightness", Per.IMAGE, Merge.SAME, required=False)
"""A ninth output: per image, and the same whatever the passes are."""
TABLE = (*contract.OUTPUTS, BRIGHTNESS)
SEEDS = np.arange(100, dtype=np.int32)


def brighten(graph: onnx.GraphProto) -> None:
    """Give a graph the ninth output, the mean pixel."""
    graph.node.extend(
        [
            onnx.helper.make_node("Cast", [contract.IMAGE], ["brightness.pixels"], to=onnx.TensorProto.FLOAT),
            onnx.helper.make_node("ReduceMean", ["brightness.pixels", "brightness.axes"], ["brightness"], keepdims=0),
        ]
    )
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2, 3]), "brightness.axes"))
    graph.output.append(onnx.helper.make_tensor_value_info("brightness", onnx.TensorProto.FLOAT, ["batch"]))


@pytest.fixture
def bright(tmp_path: Path) -> Path:
    return port_cases.variant(tmp_path, lambda document: document.update(minor=2, outputs=["brightness"]), brighten)


def calls(path: Path, table: tuple[Output, ...] = TABLE) -> Calls:
    session = open_session(str(path), Device.CPU)
    metadata = Metadata.from_properties(session.get_modelmeta().custom_metadata_map, str(path))
    return Calls(Runner(session), metadata, str(path), table=table)


@pytest.fixture
def images(digits: Digits) -> np.ndarray:
    return digits.dataset.splits["test"].images[:40]


@pytest.mark.parametrize("samples", [1, 25, 100])  # in one call, and split over calls
def test_an_output_that_is_the_same_in_every_call_needs_no_more_than_a_line_of_the_table(
    bright: Path, images: np.ndarray, samples: int
) -> None:
    values = calls(bright).run(images, SEEDS[:samples])
    assert set(values) == {*port_cases.PER_IMAGE, BRIGHTNESS.name}
    np.testing.assert_allclose(values["brightness"], images.mean((1, 2, 3)), rtol=1e-6)


def test_it_also_comes_with_passes_that_stop_early(bright: Path, images: np.ndarray) -> None:
    values, drawn = calls(bright).run_until_settled(images, SEEDS, RejectRule(limits=(0.3,)), 0.1)
    assert len(set(drawn)) > 1
    np.testing.assert_allclose(values["brightness"], images.mean((1, 2, 3)), rtol=1e-6)


def test_a_file_without_an_optional_output_is_not_asked_for_it(images: np.ndarray) -> None:
    values = calls(port_cases.MODEL).run(images, SEEDS)
    assert list(values) == [output.name for output in contract.outputs_of(()) if output.per is Per.IMAGE]


def test_an_output_that_is_not_listed_is_not_taken_for_the_optional_one(tmp_path: Path, images: np.ndarray) -> None:
    unlisted = port_cases.variant(tmp_path, graph=brighten)  # somebody's own output, which happens to have that name
    assert "brightness" not in calls(unlisted).run(images, SEEDS)


def test_split_calls_give_every_output_with_the_type_of_one_call(images: np.ndarray) -> None:
    model = calls(port_cases.MODEL, contract.OUTPUTS)
    whole, split = model.run(images[:1], SEEDS[:32]), model.run(images[:1], SEEDS[:33])
    assert {name: (value.dtype, value.shape) for name, value in whole.items()} == {
        name: (value.dtype, value.shape) for name, value in split.items()
    }
    for output in contract.outputs_of(()):
        if output.per is Per.IMAGE:
            assert whole[output.name].dtype == output.dtype


def test_a_file_of_a_later_minor_version_gives_the_answers_it_would_give_today(
    tmp_path: Path, images: np.ndarray
) -> None:
    later, today = Model(port_cases.from_the_future(tmp_path), "cpu"), Model(port_cases.MODEL, "cpu")
    assert (later.metadata.minor, later.metadata.outputs) == (7, ("from_the_future",))
    same(later.predict(images, reject="auto"), today.predict(images, reject="auto"))
    same(later.predict(images, reject=0.3, adaptive=0.1), today.predict(images, reject=0.3, adaptive=0.1))


def same(left: Any, right: Any) -> None:
    for field in dataclasses.fields(left):
        np.testing.assert_array_equal(getattr(left, field.name), getattr(right, field.name), err_msg=field.name)


@pytest.mark.parametrize("version", [0, 3, "1", True, None, [1]])
def test_another_contract_is_refused(tmp_path: Path, version: object) -> None:
    file = port_cases.variant(tmp_path, lambda document: document.update(contract=version))
    with raises("metadata.version", ModelFileError):
        Model(file, "cpu")


@pytest.mark.parametrize(
    "change",
    [{"minor": -1}, {"minor": "1"}, {"minor": True}, {"minor": 1.5}, {"outputs": "logits"}, {"outputs": [1]}],
)
def test_a_minor_version_that_is_none_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = port_cases.variant(tmp_path, lambda document: document.update(change))
    with raises("metadata.damaged", ModelFileError):
        Model(file, "cpu")


@pytest.mark.parametrize("name", [output.name for output in contract.outputs_of(())])
def test_a_file_that_lacks_a_required_output_is_refused(tmp_path: Path, name: str) -> None:
    def remove(graph: onnx.GraphProto) -> None:
        graph.output.remove(next(output for output in graph.output if output.name == name))

    with raises("model.graph", ModelFileError):
        Model(port_cases.variant(tmp_path, graph=remove), "cpu")


def test_an_output_of_another_type_is_refused(tmp_path: Path) -> None:
    def widen(graph: onnx.GraphProto) -> None:
        node = next(node for node in graph.node if contract.CLASS_ID in node.output)
        next(attribute for attribute in node.attribute if attribute.name == "to").i = onnx.TensorProto.INT64
        output = next(output for output in graph.output if output.name == contract.CLASS_ID)
        output.type.tensor_type.elem_type = onnx.TensorProto.INT64

    with raises("model.graph", ModelFileError):
        Model(port_cases.variant(tmp_path, graph=widen), "cpu")


OLD = GOLDEN / "digits-minor-0.onnx"


def test_a_file_of_the_version_before_the_minors_answers_to_the_bit(rng: np.random.Generator) -> None:
    model = Model(OLD, "cpu")
    assert (model.metadata.minor, model.metadata.outputs) == (0, ())
    spec = model.metadata.image
    pixels = rng.integers(0, 256, (1, spec.height, spec.width, spec.channels)).astype(np.uint8)
    session = open_session(str(OLD), Device.CPU)
    names = [output.name for output in session.get_outputs()]
    feed = {contract.IMAGE: pixels, contract.SEEDS: np.arange(model.metadata.samples, dtype=np.int32)}
    graph = dict(zip(names, session.run(names, feed), strict=True))
    prediction = model.predict(pixels)
    np.testing.assert_array_equal(prediction.class_ids, graph.pop(contract.CLASS_ID))
    np.testing.assert_array_equal(model.logits(pixels), graph.pop(contract.LOGITS))
    del graph[contract.PASS_PROBABILITIES]
    for name, value in graph.items():
        np.testing.assert_array_equal(getattr(prediction, name), value, err_msg=name)


def test_a_new_file_says_its_minor_version(digits: Digits) -> None:
    document = json.loads(digits.model.with_suffix(".json").read_text())
    assert (document["contract"], document.get("minor", 0)) == (contract.VERSION, contract.MINOR)
    assert Model(digits.deterministic, "cpu").metadata.inference is Inference.DETERMINISTIC
    assert Model(digits.deterministic, "cpu").metadata.minor == contract.MINOR

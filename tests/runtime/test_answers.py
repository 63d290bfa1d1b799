"""`Model.answers`: one answer per file, whatever is wrong with some of them."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import GOLDEN, Call, Digits
from helpers import port_cases
from helpers.errors import raises
from PIL import Image

import uce_edge
from uce_edge import Answer, Decision, Model
from uce_edge.errors import ImageError, UsageError


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(GOLDEN / "digits-mc.onnx", "cpu")


@pytest.fixture
def files(digits: Digits, tmp_path: Path) -> list[Path]:
    """A digit, no image, a missing file, a folder, another digit."""
    paths = [tmp_path / name for name in ("0.png", "text.png", "missing.png", "folder", "1.png")]
    for path, pixels in zip((paths[0], paths[4]), digits.dataset.splits["test"].images, strict=False):
        Image.fromarray(pixels[..., 0]).save(path)
    paths[1].write_bytes(b"no image")
    paths[3].mkdir()
    return paths


def damaged(name: str, folder: Path) -> Model:
    """A model one of whose numbers is not one."""

    def damage(graph: onnx.GraphProto) -> None:
        weight = next(item for item in graph.initializer if item.name == name)
        weight.CopyFrom(onnx.numpy_helper.from_array(np.full(list(weight.dims), np.nan, np.float32), name))

    return Model(port_cases.variant(folder, graph=damage), "cpu")


def test_a_file_that_cannot_be_used_is_an_answer_among_the_others(model: Model, files: list[Path]) -> None:
    answers = list(model.answers(files, reject=0.3, seed=2))
    assert all(isinstance(answer, uce_edge.Answer) for answer in answers)
    assert [answer.path for answer in answers] == [str(path) for path in files]
    assert [answer.ok for answer in answers] == [True, False, False, False, True]
    expected = model.predict([files[0], files[4]], reject=0.3, seed=2)
    for answer, same in zip((answers[0], answers[4]), expected, strict=True):
        assert answer.prediction is not None
        assert answer.prediction.as_dict() == same.as_dict()
        np.testing.assert_array_equal(answer.prediction.probabilities, same.probabilities)
        assert (answer.decision, answer.error, answer.threshold) == (same.decision, None, 0.3)
    for answer, reason in zip(answers[1:4], ("is not an image", "does not exist", "is a folder"), strict=True):
        assert (answer.prediction, answer.decision, answer.threshold) == (None, None, 0.3)
        assert str(answer.error).startswith(f"{answer.path} {reason}")


def test_the_document_of_an_answer_is_what_the_command_line_prints(model: Model, files: list[Path], call: Call) -> None:
    answers = model.answers(files[:2], reject=0.3, top=2)
    printed = call("predict", "--model", model.path, *files[:2], "--reject", 0.3, "--top", 2, "--json")
    usable, unusable = documents = [answer.as_dict() for answer in answers]
    assert json.loads(printed.out) == documents
    assert list(usable) == list(unusable)
    assert {name for name, value in unusable.items() if value is not None} == {"path", "status", "threshold", "error"}
    assert len(usable["top"]) == 2


def test_files_are_read_as_answers_are_taken(model: Model, files: list[Path]) -> None:
    read = 0

    def endless() -> Iterator[Path]:
        nonlocal read
        for path in itertools.cycle(files):
            read += 1
            yield path

    answers = model.answers(endless())
    assert read == 0
    assert [answer.ok for answer in itertools.islice(answers, 70)] == [True, False, False, False, True] * 14
    assert read <= 70 + 3 * 32  # a list that is being answered, and two that are read meanwhile


def test_an_answer_keeps_the_bytes_it_is_about_when_asked(model: Model, files: list[Path]) -> None:
    assert [answer.content for answer in model.answers(files)] == [None] * 5
    kept = [answer.content for answer in model.answers(files, keep=True)]
    assert kept == [files[0].read_bytes(), b"no image", None, None, files[4].read_bytes()]


@pytest.mark.parametrize("name", ["calibration.temperature", "calibration.error"])
def test_numbers_that_are_not_finite_are_an_error_and_not_an_answer(
    files: list[Path], tmp_path: Path, name: str
) -> None:
    model = damaged(name, tmp_path)
    [answer] = model.answers(files[:1], reject=1.0)
    assert (answer.ok, answer.decision) == (False, None)
    assert str(files[0]) in str(answer.error)
    assert "not finite" in str(answer.error)
    json.dumps(answer.as_dict(), allow_nan=False)
    # An array has room for NaN, and nothing that is not a number is accepted.
    prediction = model.predict(files[:1], reject=1.0)
    assert np.isnan(prediction.error_probability).all()
    if name == "calibration.temperature":
        assert np.isnan(prediction.uncertainty).all()
        assert prediction.decisions == [Decision.REJECT]


@pytest.mark.parametrize(
    ("name", "value"), [("samples", 0), ("seed", -1), ("reject", 1.5), ("adaptive", 1.0), ("top", 0)]
)
def test_a_wrong_request_is_an_error_before_the_first_answer(model: Model, name: str, value: float) -> None:
    with raises(f"argument.{name}", UsageError) as caught:
        model.answers(["missing.png"], **{name: value})  # type: ignore[arg-type]
    assert caught.value.fields["value"] == value


def test_a_rule_that_is_not_stored_is_an_error_before_the_first_answer(digits: Digits) -> None:
    with raises("model.no-rule"):
        Model(digits.model, "cpu").answers([], reject="auto")


@pytest.mark.parametrize("path", ["digit.png", Path("digit.png"), b"png"])
def test_one_path_is_not_taken_for_many(model: Model, path: object) -> None:
    with raises("argument.paths", ImageError):
        model.answers(path)  # type: ignore[arg-type]


def test_no_paths_have_no_answers(model: Model) -> None:
    answers: list[Answer] = list(model.answers([]))
    assert answers == []

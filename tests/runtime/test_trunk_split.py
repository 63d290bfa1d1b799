"""The trunk runs once, whatever the number of calls, and the answers stay the same to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import GOLDEN, Digits

from uce_edge import Model
from uce_edge.contract import Inference
from uce_edge.runtime import scheduler
from uce_edge.runtime.session import Runner
from uce_edge.runtime.trunk_split import Halves, open_halves

pytestmark = pytest.mark.filterwarnings("ignore:this model was calibrated")


@pytest.fixture(scope="module")
def tail(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with noise in its last block and head, and with a novelty score."""
    from uce_edge_export.options import Options
    from uce_edge_train.export import export_run

    out = tmp_path_factory.mktemp("tail") / "tail.onnx"
    export_run(digits.run, out, digits.dataset, options=Options(("blocks.2.*", "classifier")))
    return out


@pytest.fixture
def images(digits: Digits) -> np.ndarray:
    return digits.dataset.splits["test"].images[:7]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Runner]:
    """The sessions of all calls, in order."""
    sessions: list[Runner] = []
    run = Runner.run

    def noted(self: Runner, outputs: list[str], feed: dict[str, Any]) -> list[Any]:
        sessions.append(self)
        return run(self, outputs, feed)

    monkeypatch.setattr(Runner, "run", noted)
    return sessions


@pytest.mark.parametrize("adaptive", [None, 0.01])
def test_a_kept_trunk_gives_the_same_answers_to_the_bit(
    tail: Path, images: np.ndarray, adaptive: float | None, monkeypatch: pytest.MonkeyPatch, ran: list[Runner]
) -> None:
    monkeypatch.setattr(scheduler, "_REPEATS", 1000)
    before = Model(tail, "cpu").predict(images, samples=100, adaptive=adaptive)
    assert len(set(ran)) == 1
    monkeypatch.setattr(scheduler, "_REPEATS", 0)
    ran.clear()
    after = Model(tail, "cpu").predict(images, samples=100, adaptive=adaptive)
    assert len(set(ran)) >= 2  # a trunk and a tail
    for name in ("probabilities", "uncertainty", "model_uncertainty", "novelty", "drawn"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name


@pytest.mark.parametrize("most", [1, 3])
def test_calls_sized_for_the_caches_give_the_same_answers_to_the_bit(
    tail: Path, images: np.ndarray, most: int, monkeypatch: pytest.MonkeyPatch, ran: list[Runner]
) -> None:
    monkeypatch.setattr(scheduler, "_REPEATS", 1000)
    before = Model(tail, "cpu").predict(images[:2], samples=40)
    assert len(ran) == 2 * 2  # of at most 32 passes
    each = Model(tail, "cpu").metadata.costs.bytes_per_draw
    monkeypatch.setattr(scheduler, "_CACHED", most * each)
    ran.clear()
    after = Model(tail, "cpu").predict(images[:2], samples=40)
    assert len(ran) == 2 * -(-40 // most)
    for name in ("probabilities", "uncertainty", "model_uncertainty", "standard_error", "novelty"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name


def test_it_is_opened_after_some_repetitions_only(tail: Path, images: np.ndarray, ran: list[Runner]) -> None:
    model = Model(tail, "cpu")
    model.predict(images[:1], samples=100)
    assert len(set(ran)) == 1
    for _ in range(4):
        model.predict(images[:1], samples=100)
    assert len(set(ran)) == 3


def test_the_halves_hold_the_nodes_of_the_file_and_no_more(tail: Path) -> None:
    opened: list[onnx.GraphProto] = []

    def opening(content: bytes) -> Any:
        from uce_edge.runtime.providers import open_session

        opened.append(onnx.load_from_string(content).graph)
        return open_session(content, "cpu")

    assert isinstance(open_halves(tail.read_bytes(), opening), Halves)
    whole = {node.output[0] for node in onnx.load(tail).graph.node}
    trunk, rest = ({node.output[0] for node in graph.node} for graph in opened)
    assert trunk | rest == whole
    assert "seeds" not in {value.name for value in opened[0].input}
    layers = [{weight.name for weight in graph.initializer if weight.name.endswith("conv1.weight")} for graph in opened]
    assert "blocks.0.conv1.weight" in layers[0] - layers[1]


def test_a_file_without_a_trunk_runs_whole(
    digits: Digits, images: np.ndarray, monkeypatch: pytest.MonkeyPatch, ran: list[Runner]
) -> None:
    monkeypatch.setattr(scheduler, "_REPEATS", 0)
    Model(digits.deterministic, "cpu").predict(images)
    Model(GOLDEN / "digits-mc.onnx", "cpu").predict(images, samples=100)  # noise in every layer: hardly a trunk
    assert len(set(ran)) == 2
    assert Model(digits.deterministic, "cpu").metadata.inference is Inference.DETERMINISTIC
    assert open_halves(digits.deterministic.read_bytes(), lambda _: None) is None
    assert open_halves(b"\0\0\0\0ORTM", lambda _: None) is None


def test_a_file_that_was_replaced_meanwhile_keeps_its_answers(
    tail: Path, images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(tail.read_bytes())
    model = Model(copy, "cpu")
    before = model.predict(images, samples=100).probabilities
    copy.write_bytes((GOLDEN / "digits-mc.onnx").read_bytes())
    monkeypatch.setattr(scheduler, "_REPEATS", 0)
    assert np.array_equal(model.predict(images, samples=100).probabilities, before)

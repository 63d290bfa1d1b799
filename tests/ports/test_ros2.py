"""The robot example: images as ROS sends them, through the golden model, without ROS.

The node itself runs with stand-ins for rclpy and the message packages, which pip cannot install.
"""

import array
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import GOLDEN, ROOT
from helpers import port_frame_cases as frames
from helpers.pictures import no_photos
from helpers.port_cases import (
    GATED,
    case_id,
    check_novelty,
    check_set,
    decision_of,
    from_the_future,
    not_a_number,
    variant,
)
from PIL import Image

from uce_edge import Model
from uce_edge.errors import ImageError, UceEdgeWarning, UsageError
from uce_edge.images.loader import prepare
from uce_edge.images.resize import Resize
from uce_edge.metadata import ImageSpec
from uce_edge.models import bundled, kinds
from uce_edge.runtime.model import GuaranteeWarning, SamplesWarning

PACKAGE = ROOT / "examples" / "ros2"
sys.path.append(str(PACKAGE))
from uce_edge_ros.classifier import Answer, Classifier, parse_reject, pixels  # noqa: E402

CASES = json.loads((GOLDEN / "cases.json").read_text())
MODELS = sorted({case["model"] for case in CASES})


def message(values: np.ndarray, encoding: str, padding: int = 0, filler: int = 255) -> SimpleNamespace:
    """A sensor_msgs/Image of [height, width, bytes of a pixel], its rows padded, its data as rclpy gives it."""
    height, width = values.shape[:2]
    rows = values.reshape(height, -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=filler)
    data = array.array("B", padded.tobytes())
    shape = {"height": height, "width": width, "step": padded.shape[1]}
    return SimpleNamespace(header="a header", encoding=encoding, is_bigendian=1, data=data, **shape)


def golden(name: str) -> np.ndarray:
    return np.frombuffer((GOLDEN / name).read_bytes(), np.uint8).reshape(8, 8, 1)


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: Model(GOLDEN / name, "cpu", threads=1) for name in MODELS}


@pytest.mark.parametrize("padding", [0, 1, 13])
@pytest.mark.parametrize(
    ("encoding", "order"),
    [("rgb8", [0, 1, 2]), ("bgr8", [2, 1, 0]), ("rgba8", [0, 1, 2, 3]), ("bgra8", [2, 1, 0, 3]), ("mono8", [0])],
)
def test_every_encoding_gives_the_same_pixels(
    rng: np.random.Generator, encoding: str, order: list[int], padding: int
) -> None:
    rgba = rng.integers(0, 256, (5, 7, 4)).astype(np.uint8)
    found = pixels(message(rgba[..., order], encoding, padding))
    np.testing.assert_array_equal(found, rgba[..., : min(3, len(order))])
    assert found.dtype == np.uint8


@pytest.mark.parametrize("case", frames.CASES, ids=lambda case: case["expected"])
def test_a_message_gives_the_golden_pixels(case: dict[str, Any]) -> None:
    frame = frames.frame_of(case)
    encoding, order = ("mono8", [0]) if frame.shape[2] == 1 else ("bgr8", [2, 1, 0])
    resize = Resize.from_document(case.get("resize", {}))
    spec = ImageSpec(case["height"], case["width"], case["channels"], resize=resize)
    found = prepare(pixels(message(frame[..., order], encoding, 5)), spec)
    assert np.abs(found.astype(int) - frames.wanted_of(case)).max() <= case["within"]


@pytest.mark.parametrize("resize", frames.RESIZES, ids=lambda resize: resize["mode"])
def test_a_message_of_any_size_is_answered_as_python_does(tmp_path: Path, resize: dict[str, Any]) -> None:
    file = frames.asking(tmp_path, resize)
    said = Classifier(Model(file, "cpu", threads=1), 25).answer(message(frames.photo(), "rgb8", 7))
    wanted = frames.python_answer(file, frames.photo())
    assert said.hypotheses[0][0] == wanted.label
    assert said.uncertainty == pytest.approx(wanted.uncertainty, rel=0, abs=1e-6)


@pytest.mark.parametrize("encoding", ["mono16", "16UC1"])
@pytest.mark.parametrize("big", [0, 1])
def test_16_bits_are_read_in_the_order_of_the_message(rng: np.random.Generator, encoding: str, big: int) -> None:
    values = rng.integers(0, 65536, (5, 7)).astype(np.uint16)
    sent = message(values.astype(">u2" if big else "<u2").view(np.uint8).reshape(5, 7, 2), encoding, 6)
    sent.is_bigendian = big
    np.testing.assert_array_equal(pixels(sent)[..., 0], values)


def test_a_camera_of_12_bits_is_answered_by_the_range_of_the_model(tmp_path: Path) -> None:
    def ranged(document: dict[str, Any]) -> None:
        document["image"]["range"] = {"low": 0, "high": 4095}

    model = Model(variant(tmp_path, ranged), "cpu", threads=1)
    digit = golden("digit-0.raw")
    deep = np.rint(digit * (4095 / 255)).astype("<u2").view(np.uint8).reshape(8, 8, 2)
    sent = message(deep, "mono16", 2)
    sent.is_bigendian = 0
    asked = Classifier(model, 25)
    assert asked.answer(sent) == asked.answer(message(digit, "mono8"))


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda data: np.frombuffer(data, np.uint8), memoryview])
def test_data_may_be_any_buffer(kind: Callable[[bytes], Any]) -> None:
    image = message(golden("digit-0.raw"), "mono8", 3)
    image.data = kind(image.data.tobytes())
    np.testing.assert_array_equal(pixels(image), golden("digit-0.raw"))


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_every_golden_is_answered_as_python_does(models: dict[str, Model], case: dict[str, Any]) -> None:
    model = models[case["model"]]
    samples, seed = (len(case["seeds"]), case["seeds"][0] // 4096) if case["seeds"] else (1, 0)
    reject = 1 if model.metadata.rule is None else "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UceEdgeWarning)  # some cases have other passes than the fitted ones
        said = Classifier(model, samples, seed, reject).answer(message(golden(case["image"]), "mono8", 5))
    assert said.error is None
    assert (said.decision, said.reason) == (decision_of(case), case["reason"] or "")
    assert said.hypotheses[0][0] == case["label"]
    assert [score for _, score in said.hypotheses] == sorted((score for _, score in said.hypotheses), reverse=True)
    wanted = {name: output["values"] for name, output in case["outputs"].items()}
    scores = [dict(said.hypotheses)[name] for name in model.classes]
    np.testing.assert_allclose(scores, wanted["probabilities"], rtol=0, atol=1e-6)
    assert said.uncertainty == pytest.approx(wanted["uncertainty"][0], rel=0, abs=1e-6)
    check_novelty(vars(said), wanted)
    check_set({"set": None if said.label_set is None else list(said.label_set)}, wanted)


def test_a_colour_image_of_any_size_is_fitted_to_the_model(models: dict[str, Model]) -> None:
    large = np.repeat(np.kron(golden("digit-0.raw")[..., 0], np.ones((16, 16), np.uint8))[..., None], 4, axis=2)
    large[..., 3] = 0  # a camera that leaves alpha empty must not be taken for a transparent image
    found = Classifier(models["digits-mc.onnx"], 25).answer(message(large, "bgra8", 8))
    assert (found.decision, found.hypotheses[0][0]) == ("accept", "3")


BAD = {
    "unknown encoding": ({"encoding": "yuv422"}, "but got 'yuv422'"),
    "16 bits": ({"encoding": "mono16"}, "step is 8 bytes, and a row of 8 mono16 takes 16"),
    "colour of 16 bits": ({"encoding": "rgb16"}, "but got 'rgb16'"),
    "no encoding": ({"encoding": ""}, "but got ''"),
    "data too short": ({"data": bytes(63)}, "has 63 bytes of data, and 8 rows take 64"),
    "no data": ({"data": b""}, "has 0 bytes of data, and 8 rows take 64"),
    "step too short": ({"step": 7}, "step is 7 bytes, and a row of 8 mono8 takes 8"),
    "no rows": ({"height": 0}, "is 8 x 0 pixels"),
    "no columns": ({"width": 0}, "is 0 x 8 pixels"),
    "sizes beyond the data": ({"height": 2**32 - 1, "width": 2**32 - 1, "step": 2**32 - 1}, "has 64 bytes of data"),
}


@pytest.mark.parametrize(("change", "reason"), BAD.values(), ids=BAD)
def test_a_bad_image_is_an_answer_and_not_a_crash(
    models: dict[str, Model], change: dict[str, Any], reason: str
) -> None:
    image = message(golden("digit-0.raw"), "mono8")
    vars(image).update(change)
    with pytest.raises(ImageError):
        pixels(image)
    found = Classifier(models["digits-mc.onnx"], 25).answer(image)
    assert found == Answer("error", error=found.error)
    assert reason in str(found.error)
    assert "\n" not in str(found.error)


def test_an_uncertainty_that_is_not_a_number_is_never_accepted(tmp_path: Path) -> None:
    broken = Model(variant(tmp_path, graph=not_a_number), "cpu", threads=1)
    found = Classifier(broken, 25, reject=1).answer(message(golden("digit-0.raw"), "mono8"))
    assert found.decision == "error"
    assert "not a number" in str(found.error)


def test_a_novelty_that_is_not_a_number_is_out_of_distribution(tmp_path: Path) -> None:
    broken = Model(variant(tmp_path, graph=lambda graph: not_a_number(graph, "novelty.weights"), source=GATED), "cpu")
    said = Classifier(broken, 25).answer(message(golden("digit-0.raw"), "mono8"))
    assert (said.decision, said.reason) == ("reject", "out-of-distribution")


@pytest.mark.parametrize("kind", kinds("cifar10"))
def test_the_bundled_file_rejects_what_is_no_photo_and_not_all_photos(kind: str) -> None:
    model = Model(bundled(kind, "cifar10"), "cpu", threads=1)
    classifier = Classifier(model, model.metadata.samples)
    for what, shown in no_photos().items():
        said = classifier.answer(message(shown[0], "rgb8"))
        assert (said.decision, said.reason in ("out-of-distribution", "both")) == ("reject", True), what
        assert said.why.startswith("unlike anything it was calibrated on")
    photos = [np.asarray(Image.open(path).convert("RGB")) for path in (ROOT / "tests" / "cifar").glob("*.png")]
    assert "accept" in {classifier.answer(message(photo, "rgb8")).decision for photo in photos}


def test_a_photo_is_answered_by_the_default_model_as_in_python() -> None:
    model, decisions = Model(None, "cpu", threads=1), []
    for path, wanted in zip(frames.PHOTOS, model.predict(frames.PHOTOS, reject="auto"), strict=True):
        with Image.open(path) as photo:
            said = Classifier(model, 1).answer(message(np.asarray(photo.convert("RGB")), "rgb8"))
        assert (said.decision, said.reason) == (wanted.decision, wanted.reason or "")
        assert said.label_set == wanted.label_set
        assert said.hypotheses[0] == (wanted.label, pytest.approx(wanted.confidence, abs=1e-6))
        decisions.append(said.decision)
    assert decisions == ["accept", "reject", "reject"]


def test_a_file_of_a_later_minor_version_is_answered_as_today(models: dict[str, Model], tmp_path: Path) -> None:
    later = Model(from_the_future(tmp_path), "cpu", threads=1)
    image = message(golden("digit-0.raw"), "mono8")
    assert Classifier(later, 25).answer(image) == Classifier(models["digits-mc.onnx"], 25).answer(image)


def test_whatever_the_runtime_runs_into_is_an_answer_too(models: dict[str, Model]) -> None:
    classifier = Classifier(models["digits-mc.onnx"], 25)
    found = classifier.answer(SimpleNamespace(encoding="mono8", height=8, width=8, step=8, data=["x"] * 64))
    assert found.decision == "error"
    assert str(found.error).startswith("The image could not be classified: ")


@pytest.mark.parametrize(("value", "wanted"), [("auto", "auto"), (0.3, 0.3), (1, 1.0), ("0.25", 0.25)])
def test_reject_is_read_as_ros_gives_it(value: object, wanted: object) -> None:
    assert parse_reject(value) == wanted


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), "none", None, [0.3]])
def test_a_wrong_threshold_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="`reject`"):
        parse_reject(value)


def test_a_wrong_request_is_refused_before_the_first_image(models: dict[str, Model]) -> None:
    with pytest.raises(UsageError, match="`samples`"):
        Classifier(models["digits-mc.onnx"], 0, reject=0.3)
    with pytest.raises(UsageError, match="`seed`"):
        Classifier(models["digits-mc.onnx"], 25, -1, 0.3)


def test_auto_needs_a_stored_rule(models: dict[str, Model]) -> None:
    with pytest.raises(UsageError, match="no stored"):
        Classifier(models["digits-rule-none.onnx"], 1)


def test_the_package_is_described_once_in_each_of_its_two_files() -> None:
    manifest, setup = ElementTree.parse(PACKAGE / "package.xml").getroot(), (PACKAGE / "setup.py").read_text()
    assert manifest.findtext("export/build_type") == "ament_python"
    for key in ("name", "version", "description", "license"):
        assert f'"{manifest.findtext(key)}"' in setup, key
    assert (PACKAGE / "resource" / str(manifest.findtext("name"))).is_file()


class Recorder:
    """A stand-in for a message, a publisher or a logger: keeps what it is given."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)
        self.said: list[Any] = []

    def publish(self, value: Any) -> None:
        self.said.append(value)

    def error(self, text: str, **_: Any) -> None:
        self.said.append(text)

    info = warning = fatal = error


class FakeNode:
    """What the example uses of rclpy's Node."""

    given: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str) -> None:
        self.log, self.topics = Recorder(), {}

    def get_logger(self) -> Recorder:
        return self.log

    def declare_parameter(self, name: str, default: Any, *_: Any) -> SimpleNamespace:
        return SimpleNamespace(value=self.given.get(name, default))

    def create_publisher(self, kind: Any, topic: str, depth: int) -> Recorder:
        self.topics[topic] = Recorder()
        return self.topics[topic]

    def create_subscription(self, kind: Any, topic: str, callback: Callable[[Any], None], quality: Any) -> None:
        self.topics[topic] = callback


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The node's module, with stand-ins for what it imports of ROS."""
    logger, shut = Recorder(), []
    fakes: dict[str, dict[str, Any]] = {
        "rclpy": {"init": lambda: None, "spin": lambda _: None, "try_shutdown": lambda: shut.append(True)},
        "rclpy.node": {"Node": FakeNode},
        "rclpy.logging": {"get_logger": lambda _: logger},
        "rclpy.executors": {"ExternalShutdownException": type("ExternalShutdownException", (Exception,), {})},
        "rclpy.qos": {"QoSProfile": Recorder, "ReliabilityPolicy": SimpleNamespace(BEST_EFFORT=1)},
        "rcl_interfaces.msg": {"ParameterDescriptor": Recorder},
        "sensor_msgs.msg": {"Image": Recorder},
        "std_msgs.msg": {"Float32": Recorder, "String": Recorder},
        "vision_msgs.msg": {"Classification": Recorder, "ObjectHypothesis": Recorder},
    }
    fakes["rclpy"] |= {"logger": logger, "shut": shut}
    for name in {name.partition(".")[0] for name in fakes} | set(fakes):
        module = ModuleType(name)
        vars(module).update(fakes.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(FakeNode, "given", {"model": str(GOLDEN / "digits-mc.onnx"), "device": "cpu"})
    monkeypatch.delitem(sys.modules, "uce_edge_ros.uce_edge_node", raising=False)
    yield importlib.import_module("uce_edge_ros.uce_edge_node")
    del sys.modules["uce_edge_ros.uce_edge_node"]


def test_the_node_publishes_class_uncertainty_and_decision(node: ModuleType) -> None:
    topics = node.UceEdgeNode().topics
    topics["image"](message(golden("digit-0.raw"), "mono8"))
    topics["image"](message(golden("noise.raw"), "mono8"))
    first, second = topics["~/classification"].said
    assert first.header == "a header"
    assert first.results[0].class_id == "3"
    assert sum(result.score for result in second.results) == pytest.approx(1, abs=1e-5)
    assert [said.data for said in topics["~/decision"].said] == ["accept", "reject"]
    wanted = [case for case in CASES if case["model"] == "digits-mc.onnx" and case["image"] == "noise.raw"]
    assert topics["~/uncertainty"].said[1].data == pytest.approx(wanted[0]["outputs"]["uncertainty"]["values"][0])


def test_the_node_says_why_an_image_is_rejected(node: ModuleType) -> None:
    FakeNode.given["model"] = str(GATED)
    running = node.UceEdgeNode()
    names = ("digit-0", "two-digits", "black", "stripes")
    for name in names:
        running.on_image(message(golden(f"{name}.raw"), "mono8"))
    assert [said.data for said in running.topics["~/reason"].said] == ["", "uncertain", "out-of-distribution", "both"]
    assert [said.data for said in running.topics["~/decision"].said] == ["accept", *["reject"] * 3]
    assert running.log.said[-2] == "reject: unlike anything it was calibrated on"
    wanted = {case["image"]: case["outputs"] for case in CASES if case["model"] == GATED.name}
    for topic in ("novelty", "novelty_score"):
        published = [said.data for said in running.topics[f"~/{topic}"].said]
        assert published == pytest.approx([wanted[f"{name}.raw"][topic]["values"][0] for name in names], rel=1e-5)


def test_the_node_publishes_the_set_of_a_file_that_has_sets(node: ModuleType) -> None:
    assert "~/set" not in node.UceEdgeNode().topics
    FakeNode.given["model"] = str(GOLDEN / "digits-sets-raps.onnx")
    running = node.UceEdgeNode()
    for name in ("digit-0", "two-digits"):
        running.on_image(message(golden(f"{name}.raw"), "mono8"))
    assert [said.data for said in running.topics["~/set"].said] == ['["3"]', '["8", "9"]']


def test_the_node_without_a_model_takes_the_default(node: ModuleType) -> None:
    del FakeNode.given["model"]
    running = node.UceEdgeNode()
    assert running.log.said == [f"{bundled()} on CPUExecutionProvider: 1000 classes"]
    with Image.open(ROOT / "examples" / "images" / "bee.jpg") as photo:
        running.on_image(message(np.asarray(photo.convert("RGB")), "rgb8"))
    assert running.topics["~/classification"].said[0].results[0].class_id == "bee"
    assert running.topics["~/decision"].said[0].data == "accept"


def test_a_file_without_novelty_has_no_topic_for_it(node: ModuleType) -> None:
    running = node.UceEdgeNode()
    running.on_image(message(golden("noise.raw"), "mono8"))
    assert running.topics["~/reason"].said[0].data == "uncertain"
    assert not [topic for topic in running.topics if "novelty" in topic]


def test_the_node_logs_a_bad_image_and_lives_on(node: ModuleType) -> None:
    running = node.UceEdgeNode()
    bad = message(golden("digit-0.raw"), "mono8")
    bad.encoding = "bayer_rggb8"
    running.on_image(bad)
    running.on_image(message(golden("digit-0.raw"), "mono8"))
    assert "bayer_rggb8" in running.log.said[-1]
    assert [said.data for said in running.topics["~/decision"].said] == ["error", "accept"]
    assert [said.data for said in running.topics["~/reason"].said] == ["", ""]
    assert len(running.topics["~/classification"].said) == 1


def test_the_nodes_parameters_are_obeyed(node: ModuleType) -> None:
    FakeNode.given |= {"image_topic": "/camera", "decision_topic": "/act", "reject": 1, "samples": 3, "seed": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        running = node.UceEdgeNode()
        running.topics["/camera"](message(golden("noise.raw"), "mono8"))
    assert running.topics["/act"].said[0].data == "accept"
    assert any("calibrated at 25 samples and runs with 3" in text for text in running.log.said)


def test_the_stored_threshold_warns_when_its_promise_does_not_hold(models: dict[str, Model]) -> None:
    with pytest.warns(SamplesWarning), pytest.warns(GuaranteeWarning):
        Classifier(models["digits-mc.onnx"], 3)


def test_a_node_does_not_start_with_another_contract(node: ModuleType, tmp_path: Path) -> None:
    FakeNode.given["model"] = str(variant(tmp_path, lambda document: document.update(contract=3)))
    with pytest.raises(SystemExit) as stop:
        node.main()
    assert stop.value.code == 1
    [said] = sys.modules["rclpy"].logger.said
    assert "follows model contract 3" in said


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"model": "nothing"}, "nothing"), ({"model": "nothing.onnx"}, "nothing.onnx"), ({"reject": 2}, "`reject`")],
)
def test_a_node_that_cannot_start_says_why_and_exits(node: ModuleType, given: dict[str, Any], reason: str) -> None:
    FakeNode.given |= given
    with pytest.raises(SystemExit) as stop:
        node.main()
    assert stop.value.code == 1
    [said] = sys.modules["rclpy"].logger.said
    assert reason in said
    assert sys.modules["rclpy"].shut == [True]

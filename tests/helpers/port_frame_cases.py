"""What every port must do with images of any size: the pixel goldens, an answer, and what it must refuse."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import GOLDEN, ROOT
from PIL import Image

from helpers.port_cases import MODEL, NUMBERS, Port, answer, refusal, variant
from uce_edge import Model, contract
from uce_edge.images.loader import load
from uce_edge.metadata import ImageSpec
from uce_edge.models import bundled

FOLDER = GOLDEN / "pixels"
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())
RESIZES: list[dict[str, Any]] = [
    {"mode": "stretch", "filter": "lanczos"},
    {"mode": "crop", "size": 10, "filter": "bicubic"},
    {"mode": "pad", "fill": 200},
]
PHOTOS = [ROOT / "examples" / "images" / name for name in ("bee.jpg", "cat.jpg", "page.jpg")]
"""Of these, the default model accepts one, is uncertain about one, and finds one uncertain and out of distribution."""
NARROW = "before the middle is cut out; at most 65535 on a side are made. Cut out a less narrow part first."
WRONG: dict[str, tuple[object, str]] = {
    "type": ("crop:256", "its key resize has the wrong type"),
    "mode": ({"mode": "squeeze"}, "its resize mode is squeeze"),
    "filter": ({"mode": "crop", "size": 10, "filter": "nearest"}, "its resize filter is nearest"),
    "no-size": ({"mode": "crop"}, "it lacks the key size"),
    "small": ({"mode": "crop", "size": 7}, "its key size is out of range"),
    "large": ({"mode": "crop", "size": 65536}, "its key size is out of range"),
    "size": ({"mode": "pad", "size": 10}, "its resize has a size that only crop takes"),
    "fill": ({"mode": "pad", "fill": [1, 2, 3]}, "its resize fill is no colour"),
    "level": ({"mode": "pad", "fill": 256}, "its resize fill is no colour"),
    "no-level": ({"mode": "pad", "fill": "red"}, "its resize fill is no colour"),
    "filled": ({"mode": "stretch", "fill": 9}, "its resize has a fill that only pad takes"),
}
"""Values of `image.resize` that a reader must refuse, for a gray model of 8 x 8, and what is said of them."""


def frame_of(case: dict[str, Any]) -> np.ndarray:
    """The image of a case at its own size, [height, width, channels]; what ports do not decode, Python has decoded."""
    path = FOLDER / case["file"]
    with Image.open(path) as image:
        if path.suffix in (".ppm", ".pgm"):
            return np.atleast_3d(np.asarray(image))
        width, height = reversed(image.size) if image.getexif().get(0x0112, 1) > 4 else image.size
    return load(path, ImageSpec(height, width, case["channels"]))


def wanted_of(case: dict[str, Any]) -> np.ndarray:
    """The golden pixels."""
    shape = case["height"], case["width"], case["channels"]
    return np.frombuffer((FOLDER / case["expected"]).read_bytes(), np.uint8).reshape(shape)


def asking(folder: Path, resize: object, dtype: str = "uint8") -> Path:
    """A golden file that asks for this resize."""

    def widen(graph: onnx.GraphProto) -> None:
        image = next(value for value in graph.input if value.name == contract.IMAGE)
        image.type.tensor_type.elem_type = getattr(onnx.TensorProto, {"float32": "FLOAT"}.get(dtype, "UINT8"))

    return variant(folder, lambda document: document["image"].update(resize=resize, dtype=dtype), widen)


def photo(height: int = 27, width: int = 40, channels: int = 3) -> np.ndarray:
    """A smooth image with some noise: its answer depends on how it is resized."""
    y, x, c = np.mgrid[:height, :width, :channels]
    noise = np.random.default_rng(0).integers(0, 60, (height, width, channels))
    return (97 + 90 * np.sin(x / 5 + c) * np.cos(y / 4) + noise).astype(np.uint8)


def python_answer(file: Path, image: np.ndarray) -> Any:
    """What Python says of an image of any size."""
    with warnings.catch_warnings(action="ignore"):
        return Model(file, "cpu", threads=1).predict([image])[0]


def check_like_python(said: dict[str, Any], file: Path, image: np.ndarray) -> None:
    wanted = python_answer(file, image)
    assert said["class_id"] == wanted.class_id
    for name in (contract.PROBABILITIES, *NUMBERS):
        np.testing.assert_allclose(said[name], getattr(wanted, name), rtol=0, atol=1e-6)


def shell_model(path: Path, case: dict[str, Any]) -> Path:
    """A file of a case's shape and resize whose answers mean nothing: the smallest that a reader opens."""
    image = onnx.helper.make_tensor_value_info("image", onnx.TensorProto.UINT8, ["batch", *_sides(case)])
    seeds = onnx.helper.make_tensor_value_info("seeds", onnx.TensorProto.INT32, ["samples"])
    outputs = [output.name for output in contract.outputs_of(())]
    whole = (contract.CLASS_ID, contract.DECISION)
    kinds = [onnx.TensorProto.INT32 if name in whole else onnx.TensorProto.FLOAT for name in outputs]
    nodes = [
        onnx.helper.make_node("Cast", ["image"], [name], to=kind) for name, kind in zip(outputs, kinds, strict=True)
    ]
    given = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, kinds, strict=True)]
    graph = onnx.helper.make_graph(nodes, "shell", [image, seeds], given)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    document = {"contract": 2, "classes": ["a", "b"], "inference": "mc", "samples": 1}
    document["image"] = {**dict(zip(("height", "width", "channels"), _sides(case), strict=True)), "dtype": "uint8"}
    document["image"] |= {"resize": case["resize"]} if "resize" in case else {}
    model.metadata_props.add(key=contract.KEY, value=json.dumps(document))
    onnx.save(model, path)
    path.with_suffix(".json").write_text(json.dumps(document))
    return path


def _sides(case: dict[str, Any]) -> tuple[int, int, int]:
    return case["height"], case["width"], case["channels"]


class FrameTests:
    """Inherited by the tests of each port with a command, whose module has the fixture `port`."""

    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("resize", RESIZES, ids=lambda resize: resize["mode"])
    def test_a_frame_of_any_size_is_answered_as_python_does(
        self, port: Port, tmp_path: Path, resize: dict[str, Any], channels: int
    ) -> None:
        file, image = asking(tmp_path, resize), photo(channels=channels)
        (tmp_path / "frame.raw").write_bytes(image.tobytes())
        said = answer(port, file, tmp_path / "frame.raw", "--frame", "40x27")
        check_like_python(said, file, image)
        plain = answer(port, MODEL, tmp_path / "frame.raw", "--frame", "40x27")
        assert said["probabilities"] != plain["probabilities"]  # so that the resize matters to the test

    def test_a_float32_model_gets_a_frame_that_is_not_rounded(self, port: Port, tmp_path: Path) -> None:
        file, image = asking(tmp_path, RESIZES[1], "float32"), photo()
        (tmp_path / "frame.raw").write_bytes(image.tobytes())
        check_like_python(answer(port, file, tmp_path / "frame.raw", "--frame", "40x27"), file, image)

    def test_a_photo_is_answered_by_the_default_model_as_in_python(self, port: Port, tmp_path: Path) -> None:
        frame, reasons = tmp_path / "frame.raw", []
        for path, wanted in zip(PHOTOS, Model(None, "cpu").predict(PHOTOS, reject="auto"), strict=True):
            with Image.open(path) as photo:
                frame.write_bytes(photo.convert("RGB").tobytes())
                words = ("--frame", f"{photo.width}x{photo.height}", "--reject", "auto")
            said = answer(port, bundled(), frame, *words)
            assert (said["label"], said["set"]) == (wanted.label, list(wanted.label_set or ()))
            assert (said["decision"], said["reason"]) == (wanted.decision, wanted.reason)
            for name in (contract.PROBABILITIES, *NUMBERS):
                np.testing.assert_allclose(said[name], getattr(wanted, name), rtol=0, atol=1e-5)
            reasons.append(said["reason"])
        assert reasons == [None, "uncertain", "both"]

    @pytest.mark.parametrize("kind", WRONG)
    def test_a_resize_that_is_not_known_is_refused(self, port: Port, tmp_path: Path, kind: str) -> None:
        resize, rule = WRONG[kind]
        (tmp_path / "image.raw").write_bytes(bytes(64))
        said = refusal(port, asking(tmp_path, resize), tmp_path / "image.raw")
        assert said.endswith(f"has damaged metadata: {rule}.")

    def test_a_frame_too_narrow_to_resize_is_refused(self, port: Port, tmp_path: Path) -> None:
        (tmp_path / "frame.raw").write_bytes(bytes(20_000))
        words = (asking(tmp_path, RESIZES[1]), tmp_path / "frame.raw", "--frame")
        assert refusal(port, *words, "1x20000") == f"The image is 1 x 20000 pixels, and would be 10 x 200000 {NARROW}"
        assert answer(port, *words, "4x5000")["samples"] == 25

    @pytest.mark.parametrize(
        ("size", "rule"),
        [
            ("640", "Expected `frame` to be a width and a height such as 640x480, but got 640."),
            ("0x9", "Expected `frame` to be a width and a height such as 640x480, but got 0x9."),
            ("5x7", "Expected `image` to be 35 bytes (gray) or 105 bytes (RGB), but got 64."),
        ],
    )
    def test_a_frame_of_another_size_than_its_bytes_is_refused(
        self, port: Port, tmp_path: Path, size: str, rule: str
    ) -> None:
        (tmp_path / "frame.raw").write_bytes(bytes(64))
        assert refusal(port, MODEL, tmp_path / "frame.raw", "--frame", size) == rule

"""Every pixel golden, resized by C++, C and JavaScript to the same bytes as by Pillow."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from helpers.cpp_build import CPP, build, compiled  # noqa: F401
from helpers.port_frame_cases import (
    CASES,
    NARROW,
    RESIZES,
    asking,
    frame_of,
    photo,
    python_answer,
    shell_model,
    wanted_of,
)

from uce_edge.images.loader import prepare
from uce_edge.images.resize import Resize
from uce_edge.metadata import ImageSpec

HERE = Path(__file__).resolve().parent
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-I", CPP)
NODE = ROOT / "examples" / "node"
SCRIPT = """
    import { readFileSync } from 'node:fs';
    const { prepare } = await import(process.argv[1]);
    const answers = JSON.parse(readFileSync(0)).map(({ pixels, width, height, channels, image }) => {
      const bytes = Buffer.from(pixels, 'base64');
      const stride = width * channels + 5; // rows with gaps
      const data = new Uint8Array(stride * height);
      for (let y = 0; y < height; y++) data.set(bytes.subarray(y * (stride - 5), (y + 1) * (stride - 5)), y * stride);
      return Buffer.from(prepare({ data, width, height, channels, stride }, image)).toString('base64');
    });
    console.log(JSON.stringify(answers));
"""


def words_of(frame: np.ndarray, case: dict[str, Any], dtype: str) -> bytes:
    """A request to resize.cpp."""
    way = Resize.from_document(case.get("resize", {}))
    fill = ",".join(map(str, way.fill if isinstance(way.fill, tuple) else [way.fill]))
    height, width, channels = frame.shape
    to = case["width"], case["height"], case["channels"]
    words = (way.mode, way.filter, way.size or 0, fill, width, height, channels, *to, dtype)
    return " ".join(map(str, words)).encode() + b"\n" + frame.tobytes()


def split(content: bytes, cases: list[dict[str, Any]]) -> list[np.ndarray]:
    """The images of cases, one after the other in memory."""
    found, place = [], 0
    for case in cases:
        shape = case["height"], case["width"], case["channels"]
        found.append(np.frombuffer(content, np.uint8, int(np.prod(shape)), place).reshape(shape))
        place += found[-1].size
    assert place == len(content)
    return found


def check(found: list[np.ndarray]) -> None:
    assert {case["resize"]["mode"] for case in CASES if "resize" in case} == {"stretch", "crop", "pad"}
    for case, pixels in zip(CASES, found, strict=True):
        # Zero for all files but JPEG, which leaves the rounding of a decoder open.
        assert np.abs(pixels.astype(int) - wanted_of(case)).max() <= case["within"], case["expected"]


@pytest.fixture(scope="module")
def resizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program around the header, which needs no ONNX Runtime; built with the compiler's sanitizers."""
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        pytest.skip("there is no C++ compiler")
    checked = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = tmp_path_factory.mktemp("resize") / "resize"
    return compiled("c++", program, "-std=c++17", *STRICT, *checked, HERE / "resize.cpp")


def run(program: Path, content: bytes, *words: str) -> bytes:
    environment = os.environ | {"ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run([program, *words], input=content, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_cpp_gives_the_golden_bytes(resizer: Path) -> None:
    asked = b"".join(words_of(frame_of(case), case, "uint8") for case in CASES)
    check(split(run(resizer, asked), CASES))


@pytest.mark.parametrize("resize", RESIZES, ids=lambda resize: resize["mode"])
def test_cpp_does_not_round_the_pixels_of_a_float32_model(resizer: Path, resize: dict[str, Any]) -> None:
    case = {"height": 13, "width": 11, "channels": 3, "resize": resize | ({"size": 17} if "size" in resize else {})}
    found = np.frombuffer(run(resizer, words_of(photo(), case, "float32")), np.float32).reshape(13, 11, 3)
    wanted = prepare(photo(), ImageSpec(13, 11, 3, "float32", resize=Resize.from_document(case["resize"])))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("shape", [(2, 60_000, 1), (60_000, 2, 1)])
def test_cpp_cuts_the_middle_out_of_a_long_image(resizer: Path, shape: tuple[int, int, int]) -> None:
    """Nothing is resized here, so the middle is left as it is."""
    case = {"height": 2, "width": 2, "channels": 1, "resize": {"mode": "crop", "size": 2}}
    frame = np.arange(120_000).reshape(shape).astype(np.uint8)
    (found,) = split(run(resizer, words_of(frame, case, "uint8")), [case])
    middle = [slice((side - 2) // 2, (side + 2) // 2) for side in shape[:2]]
    np.testing.assert_array_equal(found, frame[tuple(middle)])


@pytest.fixture(scope="module")
def frames(build: Path) -> Path:
    """A program around the C interface."""
    library = build / "lib" / "libonnxruntime.so.1"
    linked = (build / "libuce_edge.a", library, f"-Wl,-rpath,{library.parent}", "-lstdc++", "-lm")
    return compiled("c", build / "frames", "-std=c99", *STRICT, HERE / "frames.c", *linked)


def asked_of(model: Path, frame: np.ndarray) -> bytes:
    height, width, channels = frame.shape
    return f"{model} {width} {height} {channels}\n".encode() + frame.tobytes()


def test_c_gives_the_golden_bytes(frames: Path, tmp_path: Path) -> None:
    models = [shell_model(tmp_path / f"{number}.onnx", case) for number, case in enumerate(CASES)]
    asked = b"".join(asked_of(model, frame_of(case)) for model, case in zip(models, CASES, strict=True))
    check(split(run(frames, asked), CASES))


@pytest.mark.parametrize("resize", RESIZES, ids=lambda resize: resize["mode"])
def test_c_answers_a_frame_of_any_size_as_python_does(frames: Path, tmp_path: Path, resize: dict[str, Any]) -> None:
    file = asking(tmp_path, resize)
    class_id, uncertainty = run(frames, asked_of(file, photo()), "answer").split()
    wanted = python_answer(file, photo())
    assert int(class_id) == wanted.class_id
    assert float(uncertainty) == pytest.approx(wanted.uncertainty, rel=0, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        ((5, 4, 4), "Expected `channels` to be 1 (gray) or 3 (RGB), but got 4."),
        ((20_000, 1, 1), f"The image is 1 x 20000 pixels, and would be 10 x 200000 {NARROW}"),
    ],
)
def test_c_says_why_a_frame_cannot_be_used(
    frames: Path, tmp_path: Path, shape: tuple[int, int, int], rule: str
) -> None:
    asked = asked_of(asking(tmp_path, RESIZES[1]), np.zeros(shape, np.uint8))
    done = subprocess.run([frames], input=asked, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", f"error: {rule}\n")


def test_javascript_gives_the_golden_bytes() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    asked = []
    for case in CASES:
        frame = frame_of(case)
        sides = dict(zip(("height", "width", "channels"), frame.shape, strict=True))
        pixels = base64.b64encode(frame.tobytes()).decode()
        asked.append({"pixels": pixels, **sides, "image": case | {"dtype": "uint8"}})
    words = [node, "--input-type=module", "--eval", SCRIPT, (NODE / "prepare.mjs").as_uri()]
    done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, check=True)
    check(split(b"".join(map(base64.b64decode, json.loads(done.stdout))), CASES))


def test_node_and_the_page_resize_by_the_same_file() -> None:
    """Neither package can hold a link to the other's."""
    page = ROOT / "examples" / "web" / "uce_edge_web" / "resize.js"
    assert page.read_bytes() == (NODE / "resize.mjs").read_bytes()

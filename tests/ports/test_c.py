"""The C interface on every golden, from C99 and from Rust, and without exceptions."""

# ruff: noqa: F811  (a fixture that is imported has the name of an argument)
import json
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from helpers.cpp_build import CPP, HEADERS, build, compiled  # noqa: F401
from helpers.port_cases import (
    CASES,
    IMAGE,
    MODEL,
    RULELESS,
    Port,
    check_maps,
    check_novelty,
    check_numbers,
    command,
    decision_of,
)
from PIL import Image
from typer.testing import CliRunner

from uce_edge import Model, contract
from uce_edge.cli import app

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", CPP)


@pytest.fixture(scope="module")
def without_exceptions(build: Path) -> list[object]:
    """What a program links with: the interface, built without exceptions."""
    flags = ("-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror", "-isystem", HEADERS)
    part = compiled("c++", build / "uce_edge_c.o", *flags, "-c", CPP / "uce_edge_c.cpp")
    library = build / "lib" / "libonnxruntime.so.1"
    return [part, library, f"-Wl,-rpath,{library.parent}", "-lstdc++", "-lm"]


def _requests() -> dict[tuple[str, int, int], list[dict[str, Any]]]:
    """The golden cases that one call can answer together."""
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for case in CASES:
        seed = case["seeds"][0] // contract.MAX_SAMPLES if case["seeds"] else 0
        key = (case["model"], len(case["seeds"]), seed)
        found.setdefault(key, []).append(case)
    return found


def _answers(port: Port, model: Path, samples: int, seed: int, *images: Path) -> list[dict[str, Any]]:
    said = port(model, samples, seed, *images)
    assert (said.returncode, said.stderr) == (0, "")
    return [json.loads(line) for line in said.stdout.splitlines()]


@pytest.mark.parametrize(("request_", "cases"), _requests().items(), ids=lambda value: str(value)[:40])
def test_every_golden_is_answered_as_python_does(
    build: Path, request_: tuple[str, int, int], cases: list[dict[str, Any]]
) -> None:
    model, samples, seed = request_
    images = [GOLDEN / case["image"] for case in cases]
    for said, case in zip(
        _answers(command(build / "uce_edge_c"), GOLDEN / model, samples, seed, *images), cases, strict=True
    ):
        wanted = {name: output["values"] for name, output in case["outputs"].items()}
        check_numbers(said, wanted)
        check_novelty(said, wanted)
        check_maps(said, wanted)
        inside = wanted.get(contract.IN_SET)  # the labels in the order of the classes
        assert said["set"] == (None if inside is None else [str(i) for i, contained in enumerate(inside) if contained])
        assert (said["label"], said["decision"], said["reason"]) == (case["label"], decision_of(case), case["reason"])


def test_maps_of_several_calls_are_those_of_python(build: Path) -> None:
    file, images = GOLDEN / "digits-heatmap.onnx", [GOLDEN / "digit-1.raw", GOLDEN / "noise.raw"]
    first, second = _answers(command(build / "uce_edge_c"), file, 101, 0, *images)
    pixels = np.frombuffer(images[0].read_bytes(), np.uint8).reshape(1, 8, 8, 1)
    with warnings.catch_warnings(action="ignore"):
        wanted = Model(file, "cpu").predict(pixels, samples=101)[0]
    check_maps(first, {name: getattr(wanted, name) for name in contract.MAPS})
    assert (second["heatmap"], second["heatmap_spread"]) == (None, None), "its calls predict different classes"


def test_the_interface_needs_no_exceptions(build: Path, without_exceptions: list[object]) -> None:
    program = compiled("c", build / "plain_c", *STRICT, CPP / "example.c", *without_exceptions)
    images = [GOLDEN / f"{name}.raw" for name in ("black", "digit-0", "stripes")]
    same = (GOLDEN / "digits-novelty.onnx", 0, 0, *images)
    assert _answers(command(program), *same) == _answers(command(build / "uce_edge_c"), *same)
    said = command(program)(IMAGE, 0, 0, IMAGE)
    assert (said.returncode, said.stdout) == (1, "")
    assert "is not an ONNX file that can be loaded" in said.stderr


def test_rows_with_gaps_many_images_and_options_of_a_session(build: Path, without_exceptions: list[object]) -> None:
    source = Path(__file__).with_name("embedded.c")
    program = compiled("c", build / "embedded", *STRICT, "-isystem", HEADERS, source, *without_exceptions)
    said = command(program)(MODEL, IMAGE, ORT_DISABLE_TELEMETRY="1")
    assert (said.returncode, said.stdout, said.stderr) == (0, "ok\n", "")


@pytest.mark.filterwarnings("ignore::uce_edge.errors.UceEdgeWarning")  # some cases have other passes on purpose
def test_a_program_that_knows_only_the_decision_agrees_with_predict(build: Path, tmp_path: Path) -> None:
    """By every golden: with the plain C API of ONNX Runtime, and with `uce-edge predict --reject auto`."""
    library = build / "lib" / "libonnxruntime.so.1"
    words = (CPP / "decision.c", library, f"-Wl,-rpath,{library.parent}")
    program = command(compiled("c", build / "decision", *STRICT, "-isystem", HEADERS, *words))
    for case in CASES:
        said = program(GOLDEN / case["model"], GOLDEN / case["image"], *case["seeds"], ORT_DISABLE_TELEMETRY="1")
        assert (said.stdout, said.stderr) == (f"{case['decision']}\n", ""), (case["model"], case["image"])
    for (model, samples, seed), cases in _requests().items():
        if model in RULELESS:  # no rule to apply
            continue
        pictures = [tmp_path / f"{Path(case['image']).stem}.png" for case in cases]
        for picture, case in zip(pictures, cases, strict=True):
            pixels = np.frombuffer((GOLDEN / case["image"]).read_bytes(), np.uint8).reshape(8, 8)
            Image.fromarray(pixels).save(picture)
        passes = ["--samples", str(samples), "--seed", str(seed)] if samples else []
        asked = ["predict", *map(str, pictures), "--model", str(GOLDEN / model), "--reject", "auto", "--json", *passes]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, done.output
        answers = json.loads(done.stdout)
        assert [answer["reason"] for answer in answers] == [case["reason"] for case in cases]


def test_a_provider_that_is_not_there_is_an_error(build: Path) -> None:
    said = command(build / "uce_edge_c")(MODEL, 0, 0, IMAGE, UCE_EDGE_PROVIDER="cuda")
    assert said.returncode == 1
    assert said.stderr.startswith("error: The provider cuda cannot be used here. ONNX Runtime says: ")


def test_rust_gets_the_golden_answer(build: Path, without_exceptions: list[object]) -> None:
    rust = shutil.which("rustc")
    if rust is None:
        pytest.skip("rustc is not installed")
    words = [rust, "--edition=2021", Path(__file__).with_name("ffi.rs"), "-o", build / "ffi"]
    words += [word for part in without_exceptions for word in ("-C", f"link-arg={part}")]
    made = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, cwd=build)
    assert made.returncode == 0, made.stderr
    case = next(case for case in CASES if (case["model"], case["image"]) == (MODEL.name, "noise.raw"))
    said = command(build / "ffi")(MODEL, GOLDEN / "noise.raw", ORT_DISABLE_TELEMETRY="1")
    label, uncertainty = said.stdout.split()
    assert label == case["label"]
    assert float(uncertainty) == pytest.approx(case["outputs"]["uncertainty"]["values"][0], abs=1e-6)


def test_the_camera_loop_tells_how_long_answers_take(build: Path) -> None:
    said = command(build / "camera_loop")(MODEL, 20, 200)
    assert (said.returncode, said.stderr) == (0, "")
    told = json.loads(said.stdout)
    assert (told["frames"], told["samples"], told["threads"]) == (20, 25, 1)
    assert 0 < told["p50_ms"] <= told["p95_ms"] <= told["p99_ms"] <= told["max_ms"]

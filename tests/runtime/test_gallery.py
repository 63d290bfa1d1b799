"""The examples of examples/gallery do what docs/gallery.md says of them."""

import ast
import csv
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, ROOT
from PIL import Image

import uce_edge
from uce_edge import models

GALLERY = ROOT / "examples" / "gallery"
NOTEBOOK = GALLERY / "researcher.ipynb"
PICTURES = [path for path in (ROOT / "examples" / "images").iterdir() if path.suffix in (".jpg", ".png")]
DIGITS = GOLDEN / "digits-novelty.onnx"


def example(name: str) -> ModuleType:
    """A program of the gallery as a module."""
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", GALLERY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for their annotations
    spec.loader.exec_module(module)
    return module


camera_loop, xray_triage = example("camera_loop"), example("xray_triage")


def digit(number: int) -> np.ndarray:
    return np.frombuffer((GOLDEN / f"digit-{number}.raw").read_bytes(), np.uint8).reshape(8, 8)


# The notebook of a researcher.


@pytest.fixture(scope="module")
def ran() -> Iterator[Any]:
    pytest.importorskip("sklearn")
    matplotlib = pytest.importorskip("matplotlib")
    from helpers.notebook_cells import run

    matplotlib.use("Agg")
    yield run(NOTEBOOK)
    from matplotlib import pyplot

    pyplot.close("all")


def test_the_notebook_shows_predictions_as_cards(ran: Any) -> None:
    html = ran.shown["predict"]._repr_html_()
    assert html.count("<img") == 2 * 3  # the picture, and where the model looked
    assert "accept" in html
    assert f"of {len(PICTURES)} images" in ran.printed["table"]


def test_the_notebook_splits_the_uncertainty_in_two_parts_that_add_up(ran: Any) -> None:
    data, model, whole = ran.names["data_part"], ran.names["model_part"], ran.names["foggy"].uncertainty
    np.testing.assert_allclose(data + model, whole, atol=1e-6)
    assert (data >= -1e-6).all()
    [axis] = ran.names["parts_figure"].axes
    assert len(axis.patches) == 2 * 16


def test_the_notebook_shows_ood_images_rejected_with_the_reason(ran: Any) -> None:
    assert {str(image.reason) for image in ran.names["ood"]} <= {"out-of-distribution", "both"}
    lines = ran.printed["ood"].splitlines()
    assert [line.split(":")[0] for line in lines] == ["white noise", "solid blue"]
    assert all("unlike anything it was calibrated on" in line for line in lines)


def test_the_notebook_says_what_calibration_is_worth_and_where_it_ends(ran: Any) -> None:
    for name in ("clear", "light fog"):
        uce, twin, *_ = ran.names["scores"][name]
        assert uce.low < uce.value < uce.high
        assert uce.low < twin.value + twin.spread
    uce, twin, *_ = ran.names["scores"]["thick fog"]
    assert uce.low > twin.value + 3 * twin.spread
    assert [len(axis.lines) > 3 for axis in ran.names["figure"].axes] == [True, False]
    assert [axis.get_xlabel() for axis in ran.names["figure"].axes] == ["uncertainty", "share of accepted images"]


def test_the_notebook_is_stored_without_outputs_and_needs_no_torch() -> None:
    from helpers.notebook_cells import cells

    code = [cell for cell in cells(NOTEBOOK) if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    trees = [ast.parse("".join(cell["source"])) for cell in code]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    words = {word for node in imports for word in ast.unparse(node).replace(".", " ").split()}
    assert not words & {"torch", "uce_edge_train", "uce_edge_export"}


# The camera loop of a robot.


def test_the_camera_loop_prints_a_line_per_frame_and_raises_an_alarm_when_the_lens_gets_dirty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert camera_loop.main([]) == 0
    said = capsys.readouterr()
    lines = [line.split(maxsplit=1) for line in said.out.splitlines()]
    assert [int(number) for number, _ in lines] == list(range(1, 401))
    told = {what for _, what in lines}
    assert {"stop: out-of-distribution", "ask: uncertain"} < told
    assert told - {"stop: out-of-distribution", "ask: uncertain"} <= set(models.load(None, "cpu").classes)
    alarm = re.search(r"ALARM at image (\d+)", said.err)
    assert alarm is not None
    assert 200 < int(alarm[1]) <= 400  # the lens gets dirty at frame 200
    assert said.err.count("ALARM") == 1
    assert re.search(r"Latency: p50 [\d.]+ ms, p99 [\d.]+ ms. Dropped frames: 0\.", said.err)


def test_the_camera_loop_acts_on_what_is_accepted_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(digit(0)).save(tmp_path / "1.png")
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(tmp_path / "2.png")
    (tmp_path / "3.png").write_bytes(b"no image")
    Image.fromarray((np.indices((8, 8)).sum(0) % 2 * 255).astype(np.uint8)).save(tmp_path / "4.png")
    assert camera_loop.main([str(tmp_path), "--model", str(DIGITS)]) == 0
    said = capsys.readouterr()
    model = uce_edge.Model(DIGITS, "cpu")
    for line, name in zip(said.out.splitlines(), ("1", "2", "3", "4"), strict=True):
        [answer] = model.answers([tmp_path / f"{name}.png"], reject="auto")
        told = line.split(maxsplit=1)[1]
        if not answer.ok:
            assert told == "stop: unreadable"
        elif answer.decision == "accept":
            assert told == answer.prediction.label
        else:
            assert told == (
                "ask: uncertain" if answer.prediction.reason == "uncertain" else "stop: out-of-distribution"
            )
    assert "stop: unreadable" in said.out
    assert "--usual" in said.err  # the file stores no usual answers, and nobody named usual frames
    assert camera_loop.main([str(tmp_path), "--model", str(GOLDEN / "digits-ensemble.onnx")]) == 0
    assert "No alarm in 3 images" in capsys.readouterr().err  # this one does; the torn frame is no image


def test_a_camera_drops_frames_that_nobody_took_and_keeps_one_alone() -> None:
    pulled = threading.Event()

    def pictures() -> Iterator[bytes]:
        yield from (b"1", b"2", b"3")
        pulled.set()
        yield b"4"

    camera = camera_loop.Camera(pictures(), live=True)
    assert pulled.wait(5)
    camera._thread.join(5)
    assert list(camera) == [(4, b"4")]
    assert camera.dropped == 3
    camera.close()


def test_a_camera_that_waits_drops_nothing_and_a_failing_one_says_why() -> None:
    def pictures() -> Iterator[bytes]:
        yield from (b"1", b"2", b"3")
        raise uce_edge.UceEdgeError("The plug is out.")

    camera, taken = camera_loop.Camera(pictures()), []
    with pytest.raises(uce_edge.UceEdgeError, match="The plug is out"):
        taken.extend(camera)
    assert [number for number, _ in taken] == [1, 2, 3]
    camera = camera_loop.Camera(picture for picture in (b"1", b"2", b"3"))
    assert list(camera) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert camera.dropped == 0


def test_what_is_not_there_is_said_in_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert camera_loop.main(["0"]) == 1
    assert "pip install opencv-python-headless" in capsys.readouterr().err
    assert camera_loop.main([str(tmp_path / "nowhere")]) == 2
    assert camera_loop.main(["--fps", "-1"]) == 2
    Image.fromarray(digit(0)).save(tmp_path / "1.png")
    assert camera_loop.main([str(tmp_path), "--usual", str(tmp_path)]) == 2
    assert "--usual has 1 images, and it takes 200" in capsys.readouterr().err


def test_frames_of_opencv_are_turned_from_blue_first_to_red_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rgb = np.asarray(Image.open(ROOT / "tests" / "cifar" / "ship.png").convert("RGB"))
    closed = []

    class Capture:
        def __init__(self, source: int) -> None:
            assert source == 0
            self.left = 3

        def isOpened(self) -> bool:
            return True

        def read(self) -> tuple[bool, Any]:
            self.left -= 1
            time.sleep(0.3)  # longer than an answer takes
            return self.left >= 0, rgb[..., ::-1]

        def release(self) -> None:
            closed.append(self)

    fake = ModuleType("cv2")
    fake.VideoCapture = Capture  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", fake)
    assert camera_loop.main(["0", "--model", "cifar10"]) == 0
    assert {line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()} == {"ship"}
    assert len(closed) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_ends_the_camera_loop_with_its_summary() -> None:
    command = [sys.executable, str(GALLERY / "camera_loop.py"), "--frames", "1000000"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it would be ignored
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    signal.signal(signal.SIGINT, ours)
    assert process.stdout is not None
    assert process.stdout.readline().split()[0] == "1"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Stopped by Ctrl-C." in err
    assert "Dropped frames: 0." in err


# The triage of a hospital.


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    """Digits stand for X-rays: three good ones, a white film, and a file that is no image."""
    folder = tmp_path / "incoming"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(digit(number)).save(folder / f"good-{number}.png")
    Image.fromarray(np.frombuffer((GOLDEN / "noise.raw").read_bytes(), np.uint8).reshape(8, 8)).save(folder / "odd.png")
    (folder / "torn.png").write_bytes(b"no image")
    return folder


def test_the_triage_writes_a_work_list_a_sheet_and_a_log_that_replays(
    incoming: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = incoming.parent / "triage"
    assert xray_triage.main([str(incoming), "--out", str(out), "--model", str(DIGITS)]) == 0
    said = capsys.readouterr()
    with (out / "worklist.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["path"]).name for row in rows][:2] == ["torn.png", "odd.png"]
    assert [row["to"] for row in rows] == ["radiologist"] * 2 + ["accepted"] * 3
    assert rows[0]["reason"] == "unreadable"
    assert rows[1]["reason"] in ("uncertain", "out-of-distribution", "both")
    assert rows[1]["why"] != rows[1]["label"] == ""
    assert all(row["label"].isdigit() and 0.5 < float(row["probability"]) <= 1 for row in rows[2:])
    for part in (rows[1:2], rows[2:]):
        uncertainty = [float(row["uncertainty"]) for row in part]
        assert uncertainty == sorted(uncertainty, reverse=True)
    assert [line.split("\t")[1] for line in said.out.splitlines()] == [row["to"] for row in rows]
    with Image.open(out / "sheet.png") as sheet:
        assert sheet.width > 100
    log = [json.loads(line) for line in (out / "decisions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(log) == 5
    assert "5 images: 3 accepted, 2 to a radiologist." in said.err
    assert "Replay: 5 same." in said.err
    assert said.err.strip().endswith(f"elsewhere: {log[-1]['line_sha256']}")


def test_the_triage_takes_the_large_model_of_the_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    xrays = ROOT / "examples" / "xrays"
    assert xray_triage.main([str(xrays), "--out", str(tmp_path / "triage")]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 6
    assert Path(xray_triage.MODEL).stem == "xray-mc"
    accepted = [(Path(path).stem.split("-")[0], what.split()[0]) for path, to, what in lines if to == "accepted"]
    assert len(accepted) == 6
    assert all(truth == label for truth, label in accepted)


def test_an_ood_image_that_looks_certain_comes_before_accepted_ones(
    incoming: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from uce_edge.datasets.synthetic_ood import CHOICE, far

    model = uce_edge.Model(DIGITS, "cpu")
    strange = far(model.metadata.image, CHOICE, each=3).images
    reasons = model.predict(strange, reject="auto")
    sly = min(
        (i for i, reason in enumerate(reasons.reasons or []) if reason == "out-of-distribution"),
        key=lambda i: float(reasons.uncertainty[i]),
    )
    Image.fromarray(strange[sly][..., 0]).save(incoming / "sly.png")
    out = incoming.parent / "triage"
    assert xray_triage.main([str(incoming), "--out", str(out), "--model", str(DIGITS)]) == 0
    names = [Path(line.split("\t")[0]).name for line in capsys.readouterr().out.splitlines()]
    assert names.index("sly.png") < 3


def test_the_triage_tells_of_an_edited_log(incoming: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = incoming.parent / "triage"
    words = [str(incoming), "--out", str(out), "--model", str(DIGITS)]
    assert xray_triage.main(words) == 0
    log = out / "decisions.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"decision": "reject"', b'"decision": "accept"', 1))
    capsys.readouterr()
    assert xray_triage.main(words) == 1
    assert "edited: the line was changed after it was written" in capsys.readouterr().err


def test_the_triage_says_which_models_there_are_when_pneumonia_is_not(
    incoming: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "names", lambda: ("cifar10",))  # as before it was bundled
    monkeypatch.chdir(incoming.parent)
    assert xray_triage.main([str(incoming), "--model", "pneumonia"]) == 1
    said = capsys.readouterr().err
    assert "no bundled model `pneumonia`. It has: cifar10 (uce-edge models)" in said
    assert "--model xray.onnx" in said
    assert not (incoming.parent / "triage").exists()
    assert xray_triage.main([str(incoming), "--out", str(incoming), "--model", str(DIGITS)]) == 2
    assert xray_triage.main([str(incoming / "nowhere"), "--model", str(DIGITS)]) == 2


def test_the_page_of_the_gallery_names_every_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    there = sorted(path.name for path in GALLERY.iterdir() if path.is_file())
    assert there == ["camera_loop.py", "researcher.ipynb", "xray_triage.py"]
    assert [name for name in there if f"examples/gallery/{name}" not in page] == []
    assert "gallery.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "docs/gallery.md" in (ROOT / "README.md").read_text(encoding="utf-8")

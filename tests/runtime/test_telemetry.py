"""ONNX Runtime leaves nothing on disk and reports nothing, wherever this package runs it."""

import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
from conftest import GOLDEN, ROOT, Call

MODEL = GOLDEN / "digits-mc.onnx"
PREDICT = (
    f"import uce_edge, numpy; uce_edge.Model({str(MODEL)!r}, 'cpu').predict(numpy.zeros((1, 8, 8, 1), numpy.uint8))"
)

reports = pytest.mark.skipif(
    sys.platform != "linux" or tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 29),
    reason="ONNX Runtime reports from 1.29 on, and where it writes is known on Linux",
)


def left_behind(folder: Path, *command: str, **variables: str) -> tuple[list[str], str]:
    """The files that a process of its own leaves in its home and temporary folder, and what it says on stderr."""
    # ONNX Runtime reports nothing where it sees a build server.
    unset = ("ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS", "TF_BUILD")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "LOCALAPPDATA"), str(folder))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT, env=environment | places | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return sorted(path.name for path in folder.rglob("*") if path.is_file()), done.stderr


@reports
def test_a_device_id_is_written_when_the_user_allows_it(tmp_path: Path) -> None:
    # Without this the tests below could not fail.
    names, printed = left_behind(tmp_path, "-c", PREDICT, ORT_DISABLE_TELEMETRY="0")
    assert "deviceid" in names
    assert printed == ""


def test_predict_leaves_nothing_behind(tmp_path: Path) -> None:
    command = ("-m", "uce_edge", "predict", str(ROOT / "tests" / "cifar" / "cat.png"))
    assert left_behind(tmp_path, *command) == ([], "")


def test_a_model_in_python_leaves_nothing_behind(tmp_path: Path) -> None:
    assert left_behind(tmp_path, "-c", PREDICT) == ([], "")


def test_an_export_from_torch_leaves_nothing_behind(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    home, out = tmp_path / "home", tmp_path / "out.onnx"
    home.mkdir()
    names, _ = left_behind(home, "-m", "uce_edge", "export", "--untrained", "resnet8", "--out", str(out))
    assert out.is_file()
    assert not {"deviceid", ".ses", "onnxruntime.db"}.intersection(names)


@reports
def test_onnxruntime_imported_first_is_warned_of_once(tmp_path: Path) -> None:
    _, printed = left_behind(tmp_path, "-W", "always", "-c", f"import onnxruntime; {PREDICT}; {PREDICT}")
    assert printed.count("TelemetryWarning: onnxruntime was imported before uce_edge") == 1
    assert "ORT_DISABLE_TELEMETRY=1" in printed


@pytest.mark.parametrize("value", ["0", "1"])
def test_a_user_who_has_decided_is_not_warned(tmp_path: Path, value: str) -> None:
    _, printed = left_behind(tmp_path, "-c", f"import onnxruntime; {PREDICT}", ORT_DISABLE_TELEMETRY=value)
    assert printed == ""


@reports
@pytest.mark.parametrize(("value", "state"), [("1", "off"), ("0", "on")])
def test_doctor_tells_whether_it_is_on(call: Call, monkeypatch: pytest.MonkeyPatch, value: str, state: str) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", value)
    assert f"telemetry {state} (ORT_DISABLE_TELEMETRY={value})" in call("doctor").out

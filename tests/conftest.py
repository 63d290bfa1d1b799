"""One trained, calibrated and exported digits model serves the whole test run."""

import os
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests import onnxruntime by themselves

import numpy as np
import pytest
from PIL import Image

from uce_edge import cli
from uce_edge.contract import Inference, Method
from uce_edge.datasets import splits

if TYPE_CHECKING:
    from uce_edge_export.pipeline import Exported

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


@dataclass(frozen=True)
class Digits:
    """The artefacts of the digits path."""

    run: Path
    model: Path
    deterministic: Path
    image: Path
    """A test digit, 8x8."""
    dataset: splits.Dataset
    exported: "Exported"


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    # Here, so that tests of the runtime alone need no PyTorch.
    pytest.importorskip("torch", reason="torch is not installed: there is no model to train")
    from uce_edge_train import calibration
    from uce_edge_train.export import export_run
    from uce_edge_train.loop import training

    # CI keeps the files, to predict with them from the installed wheel; of several processes the first one does.
    keep = os.environ.get("UCE_EDGE_KEEP") if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0" else None
    folder = Path(keep).resolve() if keep else tmp_path_factory.mktemp("digits")
    dataset = splits.load("digits")
    run = folder / "run"
    training.train(dataset, run)
    calibration.calibrate(run, method=Method.TEMPERATURE)
    model, deterministic, image = folder / "digits.onnx", folder / "deterministic.onnx", folder / "digit.png"
    exported = export_run(run, model, dataset)
    export_run(run, deterministic, dataset, Inference.DETERMINISTIC)
    Image.fromarray(dataset.splits["test"].images[0][..., 0]).save(image)
    return Digits(run, model, deterministic, image, dataset, exported)


class _Printed(NamedTuple):
    code: int
    out: str
    err: str


class Said(_Printed):
    """Exit code and output of a command."""

    error = ""
    """The code of the error that ended it, such as `image.unreadable`; empty without one."""


class Call(Protocol):
    """Run a command line."""

    def __call__(self, *arguments: object) -> Said: ...


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line in this process: many times faster than one of its own, and the same code."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main replaces it

    def called(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        result = Said(int(stop.value.code or 0), said.out, said.err)
        result.error = getattr(stop.value.__context__, "code", "") if result.code else ""
        return result

    return called


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _is_required(path: Path | None) -> bool:
    """Whether a skipped test is a failure: those of the ports are where all that they need was fetched."""
    ports = ROOT / "tests" / "ports"
    return os.environ.get("UCE_EDGE_PORTS") == "required" and path is not None and path.is_relative_to(ports)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and _is_required(item.path):
        report.outcome, report.longrepr = "failed", f"UCE_EDGE_PORTS=required, and this was skipped: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and _is_required(collector.path):
        report.outcome, report.longrepr = "failed", f"UCE_EDGE_PORTS=required, and this was skipped: {report.longrepr}"
    return report

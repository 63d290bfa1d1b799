"""One trained, calibrated and exported digits model serves the whole test run."""

import os
import warnings
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
    from uce_edge_export.export import Exported

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


@dataclass(frozen=True)
class Digits:
    """The artefacts of the digits path."""

    run: Path
    model: Path
    twin: Path
    image: Path
    """A test digit, 8x8."""
    dataset: splits.Dataset
    exported: "Exported"


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    # Here, so that tests of the runtime alone need no PyTorch.
    from uce_edge_train import calibrate, training
    from uce_edge_train.export import export_run

    # CI keeps the files, to predict with them from the installed wheel; of several processes the first one does.
    keep = os.environ.get("UCE_EDGE_KEEP") if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0" else None
    folder = Path(keep).resolve() if keep else tmp_path_factory.mktemp("digits")
    dataset = splits.load("digits")
    run = folder / "run"
    training.train(dataset, run)
    calibrate.calibrate(run, method=Method.TEMPERATURE)
    model, twin, image = folder / "digits.onnx", folder / "twin.onnx", folder / "digit.png"
    exported = export_run(run, model, dataset)
    export_run(run, twin, dataset, Inference.DETERMINISTIC)
    Image.fromarray(dataset.splits["test"].images[0][..., 0]).save(image)
    return Digits(run, model, twin, image, dataset, exported)


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


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
        return Said(int(stop.value.code or 0), said.out, said.err)

    return called


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)

"""A device without PyTorch gives a model file a new calibration map."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GOLDEN

from uce_edge.contract import Method
from uce_edge.runtime.model import Model

START = "import sys\nsys.modules['torch'] = None  # from here on, importing torch raises\n"


def clean(code: str, *arguments: object) -> str:
    """What code prints in an interpreter of its own where torch cannot be imported."""
    command = [sys.executable, "-c", START + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("golden", ["digits-mc", "digits-moments"])
def test_a_file_is_recalibrated_without_torch(method: Method, golden: str, tmp_path: Path) -> None:
    out = tmp_path / "new.onnx"
    script = """
import json
import numpy as np
from uce_edge.contract import Method
from uce_edge.datasets.splits import Split
from uce_edge.runtime.model import Model
from uce_edge_export.recalibration import recalibrate
source, out, method = sys.argv[1:]
images = np.random.default_rng(0).integers(0, 17, (80, 8, 8, 1), np.uint8)
labels = Model(source, "cpu").predict(images, seed=1).class_ids.astype(np.int64)
labels[::4] = (labels[::4] + 1) % 10  # a quarter is wrong: the file is too sure of itself
done = recalibrate(source, out, Split(images, labels), Method(method), samples=5)
print(json.dumps(done.metadata.calibration.outcome.to_document()))
"""
    report = json.loads(clean(script, GOLDEN / f"{golden}.onnx", out, method))
    written = Model(out, "cpu").metadata.calibration
    assert written.method is method
    assert written.outcome.to_document() == report
    assert report["images"] == 80
    if method is not Method.NONE:
        assert report["nll_after"] < report["nll_before"] - 0.01


def test_no_part_of_the_exporter_or_of_calibration_imports_torch() -> None:
    script = """
import importlib, pkgutil
import uce_edge.calibration, uce_edge_export
for package in (uce_edge.calibration, uce_edge_export):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        print(importlib.import_module(module.name).__name__)
"""
    imported = clean(script).split()
    assert {"uce_edge.calibration.maps", "uce_edge_export.recalibration", "uce_edge_export.pipeline"} <= set(imported)

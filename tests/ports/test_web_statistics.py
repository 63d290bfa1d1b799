"""What the page computes from the probabilities of split calls, without a browser: as Python does."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from conftest import ROOT

from uce_edge.calibration.error_map import error_probability
from uce_edge.metadata import Calibration
from uce_edge.runtime.prediction import summarise

MODULE = ROOT / "examples" / "web" / "uce_edge_web" / "statistics.js"
MAPS = {"none": {}, "of 1.1": {"error": [0.2, 1.4, 0.7]}, "of 1.2": {"error": None, "confidence_error": [0.3, 0.8]}}
PROGRAM = """
const { summarise } = await import("data:text/javascript," + encodeURIComponent(module));
const told = cases.map(([passes, calibration]) => summarise(Float32Array.from(passes.flat()), 3, { calibration }));
console.log(JSON.stringify(told.map((summary) => [summary.confidence, summary.uncertainty, summary.errorProbability])));
"""


def test_the_probability_of_error_is_that_of_the_graph_for_every_kind_of_map(rng: np.random.Generator) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    passes = [rng.dirichlet([0.3, 1, 2], 7), np.tile([1.0, 0.0, 0.0], (7, 1))]
    cases = [(one.tolist(), calibration) for one in passes for calibration in MAPS.values()]
    program = f"const module = {json.dumps(MODULE.read_text())}, cases = {json.dumps(cases)};{PROGRAM}"
    said = subprocess.run(
        ["node", "--input-type=module", "-"], input=program, capture_output=True, text=True, check=True, timeout=60
    )
    for (one, calibration), found in zip(cases, json.loads(said.stdout), strict=True):
        wanted = summarise(np.array(one, np.float32)[:, None])
        confidence = wanted.probabilities.max(-1)
        error = error_probability(Calibration.from_document(calibration), confidence, wanted.uncertainty)
        np.testing.assert_allclose(found, [confidence[0], wanted.uncertainty[0], error[0]], rtol=1e-5, atol=1e-7)

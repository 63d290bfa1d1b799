"""The evidence of a monitor in /metrics and in its state file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, Call
from helpers.served import Server, png, started

from uce_edge import Model, Monitor
from uce_edge.audit.model_files import sha256
from uce_edge.monitor import reference
from uce_edge.monitor.state import Bins, Outcomes, StoredReference, Window

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

MODEL = GOLDEN / "digits-novelty.onnx"
IMAGES = 12


def scores(model: Model, pixels: Any) -> dict[str, Any]:
    found = model.predict(pixels)
    rows = [image.as_dict() for image in found]
    return {name: np.float32([row[name] for row in rows]) for name in ("uncertainty", "model_uncertainty")}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(MODEL, "cpu", threads=1)


@pytest.fixture(scope="module")
def begun(model: Model) -> Monitor:
    """The reference images are digits, moved a little."""
    digits = [np.frombuffer((GOLDEN / f"digit-{name}.raw").read_bytes(), np.uint8).reshape(8, 8, 1) for name in "01"]
    reference_images = np.stack([np.roll(digits[number % 2], number // 2 % 3, 0) + number % 5 for number in range(120)])
    stored = reference.count(scores(model, reference_images[:60]), scores(model, reference_images[60:]), 25, 0, "")
    return Monitor.start(stored, sha256(MODEL), alpha=0.2)


def gauge(server: Server, name: str) -> float:
    text = server.ask("GET", "/metrics")[1].decode()
    found = re.search(rf'^uce_edge_monitor_{name}{{model="digits"}} (\S+)$', text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_the_evidence_of_a_change_is_in_the_metrics(tmp_path: Path, model: Model, begun: Monitor) -> None:
    state = tmp_path / "state.json"
    begun.save(state)
    beside = Monitor.load(state)
    digit = np.frombuffer((GOLDEN / "digit-0.raw").read_bytes(), np.uint8).reshape(8, 8, 1)
    ood = [255 - digit] * IMAGES
    with started(f"digits={MODEL}", "--monitor", state) as server:
        assert (gauge(server, "images"), gauge(server, "alarm"), gauge(server, "alarm_evidence")) == (0, 0, 5)
        for image in ood:
            assert server.ask("POST", "/v2/models/digits/answer", png(image))[0] == 200
            beside.add_scores(model.predict(image[None])[0].as_dict())
        assert server.ask("POST", "/v2/models/digits/answer?samples=5", png(digit))[0] == 200
        assert server.ask("POST", "/v2/models/digits/answer", b"no image")[0] == 422
        report = beside.report()
        assert report.alarm is not None
        assert (gauge(server, "images"), gauge(server, "other_passes_total")) == (IMAGES, 1)
        assert gauge(server, "evidence") == pytest.approx(report.evidence, rel=1e-3)
        assert gauge(server, "largest_evidence") == pytest.approx(report.peak, rel=1e-3)
        assert gauge(server, "alarm") == 1
        server.process.terminate()
        assert "ALARM at image" in server.process.stderr.read()
        assert server.process.wait(30) == 0
    kept = Monitor.load(state)
    assert kept.alarm is not None
    assert (kept.state.images, kept.alarm.image) == (IMAGES, report.alarm.image)


def test_a_monitor_that_cannot_start_is_an_error(tmp_path: Path, call: Call, begun: Monitor) -> None:
    state, moments = tmp_path / "state.json", GOLDEN / "digits-moments.onnx"
    result = call("serve", MODEL, "--monitor", state)
    assert (result.code, "--reference" in result.err, state.exists()) == (2, True, False)
    begun.save(state)
    result = call("serve", moments, "--monitor", state)
    assert (result.code, "another model file" in result.err) == (2, True)
    result = call("serve", f"a={MODEL}", f"b={moments}", "--monitor", state)
    assert (result.code, result.error) == (2, "server.several-models")
    result = call("serve", MODEL, "--monitor", MODEL)
    assert (result.code, result.error) == (2, "argument.monitor")


def test_the_estimated_accuracy_is_in_the_metrics(begun: Monitor) -> None:
    from uce_edge.serve.prometheus_metrics import Gauges  # needs the extra

    bins = {name: Bins(track.edges, track.counts) for name, track in begun.state.tracks.items()}
    outcomes = Outcomes(steps=(50, 100), images=(90, 10), errors=(9, 5))
    running = Monitor.start(StoredReference(bins, 25, 0, ""), window=Window(outcomes))
    running.add_scores({**dict.fromkeys(bins, 0.2), "uncertainty": 0.2, "decision": "accept"})
    gauges = Gauges()
    gauges.monitor("digits", running.report())
    lines = gauges.text({}).decode().splitlines()
    assert 'uce_edge_monitor_accuracy{model="digits"} 0.9' in lines
    assert 'uce_edge_monitor_accepted_error{model="digits"} 0.1' in lines
    assert 'uce_edge_monitor_coverage{model="digits"} NaN' in lines
    assert 'uce_edge_monitor_doubt{model="digits"} 0.0' in lines

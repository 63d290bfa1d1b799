"""The monitor: its false alarms are bounded, it tells what moved since when, and nothing of it is lost."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call, Digits
from helpers.errors import raises
from PIL import Image
from scipy import integrate, stats

import uce_edge
from uce_edge import Monitor, UsageError
from uce_edge.contract import KEY
from uce_edge.datasets import splits
from uce_edge.errors import ModelFileError
from uce_edge.images.corruptions import corrupt
from uce_edge.metadata import Metadata
from uce_edge.monitor import betting, error_test, reference
from uce_edge.monitor.evidence_plot import evidence_plot
from uce_edge.monitor.log_stream import labelled
from uce_edge.monitor.state import STATISTICS, StoredReference
from uce_edge.monitor.state_file import KeptMonitor

MODEL = GOLDEN / "digits-novelty.onnx"


def scores(rng: np.random.Generator, images: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    """Three scores that depend on each other; a third of the first is tied at 0, as of a confident model."""
    base = rng.normal(shift, 1, images)
    columns = (np.maximum(base, -0.4) + 0.4, base + rng.normal(0, 1, images), np.exp(base / 2))
    return {name: column.astype(np.float32) for name, column in zip(STATISTICS, columns, strict=True)}


def usual(rng: np.random.Generator, images: int = 500) -> StoredReference:
    return reference.count(scores(rng, 500), scores(rng, images), 25, 0, "")


def rows(columns: dict[str, np.ndarray]) -> list[dict[str, float]]:
    return [dict(zip(columns, map(float, values), strict=True)) for values in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("number", range(betting.BETS))
def test_every_bet_is_fair(number: int) -> None:
    def gain(p: float) -> float:
        return float(np.exp(betting.log_gains(p, 1 - p))[number])

    # A power has a pole where its p-value is 0, which quadrature reaches from either side of the middle.
    total = sum(integrate.quad(gain, low, high, limit=500)[0] for low, high in ((0, 0.5), (0.5, 1)))
    assert total == pytest.approx(1, abs=1e-3)


def test_all_money_is_bet_some_time_and_none_twice() -> None:
    shares = [betting.reserve(step - 1) - betting.reserve(step) for step in range(1, 2000)]
    assert min(shares) > 0
    assert sum(shares) + betting.reserve(1999) == pytest.approx(1, abs=1e-12)
    assert betting.reserve(0) == 1


def test_p_values_of_a_growing_reference_are_independent_and_uniform() -> None:
    rng = np.random.default_rng(0)
    streams, images, kinds = 300, 60, 4  # four bins, one of them rare: nearly all scores are tied
    stream = rng.choice(kinds, (streams, images + 5), p=[0.6, 0.25, 0.14, 0.01])
    counts = np.stack([np.bincount(row[:5], minlength=kinds) for row in stream]).astype(float)
    p = np.empty((streams, images))
    for step in range(1, images + 1):
        place = stream[:, 4 + step]
        p[:, step - 1], rest = betting.p_values(counts, place, betting.uniform(np.arange(streams), step, 0))
        assert np.allclose(p[:, step - 1] + rest, 1)
        counts[np.arange(streams), place] += 1
    assert stats.kstest(p.ravel(), "uniform").pvalue > 0.01
    for lag in (1, 2, 10):
        assert stats.pearsonr(p[:, :-lag].ravel(), p[:, lag:].ravel()).pvalue > 0.01


def test_random_numbers_of_streams_steps_and_statistics_do_not_hang_together() -> None:
    u = np.stack([betting.uniform(seed, np.arange(1, 4001), kind) for seed in (0, 1, 2) for kind in (0, 1, 2)])
    assert stats.kstest(u.ravel(), "uniform").pvalue > 0.01
    z = np.corrcoef(u)[np.triu_indices(len(u), 1)] * np.sqrt(u.shape[1])
    assert np.abs(z).max() < 4
    assert abs(np.corrcoef(u[0][:-1], u[0][1:])[0, 1]) * np.sqrt(u.shape[1]) < 4


def test_false_alarms_are_as_rare_as_promised_although_the_reference_is_small() -> None:
    """The short form of benchmarks/studies/monitor_study.py: 500 streams, against a reference of 100 images."""
    rng = np.random.default_rng(1)
    streams, images, size, alpha = 500, 300, 100, 0.05
    edges = [usual(rng).statistics[name].edges for name in STATISTICS]
    drawn = [
        np.stack(column) for column in zip(*(scores(rng, size + images).values() for _ in range(streams)), strict=True)
    ]
    highest = np.zeros(streams)
    for kind, column in enumerate(drawn):
        places = betting.bins(edges[kind], column)
        counts = np.stack([np.bincount(row[:size], minlength=len(edges[kind]) + 1) for row in places]).astype(float)
        wealth = np.full((streams, betting.BETS), betting.NOTHING)
        for step in range(1, images + 1):
            place = places[:, size + step - 1]
            p, rest = betting.p_values(counts, place, betting.uniform(np.arange(streams), step, kind))
            wealth = betting.bet(wealth, betting.log_gains(p, rest), step)
            counts[np.arange(streams), place] += 1
            highest = np.maximum(highest, betting.log_evidence(wealth, step) - np.log(3))
    alarms = int((highest >= -np.log(alpha)).sum())
    assert 0 < alarms <= stats.binom.ppf(0.999, streams, alpha)


@pytest.mark.parametrize(("shift", "rises"), [(1.0, True), (-1.0, False)])
def test_it_tells_what_moved_since_when_and_which_way(shift: float, rises: bool) -> None:
    rng = np.random.default_rng(2)
    monitor = Monitor.start(usual(rng))
    quiet, changed = rows(scores(rng, 400)), rows(scores(rng, 200, shift))
    assert not any(monitor.add_scores(row) for row in quiet)
    assert "No alarm in 400 images" in monitor.report().sentence
    raised = [number for number, row in enumerate(changed, 401) if monitor.add_scores(row, f"image {number}")]
    assert len(raised) == 1  # an alarm is told once
    alarm = monitor.alarm
    assert alarm is not None
    assert alarm.image == raised[0] < 460
    assert 360 <= alarm.since_image <= 420
    assert alarm.rises is rises
    sentence = monitor.report().sentence
    assert f"ALARM at image {alarm.image}" in sentence
    assert ("rises" if rises else "falls") in sentence


def test_after_a_long_quiet_time_a_change_is_still_found_soon() -> None:
    rng = np.random.default_rng(3)
    monitor = Monitor.start(usual(rng))
    for row in rows(scores(rng, 800)):
        monitor.add_scores(row)
    for row in rows(scores(rng, 100, 1.5)):
        monitor.add_scores(row)
    assert monitor.alarm is not None
    assert monitor.alarm.image < 840


def test_a_saved_monitor_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    kept = usual(rng)
    stream = rows(scores(rng, 300, 0.3))
    whole, broken = Monitor.start(kept, "x", every=2, seed=7), Monitor.start(kept, "x", every=2, seed=7)
    for number, row in enumerate(stream):
        whole.add_scores(row, str(number))
        broken.add_scores(row, str(number))
        if number % 50 == 0:
            broken.save(tmp_path / "state.json")
            broken = Monitor.load(tmp_path / "state.json")
    assert replace(whole.state, started="") == replace(broken.state, started="")
    assert (whole.state.images, whole.state.bets) == (300, 150)
    assert len((tmp_path / "state.json").read_bytes()) < 60_000
    assert len(whole.state.history) <= 200


KILLED = """
import sys
import numpy as np
from uce_edge import Monitor
path, monitor = sys.argv[1], Monitor.load(sys.argv[1])
rng = np.random.default_rng(monitor.state.images)
while True:
    value = float(rng.normal())
    monitor.add_scores({"uncertainty": value, "model_uncertainty": value, "novelty_score": value})
    monitor.save(path)
"""


@pytest.mark.skipif(os.name == "nt", reason="no such signal there")
def test_a_killed_process_leaves_a_whole_state(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    Monitor.start(usual(np.random.default_rng(5))).save(path)
    seen = 0
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
        until = time.monotonic() + 30
        while Monitor.load(path).state.images < seen + 20 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = Monitor.load(path).state
        assert now.images >= seen + 20
        assert sum(now.tracks["uncertainty"].counts) == 500 + now.images
        seen = now.images


ALARM = {
    "image": 1,
    "time": "",
    "evidence": 5,
    "statistic": "uncertainty",
    "rises": True,
    "since_image": 1,
    "since": "",
}
COUNTS = (2**63, 10**320, -1, 1.5, True, "1", None, [1])


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_that_cannot_be_is_told_in_a_state_and_in_a_model_file(tmp_path: Path, count: object) -> None:
    started = Monitor.start(usual(np.random.default_rng(6)))
    document = json.loads(started.state.to_json())
    document["tracks"]["uncertainty"]["counts"][0] = count
    path = tmp_path / "state.json"
    path.write_text(json.dumps(document))
    with raises("monitor.not-a-state") as caught:
        Monitor.load(path)
    assert "counts[0]" in str(caught.value)
    stored = usual(np.random.default_rng(6)).to_document()
    stored["statistics"]["uncertainty"]["counts"][0] = count
    metadata = json.loads(uce_edge.Model(MODEL, "cpu").metadata.to_json()) | {"monitor": stored}
    with pytest.raises(ModelFileError, match=r"counts\[0\]"):
        Metadata.from_properties({KEY: json.dumps(metadata)}, "model.onnx")


@pytest.mark.parametrize("bins", [{"edges": [0, 1e300], "counts": [1, 1, 1]}, {"edges": [0, 1], "counts": [0, 0, 0]}])
def test_a_reference_that_no_monitor_can_start_from_cannot_be_made(bins: dict[str, list[float]]) -> None:
    document = usual(np.random.default_rng(6)).to_document()
    with pytest.raises(UsageError):
        StoredReference.from_document(document | {"statistics": {"uncertainty": bins}})


@pytest.mark.skipif(os.name == "nt", reason="no such files there")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_state_or_labels_that_are_no_file_are_told_without_waiting(
    call: Call, archive: Path, tmp_path: Path, kind: str
) -> None:
    place, log = tmp_path / "place", tmp_path / "log.jsonl"
    make = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}
    make[kind](place)
    call("predict", archive / "good" / "00.png", "--model", MODEL, "--audit", log)
    for said in (
        call("monitor", "--state", place),
        call("monitor", log, "--state", place, "--model", MODEL),
        call("monitor", place),
        call("predict", archive / "good", "--model", MODEL, "--monitor", place),
    ):
        assert said.code == 1, said
        assert said.err.startswith("error: ")
    with raises("labels.unreadable"):
        labelled(log, place, ["0"])
    assert {path.name for path in tmp_path.iterdir()} == {"place", "log.jsonl"}


@pytest.mark.skipif(os.name == "nt", reason="files are not locked there")
def test_a_state_that_another_process_writes_can_be_seen_and_not_written(
    call: Call, archive: Path, tmp_path: Path
) -> None:
    state, log = tmp_path / "state.json", tmp_path / "log.jsonl"
    call("monitor", "--model", MODEL, "--reference", "digits", "--state", state)
    call("predict", archive / "good", "--model", MODEL, "--audit", log)
    running = KeptMonitor(state, uce_edge.Model(MODEL, "cpu"))
    for said in (
        call("predict", archive / "good", "--model", MODEL, "--monitor", state),
        call("monitor", log, "--state", state, "--model", MODEL),
        call("serve", MODEL, "--monitor", state, "--port", 0),
    ):
        assert (said.code, "Another process" in said.err) == (1, True), said
    shown = call("monitor", "--state", state, "--json")
    assert json.loads(shown.out)["images"] == 0
    running.close()
    assert call("predict", archive / "good", "--model", MODEL, "--monitor", state).code == 0
    assert Monitor.load(state).state.images == 40
    assert not state.with_name(".state.json.uce-edge-lock").exists()


def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    Monitor.start(usual(np.random.default_rng(6))).save(path)
    document = json.loads(path.read_text())
    for key, value in (
        ("alpha", 5),
        ("tracks", {"other": {}}),
        ("images", "many"),
        ("images", 2**63),
        ("peak", 1e300),
        ("started", "\x1b[31m"),
        ("log_line", "x" * 1000),
        ("history", [{"image": 1, "time": "", "evidence": {"other": 1}}]),
        ("alarm", ALARM | {"statistic": "other"}),
        ("alarm", ALARM | {"since": "a\nb"}),
    ):
        path.write_text(json.dumps(document | {key: value}))
        with raises("monitor.not-a-state"):
            Monitor.load(path)
    path.write_text("{")
    with raises("monitor.not-a-state"):
        Monitor.load(path)


def test_a_loop_over_frames_adds_predictions() -> None:
    model = uce_edge.Model(GOLDEN / "digits-novelty.onnx", "cpu")
    frames = np.random.default_rng(0).integers(0, 256, (400, 8, 8, 1)).astype(np.uint8)
    by_prediction, by_scores = (Monitor.of(model, usual=model.predict(frames[:300])) for _ in range(2))
    for said in model.predict(frames[300:]):
        assert by_prediction.add(said) is by_scores.add_scores(said.as_dict())
    assert by_prediction.report().evidence == by_scores.report().evidence
    with raises("monitor.another-request"):
        by_prediction.add(model.predict(frames[:1], seed=1)[0])
    with raises("monitor.too-few-images", reference.DriftReferenceError):
        Monitor.of(model, usual=model.predict(frames[:199]))


def test_few_or_equal_images_cannot_say_what_is_usual() -> None:
    rng = np.random.default_rng(7)
    with raises("monitor.too-few-images", reference.DriftReferenceError):
        reference.count(scores(rng, 500), scores(rng, 49), 25, 0, "")
    constant = scores(rng, 100) | {"model_uncertainty": np.zeros(100, np.float32)}
    assert set(reference.count(constant, constant, 25, 0, "").statistics) == {"uncertainty", "novelty_score"}


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_the_bets_on_labels_are_fair_at_the_promised_error(above: bool, rate: float) -> None:
    """Every sequence of nine labels, weighted with its probability."""
    total = sum(
        math.prod(rate if wrong else 1 - rate for wrong in path)
        * math.exp(error_test.log_evidence(sum(path), len(path), rate, above=above))
        for path in product((0, 1), repeat=9)
    )
    assert total == pytest.approx(1, abs=1e-9)


def test_few_labels_settle_a_promise_that_is_broken_or_kept() -> None:
    rng = np.random.default_rng(8)
    broken = error_test.check(rng.random(100) < 0.25, 0.05, "now")
    assert broken.is_broken(0.01)
    assert not broken.is_kept(0.01)
    kept = error_test.check(rng.random(400) < 0.01, 0.05, "now")
    assert kept.is_kept(0.01)
    assert not kept.is_broken(0.01)
    alarms = sum(error_test.check(rng.random(100) < 0.05, 0.05, "").is_broken(0.05) for _ in range(100))
    assert alarms <= stats.binom.ppf(0.999, 100, 0.05)


def test_the_plot_shows_evidence_limit_and_alarm() -> None:
    rng = np.random.default_rng(9)
    monitor = Monitor.start(usual(rng))
    for row in rows(scores(rng, 50)) + rows(scores(rng, 60, 2.0)):
        monitor.add_scores(row)
    drawn = evidence_plot(monitor.state)
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert monitor.alarm is not None
    assert f"alarm at image {monitor.alarm.image}" in drawn
    assert drawn.count("novelty score") == 1
    assert "NaN" not in drawn


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty test digits, and forty with strong noise, each in a folder."""
    folder = tmp_path_factory.mktemp("archive")
    images = splits.load("digits").splits["test"].images[:40]
    for name, content in (("good", images), ("bad", corrupt(images, "noise", 5))):
        (folder / name).mkdir()
        for number, image in enumerate(content):
            Image.fromarray(image[..., 0]).save(folder / name / f"{number:02}.png")
    return folder


def test_live_and_over_the_log_it_says_the_same(call: Call, archive: Path, tmp_path: Path) -> None:
    state, log, again = tmp_path / "state.json", tmp_path / "log.jsonl", tmp_path / "again.json"
    refused = call("predict", archive / "good", "--model", MODEL, "--monitor", state)
    assert refused.code == 2
    assert "--reference" in refused.err
    for path in (state, again):
        started = call("monitor", "--model", MODEL, "--reference", "digits", "--state", path)
        assert started.code == 0, started.err
    for part, alarmed in (("good", False), ("bad", True)):
        said = call("predict", archive / part, "--model", MODEL, "--monitor", state, "--audit", log)
        assert ("warning: ALARM" in said.err) is alarmed
        said = call("monitor", log, "--state", again, "--exit-code", "--json", "--model", MODEL)
        assert said.code == (3 if alarmed else 0), said.err
        told = json.loads(said.out)
        live = json.loads(call("monitor", "--state", state, "--json").out)
        assert told["evidence"] == live["evidence"]
        assert told["images"] == (80 if alarmed else 40)
    assert told["alarm"]["image"] == live["alarm"]["image"]
    assert abs(told["alarm"]["since_image"] - 41) <= 5
    plotted = call("monitor", "--state", state, "--plot", tmp_path / "evidence.svg")
    assert plotted.code == 0
    assert (tmp_path / "evidence.svg").read_text().startswith("<svg")
    # A change that a shuffled archive has in it is found, and no start is claimed.
    shuffled = call("monitor", log, "--model", MODEL, "--reference", "digits", "--shuffle", "--alpha", 0.02)
    assert "somewhere in the shuffled archive" in shuffled.out


def test_answers_that_cannot_be_compared_are_refused(call: Call, archive: Path, tmp_path: Path) -> None:
    state, log = tmp_path / "state.json", tmp_path / "log.jsonl"
    call("monitor", "--model", MODEL, "--reference", "digits", "--state", state)
    with pytest.warns(uce_edge.SamplesWarning):
        call("predict", archive / "good" / "00.png", "--model", MODEL, "--samples", 5, "--audit", log)
    before = state.read_bytes()
    for said, words in (
        (call("predict", archive / "good", "--model", MODEL, "--monitor", state, "--seed", 1), "--samples"),
        (call("predict", archive / "good", "--model", GOLDEN / "digits-mc.onnx", "--monitor", state), "another model"),
        (call("predict", archive / "good", "--model", MODEL, "--monitor", archive / "good" / "00.png"), "overwritten"),
        (call("monitor", log, "--state", state), "5 passes"),
        (call("monitor", "--state", state, "--alpha", 0.1), "alpha"),
        (call("monitor", log, "--state", log), "overwritten"),
        (call("monitor", "--state", state, "--plot", "evidence.txt"), ".svg"),
        (call("monitor"), "log"),
    ):
        assert said.code in (1, 2), said
        assert words in said.err
    assert state.read_bytes() == before


def test_labels_check_the_promised_error(digits: Digits, call: Call, archive: Path, tmp_path: Path) -> None:
    model, log, state = tmp_path / "promised.onnx", tmp_path / "log.jsonl", tmp_path / "state.json"
    made = call("calibrate", digits.model, "--data", "digits", "--target-error", 0.4, "--out", model)
    assert made.code == 0, made.err
    call("predict", archive / "good", "--model", model, "--reject", "auto", "--audit", log)
    truth = splits.load("digits").splits["test"].labels
    table = tmp_path / "labels.csv"
    for shift, words in ((0, "is kept"), (1, "is BROKEN")):
        table.write_text("image,label\n" + "".join(f"{i:02}.png,{(truth[i] + shift) % 10}\n" for i in range(40)))
        said = call("monitor", log, "--state", state, "--labels", table)
        assert words in said.out, said
    table.write_text("00.png,eleven\n")
    assert "line 1 of" in call("monitor", log, "--state", state, "--labels", table).err
    shown = call("info", model, "--monitor", state)
    assert "is BROKEN" in shown.out
    assert "promised on 20" in shown.out
    assert "last checked" not in call("info", model).out


def test_a_file_stores_what_is_usual_when_it_is_exported_or_calibrated(
    digits: Digits, call: Call, tmp_path: Path
) -> None:
    stored = digits.exported.metadata.monitor
    assert stored is not None
    assert stored.images == len(digits.dataset.splits["guarantee"])
    assert stored.data == digits.dataset.splits["guarantee"].sha256()
    out = tmp_path / "calibrated.onnx"
    call("calibrate", digits.model, "--data", "digits", "--monitor", "--out", out)
    model = uce_edge.load(out)
    assert model.metadata.monitor is not None
    assert set(model.metadata.monitor.statistics) == set(STATISTICS)
    assert Monitor.of(model).state.reference == model.metadata.monitor.images
    with raises("argument.alpha"):
        Monitor.of(model, 0)

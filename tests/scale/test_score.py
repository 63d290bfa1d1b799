"""Scoring with a real Ray: one machine, a cluster of several nodes, and what kills do to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, ROOT
from PIL import Image

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed: make test-scale")
pq = pytest.importorskip("pyarrow.parquet")

# Ray and its parts warn of their own affairs.
pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = GOLDEN / "digits-novelty.onnx"
IMAGES, BLOCK = 96, 8


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    raw = [(GOLDEN / f"{name}.raw").read_bytes() for name in ("digit-0", "digit-1", "two-digits", "noise")]
    for number in range(IMAGES):
        pixels = np.frombuffer(raw[number % 4], np.uint8).reshape(8, 8)
        Image.fromarray(np.roll(pixels, number // 4, 1)).save(folder / f"{number:03}.png")
    (folder / "bad.png").write_bytes(b"no image")
    return folder


def command(photos: Path, out: Path, *more: object) -> list[str]:
    words = ["score", photos, "--model", MODEL, "--reject", "auto", "--block", BLOCK, "--out", out, "--json", *more]
    return [sys.executable, "-m", "uce_edge", *map(str, words)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "export", "train"))}


def run(photos: Path, out: Path, *more: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(photos, out, *more), capture_output=True, text=True, check=False, env=environment(), timeout=300
    )


def rows(out: Path) -> list[dict[str, Any]]:
    parts = sorted(out.glob("*.parquet"))
    return sorted((row for part in parts for row in pq.read_table(part).to_pylist()), key=lambda row: row["path"])


@pytest.fixture(scope="module")
def reference(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("answers") / "one"
    done = run(photos, out, "--workers", 1)
    counts = json.loads(done.stdout)
    assert (done.returncode, counts["images"], counts["errors"]) == (1, IMAGES + 1, {"not an image": 1})
    return rows(out)


def test_rows_are_the_answers_of_predict(photos: Path, reference: list[dict[str, Any]]) -> None:
    words = ["predict", photos, "--model", MODEL, "--reject", "auto", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "uce_edge", *map(str, words)], capture_output=True, text=True, check=False,
        env=environment(),
    )  # fmt: skip
    answers = {answer["path"]: answer for answer in json.loads(done.stdout)}
    assert len(reference) == len(answers)
    for row in reference:
        answer = answers[row["path"]]
        assert {key: row[key] for key in ("status", "label", "decision", "reason", "samples", "seed")} == {
            key: answer[key] for key in ("status", "label", "decision", "reason", "samples", "seed")
        }
        if row["status"] == "ok":
            assert abs(row["uncertainty"] - answer["uncertainty"]) < 1e-6
            assert [top["label"] for top in row["top"]] == [top["label"] for top in answer["top"]]
    (bad,) = (row for row in reference if row["status"] == "error")
    assert (bad["error_kind"], "not an image" in bad["error"]) == ("not an image", True)
    assert len({row["model_sha256"] for row in reference}) == 1


def test_two_workers_give_the_same_rows(photos: Path, tmp_path: Path, reference: list[dict[str, Any]]) -> None:
    run(photos, tmp_path / "two", "--workers", 2)
    assert rows(tmp_path / "two") == reference


def test_one_worker_reads_decodes_and_stores_a_block(
    photos: Path, tmp_path: Path, reference: list[dict[str, Any]]
) -> None:
    """Without Ray; from files that are read by many threads, a list, and Parquet."""
    import pyarrow as pa

    from uce_edge.answers import Request
    from uce_edge.scale import score

    files = sorted(photos.iterdir())
    stored = pa.table({"image": [path.read_bytes() for path in files], "path": [str(path) for path in files]})
    pq.write_table(stored, tmp_path / "x.parquet", row_group_size=BLOCK)
    (tmp_path / "list.txt").write_text("\n".join([*map(str, files), str(photos / "gone.png")]))
    for given in (tmp_path / "x.parquet", tmp_path / "list.txt"):
        out = tmp_path / f"{given.suffix}-out"
        with score.opened(str(given), MODEL, str(out), Request(reject="auto"), BLOCK) as job:
            worker = score._Score(job.shared, score.Machines())
            worker._threads = 8
            for one in job.blocks:
                worker({"number": one.number, "kind": one.kind, "addresses": one.addresses, "group": one.row_group})
        found = {row["path"]: row for row in rows(out)}
        gone = found.pop(str(photos / "gone.png"), None)
        assert list(found.values()) == reference
        assert (gone is None) == (given.suffix == ".parquet")
        if gone is not None:
            assert (gone["status"], gone["error_kind"], gone["sha256"]) == ("error", "unreadable", None)


def test_workers_share_what_is_there() -> None:
    from uce_edge.scale.score import _share

    assert [_share(*given) for given in ((1, 2, 2), (1, 2, 4), (2, 3, 2), (4, 8, 1))] == [1, 0.5, 1, 4]


def test_a_killed_job_goes_on_without_a_lost_or_doubled_row(
    photos: Path, tmp_path: Path, reference: list[dict[str, Any]]
) -> None:
    out = tmp_path / "killed"
    with subprocess.Popen(
        command(photos, out, "--workers", 1),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while not list(out.glob("*.parquet")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    stored = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    assert stored
    assert len(stored) < len(reference) / BLOCK + 1
    done = run(photos, out, "--workers", 1)
    assert "were there already" in done.stderr
    assert rows(out) == reference
    assert all((out / name).read_bytes() == content for name, content in stored.items())


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_node_that_dies_in_the_middle_costs_nothing(
    photos: Path, tmp_path: Path, reference: list[dict[str, Any]], cluster: Any
) -> None:
    doomed = cluster.add_node(num_cpus=2)
    cluster.add_node(num_cpus=2)
    out = tmp_path / "cluster"
    with subprocess.Popen(
        command(photos, out, "--workers", 2, "--address", cluster.address),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 180
        while not list(out.glob("*.parquet")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        cluster.remove_node(doomed, allow_graceful=False)
        said, talk = process.communicate(timeout=240)
    assert process.returncode == 1, talk  # one image is none
    assert json.loads(said)["images"] == IMAGES + 1
    assert rows(out) == reference


def test_another_model_and_a_missing_cluster_are_told(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "_manifest.json").write_text(json.dumps({"model_sha256": "x"}))
    done = run(photos, out)
    assert (done.returncode, "another model" in done.stderr) == (2, True)
    done = run(photos, tmp_path / "other", "--address", "127.0.0.1:1")
    assert (done.returncode, "no Ray cluster" in done.stderr) == (1, True), done.stderr


def test_a_ray_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from uce_edge import UceEdgeError
    from uce_edge.scale import score

    def slow(**_: Any) -> None:
        raise Exception("The current node timed out during startup.\nMore of it.")

    monkeypatch.setattr(score.ray, "init", slow)
    with pytest.raises(UceEdgeError, match=r"Ray did not start \(The current node timed out during startup\)\. If"):
        score._start(None)

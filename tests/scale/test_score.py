"""Scoring with a real Ray: one machine, a cluster of several nodes, and what kills do to it."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import GOLDEN, ROOT
from helpers.errors import raises
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

    from uce_edge.runtime.answers import Request
    from uce_edge.scale import ray_job

    files = sorted(photos.iterdir())
    stored = pa.table({"image": [path.read_bytes() for path in files], "path": [str(path) for path in files]})
    pq.write_table(stored, tmp_path / "x.parquet", row_group_size=BLOCK)
    odd = ["gone.png", "foo://x/y.png", "a\0b.png", "\N{DIGIT ONE}" * 5000, "folder.png", "fifo.png"]
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "list.txt").write_text("\n".join([*map(str, files), *odd]))
    for given in (tmp_path / "x.parquet", tmp_path / "list.txt"):
        out = tmp_path / f"{given.suffix}-out"
        with ray_job.opened(str(given), MODEL, str(out), Request(reject="auto"), BLOCK) as job:
            worker = ray_job._Score(job.shared, ray_job.Machines())
            worker._threads = 8
            for one in job.blocks:
                worker({"block": one.to_json()})
        found = rows(out)
        assert [row for row in found if row["error_kind"] != "unreadable"] == reference
        bad = [row for row in found if row["error_kind"] == "unreadable"]
        assert len(bad) == (0 if given.suffix == ".parquet" else len(odd))
        assert all((row["status"], row["sha256"]) == ("error", None) for row in bad)


def test_a_model_that_was_replaced_in_the_folder_is_not_used(photos: Path, tmp_path: Path) -> None:
    from uce_edge.runtime.answers import Request
    from uce_edge.scale import ray_job

    with ray_job.opened(str(photos), MODEL, str(tmp_path / "out"), Request(), BLOCK) as job:
        shutil.copy(GOLDEN / "digits-mc.onnx", tmp_path / "out" / "_model.onnx")
        with raises("model.replaced"):
            ray_job._Score(job.shared, ray_job.Machines())


def test_workers_share_what_is_there() -> None:
    from uce_edge.scale.ray_job import _share

    assert [_share(*given) for given in ((1, 2, 2), (1, 2, 4), (2, 3, 2), (4, 8, 1))] == [1, 0.5, 1, 4]


def test_a_killed_job_goes_on_and_computes_a_damaged_part_again(
    photos: Path, tmp_path: Path, reference: list[dict[str, Any]]
) -> None:
    out = tmp_path / "killed"
    with subprocess.Popen(
        command(photos, out, "--workers", 1),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while len(list(out.glob("*.parquet"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    stored = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    assert 2 <= len(stored) < len(reference) / BLOCK + 1
    damaged = out / min(stored)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    done = run(photos, out, "--workers", 1)
    assert "already" in done.stderr
    assert f"({damaged.name})" in done.stderr
    assert rows(out) == reference
    assert all((out / name).read_bytes() == content for name, content in stored.items())


class Private(NamedTuple):
    """A home and a temporary folder of one's own; processes are known by the home, which they run in."""

    home: Path
    temporary: Path

    def start(self, words: list[str]) -> "subprocess.Popen[str]":
        there = environment() | {"HOME": str(self.home), "TMPDIR": str(self.temporary)}
        return subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=there, cwd=self.home
        )

    def processes(self) -> dict[Path, str]:
        """With their titles."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").readlink() == self.home:
                    found[process] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def listening(self) -> set[str]:
        """The addresses, in the hexadecimal form of the kernel."""
        sockets = set()
        for process in self.processes():
            with suppress(OSError):
                sockets |= {str(file.readlink()) for file in (process / "fd").iterdir()}
        lines = [
            line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
        ]
        return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Private]:
    (tmp_path / "home").mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as short:  # Ray's sockets lie below it
        yield Private(tmp_path / "home", Path(short))


def until_stored(process: "subprocess.Popen[str]", out: Path, parts: int = 1) -> None:
    deadline = time.monotonic() + 180
    while len(list(out.glob("*.parquet"))) < parts and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched as on Linux")
def test_a_job_on_one_machine_is_private_and_leaves_nothing(
    photos: Path, tmp_path: Path, reference: list[dict[str, Any]], private: Private
) -> None:
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    many = tmp_path / "many.txt"
    many.write_text("\n".join(30 * [str(path) for path in photos.iterdir()]))
    with private.start(command(many, tmp_path / "stopped", "--workers", 1)) as process:
        until_stored(process, tmp_path / "stopped")
        listening = private.listening()
        (folder,) = private.temporary.iterdir()
        mode = folder.stat().st_mode & 0o777
        process.terminate()
        _, talk = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in talk) == (143, False), talk
    assert listening
    assert listening <= loopback
    assert mode == 0o700
    assert list(private.temporary.iterdir()) == list(private.home.iterdir()) == []

    out = tmp_path / "out"
    with private.start(command(photos, out, "--workers", 1)) as process:
        while not list(private.temporary.iterdir()):
            time.sleep(0.05)
        time.sleep(2)  # Ray has begun to start
        process.kill()
        process.communicate(timeout=60)
    (left,) = private.temporary.iterdir()
    os.utime(left, (0, 0))
    deadline = time.monotonic() + 60
    while private.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert private.processes() == {}, "Ray's processes live on"
    with private.start(command(photos, out, "--workers", 1)) as process:
        process.communicate(timeout=300)
    assert rows(out) == reference
    assert list(private.temporary.iterdir()) == list(private.home.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched as on Linux")
def test_killed_at_any_moment_no_row_is_lost_or_doubled(
    photos: Path, tmp_path: Path, reference: list[dict[str, Any]], private: Private
) -> None:
    """`UCE_EDGE_SOAK=1` kills 20 times, otherwise once: the command, a worker, or a part of Ray itself."""
    rng, out, killed = random.Random(0), tmp_path / "out", Counter[str]()
    for _ in range(20 if os.environ.get("UCE_EDGE_SOAK") else 1):
        kind = rng.choice(["MapWorker", "uce_edge score", "MapWorker", "raylet/raylet", "gcs_server"])
        with private.start(command(photos, out, "--workers", 2)) as process:
            found = list[Path]()
            while not found and process.poll() is None:
                time.sleep(0.1)
                found = [one for one, title in private.processes().items() if kind in title]
            time.sleep(rng.uniform(0, 2 if kind == "MapWorker" else 12))
            with suppress(OSError):
                if found:
                    os.kill(int(rng.choice(found).name), signal.SIGKILL)
                    killed[kind] += 1
            talk = "".join(process.communicate(timeout=300))
        assert "Traceback" not in talk, talk
        for part in out.glob("*.parquet"):
            assert len(pq.read_table(part)) > 0
            if rng.random() < 0.5:
                part.unlink()  # so that something is left to do
    print(f"killed: {dict(killed)}")
    with private.start(command(photos, out, "--workers", 1)) as process:
        _, talk = process.communicate(timeout=300)
    assert process.returncode == 1, talk  # one image is none
    assert rows(out) == reference
    assert [path for path in out.iterdir() if path.suffix == ".tmp"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="disks are mounted as on Linux")
def test_a_disk_that_is_full_or_read_only_is_told(
    photos: Path, tmp_path: Path, reference: list[dict[str, Any]]
) -> None:
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(disk)]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root, unshare and a kernel that lets one")
    script = f"""
        mount -t tmpfs -o size={MODEL.stat().st_size + 60_000} tmpfs {disk}
        "$@"; echo "code $?"; ls {disk}/out | grep -c tmp
        mount -o remount,size=100m {disk}
        "$@"; echo "code $?"
        cp -r {disk}/out {copy}
        mount -o remount,ro {disk}
        "$@"; echo "code $?"
    """
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *command(photos, disk / "out", "--workers", 1)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment(), timeout=600,
    )  # fmt: skip
    said = ended.stdout
    assert "Traceback" not in said, said
    assert [line for line in said.splitlines() if line.startswith("code ") or line.isdecimal()] == [
        "code 1", "0", "code 1", "code 1",
    ], said  # fmt: skip
    assert (
        said.index("No space left on device") < said.index("were there already") < said.index("Read-only file system")
    )
    assert rows(copy) == reference


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
    assert (done.returncode, "model_sha256" in done.stderr) == (2, True)
    done = run(photos, tmp_path / "other", "--address", "127.0.0.1:1")
    assert (done.returncode, "no Ray cluster" in done.stderr) == (1, True), done.stderr


def test_a_ray_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from uce_edge.scale import cluster

    def slow(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup.\nMore of it.")

    monkeypatch.setattr(cluster.ray, "init", slow)
    with raises("ray.not-started") as caught, cluster.joined(None):
        pass
    assert caught.value.fields["reason"] == "The current node timed out during startup"

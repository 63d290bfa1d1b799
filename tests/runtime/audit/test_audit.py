"""The log of decisions as evidence: what was edited, removed, cut off or not written is noticed."""

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, ROOT, Call
from helpers.errors import raises
from PIL import Image

from uce_edge import UceEdgeError
from uce_edge.audit import hash_chain
from uce_edge.audit.decision_log import Audit
from uce_edge.runtime.answers import Answer
from uce_edge.runtime.model import Model

MODEL = GOLDEN / "digits-novelty.onnx"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "incoming"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def log(images: Path, call: Call) -> Path:
    path = images.parent / "decisions.jsonl"
    assert call("predict", images, "--model", MODEL, "--reject", "auto", "--audit", path).code == 0
    return path


def outcomes(call: Call, log: Path, images: Path, *more: object) -> list[str]:
    printed = call("replay", log, "--images", images, "--model", MODEL, "--json", *more)
    document = json.loads(printed.out)
    told = [line["outcome"] for line in document["lines"]]
    assert printed.code == (set(told) != {"same"} or document["whole"] is False)
    return told


def test_every_decision_comes_out_again_under_other_names(call: Call, log: Path, images: Path) -> None:
    (images / "0.png").rename(images / "zero.png")
    (images / "copy").mkdir()
    (images / "1.png").rename(images / "copy" / "1.png")
    assert outcomes(call, log, images) == ["same"] * 6


def test_the_chain_starts_at_the_model(log: Path) -> None:
    first, second, *_ = (json.loads(line) for line in log.read_text().splitlines())
    assert first["previous"] == first["model_sha256"]
    assert second["previous"] == first["line_sha256"]
    assert (first["line"], second["line"]) == (1, 2)


def forged(line: str) -> str:
    """Another answer, with a hash that fits."""
    document = json.loads(line)
    del document["line_sha256"]
    other = "3" if document["label"] == "8" else "8"
    return hash_chain.sealed(document | {"label": other, "decision": "accept"}).decode().rstrip()


EDITS: dict[str, tuple[Callable[[list[str]], list[str]], list[str]]] = {
    "a changed word": (
        lambda lines: [lines[0], lines[1].replace('"status": "ok"', '"status": "OK"'), *lines[2:]],
        ["same", "edited", "same", "same", "same", "same"],
    ),
    "a removed hash": (
        lambda lines: [lines[0], lines[1].partition(', "line_sha256"')[0] + "}", *lines[2:]],
        ["same", "edited", "same", "same", "same", "same"],
    ),
    "a line that is no JSON": (
        lambda lines: [lines[0], "nothing", *lines[2:]],
        ["same", "edited", "same", "same", "same", "same"],
    ),
    "a line that is no JSON in place of two": (
        lambda lines: [lines[0], "nothing", *lines[3:]],
        ["same", "edited", "missing", "same", "same"],
    ),
    "two lines taken out": (lambda lines: [lines[0], *lines[3:]], ["same", "missing", "same", "same"]),
    "the start taken out": (lambda lines: lines[2:], ["missing", "same", "same", "same"]),
    "two lines that changed places": (
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        ["same", "missing", "missing", "missing", "same", "same"],
    ),
    "a forged line with a hash that fits": (
        lambda lines: [*lines[:2], forged(lines[2]), *lines[3:]],
        ["same", "same", "differs", "missing", "same", "same"],
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_log_is_noticed(call: Call, log: Path, images: Path, what: str) -> None:
    edit, expected = EDITS[what]
    log.write_text("\n".join(edit(log.read_text().splitlines())) + "\n")
    assert outcomes(call, log, images) == expected


def test_what_is_cut_off_the_end_shows_against_a_hash_that_was_kept(call: Call, log: Path, images: Path) -> None:
    lines = log.read_text().splitlines()
    kept = json.loads(lines[-1])["line_sha256"]
    assert outcomes(call, log, images, "--ends-with", kept) == ["same"] * 6
    log.write_text("\n".join(lines[:-1]) + "\n")
    assert outcomes(call, log, images) == ["same"] * 5
    printed = call("replay", log, "--images", images, "--model", MODEL, "--ends-with", kept)
    assert printed.code == 1
    assert "lines are missing at its end" in printed.out


def test_a_changed_and_a_lost_image_are_told_apart(call: Call, log: Path, images: Path) -> None:
    (images / "1.png").unlink()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(images / "2.png")
    printed = call("replay", log, "--images", images, "--model", MODEL)
    assert printed.code == 1
    assert "decisions.jsonl:2" in printed.out
    assert "missing: no such image" in printed.out
    assert "missing: the image of that name has another content" in printed.out
    assert "4 same, 0 differs, 2 missing, 0 edited, 0 unchecked." in printed.out


def test_without_the_model_nothing_is_called_the_same(call: Call, log: Path, images: Path) -> None:
    printed = call("replay", log, "--images", images, "--model", GOLDEN / "digits-mc.onnx", "--json")
    assert (printed.code, json.loads(printed.out)["same"]) == (0, 6)  # the log names where it lies
    text = log.read_text().replace(json.dumps(str(MODEL)), '"gone.onnx"')
    log.write_text("".join(hash_chain.sealed(_unsealed(line)).decode() for line in text.splitlines()))
    assert set(outcomes(call, log, images)) == {"same", "missing"}  # another text, so another chain
    printed = call("replay", log, "--images", images, "--json")
    assert (printed.code, json.loads(printed.out)["unchecked"]) == (1, 1)


def _unsealed(line: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(line)
    del document["line_sha256"]
    return document


def test_a_log_goes_on_in_numbered_files_with_one_chain(call: Call, images: Path) -> None:
    log = images.parent / "d.jsonl"
    asked = ("predict", images, "--model", MODEL, "--audit", log, "--audit-size", "0.003")
    assert [call(*asked).code for _ in range(2)] == [0, 0]
    files = hash_chain.segments(log)
    assert [file.name for file in files[:2]] == ["d.000001.jsonl", "d.000002.jsonl"]
    assert files[-1] == log
    assert all(file.stat().st_size <= 3000 for file in files)
    assert outcomes(call, log, images) == ["same"] * 12
    log.unlink()  # a power cut between the name and the first line
    call(*asked)
    lost = len(outcomes(call, log, images)) - 12
    assert lost < 6
    files[1].unlink()
    assert outcomes(call, log, images).count("missing") == 1


def test_two_processes_do_not_write_one_log(images: Path) -> None:
    log = images.parent / "d.jsonl"
    first = Audit(log, Model(MODEL, "cpu"))
    with raises("log.locked"):
        Audit(log, Model(MODEL, "cpu"))
    first.close()
    Audit(log, Model(MODEL, "cpu")).close()


@pytest.mark.skipif(os.name == "nt", reason="no such lock there")
def test_many_writers_in_turn_leave_one_chain(tmp_path: Path) -> None:
    log, refused = tmp_path / "d.jsonl", Answer("x", None, "nothing")

    def write(_: int) -> int:
        written = 0
        for _ in range(30):
            with suppress(UceEdgeError):  # another one is writing
                audit = Audit(log, Model(MODEL, "cpu"), max_bytes=1500)
                try:
                    for _ in range(3):
                        audit.add(refused)
                        written += 1
                finally:
                    audit.close()
        return written

    with ThreadPoolExecutor(4) as pool:
        written = sum(pool.map(write, range(4)))
    lines = list(hash_chain.read(hash_chain.segments(log)))
    assert len(lines) == written > 0
    assert {line.seal for line in lines} == {hash_chain.Seal.INTACT}


OURS = hash_chain.sealed(
    {"line": 1, "previous": "0" * 64, "model_sha256": "0" * 64, "uce_edge": "1", "path": "", "status": ""}
)
FOREIGN = {
    "text": b"notes of somebody",
    "a picture": b"\x89PNG\r\n",
    "a thesis": b"{draft} my only copy of the thesis, one long line without an end",
    "rich text": b"{\\rtf1\\ansi hello}",
    "a package": b'{"name": "app", "version": 1}',
    "a manifest": b'{"path": "a.png", "label": "cat"}\n{"path": "b.png", "label": "dog"}\n',
    "a torn manifest": b'{"path": "a.png", "label": "cat"}\n{"path": "b.png", "label": "do',
    "a torn log of another program": b'{"line": 1, "text": "hel',
    "lines of another program": b'{"line": 1, "previous": "x"}\n',
    "a template": b"{% jinja %}\nfoo\n{{ last line }}",
    "a bracket": b"{",
    "a line's end": b"\n",
    "zeros": bytes(4096),
    "notes below a log": OURS + b"remember the milk",
    "an object below a log": OURS + b'{"name": "app"}',
    "a line below a log": OURS + b"checked\n",
    "a blank line below a log": OURS + b"\n",
    "another line's start below a log": OURS + b'{"line": 7, "previous": "',
    "megabytes in one line": b'{"line": 1, "text": "' + b"x" * 20_000_000,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_of_somebody_else_is_not_continued(tmp_path: Path, what: str) -> None:
    (tmp_path / "notes").write_bytes(FOREIGN[what])
    with raises("log.not-a-log"):
        Audit(tmp_path / "notes", Model(MODEL, "cpu"))
    assert (tmp_path / "notes").read_bytes() == FOREIGN[what]


def test_a_log_that_is_torn_anywhere_is_mended(log: Path) -> None:
    content = log.read_bytes()
    lines = content.splitlines(keepends=True)
    whole = len(content) - len(lines[-1])
    first, model = len(b'{"line": '), Model(MODEL, "cpu")
    for end in [*range(first, 130), len(lines[0]) - 1, *range(whole, whole + 130), len(content) - 2]:
        for zeros in (b"", bytes(100)):
            log.write_bytes(content[:end] + zeros)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                Audit(log, model).close()
            lacks_its_end = end == len(lines[0]) - 1 and not zeros
            assert log.read_bytes() == (lines[0] if lacks_its_end else content[:whole] if end >= whole else b"")
            assert len(told) == (not lacks_its_end and (end != whole or zeros != b""))


@pytest.mark.skipif(os.name == "nt", reason="no such files there")
@pytest.mark.parametrize("what", ["pipe", "link", "dangling", "device", "folder"])
def test_what_is_no_regular_file_is_no_log(tmp_path: Path, log: Path, what: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(log)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    (tmp_path / "folder").mkdir()
    before = log.read_bytes()
    with raises("log.not-a-log"):
        Audit(Path(os.devnull) if what == "device" else tmp_path / what, Model(MODEL, "cpu"))
    assert log.read_bytes() == before
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.name == "nt", reason="no such files there")
def test_a_pipe_among_the_numbered_files_is_not_waited_for(tmp_path: Path, images: Path) -> None:
    os.mkfifo(tmp_path / "d.000001.jsonl")
    audit = Audit(tmp_path / "d.jsonl", Model(MODEL, "cpu"), max_bytes=1)
    for answer in Model(MODEL, "cpu").answers([images / "0.png", images / "1.png"], keep=True):
        audit.add(answer)
    audit.close()
    assert (tmp_path / "d.000001.jsonl").is_fifo()
    assert [path.name for path in hash_chain.segments(tmp_path / "d.jsonl")] == ["d.000002.jsonl", "d.jsonl"]


def test_a_log_goes_on_after_a_failed_change_of_files(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "d.jsonl"
    audit = Audit(log, Model(MODEL, "cpu"), max_bytes=1)
    answers = list(Model(MODEL, "cpu").answers([images / "0.png"] * 3, keep=True))
    audit.add(answers[0])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(Path, "rename", refuse)
        with raises("log.unwritable"):
            audit.add(answers[1])
    with monkeypatch.context() as failing:
        failing.setattr(Audit, "_open", refuse)
        with raises("log.unwritable"):
            audit.add(answers[1])
    audit.add(answers[2])
    audit.close()
    lines = list(hash_chain.read(hash_chain.segments(log)))
    assert [line.seal for line in lines] == [hash_chain.Seal.INTACT] * 2


def test_an_emptied_log_is_not_called_fine(call: Call, log: Path, images: Path) -> None:
    log.write_bytes(b"")
    printed = call("replay", log, "--images", images, "--model", MODEL)
    assert printed.code == 1
    assert "is empty" in printed.err


NAMES = ("x#z=1,z=2", "scan.dcm#7", "x#3", "y#" + "9" * 5000, "a\n1 same", "\x1b[2J", "\ud800", "/etc/passwd", "..", "")


@pytest.mark.parametrize("name", NAMES)
def test_the_name_that_a_client_gives_is_no_selection(call: Call, images: Path, name: str) -> None:
    log = images.parent / "d.jsonl"
    audit = Audit(log, Model(MODEL, "cpu"))
    audit.add(replace(next(Model(MODEL, "cpu").answers([images / "0.png"], keep=True)), path=name))
    audit.close()
    document = _unsealed(log.read_text())
    assert document.pop("part") is None
    assert outcomes(call, log, images) == ["same"]
    log.write_bytes(hash_chain.sealed(document))  # as older versions wrote it
    assert outcomes(call, log, images) == ["same"]


@pytest.mark.parametrize("value", ["1" + "0" * 400, "NaN", "Infinity", "true", '"0.5"'])
def test_a_monitor_takes_only_finite_numbers_from_a_log(call: Call, tmp_path: Path, value: str) -> None:
    log, state = tmp_path / "d.jsonl", tmp_path / "state.json"
    call("predict", ROOT / "tests" / "cifar" / "frog.png", "--audit", log)
    document = _unsealed(log.read_text()) | {"uncertainty": json.loads(value)}
    text = json.dumps(document).removesuffix("}").encode()
    log.write_bytes(text + b', "line_sha256": "' + hashlib.sha256(text).hexdigest().encode() + b'"}\n')
    printed = call("monitor", log, "--state", state)
    assert printed.code == 1
    assert "has no number uncertainty" in printed.err


def test_lines_of_an_older_version_are_kept_and_continued(call: Call, log: Path, images: Path) -> None:
    old = [_unsealed(line) for line in log.read_text().splitlines()]
    for document in old:
        for key in ("line", "previous", "asked"):
            del document[key]
    log.write_text("".join(json.dumps(document) + "\n" for document in old))
    call("predict", images, "--model", MODEL, "--reject", "auto", "--audit", log)
    assert json.loads(log.read_text().splitlines()[6])["line"] == 7
    assert outcomes(call, log, images) == ["same"] * 12


FULL = """
import resource, sys
from uce_edge import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
cli.main(sys.argv[1:])
"""


@pytest.mark.skipif(os.name == "nt", reason="no such limit there")
def test_a_full_disk_leaves_whole_lines_and_no_decision_that_is_not_logged(images: Path, tmp_path: Path) -> None:
    log = tmp_path / "d.jsonl"
    asked = ["predict", str(images), "--model", str(MODEL), "--audit", str(log), "--jsonl"]
    done = subprocess.run([sys.executable, "-c", FULL, *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"error: Cannot write the log {log}: File too large." in done.stderr
    content = log.read_text()
    assert content.endswith("}\n")
    logged = [json.loads(line)["path"] for line in content.splitlines()]
    assert 0 < len(logged) < 6
    assert [json.loads(line)["path"] for line in done.stdout.splitlines()] == logged
    assert {line.seal for line in hash_chain.read([log])} == {hash_chain.Seal.INTACT}


def test_a_line_that_lacks_only_its_end_stays(images: Path, log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-1])
    with_answer = Audit(log, Model(MODEL, "cpu"))
    with_answer.add(next(Model(MODEL, "cpu").answers([images / "0.png"], keep=True)))
    with_answer.close()
    assert [line.seal for line in hash_chain.read([log])] == [hash_chain.Seal.INTACT] * 7

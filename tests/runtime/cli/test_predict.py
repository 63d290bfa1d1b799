"""`predict` for people: cards, order, pictures, a watched folder and the log of decisions."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Call, Digits
from PIL import Image

from uce_edge import Decision, annotate
from uce_edge.model import SamplesWarning


@pytest.fixture
def mixed(digits: Digits, tmp_path: Path) -> Path:
    """Two digits, and noise that is none."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for index in range(2):
        Image.fromarray(digits.dataset.splits["test"].images[index][..., 0]).save(folder / f"digit-{index}.png")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    return folder


def test_one_image_gets_a_card_with_bars_and_a_reason(digits: Digits, call: Call) -> None:
    asked = ("predict", "--model", digits.model, digits.image, "--reject", "0.3")
    said = call(*asked, "--top", 4)
    path, *bars, sure, decision = said.out.splitlines()
    assert path == str(digits.image)
    record = json.loads(call(*asked, "--json", "--top", 4).out)[0]
    assert [line.split()[0] for line in bars] == [one["label"] for one in record["top"]]
    assert bars[0].split()[0] == record["label"]
    # The longest bar is the label's, and its length is the probability's.
    assert bars[0].count("█") == round(record["confidence"] * 30 * 8) // 8
    assert bars[0].endswith(f"{record['confidence']:.1%}")
    assert sure.startswith(f"  uncertainty {record['uncertainty']:.3f} ± ")
    assert "wrong about" in sure
    assert decision == "  accept: its uncertainty is at most 0.3"
    assert "reject: its uncertainty is above 0" in call(*asked[:-1], "0").out


def test_the_likeliest_classes_are_in_order_and_sum_to_one(digits: Digits, call: Call) -> None:
    record = json.loads(call("predict", "--model", digits.model, digits.image, "--json", "--top", 10).out)[0]
    shares = [one["probability"] for one in record["top"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert shares[0] == record["confidence"]


def test_the_most_uncertain_come_first_when_asked_and_bad_ones_last(digits: Digits, call: Call, mixed: Path) -> None:
    (mixed / "broken.png").write_bytes(b"nothing")
    asked = ("predict", "--model", digits.model, mixed, "--sort", "uncertainty")
    for form in ("--json", "--jsonl"):
        out = call(*asked, form).out
        records = json.loads(out) if form == "--json" else [json.loads(line) for line in out.splitlines()]
        values = [record["uncertainty"] for record in records[:-1]]
        assert values == sorted(values, reverse=True)
        assert Path(records[0]["path"]).name == "noise.png"
        assert records[-1]["status"] == "error"


def test_annotated_copies_show_the_image_and_differ_by_outcome(digits: Digits, call: Call, mixed: Path) -> None:
    out = mixed / "annotated"
    said = call("predict", "--model", digits.model, mixed, mixed / "noise.png", "--reject", "0.1", "--save", out)
    assert said.code == 0
    assert sorted(path.name for path in out.iterdir()) == ["digit-0.png", "digit-1.png", "noise-2.png", "noise.png"]
    edges = {}
    for path in out.iterdir():
        with Image.open(path) as image:
            assert image.width >= 320
            edges[path.stem] = image.getpixel((0, 0))
            # The original's pixels are there, enlarged without smoothing.
            with Image.open(mixed / f"{path.stem.removesuffix('-2')}.png") as original:
                corner = original.convert("RGB").getpixel((7, 7))
            left = (image.width - 320) // 2
            assert image.getpixel((left + 310, 6 + 310)) == corner
    assert edges["digit-0"] != edges["noise"] == edges["noise-2"]
    assert said.err.startswith(f"Wrote 4 annotated images to {out}\n")


@pytest.mark.parametrize("option", ["--save .", "--sheet noise.png", "--save ../mixed", "--watch . --save ."])
def test_the_images_themselves_are_never_overwritten(
    digits: Digits, call: Call, mixed: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(mixed)
    before = {path.name: path.read_bytes() for path in mixed.iterdir()}
    images = [] if "--watch" in option else ["noise.png", "digit-0.png"]
    said = call("predict", "--model", digits.model, *images, *option.replace("../mixed", f"../{mixed.name}").split())
    assert (said.code, said.out) == (2, "")
    assert "which would be overwritten" in said.err or "one of which would be overwritten" in said.err
    assert {path.name: path.read_bytes() for path in mixed.iterdir()} == before


def test_a_file_is_no_folder_for_copies(digits: Digits, call: Call, mixed: Path) -> None:
    said = call("predict", "--model", digits.model, mixed / "noise.png", "--save", mixed / "digit-0.png")
    assert said.code == 1
    assert "digit-0.png: it is a file, not a folder. Choose a folder with --save." in said.err


def test_the_table_tells_the_passes_that_were_drawn_early(digits: Digits, call: Call, mixed: Path) -> None:
    asked = ("predict", "--model", digits.model, mixed, "--reject", "0.1", "--samples", "100", "--adaptive", "0.1")
    with pytest.warns(SamplesWarning, match="runs with at most 100"):
        said = call(*asked)
    head, *lines = said.out.splitlines()
    assert head.endswith("passes  decision")
    with pytest.warns(SamplesWarning):
        records = json.loads(call(*asked, "--json").out)
    assert [record["threshold"] for record in records] == [0.1] * len(records)
    passes = [str(record["samples"]) for record in records]
    assert passes[0] == "5"
    assert [line.split(" accept")[0].split(" reject")[0].split()[-1] for line in lines] == passes


def test_the_sheet_has_every_image(digits: Digits, call: Call, mixed: Path) -> None:
    sheet = mixed / "sheet.png"
    said = call("predict", "--model", digits.model, mixed, "--reject", "0.1", "--sheet", sheet)
    assert f"Wrote {sheet}" in said.err
    assert "2 accepted, 1 rejected." in said.err
    with Image.open(sheet) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(10**6)}
    accepted, rejected = (
        tuple(bytes.fromhex(annotate.COLOURS[name][1:])) for name in (Decision.ACCEPT, Decision.REJECT)
    )
    assert {accepted, rejected} <= colours


def test_the_log_has_what_a_court_would_ask_for(digits: Digits, call: Call, mixed: Path) -> None:
    log = mixed / "logs" / "decisions.jsonl"
    log.parent.mkdir()
    log.write_text('{"torn by a power cu')
    (mixed / "bad.png").write_bytes(b"nothing")
    asked = ("predict", "--model", digits.model, mixed, "--reject", "0.1", "--audit", log, "--jsonl", "--seed", 3)
    printed = [json.loads(line) for line in call(*asked).out.splitlines()]
    torn, *lines = log.read_text().splitlines()
    assert torn == '{"torn by a power cu'
    logged = [json.loads(line) for line in lines]
    assert len(logged) == 4
    for line, record in zip(logged, printed, strict=True):
        assert {name: line[name] for name in record} == record
        assert line["sha256"] == hashlib.sha256(Path(record["path"]).read_bytes()).hexdigest()
        assert line["model_sha256"] == hashlib.sha256(digits.model.read_bytes()).hexdigest()
        assert (line["provider"], line["threshold"]) == ("CPUExecutionProvider", 0.1)
        assert line["time"].endswith("+00:00")
    assert [line["decision"] for line in logged] == [None, "accept", "accept", "reject"]
    call(*asked)
    assert len(log.read_text().splitlines()) == 1 + 2 * 4


def test_a_log_that_cannot_be_written_stops_the_work(digits: Digits, call: Call, tmp_path: Path) -> None:
    said = call("predict", "--model", digits.model, digits.image, "--audit", tmp_path)
    assert said.code == 1
    assert f"Cannot write the log {tmp_path}" in said.err
    assert said.out == ""


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is another signal there")
def test_a_watched_folder_is_answered_as_images_arrive(digits: Digits, mixed: Path, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    shutil.copy(mixed / "digit-0.png", incoming)
    command = [sys.executable, "-m", "uce_edge", "predict", "--model", digits.model, "--watch", incoming, "--jsonl"]
    with subprocess.Popen(
        [*map(str, command), "--reject", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as it:
        try:
            assert it.stdout is not None
            first = json.loads(it.stdout.readline())
            assert Path(first["path"]).name == "digit-0.png"
            # Written in two parts: nothing is said of the first.
            content = (mixed / "noise.png").read_bytes()
            with (incoming / "noise.png").open("wb") as file:
                file.write(content[:40])
                file.flush()
                time.sleep(0.05)
                file.write(content[40:])
            second = json.loads(it.stdout.readline())
            assert (Path(second["path"]).name, second["status"]) == ("noise.png", "ok")
            assert second["decision"] == "reject"
            shutil.copy(mixed / "digit-1.png", incoming / "noise.png")
            again = json.loads(it.stdout.readline())
            assert (Path(again["path"]).name, again["decision"]) == ("noise.png", "accept")
        finally:
            it.send_signal(signal.SIGINT)
        rest, said = it.communicate(timeout=30)
    assert (it.returncode, rest) == (0, b"")
    assert b"Watching" in said


def test_a_folder_that_is_not_there_cannot_be_watched(digits: Digits, call: Call, tmp_path: Path) -> None:
    said = call("predict", "--model", digits.model, "--watch", tmp_path / "absent", "--jsonl")
    assert said.code == 1
    assert "cannot be watched: No such file or directory" in said.err
    assert "Watching" not in said.err

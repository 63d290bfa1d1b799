"""`predict` for people: cards, order, pictures, a watched folder and the log of decisions."""

import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, ROOT, Call, Digits
from helpers import port_cases
from PIL import Image, ImageFont

from uce_edge import Answer, Decision, UceEdgeWarning
from uce_edge.images import folder_watch
from uce_edge.output import annotate, contact_sheet
from uce_edge.runtime.model import SamplesWarning


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


@pytest.fixture
def workplace(digits: Digits, mixed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of images, with the model in a folder beside, and links to both."""
    if os.name == "nt":
        pytest.skip("links need an administrator there")
    place = mixed.parent / "place"
    place.mkdir()
    shutil.copy(digits.model, place / "m.onnx")
    shutil.copy(digits.model, place / "m.png")
    (place / "model-link").symlink_to("m.onnx")
    (place / "image-link.png").symlink_to(mixed / "noise.png")
    (place / "images").symlink_to(mixed)
    (place / "inside").mkdir()
    (place / "inside" / "link.png").symlink_to(place / "m.png")
    os.link(place / "m.onnx", place / "model-name")
    os.link(mixed / "noise.png", place / "image-name")
    monkeypatch.chdir(place)
    return mixed.parent


MODEL, IMAGE = "the model, which would be overwritten", "the images, one of which would be overwritten"
FOLDER, OTHER = "that of the images, which would be overwritten", "which would be overwritten"
OVERWRITING = {
    "--audit m.onnx": MODEL,
    "--audit ../place/m.onnx": MODEL,
    "--audit m.json": "the model's description, which would be overwritten",
    "--audit model-link": MODEL,
    "--audit model-name": MODEL,
    "--save m.onnx": MODEL,
    "--model m.png --sheet m.png": MODEL,
    "--model m.png --sheet inside/link.png": MODEL,
    "--audit ../mixed/noise.png": IMAGE,
    "--audit image-link.png": IMAGE,
    "--audit image-name": IMAGE,
    "--audit images/digit-0.png": IMAGE,
    "--sheet ../mixed/noise.png": IMAGE,
    "--sheet image-link.png": IMAGE,
    "--save ../mixed": FOLDER,
    "--save images": FOLDER,
    "--sheet s.png --audit s.png": OTHER,
    "--sheet s.png --audit ../place/s.png": OTHER,
    "--save new --audit new": OTHER,
    "--save s.png --sheet s.png": OTHER,
    "--watch ../mixed --save images": FOLDER,
    "--watch ../mixed --audit image-name": IMAGE,
    "--watch ../mixed --audit m.onnx": MODEL,
    "--watch ../mixed --audit images/later.png": "image of the watched folder",
}


@pytest.mark.parametrize("options", OVERWRITING)
def test_neither_model_nor_image_nor_another_output_is_ever_overwritten(
    call: Call, workplace: Path, options: str
) -> None:
    def everything() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in sorted(workplace.rglob("*"))}

    before = everything()
    images = [] if "--watch" in options else ["../mixed", "../mixed/absent.png"]
    said = call("predict", *images, "--model", "m.onnx", *options.split())
    assert (said.code, said.out) == (2, "")
    option = options.rsplit("--", maxsplit=1)[-1].split(maxsplit=1)[0]
    assert said.error == f"argument.{option}"
    assert OVERWRITING[options] in said.err
    assert everything() == before


def test_the_image_that_a_link_leads_to_is_not_overwritten(call: Call, workplace: Path) -> None:
    said = call("predict", "image-link.png", "--model", "m.onnx", "--save", workplace / "mixed")
    assert (said.code, said.out) == (2, "")
    assert FOLDER in said.err


def test_a_copy_leaves_its_name_to_the_sheet_of_the_same_folder(call: Call, workplace: Path) -> None:
    said = call("predict", "../mixed", "--model", "m.onnx", "--save", "out", "--sheet", "out/noise.png")
    assert said.code == 0
    written = sorted(path.name for path in (workplace / "place" / "out").iterdir())
    assert written == ["digit-0.png", "digit-1.png", "noise-2.png", "noise.png"]
    assert "Wrote 3 annotated images to out" in said.err
    with Image.open("out/noise.png") as sheet, Image.open("out/noise-2.png") as copy:
        assert sheet.width > 1.5 * copy.width


def test_a_log_in_the_folder_of_images_is_continued(call: Call, workplace: Path) -> None:
    asked = ("predict", "../mixed", "--model", "m.onnx", "--audit", workplace / "mixed" / "decisions.jsonl", "--jsonl")
    assert [call(*asked).code for _ in range(2)] == [0, 0]
    assert len((workplace / "mixed" / "decisions.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("form", ["card", "table", "--json", "--jsonl", "rank"])
def test_an_answer_that_is_no_number_is_an_error_in_every_form(
    call: Call, mixed: Path, tmp_path: Path, form: str
) -> None:
    model = port_cases.variant(tmp_path, graph=port_cases.not_a_number)
    image, log, out, sheet = mixed / "noise.png", tmp_path / "log", tmp_path / "out", tmp_path / "sheet.png"
    if form == "rank":
        said = call("rank", mixed, "--model", model, "--json")
        assert (said.code, json.loads(said.out)) == (1, [])
        assert said.err.count("not finite") == 3
        return
    images = [image, image] if form == "table" else [image]
    said = call("predict", *images, "--model", model, "--reject", 1, "--audit", log, "--save", out,
                *([form] if form.startswith("--") else []))  # fmt: skip
    assert said.code == 1
    assert "Wrote 0 annotated images" in said.err
    assert f"error: {len(images)} of {len(images)} images could not be used." in said.err
    assert list(out.iterdir()) == []
    logged = [json.loads(line, parse_constant=pytest.fail) for line in log.read_text().splitlines()]
    assert [(line["status"], line["decision"], line["uncertainty"]) for line in logged] == [
        ("error", None, None)
    ] * len(images)
    if form.startswith("--"):
        document = json.loads(said.out, parse_constant=pytest.fail)
        record = document if form == "--jsonl" else document[0]
        assert {name: logged[0][name] for name in record} == record
    else:
        assert said.out.count(f"{image} has no answer: {model} gives numbers that are not finite") == len(images)
    drawn = call("predict", image, "--model", model, "--sheet", sheet)
    assert drawn.code == 1
    assert "sheet" in drawn.err
    assert not sheet.exists()


@pytest.mark.skipif(os.name == "nt", reason="names are counted in other units there")
def test_a_name_that_is_too_long_for_a_copy_is_shortened(call: Call, digits: Digits, mixed: Path) -> None:
    stem = "é" * 125
    names = [f"a{stem}.png", f"a{stem}.jpg", f"{stem}b.bmp", f"{stem}c.bmp", "short.png"]  # 255 bytes with .png
    endless = [f"{stem}-one", f"{stem}-two"]  # no ending to take away
    folder, out = mixed.parent / "long", mixed.parent / "out"
    folder.mkdir()
    for name in names + endless:
        shutil.copy(mixed / "noise.png", folder / name)
    # The first once more: the number must fit, too.
    asked = ("predict", "--model", digits.model, folder, *(folder / name for name in [names[0], *endless]), "--save")
    said = call(*asked, out)
    assert said.code == 0
    assert "Wrote 8 annotated images" in said.err
    copies = sorted(path.name for path in out.iterdir())
    assert len(copies) == 8
    assert {f"a{stem}.png", "short.png", f"{stem}b.png", f"{stem}c.png"} <= set(copies)
    assert all(len(name.encode()) <= 255 for name in copies)
    again = mixed.parent / "again"
    call(*asked, again)
    assert sorted(path.name for path in again.iterdir()) == copies


@pytest.mark.skipif(os.name == "nt", reason="there is no limit to set")
def test_a_full_disk_stops_the_copies_with_a_sentence(digits: Digits, mixed: Path) -> None:
    import resource

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

    out = mixed.parent / "out"
    command = [sys.executable, "-B", "-m", "uce_edge", "predict", mixed, "--model", digits.model, "--save", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=little_room)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: Cannot write {out / 'digit-0.png'}: File too large.")
    assert done.stderr.count("\n") == 1
    assert list(out.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such name")
@pytest.mark.parametrize("form", ["card", "table", "--json", "--jsonl", "--csv"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_file_name_that_is_no_text_is_shown_all_the_same(
    digits: Digits, mixed: Path, form: str, encoding: str
) -> None:
    odd = os.fsencode(mixed) + b"/caf\xe9.png"
    shutil.copy(os.fsencode(mixed / "noise.png"), odd)
    images = [odd] if form == "card" else [odd, b"absent-\xff.png", mixed / "noise.png"]
    command = [sys.executable, "-m", "uce_edge", "rank" if form == "--csv" else "predict", *images]
    options = ["--model", digits.model, *([form] if form.startswith("--") else [])]
    done = subprocess.run(
        [*command, *options], capture_output=True, check=False,
        env=os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"},
    )  # fmt: skip
    assert done.returncode == (0 if form == "card" else 1), done.stderr
    assert b"Traceback" not in done.stderr
    shown = done.stdout.decode(encoding)
    if form.startswith("--json"):
        records = json.loads(shown) if form == "--json" else [json.loads(line) for line in shown.splitlines()]
        assert os.fsencode(records[0]["path"]) == odd
        assert "absent-\udcff.png does not exist" in records[1]["error"]
    else:
        assert str(mixed / "caf\\xe9.png") in shown


def test_a_file_is_no_folder_for_copies(digits: Digits, call: Call, mixed: Path) -> None:
    said = call("predict", "--model", digits.model, mixed / "noise.png", "--save", mixed / "digit-0.png")
    assert said.code == 1
    assert "--save" in said.err


def test_the_table_tells_the_passes_that_were_drawn_early(digits: Digits, call: Call, mixed: Path) -> None:
    asked = ("predict", "--model", digits.model, mixed, "--reject", "0.1", "--samples", "100", "--adaptive", "0.1")
    with pytest.warns(SamplesWarning, match="at most 100"):
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


def test_a_full_group_of_the_sheet_crowds_no_other_out(
    digits: Digits, call: Call, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(contact_sheet, "LIMIT", 1)
    drawn = contact_sheet.description.title
    monkeypatch.setattr(contact_sheet.description, "title", lambda *a, **b: titles.append(drawn(*a, **b)) or titles[-1])
    call("predict", "--model", digits.model, mixed, "--reject", "0.1", "--sheet", mixed / "sheet.png")
    assert [title.split()[:2] for title in titles] == [["2", "accepted:"], ["1", "uncertain:"]]


def test_the_sheet_sorts_by_the_score_that_the_rule_compares(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, tile = [], contact_sheet._tile
    monkeypatch.setattr(contact_sheet, "_tile", lambda *a: drawn.append(Path(a[0].path).stem) or tile(*a))
    photos = [ROOT / "examples" / "images" / f"{name}.jpg" for name in ("cat", "flower")]
    call("predict", *photos, "--reject", "auto", "--sheet", tmp_path / "sheet.png")
    assert drawn == ["flower", "cat"]  # the rule compares the confidence; by the uncertainty, cat would be first
    drawn.clear()
    call("predict", *photos, "--reject", "0.01", "--sheet", tmp_path / "sheet.png")
    assert drawn == ["cat", "flower"]


def test_the_rows_of_the_sheet_are_about_equally_full(call: Call, tmp_path: Path) -> None:
    for count, columns in ((7, 7), (8, 4), (15, 5)):
        folder = tmp_path / str(count)
        folder.mkdir()
        for index in range(count):
            Image.new("L", (8, 8)).save(folder / f"{index}.png")
        call("predict", "--model", GOLDEN / "digits-novelty.onnx", folder, "--sheet", tmp_path / "sheet.png")
        with Image.open(tmp_path / "sheet.png") as image:
            assert image.width // (contact_sheet._WIDTH + 2 * contact_sheet._EDGE + contact_sheet._GAP) == columns


def test_the_sheet_shows_out_of_distribution_images_apart_and_wraps_a_long_set(call: Call, tmp_path: Path) -> None:
    for name in ("digit-0", "two-digits", "black"):
        pixels = np.frombuffer((GOLDEN / f"{name}.raw").read_bytes(), np.uint8).reshape(8, 8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    asked = ("predict", "--model", GOLDEN / "digits-novelty.onnx", tmp_path, "--reject", "auto", "--sheet")
    assert call(*asked, tmp_path / "sheet.png").code == 0
    with Image.open(tmp_path / "sheet.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(10**6)}
    assert {
        tuple(bytes.fromhex(annotate.OOD_COLOUR[1:])),
        tuple(bytes.fromhex(annotate.COLOURS["accept"][1:])),
    } <= colours
    font = ImageFont.load_default(16)
    lines = contact_sheet._wrapped("Egyptian cat, tabby cat, tiger cat, lynx and 12 more", font, 2)
    assert len(lines) == 2
    assert lines[1].endswith("…")
    assert contact_sheet._wrapped("German shepherd >\N{NO-BREAK SPACE}99\N{NO-BREAK SPACE}%", font, 2) == [
        "German shepherd",
        "> 99 %",
    ]
    assert contact_sheet._wrapped("", font, 2) == []


def test_the_log_has_what_a_court_would_ask_for(digits: Digits, call: Call, mixed: Path) -> None:
    log = mixed / "logs" / "decisions.jsonl"
    log.parent.mkdir()
    log.write_text('{"line": 1, "previous": "c0ff')  # torn by a power cut
    (mixed / "bad.png").write_bytes(b"nothing")
    asked = ("predict", "--model", digits.model, mixed, "--reject", "0.1", "--audit", log, "--jsonl", "--seed", 3)
    with pytest.warns(UceEdgeWarning, match="incomplete"):
        printed = [json.loads(line) for line in call(*asked).out.splitlines()]
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(logged) == 4
    for line, record in zip(logged, printed, strict=True):
        assert {name: line[name] for name in record} == record
        assert line["sha256"] == hashlib.sha256(Path(record["path"]).read_bytes()).hexdigest()
        assert line["model_sha256"] == hashlib.sha256(digits.model.read_bytes()).hexdigest()
        assert (line["provider"], line["threshold"]) == ("CPUExecutionProvider", 0.1)
        assert line["time"].endswith("+00:00")
    assert [line["decision"] for line in logged] == [None, "accept", "accept", "reject"]
    call(*asked)
    assert len(log.read_text().splitlines()) == 2 * 4


def test_a_log_that_cannot_be_written_stops_the_work(digits: Digits, call: Call, tmp_path: Path) -> None:
    said = call("predict", "--model", digits.model, digits.image, "--audit", tmp_path)
    assert said.code == 1
    assert str(tmp_path) in said.err
    assert said.out == ""


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is another signal there")
def test_a_watched_folder_is_answered_as_images_arrive(digits: Digits, mixed: Path, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    shutil.copy(mixed / "digit-0.png", incoming)
    command = [sys.executable, "-m", "uce_edge", "predict", "--model", digits.model, "--watch", incoming, "--jsonl"]
    # In the background of a shell, Ctrl-C is ignored, and a process inherits that.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*map(str, command), "--reject", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as it:
        signal.signal(signal.SIGINT, ours)
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


def test_a_watched_folder_is_summed_up_and_not_kept(
    digits: Digits, call: Call, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers() -> int:
        gc.collect()
        return sum(type(item) is Answer for item in gc.get_objects())

    before, images = answers(), sorted(map(str, mixed.iterdir()))

    def arrivals(folder: Path) -> Iterator[list[str]]:
        for _ in range(40):
            yield [*images, "absent.png"]
        assert answers() - before <= 1
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_watch, "arrivals", arrivals)
    said = call("predict", "--model", digits.model, "--watch", mixed, "--reject", 0.1)
    assert said.code == 1
    assert len(said.out.splitlines()) == 160
    assert said.err.splitlines()[-2:] == ["80 accepted, 40 rejected.", "error: 40 of 160 images could not be used."]


def test_a_folder_that_is_not_there_cannot_be_watched(digits: Digits, call: Call, tmp_path: Path) -> None:
    said = call("predict", "--model", digits.model, "--watch", tmp_path / "absent", "--jsonl")
    assert said.code == 1
    assert "No such file or directory" in said.err
    assert "Watching" not in said.err

"""What people do with the command line: tables for programs, patterns, defaults, less or more talk, and Ctrl-C."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call
from PIL import Image

from uce_edge import cli, models
from uce_edge.cli import answer_text, messages, shared_options
from uce_edge.models.listing import BundledModel
from uce_edge.runtime.answers import Answer

MODEL = GOLDEN / "digits-novelty.onnx"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images in two folders, one of them with a comma and a quote in its name, and one that is broken."""
    monkeypatch.chdir(tmp_path)
    names = {"digit-0": 'a/b/one, "two".png', "digit-1": "a/three.png", "noise": "a/猫.png"}
    for source, name in names.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.frombuffer((GOLDEN / f"{source}.raw").read_bytes(), np.uint8).reshape(8, 8)
        Image.fromarray(pixels).save(name)
    Path("a/broken.png").write_bytes(b"no image")
    Path("a/notes.txt").write_text("no image")
    return tmp_path


# CSV

COLUMNS = [
    "path", "status", "label", "class_id", "confidence", "uncertainty", "model_uncertainty", "standard_error",
    "error_probability", "novelty", "novelty_score", "threshold", "cutoff", "doubt", "decision", "reason", "set",
    "samples", "seed", "label_2", "probability_2", "label_3", "probability_3", "error",
]  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("order", ["given", "uncertainty"])
def test_csv_has_the_values_of_json_in_a_row_for_every_image(call: Call, order: str) -> None:
    asked = ("predict", "--model", MODEL, "a/**/*.png", "--reject", "auto", "--sort", order)
    said = call(*asked, "--csv")
    assert said.code == 1
    assert said.err == "error: 1 of 4 images could not be used.\n"
    head, *rows = csv.reader(io.StringIO(said.out, newline=""))
    assert head == COLUMNS
    for row, answer in zip(rows, json.loads(call(*asked, "--json").out), strict=True):
        flat = dict(zip(head, row, strict=True))
        likeliest = answer.pop("top") or [{}, {}, {}]
        for number in (2, 3):
            answer[f"label_{number}"] = likeliest[number - 1].get("label")
            answer[f"probability_{number}"] = likeliest[number - 1].get("probability")
        assert flat == {name: "" if value is None else str(value) for name, value in answer.items()}


@pytest.mark.usefixtures("folder")
def test_csv_is_as_rfc_4180_has_it(call: Call) -> None:
    out = call("predict", "--model", MODEL, "a", "a/b", "--csv", "--top", 1).out
    lines = out.split("\r\n")
    assert lines.pop() == ""
    assert "\n" not in "".join(lines)
    assert lines[-1].startswith('"a/b/one, ""two"".png",ok,')
    assert "label_2" not in lines[0]


def test_a_table_of_no_images_has_its_columns(call: Call, folder: Path) -> None:
    said = call("rank", folder / "a" / "three.png", "--model", MODEL, "--max-uncertainty", 0, "--csv")
    assert said.out == "path,label,confidence,uncertainty,model_uncertainty,standard_error\r\n"


# Which images


def test_a_quoted_pattern_means_the_images_it_matches(call: Call, folder: Path) -> None:
    def answered(*given: str) -> list[str]:
        lines = call("predict", "--model", MODEL, *given, "--jsonl").out.splitlines()
        return [json.loads(line)["path"] for line in lines]

    assert answered("a/*.png") == ["a/broken.png", "a/three.png", "a/猫.png"]
    assert answered("a/t*") == ["a/three.png"]
    assert answered(str(folder / "**" / "o*.png")) == [str(folder / "a" / "b" / 'one, "two".png')]
    assert answered("[ab]/three.png") == ["a/three.png"]
    shutil.copy("a/three.png", "x[1].png")
    assert answered("x[1].png") == ["x[1].png"]
    said = call("predict", "--model", MODEL, "a/*.tiff")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: ")
    assert "a/*.tiff" in said.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("https://a.org/b/c.png?x=1&y=2", "Download it first: curl -L -o c.png 'https://a.org/b/c.png?x=1&y=2'"),
        ("http://a.org/", "Download it first: curl -L -o a.org http://a.org/"),
        ("s3://bucket/*.png", "Download it first: copy it here as *.png"),
    ],
)
def test_an_address_is_refused_with_what_to_do(call: Call, address: str, remedy: str) -> None:
    said = call("predict", "--model", MODEL, address, "a/three.png", "--jsonl")
    bad, good = map(json.loads, said.out.splitlines())
    assert bad["error"].startswith(f"{address} is an address")
    assert bad["error"].endswith(remedy)
    assert good["status"] == "ok"


# Talk


@pytest.mark.usefixtures("folder")
def test_quiet_leaves_results_and_errors_alone(call: Call) -> None:
    asked = ("predict", "--model", MODEL, "a/three.png", 'a/b/one, "two".png', "--reject", 0.3, "--sheet", "s.png")
    loud, quiet = call(*asked), call(*asked, "--quiet")
    assert "Wrote s.png" in loud.err
    assert (quiet.code, quiet.out, quiet.err) == (0, loud.out, "")
    failed = call("predict", "--model", MODEL, "absent.png", "--quiet")
    assert (failed.code, failed.err) == (1, "error: 1 of 1 images could not be used.\n")
    assert call("predict", "--quiet").error == "usage.no-images"
    assert "Wrote s.png" in call(*asked).err  # the next command talks again


@pytest.mark.usefixtures("folder")
def test_verbose_says_what_is_loaded_where_it_runs_and_how_long_it_takes(call: Call) -> None:
    asked = ("predict", "--model", MODEL, "a/three.png", "--threads", 1)
    plain, verbose = call(*asked), call(*asked, "--verbose")
    assert verbose.out == plain.out
    loaded, images, took = verbose.err.splitlines()
    passes = re.escape(f"Loaded {MODEL} (mc, 25 passes) in ")
    assert re.fullmatch(passes + r"\d+\.\d\d s; it runs on CPUExecutionProvider with 1 threads\.", loaded)
    assert re.match(r"1 image in \d+\.\d\d s: ", images)
    assert re.fullmatch(r"predict took \d+\.\d\d s\.", took)
    assert plain.err == ""


def test_warnings_are_talk_and_alarms_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        messages.set_talk(messages.Talk.QUIET)
        messages.warn("few images")
        assert messages.format_warning(UserWarning("few images")) == ""
        messages.alarm("drift")
    finally:
        messages.set_talk(messages.Talk.NORMAL)
    assert capsys.readouterr().err == "warning: drift\n"
    assert messages.format_warning(UserWarning("few images")) == "warning: few images\n"


# Defaults from the environment


@pytest.mark.usefixtures("folder")
def test_variables_give_options_their_defaults(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MODEL": MODEL, "REJECT": "0.25", "SEED": "7", "DEVICE": "cpu", "THREADS": "1"}.items():
        monkeypatch.setenv(f"UCE_EDGE_{name}", str(value))
    (answer,) = json.loads(call("predict", "a/three.png", "--json").out)
    assert (answer["threshold"], answer["seed"], answer["label"]) == (0.25, 7, "9")
    (answer,) = json.loads(call("predict", "a/three.png", "--json", "--reject", 0.5, "--seed", 3).out)
    assert (answer["threshold"], answer["seed"]) == (0.5, 3)
    assert call("info").out.startswith(f"file         {MODEL} ")
    monkeypatch.setenv("UCE_EDGE_DEVICE", "abacus")
    wrong = call("predict", "a/three.png")
    assert wrong.code == 2
    assert "UCE_EDGE_DEVICE" in wrong.err


@pytest.mark.parametrize("command", ["predict", "rank", "score", "serve", "evaluate"])
def test_help_shows_the_variables(call: Call, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = set(re.findall(r"UCE_EDGE_\w+", call(command, "--help").out))
    shared = {"score": {"MODEL", "SAMPLES", "REJECT"}, "serve": {"MODEL", "DEVICE", "THREADS", "REJECT"}}
    wanted = shared.get(command, {"MODEL", "DEVICE", "THREADS", "SAMPLES", "SEED", "MAX_MEMORY"})
    assert {shared_options.variable(name) for name in wanted} <= told


# The box


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A second bundled model: two files, and no line of code."""
    box = tmp_path / "box"
    box.mkdir()
    for file in models.files():
        (box / file.name).symlink_to(file)
    for kind in ("mc", "moments"):
        shutil.copy(GOLDEN / f"digits-{kind}.onnx", box / f"digits-{kind}.onnx")
    monkeypatch.setattr(models, "_FOLDER", box)
    return "digits"


def test_the_box_is_listed_with_what_each_model_is_worth(call: Call, second: str) -> None:
    listed = json.loads(call("models", "--json").out)
    found = [(one["name"], one["inference"], one["default"]) for one in listed]
    assert found == [
        ("imagenet", "deterministic", True), ("cifar10", "moments", False), ("cifar10", "mc", False),
        (second, "moments", False), (second, "mc", False), ("pneumonia", "deterministic", False),
        ("waste", "mc", False), ("xray", "mc", False),
    ]  # fmt: skip
    for one in listed:
        metadata = BundledModel.read(one["name"], Path(one["file"])).metadata
        assert one["bytes"] == Path(one["file"]).stat().st_size
        assert one["classes"] == list(metadata.classes)
        assert one["promise"] == metadata.promise.to_document()
    told = call("models").out
    assert re.search(r"^imagenet \(default\): photos of 1,000 kinds of things$", told, re.MULTILINE)
    worth = r"^  --inference moments  2\.2 MB, accuracy \d\d\.\d\s% on test images, --reject auto accepts \d\d\.\d\s%"
    assert re.search(worth, told, re.MULTILINE)


def test_a_model_in_the_box_is_taken_by_its_name(call: Call, folder: Path, second: str) -> None:
    for asked, label in (((second,), "9"), ((second, "--inference", "mc"), "9"), (("cifar10",), None)):
        (answer,) = json.loads(call("predict", "a/three.png", "--json", "--model", *asked).out)
        assert label in (None, answer["label"])
        assert answer["samples"] == (25 if "mc" in asked else 100)
    unknown = call("predict", "a/three.png", "--model", "pneumonja")
    assert unknown.code == 1
    assert "imagenet, cifar10, digits, pneumonia" in unknown.err
    # A file of that name is meant before the box is.
    shutil.copy(GOLDEN / "digits-mc.onnx", folder / "cifar10")
    (answer,) = json.loads(call("predict", "a/three.png", "--json", "--model", "cifar10").out)
    assert answer["samples"] == 25


# Wide letters


def test_columns_stay_in_line_with_wide_letters(capsys: pytest.CaptureFixture[str], call: Call, folder: Path) -> None:
    call("predict", "--model", MODEL, "a/three.png", "a/猫.png")
    out = call("predict", "--model", MODEL, "a/three.png", "a/猫.png", "--reject", 0.3).out
    _, plain, wide = out.splitlines()
    assert messages.width("猫") == 2
    assert messages.width(plain.partition("%")[0]) == messages.width(wide.partition("%")[0])
    messages.table(["name", "n"], [["猫", "犬"], ["cat", "10"]])
    head, *rows, _ = capsys.readouterr().out.splitlines()
    assert {messages.width(row) for row in (head, *rows)} == {8}
    answer_text.card(Answer("猫.png", None, "gone"))


# Ctrl-C


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_stopped_training_names_the_command_that_goes_on(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.train, "need_torch", stop)
    done = call("train", "--data", "digits", "--resume", "--out", tmp_path / "my run")
    line = f"uce-edge train --data digits --out '{tmp_path / 'my run'}' --resume"
    assert (done.code, done.err) == (130, f"Stopped. To continue from the last epoch: {line}\n")


def test_any_other_command_is_stopped_with_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.predict, "choose_model", stop)
    assert call("predict", "a.png") == (130, "", "Stopped.\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_in_a_running_command() -> None:
    """The signal itself: the image never ends, because nobody closes the pipe."""
    # A shell may have started the tests so that Ctrl-C is ignored.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from uce_edge import cli; "
    code = f"{listen}cli.main(['predict', '-', '--model', {str(MODEL)!r}, '--verbose'])"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], text=True, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("Loaded ")
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "Stopped."
    assert "Traceback" not in said

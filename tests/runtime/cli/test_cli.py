"""The command line as a user meets it: what it prints where, its exit codes, and what it leaves on disk."""

import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Said
from helpers.nets import Net
from helpers.pictures import encoded, png_header
from PIL import Image

import uce_edge
from uce_edge import cli, contract, models
from uce_edge.bench import sweep
from uce_edge.bench.measurements import Report, extra_pass
from uce_edge.cli.bench_engines import ENGINES
from uce_edge.contract import Inference, Method, NoiseKind
from uce_edge.datasets import named
from uce_edge.runtime import answers
from uce_edge_train.choices import Architecture, Experiment, Optimiser, Rates, Stem
from uce_edge_train.networks.architectures import ARCHITECTURES

FIELDS = [
    "path", "status", "label", "class_id", "confidence", "top", "uncertainty", "model_uncertainty", "standard_error",
    "error_probability", "novelty", "novelty_score", "threshold", "cutoff", "doubt", "decision", "reason", "set",
    "samples", "seed", "error",
]  # fmt: skip
COMMANDS = sorted(str(command.name) for command in cli.app.registered_commands)

DATASETS = set(named.names())


def run(*arguments, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """The command line in a process of its own, for what only a process shows."""
    command = [sys.executable, "-m", "uce_edge", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


@pytest.fixture
def refused(call):
    """Call and expect one line on stderr and nothing on stdout."""

    def called(code: int, *arguments) -> Said:
        done = call(*arguments)
        assert done.code == code, done.err
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        assert done.out == ""
        return done

    return called


@pytest.fixture
def folder(digits, tmp_path):
    """Five test digits, the third of them broken."""
    for index, pixels in enumerate(digits.dataset.splits["test"].images[:5]):
        Image.fromarray(pixels[..., 0]).save(tmp_path / f"{index}.png")
    (tmp_path / "2.png").write_bytes(b"no image")
    return tmp_path


def hidden(folder) -> list:
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


# predict


def test_predict_json_has_exactly_the_documented_fields(digits, call):
    done = call("predict", "--model", digits.model, digits.image, digits.image, "--json")
    assert (done.code, done.err) == (0, "")
    records = json.loads(done.out)
    assert [list(record) for record in records] == [FIELDS, FIELDS]
    record = records[0]
    assert record["path"] == str(digits.image)
    assert (record["status"], record["error"], record["decision"]) == ("ok", None, None)
    assert record["label"] == str(digits.dataset.splits["test"].labels[0])
    assert (record["samples"], record["seed"]) == (25, 0)
    assert records[1] == record


def test_predict_table_is_for_people(digits, call):
    done = call("predict", "--model", digits.model, digits.image, digits.image, "--reject", "0.3")
    head, row, again = done.out.splitlines()
    assert head.split() == ["image", "label", "confidence", "uncertainty", "wrong", "about", "decision"]
    assert row.split()[0] == str(digits.image)
    assert re.search(r"\d%  0\.\d{3} ± 0\.\d{3}  (< )?1 in \d+ +accept$", row)
    assert again == row
    assert done.err == "2 accepted, 0 rejected.\n"


@pytest.mark.parametrize(("threshold", "decision", "code"), [("0", "reject", 3), ("1", "accept", 0)])
def test_reject_decides_and_exit_code_tells(digits, call, threshold, decision, code):
    asked = ("predict", "--model", digits.model, digits.image, "--json", "--reject", threshold)
    plain = call(*asked)
    assert plain.code == 0
    assert json.loads(plain.out)[0]["decision"] == decision
    assert call(*asked, "--exit-code").code == code


@pytest.mark.parametrize("chunk", [1, 2, 32])
def test_one_bad_image_among_many_does_not_stop_the_others(digits, call, folder, monkeypatch, chunk):
    monkeypatch.setattr(answers, "CHUNK", chunk)
    done = call("predict", "--model", digits.model, folder, "--jsonl", "--reject", "0", "--exit-code")
    assert done.code == 1  # a failure outranks the rejections
    assert done.err == "error: 1 of 5 images could not be used.\n"
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["path"] for record in records] == [str(folder / f"{index}.png") for index in range(5)]
    assert [record["status"] for record in records] == ["ok", "ok", "error", "ok", "ok"]
    assert all(list(record) == FIELDS for record in records)
    assert str(folder / "2.png") in records[2]["error"]
    assert records[2]["label"] is None
    alone = call("predict", "--model", digits.model, folder / "3.png", "--jsonl")
    assert json.loads(alone.out)["label"] == records[3]["label"]
    table = call("predict", "--model", digits.model, folder)
    assert table.code == 1
    assert "2.png" in table.out.splitlines()[3]


def test_two_processes_agree_to_the_byte_and_two_seeds_do_not(digits):
    asked = ("predict", "--model", digits.model, digits.image, "--json", "--seed")
    first, again, other = run(*asked, 7), run(*asked, 7), run(*asked, 8)
    assert first.returncode == 0
    assert first.stdout == again.stdout
    assert json.loads(first.stdout)[0]["uncertainty"] != json.loads(other.stdout)[0]["uncertainty"]


def test_image_from_stdin_equals_the_file(digits, call):
    asked = ("predict", "--model", digits.model, "--jsonl")
    piped = run(*asked, "-", stdin=digits.image.read_bytes())
    assert (piped.returncode, piped.stderr) == (0, b"")
    record = json.loads(piped.stdout)
    assert record["path"] == "-"
    assert record == json.loads(call(*asked, digits.image).out) | {"path": "-"}
    empty = run(*asked, "-", stdin=b"")
    assert empty.returncode == 1
    assert "empty" in json.loads(empty.stdout)["error"]


def test_other_samples_are_announced_on_stderr_only(digits):
    done = run("predict", "--model", digits.model, digits.image, "--samples", 5, "--json")
    assert done.returncode == 0
    assert done.stderr.startswith(b"warning: ")
    assert done.stderr.count(b"\n") == 1
    assert json.loads(done.stdout)[0]["samples"] == 5


FRAMES = [Image.new("P", (9, 9), value) for value in (0, 200)]
UNUSUAL = {
    "16-bit": encoded(Image.fromarray(np.full((9, 9), 40_000, np.uint16)), "PNG"),
    "CMYK": encoded(Image.new("CMYK", (9, 9), (0, 99, 99, 0)), "JPEG"),
    "palette with alpha": encoded(Image.new("P", (9, 9), 1), "PNG", transparency=bytes([0, 128])),
    "RGB": encoded(Image.new("RGB", (300, 5), (1, 2, 3)), "PNG"),
    "animated": encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_images_are_classified(digits, call, tmp_path, kind):
    path = tmp_path / "image"
    path.write_bytes(UNUSUAL[kind])
    done = call("predict", "--model", digits.model, path, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)[0]["status"] == "ok"


UNUSABLE = {
    "missing": (None, "does not exist"),
    "text": (b"hello", "is not an image"),
    "empty": (b"", "is empty"),
    "truncated": (encoded(Image.effect_noise((99, 99), 50), "PNG")[:2000], "truncated"),
    "bomb": (png_header(30_000, 30_000), "900 megapixels"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_image_fails_with_its_reason(digits, call, tmp_path, kind):
    content, reason = UNUSABLE[kind]
    path = tmp_path / "image.png"
    if content is not None:
        path.write_bytes(content)
    done = call("predict", "--model", digits.model, path, "--json")
    assert done.code == 1
    assert done.err == "error: 1 of 1 images could not be used.\n"
    record = json.loads(done.out)[0]
    assert record["status"] == "error"
    assert record["error"].startswith(str(path))
    assert reason in record["error"]


def test_folder_without_images_is_refused(digits, refused, tmp_path):
    assert str(tmp_path) in refused(1, "predict", "--model", digits.model, tmp_path).err


# Model files


def third_party(path) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["x"], ["y"])], "third-party", [value], [output])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), path)


def with_metadata(source, path, **changes) -> None:
    """Change the metadata of a file and remove its digests."""
    model = onnx.load(source)
    properties = {entry.key: entry.value for entry in model.metadata_props if entry.key != "digests"}
    document = json.loads(properties[contract.KEY]) | changes
    del document["digests"]
    properties[contract.KEY] = changes.get("text") or json.dumps(document)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, properties)
    onnx.save(model, path)


IMAGE = {"height": 8, "width": 8, "channels": 3, "dtype": "uint8", "scale": 255.0, "mean": [0.0], "std": [1.0]}
BROKEN_MODELS = {
    "absent": (lambda digits, path: None, "no model file"),
    "text": (lambda digits, path: path.write_text("hello"), "ONNX Runtime"),
    "third-party": (lambda digits, path: third_party(path), "not a uce-edge model"),
    "contract": (lambda digits, path: with_metadata(digits.model, path, contract=3), "contract 3"),
    "json": (lambda digits, path: with_metadata(digits.model, path, text="{"), "metadata"),
    "no object": (lambda digits, path: with_metadata(digits.model, path, text="[]"), "JSON object"),
    "type": (lambda digits, path: with_metadata(digits.model, path, inference="magic"), "cannot read"),
    "inputs": (
        lambda digits, path: with_metadata(digits.deterministic, path, inference="mc"),
        r"has inputs \['image'\]",
    ),
    "classes": (lambda digits, path: with_metadata(digits.model, path, classes=["a", "b"]), "metadata promises"),
    "shape": (lambda digits, path: with_metadata(digits.model, path, image=IMAGE), "metadata promises"),
}


@pytest.mark.parametrize("kind", BROKEN_MODELS)
def test_broken_model_file_is_refused(digits, refused, tmp_path, kind):
    make, message = BROKEN_MODELS[kind]
    path = tmp_path / "model.onnx"
    make(digits, path)
    done = refused(1, "predict", "--model", path, digits.image, "--json")
    assert re.search(message, done.err)
    assert str(path) in done.err
    assert refused(1, "info", path) == done


def test_info_shows_the_metadata(digits, call):
    told = call("info", digits.model)
    assert (told.code, told.err) == (0, f"More: uce-edge info {digits.model} --all\n")
    assert len(told.out.splitlines()) <= 10
    rows = dict(line.split(maxsplit=1) for line in told.out.splitlines())
    assert rows["classes"] == "10: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert rows["inference"] == "mc, 25 passes by default"
    assert rows["image"] == "8 x 8 x 1 uint8"
    assert re.search(r"temperature, fitted at N = 25, T = \d", rows["calibration"])
    assert "; noise: none\n" in call("info", digits.deterministic).out
    everything = call("info", digits.model, "--all")
    assert everything.err == ""
    assert set(told.out.split()) <= set(everything.out.split())
    for word in ("FLOPs", "tools", "sha256 weights", "reject 0.3", "p = 0.2"):
        assert word in everything.out
        assert word not in told.out
    document = json.loads(call("info", digits.model, "--json").out)
    assert document == json.loads(digits.model.with_suffix(".json").read_text())


# bench


def test_bench_measures_and_draws(digits, call, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    picture = tmp_path / "latency.png"
    done = call(
        "bench", "--model", digits.model, "--samples", "1,5", "--baseline", digits.deterministic, "--threads", 1,
        "--json", "--plot", picture,
    )  # fmt: skip
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["provider"] == "CPUExecutionProvider"
    assert report["ms_per_extra_pass"] is not None
    assert [measured["samples"] for measured in report["measurements"]] == [1, 5]
    for measured in report["measurements"]:
        assert all(value > 0 for name, value in measured.items() if name != "others")
        assert measured["best_ms"] <= measured["p50_ms"] <= measured["p95_ms"]
        ratio = measured["p50_ms"] / measured["baseline_p50_ms"]
        assert measured["ratio"] == pytest.approx(ratio, rel=0.02)
    with Image.open(io.BytesIO(picture.read_bytes())) as image:
        assert image.format == "PNG"
    assert f"Wrote {picture}" in done.err
    assert hidden(tmp_path) == []


def test_bench_table(digits, call, monkeypatch):
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    head, row = call("bench", "--model", digits.deterministic, "--samples", "1", "--threads", 1).out.splitlines()
    assert head.split()[0] == "N"
    assert row.split()[0] == "1"


def test_bench_measures_what_a_file_without_passes_can_do(digits, call, monkeypatch):
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    done = call("bench", "--model", digits.deterministic, "--threads", 1)
    assert [line.split()[0] for line in done.out.splitlines()] == ["N", "1"]
    refused = call("bench", "--model", digits.deterministic, "--samples", "1,5")
    assert (refused.code, refused.error) == (2, "argument.samples")


def test_options_of_a_provider_are_checked_before_the_model_is_loaded(call):
    for arguments, code in (
        (("--device", "cuda:one"), ""),  # refused by the parser
        (("--device", "cpu:1"), ""),
        (("--provider-option", "use_tf32=1"), "argument.provider_option"),
        (("--device", "cuda", "--provider-option", "use_tf23=1"), "argument.provider_option"),
        (("--device", "cuda", "--provider-option", "gpu_mem_limit=2GB"), "argument.provider_option"),
    ):
        refused = call("predict", "no.png", "--model", "digits", *arguments)
        assert (refused.code, refused.error) == (2, code)


def test_a_price_that_cannot_be_measured_is_not_a_number() -> None:
    report = Report("m", None, "CPU", 2, 3, [], -0.05, (-0.17, 0.07), {})
    assert report.price() == "One more pass costs too little to be measured"
    assert replace(report, ms_per_extra_pass=1.28, slope_interval=(1.1, 1.4)).price() == "One more pass costs 1.28 ms"
    assert replace(report, ms_per_extra_pass=None, slope_interval=None).price() is None


def test_bench_compares_engines_and_batches(digits, call, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    plot = tmp_path / "p.png"
    done = call(
        "bench", "--model", digits.model, "--samples", "2", "--batch", "1,3", "--threads", 1, "--json",
        "--plot", plot, "--compare", "pytorch-loop,naive,openvino",
    )  # fmt: skip
    report = json.loads(done.out)
    assert [(m["samples"], m["batch"]) for m in report["measurements"]] == [(2, 1), (2, 3)]
    engines = {"pytorch-loop", "naive"}
    installed = importlib.util.find_spec("openvino") is not None
    for m in report["measurements"]:
        assert set(m["others"]) - {"openvino"} == (engines if m["batch"] == 1 else set())
        assert all(other["speedup"] > 0 for other in m["others"].values())
    assert ("pip install openvino" in report["skipped"].get("openvino", "")) is not installed
    assert report["slope_interval"] is None  # one N
    assert plot.stat().st_size > 10_000


def test_the_slope_is_that_of_a_line():
    slope, (low, high) = extra_pass({1: [3.0, 3.2], 11: [23.1, 22.9], 21: [43.0, 43.1]})
    assert slope == pytest.approx(1.998, abs=0.01)
    assert 0.003 < high - low < 0.1
    assert extra_pass({5: [1.0, 2.0]}) == (None, None)


def test_bench_makes_its_own_baseline(digits, call, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    for bare in (["--baseline", "--json"], ["--json", "--baseline"]):
        done = call("bench", "--model", digits.model, "--samples", 1, "--threads", 1, *bare)
        assert done.code == 0, done.err
        report = json.loads(done.out)
        assert Path(report["baseline"]).name == "resnet8-deterministic.onnx"
        assert report["measurements"][0]["baseline_p50_ms"] > 0
    nameless = tmp_path / "own.onnx"
    with_metadata(digits.model, nameless, architecture="a network of its own")
    assert refused(2, "bench", "--model", nameless, "--samples", 1, "--baseline").error == "argument.baseline"


def test_bench_refuses_models_in_each_other_s_place(digits, refused):
    done = refused(2, "bench", "--model", digits.deterministic, "--samples", "1,5")
    assert done.error == "argument.samples"
    done = refused(2, "bench", "--model", digits.model, "--samples", "1", "--baseline", digits.model)
    assert done.error == "argument.baseline"


# train, calibrate, export


def test_from_training_to_a_model_file(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = call("train", "--data", "digits", "--epochs", 1, "--out", "runs/a")
    assert trained.code == 0, trained.err
    assert trained.out == ""
    assert trained.err.splitlines()[-1] == "Next: uce-edge calibrate runs/a --method temperature"
    shutil.copytree("runs/a", "runs/older")
    os.utime("runs/older/run.json", (0, 0))
    calibrated = call("calibrate", "runs/a", "--samples", 5, "--json")
    report = json.loads(calibrated.out)
    assert (report["method"], report["samples"]) == ("temperature", 5)
    assert report["nll_after"] <= report["nll_before"] + 1e-3
    assert calibrated.err.splitlines()[-1] == "Next: uce-edge export runs/a --out a.onnx"
    exported = call("export")
    assert exported.code == 0, exported.err
    assert exported.out == ""
    assert exported.err.splitlines()[0] == f"Exporting the newest run: {os.path.join('runs', 'a')}"  # noqa: PTH118
    assert "Out-of-distribution images" in exported.err
    assert exported.err.splitlines()[-1] == "Next: uce-edge predict --model a.onnx image.png --reject auto"
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    runs = {f"runs/{name}/{file}" for name in ("a", "older") for file in ("run.json", "log.csv", "weights.safetensors")}
    assert written == runs | {"runs/a/calibrated.safetensors", "a.onnx", "a.json"}
    assert json.loads(call("info", "a.onnx", "--json").out)["samples"] == 5
    assert "not calibrated" not in exported.err
    uncalibrated = call("export", "runs/older")
    assert uncalibrated.code == 0
    assert "warning: THE FILE IS NOT CALIBRATED, because the run runs/older is not" in uncalibrated.err
    assert "Run: uce-edge calibrate runs/older" in uncalibrated.err
    assert uncalibrated.err.splitlines()[-1] == "Next: uce-edge calibrate runs/older"


def test_a_run_is_calibrated_with_its_rate_and_on_other_images(digits, call, refused, tmp_path):
    run = shutil.copytree(digits.run, tmp_path / "run")
    tuned = call("calibrate", run, "--rates", "model", "--samples", 5)
    assert tuned.code == 0, tuned.err
    assert "Dropout rate p, mean over the layers" in tuned.err
    test, train = digits.dataset.splits["test"], digits.dataset.splits["train"]
    np.savez(tmp_path / "field.npz", x=test.images, y=test.labels)
    other = call("calibrate", run, "--data", tmp_path / "field.npz", "--samples", 5)
    assert f"On {len(test)} calibration images" in other.err
    np.savez(tmp_path / "seen.npz", x=train.images[:50], y=train.labels[:50])
    for target in (run, digits.model):
        assert "50 of the 50 images" in refused(2, "calibrate", target, "--data", tmp_path / "seen.npz").err
    assert "--rates" in refused(2, "calibrate", digits.model, "--rates", "model").err
    assert "--out" in refused(2, "calibrate", run, "--out", tmp_path / "x.onnx").err


def test_export_is_named_after_the_folder_it_runs_in(digits, call, tmp_path, monkeypatch):
    here = shutil.copytree(digits.run, tmp_path / "mine")
    monkeypatch.chdir(here)
    done = call("export", ".", "--inference", "deterministic")
    assert done.code == 0, done.err
    assert (here / "mine-deterministic.onnx").is_file()
    assert hidden(here) == []


def test_the_demo_runs_the_commands_it_prints(call, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    monkeypatch.chdir(tmp_path)
    done = call("demo", "--out", "my demo")
    assert done.code == 0, done.err
    steps = re.findall(r"^\[(\d)/5\] (uce-edge \w+) .*$", done.err, re.MULTILINE)
    named = ("train", "calibrate", "export", "predict", "bench")
    assert steps == [(str(number), f"uce-edge {name}") for number, name in enumerate(named, 1)]
    digit, flower = (line for line in done.out.splitlines() if line.startswith("my demo/"))
    assert digit.endswith("accept")
    assert flower.endswith("reject: above 0.3")
    assert "uce-edge export 'my demo/run' --out 'my demo/digits.onnx'" in done.err.partition("Done in")[2]
    (tmp_path / "my demo" / "run" / "run.json").unlink()
    (tmp_path / "my demo" / "run").rename(tmp_path / "elsewhere")
    (tmp_path / "my demo" / "run").touch()
    stopped = call("demo", "--out", "my demo")
    assert stopped.code == 1
    assert "[2/5]" not in stopped.err


def test_export_tells_what_it_changed(call, tmp_path):
    net = Net()
    onnx.save(net.model(net.Softmax(net.head(net.Relu(net.conv(net.stem(), 6, 6))))), tmp_path / "net.onnx")
    done = call("export", "--from", tmp_path / "net.onnx", "--out", tmp_path / "bayes.onnx")
    assert done.code == 0, done.err
    assert done.err.startswith("Note: its final Softmax was removed")


@pytest.mark.parametrize("name", ["digits.txt", "digits"])
def test_export_writes_onnx_files_only(digits, refused, tmp_path, name):
    assert refused(2, "export", digits.run, "--out", tmp_path / name).error == "argument.out"
    assert list(tmp_path.iterdir()) == []


# Wrong usage is an error before anything slow happens: the files of these commands do not exist

WRONG = {
    "predict -m x.png --samples 0": "argument.samples",
    "predict -m x.png --samples 5000": "argument.samples",
    "predict -m x.png --seed -1": "argument.seed",
    "predict -m x.png --seed 4096": "argument.seed",
    "predict -m x.png --reject 1.5": "argument.reject",
    "predict -m x.png --reject nan": "argument.reject",
    "predict -m x.png --reject often": "argument.reject",
    "predict -m x.png --json --jsonl": "usage.two-formats",
    "predict -m x.png --jsonl --csv": "usage.two-formats",
    "predict -m x.png --threads 0": "argument.threads",
    "predict -m x.png --adaptive 1.5": "argument.adaptive",
    "predict": "usage.no-images",
    "predict -m x.png --watch d": "usage.no-images",
    "predict -m --watch d --json": "usage.watch",
    "predict -m x.png --sheet s.jpg": "argument.sheet",
    "predict -m x.png --inference mc": "any",
    "predict x.png --inference moments": "argument.inference",
    "bench -m --samples abc": "argument.samples",
    "bench -m --samples 1,,5": "argument.samples",
    "bench -m --samples 1,0": "argument.samples",
    "bench -m --batch 0": "argument.batch",
    "bench -m --batch 2 --compare pytorch": "argument.batch",
    "bench -m --compare tensorrt": "argument.compare",
    "bench -m --threads 0": "argument.threads",
    "bench -m --plot latency.xyz": "argument.plot",
    "train --data nonsense": "argument.data",
    "train --arch nonsense": "argument.arch",
    "train --p 1.5": "argument.p",
    "train --epochs 0": "argument.epochs",
    "train --learning-rate nan": "argument.learning_rate",
    "calibrate .": "any",
    "export absent": "any",
    "export": "any",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage_is_an_error_and_leaves_nothing_on_disk(refused, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    done = refused(2, *line.replace("-m", "--model absent.onnx").split())
    assert WRONG[line] in (done.error, "any")  # "any": the code is that of another package
    assert list(tmp_path.iterdir()) == []


PARSED = ["predict x --samples abc", "predict x --device gpu", "predict x --top 0", "train --seed 5000000000"]


@pytest.mark.parametrize("line", PARSED)
def test_what_the_parser_refuses_is_wrong_usage_too(call, line):
    done = call(*line.split())
    assert (done.code, done.out) == (2, "")
    assert "Usage: " in done.err
    assert "Error" in done.err


# Help, version and parts that are not installed


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(call, command):
    done = call(command, "--help")
    assert done.code == 0
    assert f"Example: uce-edge {command}" in done.out
    assert {"--quiet", "--verbose"} <= set(re.findall(r"--\w+", done.out))


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("train", {*ARCHITECTURES, *DATASETS, *Optimiser, *Stem}),
        ("reproduce", {*ARCHITECTURES, *DATASETS, *Experiment}),
        ("export", {*ARCHITECTURES, *Inference, *NoiseKind}),
        ("evaluate", {*DATASETS, *models.kinds("cifar10")}),
        ("calibrate", {*Method, *Rates}),
        ("bench", {*ENGINES, *models.kinds("cifar10")}),
    ],
)
def test_help_names_everything_there_is_to_choose_from(call, monkeypatch, command, named):
    monkeypatch.setenv("COLUMNS", "300")
    told = set(re.findall(r"[\w-]+", call(command, "--help").out))
    assert named <= told


def test_what_help_reads_without_torch_is_what_there_is():
    assert set(Architecture) == set(ARCHITECTURES)


def test_root_help_lists_commands_and_completion(call):
    told = call("--help").out
    for word in (*COMMANDS, "--version", "--install-completion", "--show-completion"):
        assert word in told


def test_version(call):
    version = f"uce-edge {uce_edge.__version__}\n"
    assert call("--version").out == version
    assert run("--version").stdout.decode().splitlines() == version.splitlines()


def test_no_code_of_the_working_folder_is_imported(tmp_path):
    """A folder from elsewhere may hold a run.json that names code, and the code beside it."""
    (tmp_path / "typer.py").write_text("raise SystemExit('code of this folder was run')")
    said = subprocess.run(
        [sys.executable, "-m", "uce_edge", "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout) == (0, f"uce-edge {uce_edge.__version__}\n"), said.stderr


@pytest.mark.parametrize(
    ("imports", "heavy"),
    [
        ("uce_edge, uce_edge.cli", {"torch", "onnx", "matplotlib", "numpy", "onnxruntime", "PIL"}),
        (
            "uce_edge.runtime.model, uce_edge.metrics, uce_edge.images.loader, uce_edge.bench.sweep",
            {"torch", "onnx", "matplotlib"},
        ),
    ],
)
def test_import_stays_light(imports, heavy):
    code = f"import sys, {imports}; found = {heavy} & set(sys.modules); assert not found, found"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["info", "MODEL"], "onnxruntime", "cpu"),
        (["predict", "--model", "MODEL", "IMAGE"], "onnxruntime", "cpu"),
        (["bench", "--model", "MODEL", "--plot", "x.png"], "matplotlib", "train"),
        (["demo"], "torch", "train,export"),
        (["train"], "torch", "train,export"),
        (["train"], "safetensors", "train,export"),
        (["calibrate", "RUN"], "torch", "train,export"),
        (["export", "RUN"], "onnxscript", "train,export"),
        (["export", "--from", "MODEL"], "onnx", "recalibrate"),
        (["calibrate", "MODEL", "--data", "labelled.npz"], "onnx", "recalibrate"),
    ],
)
def test_missing_part_is_named_with_its_command(digits, refused, tmp_path, monkeypatch, arguments, package, extra):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    places = {"MODEL": digits.model, "IMAGE": digits.image, "RUN": digits.run}
    done = refused(1, *(places.get(argument, argument) for argument in arguments))
    assert done.error == "part.missing"
    assert f'pip install "uce-edge[{extra}]"' in done.err
    assert list(tmp_path.iterdir()) == []

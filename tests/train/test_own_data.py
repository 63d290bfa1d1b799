"""A user's own images, from a folder to decisions, by the command line alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Call
from PIL import Image, ImageDraw

from tests.helpers.errors import raises
from uce_edge import cli
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.metadata import Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.options import Options
from uce_edge_train.dropout.gaussian_layers import gaussian_layers
from uce_edge_train.networks import untrained
from uce_edge_train.runs import Run


def run(call: Call, *arguments: object) -> tuple[str, str]:
    done = call(*arguments)
    assert done.code == 0, done.err
    return done.out, done.err


@pytest.fixture
def shapes(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Discs and squares of random place, size and colour."""
    folder = tmp_path / "shapes"
    for name in ("disc", "square"):
        (folder / name).mkdir(parents=True)
        for i in range(60):
            image = Image.new("RGB", (20, 24), tuple(int(v) for v in rng.integers(0, 90, 3)))
            left, top, size = (int(v) for v in rng.integers((1, 1, 9), (8, 10, 13)))
            box = (left, top, left + size, top + size)
            draw, colour = ImageDraw.Draw(image), tuple(int(v) for v in rng.integers(150, 256, 3))
            (draw.ellipse if name == "disc" else draw.rectangle)(box, fill=colour)
            image.save(folder / name / f"{i}.png")
    return folder


def test_from_a_folder_of_images_to_decisions(
    shapes: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, messages = run(
        call, "train", "--data", "shapes", "--size", "16x16", "--flip", "--epochs", 16, "--batch-size", 16,
        "--out", "runs/mine",
    )  # fmt: skip
    assert "Next: uce-edge calibrate runs/mine" in messages
    described = Run.load("runs/mine")
    assert described.class_names == ("disc", "square")
    assert (described.image.height, described.image.width, described.image.channels) == (16, 16, 3)
    assert described.recipe.flip
    monkeypatch.chdir(shapes)  # a run finds its data from anywhere
    run(call, "calibrate", tmp_path / "runs/mine", "--samples", 10)
    run(call, "export", tmp_path / "runs/mine", "--out", tmp_path / "mine.onnx")
    out, _ = run(call, "predict", "--model", tmp_path / "mine.onnx", "disc", "--reject", 0.5, "--json")
    records = json.loads(out)
    assert len(records) == 60
    assert np.mean([record["label"] == "disc" for record in records]) > 0.8
    # Recalibrated in the field, on a folder again.
    run(
        call, "calibrate", tmp_path / "mine.onnx", "--data", shapes, "--method", "vector",
        "--out", tmp_path / "field.onnx",
    )  # fmt: skip
    assert Model(tmp_path / "field.onnx", "cpu").metadata.calibration.method == "vector"


def test_changed_images_are_noticed_at_calibration(shapes: Path, tmp_path: Path, call: Call) -> None:
    run(call, "train", "--data", shapes, "--size", "8x8", "--epochs", 1, "--out", tmp_path / "run")
    for path in (shapes / "disc").iterdir():
        Image.new("RGB", (20, 24)).save(path)
    with raises("split.changed", UsageError):
        cli.app(["calibrate", str(tmp_path / "run")], standalone_mode=False)


def test_groups_of_a_manifest_stay_together_from_training_to_evaluation(
    shapes: Path, tmp_path: Path, call: Call, rng: np.random.Generator
) -> None:
    rows = [f"shapes/{name}/{i}.png,{name},p{rng.integers(40)}" for name in ("disc", "square") for i in range(60)]
    manifest, out = tmp_path / "scans.csv", tmp_path / "run"
    manifest.write_text("\n".join(["path,label,patient", *rows]))
    options = ("--data", manifest, "--size", "8x8", "--epochs", 1, "--group", "patient", "--out", out)
    _, messages = run(call, "train", *options)
    assert "groups" in messages
    assert "No group (patient) is in two splits." in messages
    dataset = Run.load(out).dataset()
    assert (Run.load(out).group, dataset.group) == ("patient", "patient")
    assert dataset.hashes() == Run.load(out).split_hashes
    run(call, "calibrate", out, "--samples", 2)
    run(call, "export", out, "--out", tmp_path / "file.onnx")
    metadata = Model(tmp_path / "file.onnx", "cpu").metadata
    assert metadata.group == "patient"
    single = dataset.splits["guarantee"].one_per_group()
    assert len(single) < len(dataset.splits["guarantee"])
    assert metadata.held_out is not None
    assert (metadata.held_out.data, metadata.held_out.grouped) == (single.sha256(), True)
    _, messages = run(
        call, "evaluate", tmp_path / "file.onnx", "--data", manifest
    )  # without --group: the file knows it
    assert f"on {len(dataset.splits['test'])} images: {manifest}, test images." in messages
    assert "groups, and images of a group are alike. Intervals and bounds treat all images as independent" in messages
    with pytest.raises(UsageError, match="--group needs --data"):
        cli.app(["calibrate", str(out), "--group", "patient"], standalone_mode=False)


def test_an_untrained_network_is_exported_for_benchmarks(tmp_path: Path, call: Call) -> None:
    for inference, samples in (("mc", 7), ("deterministic", 1)):
        out = tmp_path / f"{inference}.onnx"
        _, messages = run(
            call,
            "export",
            "--untrained",
            "resnet8",
            "--inference",
            inference,
            "--samples",
            7,
            "--p",
            0.3,
            "--out",
            out,
        )
        assert "Next: uce-edge bench" in messages
        metadata = Model(out, "cpu").metadata
        assert metadata.samples == samples
        assert {layer.p for layer in metadata.layers} == ({0.3} if inference == "mc" else set())
    images = np.zeros((1, 32, 32, 3), np.uint8)
    assert Model(tmp_path / "mc.onnx", "cpu").predict(images).probabilities.shape == (1, 10)


def test_an_untrained_network_of_a_device_gets_a_noisy_tail(tmp_path: Path, call: Call) -> None:
    out = tmp_path / "tail.onnx"
    run(call, "export", "--untrained", "mobilenetv3-small", "--noisy", "tail", "--p", 0.01, "--out", out)
    metadata = Model(out, "cpu").metadata
    assert (metadata.architecture, metadata.image.height) == ("mobilenetv3-small (untrained)", 224)
    assert [layer.name for layer in metadata.layers] == ["last.0.weight", "hidden.weight", "classifier.weight"]
    assert metadata.costs.macs_per_pass < 0.1 * metadata.costs.macs_once


@pytest.mark.parametrize("name", ["efficientnet-lite0", "vit-tiny"])
def test_the_other_untrained_networks_are_exported_in_the_same_way(
    name: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def noted(model: torch.nn.Module, metadata: Metadata, out: Path, options: Options) -> None:
        given.extend([metadata, options])
        assert len(list(gaussian_layers(model))) > 2
        raise UceEdgeError("enough", "test.enough")

    monkeypatch.setattr(untrained, "export_module", noted)
    assert call("export", "--untrained", name, "--noisy", "tail", "--out", tmp_path / "m.onnx").code != 0
    metadata, options = given
    assert (metadata.architecture, metadata.image.height) == (f"{name} (untrained)", 224)
    assert options.noisy == ("tail",)


def refused(call: Call, code: int, *arguments: object) -> str:
    done = call(*arguments)
    assert done.code == code
    return done.err


def test_a_trained_run_is_not_overwritten_by_accident(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(call, "train", "--epochs", 1)  # named after its data
    before = (tmp_path / "runs" / "digits" / "weights.safetensors").read_bytes()
    assert "--overwrite" in refused(call, 2, "train", "--epochs", 1, "--seed", 1)
    assert (tmp_path / "runs" / "digits" / "weights.safetensors").read_bytes() == before
    run(call, "train", "--epochs", 1, "--seed", 1, "--overwrite")
    assert (tmp_path / "runs" / "digits" / "weights.safetensors").read_bytes() != before
    assert "uce-edge export runs/digits" in refused(call, 1, "info", "runs/digits")


def test_a_model_that_the_noise_drowned_is_announced_at_calibration(
    tmp_path: Path, call: Call, rng: np.random.Generator
) -> None:
    run(call, "export", "--untrained", "resnet8", "--samples", 5, "--out", tmp_path / "m.onnx")
    np.savez(tmp_path / "noise.npz", x=rng.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8), y=np.arange(30) % 10)
    _, messages = run(
        call, "calibrate", tmp_path / "m.onnx", "--data", tmp_path / "noise.npz", "--out", tmp_path / "c.onnx"
    )
    assert "hardly better than chance" in messages
    assert "smaller --p" in messages
    assert "fewer than 100 images" in messages


def test_exit_codes_for_rejections_need_a_threshold(call: Call) -> None:
    assert "--reject" in refused(call, 2, "predict", "--model", "m.onnx", "a.png", "--exit-code")

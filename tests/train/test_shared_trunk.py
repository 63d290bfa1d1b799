"""Ensembles over one frozen trunk: trained on the same features, exported with one trunk."""

import hashlib
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Call
from safetensors.torch import save_file
from torch import nn

from uce_edge.contract import Inference
from uce_edge.metadata import ImageSpec
from uce_edge.runtime.model import Model
from uce_edge_train.data.features import FOLDER
from uce_edge_train.networks import architectures, backbones
from uce_edge_train.networks.backbones import BACKBONES, Backbone
from uce_edge_train.runs import Run, load_model, members_of

SEAM = "blocks.2"
TRAIN = ("train", "--data", "digits", "--backbone", "tiny", "--epochs", 2, "--views", 2, "--noisy", f"{SEAM}.*")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A backbone of random weights."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    file = folder / "tiny.safetensors"
    save_file(architectures.build("resnet8", 10, 1).state_dict(), file)
    return Backbone(
        arch="resnet8", image=ImageSpec(8, 8, 1, mean=(0.3,), std=(0.4,)), seam=SEAM, noisy=("classifier",),
        package=str(folder), file=file.name, sha256=hashlib.sha256(file.read_bytes()).hexdigest(), licence="CC0-1.0",
        source="https://example.org/tiny", megabytes=0.3, million_macs=1,
    )  # fmt: skip


@pytest.fixture
def tiny(made: Backbone, monkeypatch: pytest.MonkeyPatch) -> Backbone:
    monkeypatch.setitem(BACKBONES, "tiny", made)
    monkeypatch.setattr(backbones.Backbone, "path", property(lambda self: Path(self.package) / self.file))
    return made


def done(call: Call, *arguments: object) -> None:
    said = call(*arguments)
    assert said.code == 0, said.err


@pytest.mark.parametrize("inference", list(Inference))
def test_the_file_runs_what_the_members_share_once(
    inference: Inference, tiny: Backbone, tmp_path: Path, call: Call, rng: np.random.Generator
) -> None:
    out, file, one = tmp_path / "run", tmp_path / "two.onnx", tmp_path / "one.onnx"
    done(call, *TRAIN, "--p", 0.1, "--members", 2, "--share-trunk", "--out", out)
    assert (out / FOLDER).is_dir()
    folders = members_of(out)
    assert not any((folder / FOLDER).exists() for folder in folders)
    kind = ("--inference", inference)
    done(call, "export", out, *kind, "--target-error", 0.8, "--out", file)
    done(call, "export", folders[0], *kind, "--out", one)
    whole, single = Model(file, "cpu"), Model(one, "cpu")
    assert whole.metadata.members == 2
    assert whole.metadata.promise is not None
    costs, alone = whole.metadata.costs, single.metadata.costs
    assert costs is not None
    assert alone is not None
    assert costs.macs_per_pass == 2 * alone.macs_per_pass
    # The ensemble has a gate, too, which is small.
    assert costs.macs_once == pytest.approx(2 * alone.macs_once - trunk_macs(folders[0]), rel=0.01)
    pixels, samples = rng.integers(0, 256, (4, 8, 8, 1), dtype=np.uint8), None if kind[1] == "deterministic" else 4
    together = whole.logits(pixels, samples)
    np.testing.assert_allclose(together[::2], single.logits(pixels, samples), atol=2e-5)
    assert not np.allclose(together[::2], together[1::2], atol=1e-2)
    assert whole.predict(pixels).novelty is not None
    said = call("compare", file, one, "--data", "digits", "--json")
    assert said.code == 0, said.err
    assert [one["name"] for one in json.loads(said.out)["files"]] == ["two.onnx", "one.onnx"]


def test_where_they_look_is_shown_by_a_file_of_one_member(tiny: Backbone, tmp_path: Path, call: Call) -> None:
    """Members of one trunk have maps of one size, but a file of them has no map."""
    out, one = tmp_path / "two of them", tmp_path / "one.onnx"
    done(call, *TRAIN, "--dropout", "none", "--members", 2, "--share-trunk", "--out", out)
    refused = call("export", out, "--inference", "deterministic", "--heatmap", "--out", tmp_path / "two.onnx")
    assert refused.error == "heatmap.several-networks"
    assert "different feature maps" not in refused.err
    command = shlex.split(refused.err[refused.err.rindex("uce-edge export") :].strip())
    assert command[2] == str(out / "member-0")
    done(call, *command[1:], "--inference", "deterministic", "--out", one)
    assert Model(one, "cpu").predict(np.zeros((1, 8, 8, 1), np.uint8))[0].heatmap is not None


def trunk_macs(folder: Path, seam: str = SEAM) -> int:
    """Multiplications of the convolutions before the seam, counted by PyTorch."""
    model, macs = load_model(Run.load(folder), folder), 0

    def count(module: nn.Conv2d, _: object, output: torch.Tensor) -> None:
        nonlocal macs
        macs += output.shape[2:].numel() * module.weight.numel()

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and not name.startswith(seam):
            module.register_forward_hook(count)
    with torch.no_grad():
        model(torch.zeros(1, 1, 8, 8))
    return macs


def test_a_later_seam_makes_the_tails_cheaper(tiny: Backbone, tmp_path: Path, call: Call) -> None:
    out, file = tmp_path / "run", tmp_path / "five.onnx"
    start = (*TRAIN[:-2], "--dropout", "none", "--members", 5, "--share-trunk", "--out", out)
    assert "classifier" in call(*start, "--seam", "blocks.7").err
    done(call, *start, "--seam", "classifier", "--views", 1)
    done(call, "export", out, "--inference", "deterministic", "--out", file)
    costs = Model(file, "cpu").metadata.costs
    assert costs is not None
    assert costs.macs_once < 1.02 * (trunk_macs(members_of(out)[0], "classifier") + 5 * 640)


def test_members_share_their_stored_features(tiny: Backbone, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "run"
    done(call, *TRAIN, "--dropout", "none", "--members", 2, "--share-trunk", "--out", out)
    stored = {path.name: path.stat().st_mtime_ns for path in (out / FOLDER).iterdir()}
    assert len(stored) == 2  # two views of the training images, which hold the selection images
    done(call, *TRAIN, "--dropout", "none", "--members", 3, "--share-trunk", "--out", out, "--resume")
    assert {path.name: path.stat().st_mtime_ns for path in (out / FOLDER).iterdir()} == stored


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--share-trunk",), "--members"),
        (("--share-trunk", "--members", 2, "--unfreeze", "all"), "all"),
    ],
)
def test_members_without_a_common_trunk_are_refused(
    options: tuple[object, ...], words: str, tiny: Backbone, tmp_path: Path, call: Call
) -> None:
    said = call(*TRAIN, *options, "--out", tmp_path / "run")
    assert said.code == 2
    assert words in said.err
    plain = call("train", "--data", "digits", "--members", 2, "--share-trunk", "--out", tmp_path / "run")
    assert plain.code == 2
    assert "--backbone" in plain.err
    seam = ("--seam", SEAM, "--out", tmp_path / "run")
    trained = call("train", "--data", "digits", "--members", 2, "--share-trunk", *seam)
    assert trained.code == 2
    assert "--backbone" in trained.err

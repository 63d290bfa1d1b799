"""Initial weights from files of hubs and of runs."""

import dataclasses
import hashlib
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Call
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.helpers.errors import raises
from uce_edge.cli import app, train_settings
from uce_edge.datasets import overlap, splits
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import UsageError
from uce_edge_train.choices import Dropout, Optimiser
from uce_edge_train.loop import training
from uce_edge_train.loop.checkpoint import CHECKPOINT
from uce_edge_train.networks import architectures, parameter_groups, pretrained
from uce_edge_train.networks.architectures import BasicBlock, Bottleneck, DenseNet, ResNet
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run


class HubBlock(nn.Module):
    """A residual block with the names of torchvision; `deep` for the bottleneck."""

    def __init__(self, inputs: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        outputs = width * 4 if deep else width
        if deep:
            self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
            self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outputs)
        else:
            self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2, self.deep = nn.BatchNorm2d(width), nn.BatchNorm2d(width), deep
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.deep:
            y = self.bn3(self.conv3(torch.relu(y)))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class HubResNet(nn.Module):
    """A residual network for large images, with the names of torchvision and of timm."""

    def __init__(self, widths: list[int], depths: list[int], classes: int, deep: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        inputs = widths[0]
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            blocks = []
            for index in range(depth):
                blocks.append(HubBlock(inputs, width, 2 if stage and not index else 1, deep))
                inputs = width * 4 if deep else width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for name, stage in self.named_children():
            x = stage(x) if name.startswith("layer") else x
        return self.fc(x.mean((2, 3)))


class HubDenseNet(nn.Module):
    """A dense network with the names of torchvision and of timm."""

    def __init__(self, depths: list[int], classes: int) -> None:
        super().__init__()
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm0=nn.BatchNorm2d(64), relu0=nn.ReLU(),
            pool0=nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        width = 64
        for stage, depth in enumerate(depths, 1):
            block = nn.Module()
            for index in range(depth):
                layer = nn.Module()
                layer.norm1, layer.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, 128, 1, bias=False)
                layer.norm2, layer.conv2 = nn.BatchNorm2d(128), nn.Conv2d(128, 32, 3, padding=1, bias=False)
                block.add_module(f"denselayer{index + 1}", layer)
                width += 32
            parts[f"denseblock{stage}"] = block
            if stage < len(depths):
                change = nn.Module()
                change.norm, change.conv = nn.BatchNorm2d(width), nn.Conv2d(width, width // 2, 1, bias=False)
                parts[f"transition{stage}"] = change
                width //= 2
        parts["norm5"] = nn.BatchNorm2d(width)
        self.features = nn.Sequential(parts)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for name, part in self.features.named_children():
            if name.startswith("denseblock"):
                for layer in part.children():
                    y = layer.conv1(torch.relu(layer.norm1(x)))
                    x = torch.cat([x, layer.conv2(torch.relu(layer.norm2(y)))], 1)
            elif name.startswith("transition"):
                x = nn.functional.avg_pool2d(part.conv(torch.relu(part.norm(x))), 2)
            else:
                x = part(x)
        return self.classifier(torch.relu(x).mean((2, 3)))


def shaken(model: nn.Module) -> nn.Module:
    """Batch-norm that has something to say, so that a tensor in the wrong place shows."""
    generator = torch.Generator().manual_seed(3)
    for name, value in model.state_dict().items():
        if name.split(".")[-1] in ("running_mean", "running_var") or value.ndim == 1:
            value.copy_(0.5 + torch.rand(value.shape, generator=generator))
    return model.eval()


THIN, DEEP = [4, 6, 8], [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda: HubResNet(THIN, [2, 1, 3], 5), lambda: ResNet(BasicBlock, THIN, [2, 1, 3], 5, "imagenet")),
        (lambda: HubResNet(DEEP, [2, 1, 1, 2], 5, True), lambda: ResNet(Bottleneck, DEEP, [2, 1, 1, 2], 5, "imagenet")),
        (lambda: HubDenseNet([2, 3, 1], 5), lambda: DenseNet([2, 3, 1], 5, "imagenet")),
    ],
    ids=["basic", "bottleneck", "dense"],
)
def test_a_network_of_a_hub_computes_the_same_here(theirs, ours) -> None:  # type: ignore[no-untyped-def]
    hub, own = shaken(theirs()), ours().eval()
    fitted = pretrained.fit(own, hub.state_dict())
    assert (fitted.missing, fitted.unused, fitted.notes) == ((), (), ())
    own.load_state_dict(fitted.tensors, strict=False)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(own(images), hub(images), rtol=1e-4, atol=1e-4)


def test_the_oldest_names_of_dense_networks_are_known() -> None:
    hub, own = HubDenseNet([1, 1], 7), DenseNet([1, 1], 7, "imagenet")
    old = {name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): v for name, v in hub.state_dict().items()}
    assert set(old) != set(hub.state_dict())
    assert pretrained.fit(own, old).missing == ()


@pytest.fixture(scope="module")
def few() -> Dataset:
    """A quarter of the digits."""
    whole = splits.load("digits")
    return dataclasses.replace(
        whole, splits={name: Split(part.images[::4], part.labels[::4]) for name, part in whole.splits.items()}
    )


@pytest.fixture(scope="module")
def colour(few: Dataset) -> Dataset:
    """The same in three channels, and two classes."""
    made = {
        name: Split(np.repeat(part.images, 3, axis=3), part.labels // 5) for name, part in few.splits.items()
    }  # fmt: skip
    return dataclasses.replace(few, splits=made, class_names=("low", "high"))


@pytest.fixture(scope="module")
def trained(colour: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on colour images of two classes."""
    folder = tmp_path_factory.mktemp("trained")
    training.train(colour, folder, dataclasses.replace(SHORT, blur=0.2))
    return folder


SHORT = Recipe(epochs=1, batch_size=32)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "weights.safetensors")


def test_a_run_starts_from_another_with_other_classes_and_channels(
    few: Dataset, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = dataclasses.replace(SHORT, init=pretrained.start_from(trained), learning_rate=1e-12, weight_decay=0.0)
    with caplog.at_level("INFO", "uce_edge_train"):
        run = training.train(few, tmp_path, recipe)
    before, after = weights(trained), weights(tmp_path)
    torch.testing.assert_close(after["stem.0.weight"], before["stem.0.weight"].sum(1, keepdim=True), atol=1e-6, rtol=0)
    for name, value in before.items():
        if name.endswith("weight") and name not in ("stem.0.weight", "classifier.weight"):
            torch.testing.assert_close(after[name], value, atol=1e-6, rtol=0)
    assert after["classifier.weight"].shape[0] == 10
    message = caplog.messages[0]
    assert "The head is new: the file has 2 classes, the network 10." in message
    assert "1 channel: the kernels for 3 are summed" in message
    assert "lacks" not in message
    stored = Run.load(tmp_path)
    assert stored.recipe == run.recipe == recipe
    file = (trained / "weights.safetensors").read_bytes()
    assert stored.recipe.init is not None
    assert stored.recipe.init.sha256 == hashlib.sha256(file).hexdigest()


def test_what_the_first_training_saw_counts_for_the_second(
    few: Dataset, colour: Dataset, trained: Path, tmp_path: Path
) -> None:
    run = training.train(few, tmp_path, dataclasses.replace(SHORT, init=pretrained.start_from(trained), noise=0.1))
    assert run.recipe.seen == ("noise", "blur")
    for dataset in (few, colour):
        images = dataset.splits["train"].images
        assert overlap.seen(run.trained_on, images) == len(images)
        assert overlap.seen(run.trained_on, dataset.splits["test"].images) == 0


def test_gray_kernels_are_spread_over_three_channels() -> None:
    gray, own = architectures.resnet8(4, "cifar", 1).eval(), architectures.resnet8(4, "cifar", 3).eval()
    fitted = pretrained.fit(own, gray.state_dict())
    own.load_state_dict(fitted.tensors, strict=False)
    images = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(own(images.expand(-1, 3, -1, -1)), gray(images), atol=1e-5, rtol=1e-4)
    assert "each gets 1/3" in fitted.summary()


def test_another_stem_starts_anew_with_its_batch_norm_and_is_told() -> None:
    large, small = shaken(architectures.resnet8(4, "imagenet")), architectures.resnet8(4, "cifar")
    fitted = pretrained.fit(small, large.state_dict())
    assert not [name for name in fitted.tensors if name.startswith("stem.")]
    assert fitted.is_enough
    assert (fitted.missing, fitted.unused) == ((), ())
    assert "its kernels are 7x7 in the file, 3x3 in the network" in fitted.summary()


@pytest.mark.parametrize("wrapped", ["plain", "state_dict", "module", "half", "checkpoint"])
def test_a_file_is_read_as_its_maker_wraps_it(wrapped: str, few: Dataset, tmp_path: Path) -> None:
    source = shaken(architectures.resnet8(10, "cifar", 1)).state_dict()
    file = tmp_path / "weights.pth"
    match wrapped:
        case "plain":
            torch.save(source, file)
        case "state_dict":
            torch.save({"epoch": 3, "state_dict": source}, file)
        case "module":
            torch.save({f"module.{name}": value for name, value in source.items()}, file)
        case "half":
            save_file({n: v.half() if v.is_floating_point() else v for n, v in source.items()}, file)
        case "checkpoint":
            file = tmp_path / CHECKPOINT
            save_file({f"now.model.{n}": v for n, v in source.items()} | {"optimiser.0.step": torch.ones(1)}, file)
    model = architectures.resnet8(10, "cifar", 1)
    message = pretrained.begin(model, pretrained.start_from(file), "resnet8")
    assert "100.0% of the weights" in message
    assert "no place" not in message
    for name, value in model.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(value, source[name], atol=1e-3, rtol=1e-3)


def test_weights_of_another_architecture_are_refused_with_the_likely_one(tmp_path: Path) -> None:
    file = tmp_path / "deep.safetensors"
    with torch.device("meta"):
        deep = HubResNet([64, 128, 256, 512], [3, 4, 6, 3], 2, True)
        model = architectures.build("resnet34", 2, 3, "imagenet")
    save_file({name: torch.zeros(value.shape, dtype=torch.float16) for name, value in deep.state_dict().items()}, file)
    start = pretrained.start_from(file)
    # Half of the weights of resnet34 have a namesake of their shape in resnet50.
    with raises("weights.mismatch", UsageError) as caught:
        pretrained.begin(model, start, "resnet34")
    assert "--arch resnet50 --stem" in str(caught.value)
    assert not pretrained.fit(architectures.resnet8(2), load_file(file)).is_enough


def test_files_that_are_no_weights_are_refused(few: Dataset, tmp_path: Path) -> None:
    good, bad = architectures.resnet8(10, "cifar", 1), tmp_path / "bad.pt"
    with raises("argument.init", UsageError):
        pretrained.start_from(tmp_path / "none.pt")
    with raises("argument.init", UsageError):
        pretrained.start_from(tmp_path)
    for content in (b"", b"not weights at all", b"\x10\0\0\0\0\0\0\0{garbage........"):
        bad.write_bytes(content)
        with raises("weights.unreadable"):
            pretrained.begin(good, pretrained.start_from(bad), "resnet8")
    torch.save(good, bad)  # a pickled module may run anything
    with raises("weights.unreadable"):
        pretrained.begin(good, pretrained.start_from(bad), "resnet8")
    torch.save([torch.zeros(3)], bad)
    with raises("weights.empty"):
        pretrained.begin(good, pretrained.start_from(bad), "resnet8")
    broken = good.state_dict() | {"blocks.0.bn1.bias": torch.full((16,), torch.nan)}
    torch.save(broken, bad)
    start = pretrained.start_from(bad)
    with raises("weights.not-finite", UsageError) as caught:
        pretrained.begin(good, start, "resnet8")
    assert caught.value.fields["tensors"] == ["blocks.0.bn1.bias"]
    torch.save(good.state_dict(), bad)
    with raises("weights.changed", UsageError):
        training.train(few, tmp_path / "run", dataclasses.replace(SHORT, init=start))
    assert not (tmp_path / "run").exists()


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_no_code_of_a_file_is_run_and_odd_tensors_are_left_out(tmp_path: Path) -> None:
    good, bad, mark = architectures.resnet8(10, "cifar", 1), tmp_path / "bad.pt", tmp_path / "mark"
    for content in ({"a": Evil(mark)}, {"state_dict": {"fc.weight": Evil(mark)}}, [Evil(mark)]):
        torch.save(content, bad)
        with raises("weights.unreadable"):
            pretrained.begin(good, pretrained.start_from(bad), "resnet8")
    assert not mark.exists()
    head, first = f"{parameter_groups.head_of(good)}.weight", f"{parameter_groups.first_of(good)}.weight"
    odd = {
        head: torch.tensor(1.0),
        first: torch.zeros(1).expand(16, 10**9, 3, 3),  # one number in the file, and an hour to sum them
        "blocks.0.bn1.bias": torch.zeros(16).to_sparse(),
        ("no", "text"): torch.zeros(1),
    }
    torch.save(good.state_dict() | odd, bad)
    message = pretrained.begin(good, pretrained.start_from(bad), "resnet8")
    assert "The file lacks 2 tensors" in message
    assert "The head is new" in message


@pytest.mark.skipif(os.name == "nt", reason="no such files there")
def test_a_pipe_is_no_file_of_weights(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    with raises("argument.init", UsageError):
        pretrained.start_from(tmp_path / "pipe.pt")


@pytest.mark.parametrize(
    "patterns", [(parameter_groups.ALL_BUT_HEAD,), ("conv1", "bn1", "layer1", "blocks.1.*")], ids=len
)
def test_frozen_layers_are_the_same_to_the_bit(
    patterns: tuple[str, ...], few: Dataset, trained: Path, tmp_path: Path
) -> None:
    start = pretrained.start_from(trained)
    recipe = dataclasses.replace(SHORT, init=start, freeze=patterns, optimiser=Optimiser.SGD)
    training.train(few, tmp_path, recipe)
    expected = recipe.build(10, 1)
    pretrained.begin(expected, start, "resnet8")
    after = weights(tmp_path)
    moving = ("classifier",) if len(patterns) == 1 else ("classifier", "blocks.2")
    for name, value in expected.state_dict().items():
        assert torch.equal(after[name], value) is not name.startswith(moving), name
        if name not in ("stem.0.weight", "classifier.weight", "classifier.bias"):
            assert torch.equal(value, weights(trained)[name]), name


def test_stages_learn_by_the_factor_less() -> None:
    for model, below in ((architectures.resnet20(3), 4), (architectures.resnet9(3), 4)):
        learning = Recipe(layer_decay=0.5, learning_rate=0.1).optimiser_for(model, [])
        rates = {value: group["factor"] for group in learning.param_groups for value in group["params"]}
        names = dict(model.named_parameters())
        assert len(rates) == len(names)
        assert rates[names["classifier.weight"]] == rates[names["classifier.bias"]] == 1
        assert rates[names["stem.0.weight"]] == 0.5**below
    model = architectures.resnet20(3)
    stage = parameter_groups.stages_of(model)
    assert [stage[f"blocks.{index}.conv1.weight"] for index in range(9)] == [3, 3, 3, 2, 2, 2, 1, 1, 1]
    with torch.device("meta"):
        dense = parameter_groups.stages_of(architectures.densenet121(3))
    assert set(dense.values()) == {0, 1, 2, 3, 4, 5}
    assert dense["features.0.weight"] == dense["features.1.bias"] == 5
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(nn.Conv2d(2, 2, 3)), nn.Linear(2, 2))
    assert list(parameter_groups.stages_of(plain).values()) == [2, 2, 2, 2, 1, 1, 0, 0]


def test_a_step_moves_a_stage_by_its_rate(few: Dataset, tmp_path: Path) -> None:
    steps = dataclasses.replace(
        SHORT, optimiser=Optimiser.SGD, weight_decay=0.0, learning_rate=1e-4, batch_size=10_000, layer_decay=0.1
    )
    start = steps.build(10, 1).state_dict()
    training.train(few, tmp_path / "less", steps)
    training.train(few, tmp_path / "same", dataclasses.replace(steps, layer_decay=1.0))
    less, same = weights(tmp_path / "less"), weights(tmp_path / "same")
    for name, factor in {"classifier.weight": 1, "blocks.2.conv1.weight": 0.1, "blocks.0.conv1.weight": 0.001}.items():
        moved, whole = less[name] - start[name], same[name] - start[name]
        torch.testing.assert_close(moved, factor * whole, rtol=0.05, atol=2e-8)


def test_a_training_from_weights_resumes_unchanged(
    few: Dataset, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = dataclasses.replace(
        SHORT, epochs=2, init=pretrained.start_from(trained), freeze=("stem", "blocks.0"), layer_decay=0.7
    )
    training.train(few, tmp_path / "whole", recipe)
    note = training._Loop._note

    def stop_late(self: training._Loop, *arguments: object) -> None:
        if self.training.progress.epoch == 2:
            raise KeyboardInterrupt
        note(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(training._Loop, "_note", stop_late)
        with pytest.raises(KeyboardInterrupt):
            training.train(few, tmp_path / "broken", recipe)
    moved = dataclasses.replace(recipe.init, file=str(trained / "weights.safetensors"))  # type: ignore[type-var]
    again = dataclasses.replace(recipe, init=moved)
    other = dataclasses.replace(recipe, init=dataclasses.replace(moved, sha256="0" * 64))
    with raises("checkpoint.recipe", UsageError) as caught:
        training.train(few, tmp_path / "broken", other, resume=True)
    assert caught.value.fields["differences"] == ["init"]
    training.train(few, tmp_path / "broken", again, resume=True)
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "broken")[name]), name


def test_wrong_wishes_are_refused(trained: Path) -> None:
    start, model = pretrained.start_from(trained), architectures.resnet8(10)
    with raises("argument.freeze", UsageError):
        Recipe(freeze=("stem",))
    with raises("argument.layer_decay", UsageError):
        Recipe(init=start, layer_decay=1.5)
    with raises("argument.freeze", UsageError):
        parameter_groups.freeze(model, ["nothing.like.it"])
    with raises("argument.freeze", UsageError):
        parameter_groups.freeze(model, ["*"])


def test_the_command_tells_what_it_took(trained: Path, tmp_path: Path) -> None:
    options = ["--epochs", "1", "--init", str(trained), "--freeze", "all-but-head", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["train", "--data", "digits", *options])
    assert done.exit_code == 0, done.output
    assert f"Starts from {trained}: " in done.stderr
    assert Run.load(tmp_path / "run").recipe.freeze == ("all-but-head",)


def test_several_processes_do_not_train_weights_at_a_ruinous_rate(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    file = tmp_path / "alone.safetensors"
    file.write_bytes((trained / "weights.safetensors").read_bytes())
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = call("train", "--data", tmp_path / "absent", "--init", file, "--out", tmp_path / "run")
    assert refused.error == "argument.rates", "before the images are looked for"
    assert "--p 0.01" in refused.err
    chosen = call("train", "--data", tmp_path / "absent", "--init", file, "--p", 0.01, "--out", tmp_path / "run")
    assert chosen.error != "argument.rates"
    own = Run.load(trained).rates
    found = train_settings.of_start(trained, set(), Dropout.GAUSSIAN)
    assert found == {"p": pytest.approx(sum(own.values()) / len(own))}, "a run has a rate of its own"

"""A pretrained network describes itself, and its logits are found in what it returns."""

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.errors import raises
from uce_edge import ImageSpec, Model
from uce_edge.contract import ResizeFilter, ResizeMode
from uce_edge.images.resize import Resize
from uce_edge_train import describe, export_module, gaussianize

TIMM = {
    "architecture": "tiny", "input_size": (3, 8, 8), "crop_pct": 0.8, "interpolation": "bicubic", "mean": (0.5,) * 3,
    "std": (0.25,) * 3,
}  # fmt: skip


class Network(nn.Sequential):
    """A small network that returns its logits in some form."""

    def __init__(self, form: Any = None) -> None:
        torch.manual_seed(0)
        layers = {"conv": nn.Conv2d(3, 4, 3), "relu": nn.ReLU(), "flat": nn.Flatten(), "head": nn.Linear(144, 3)}
        super().__init__(OrderedDict(layers))
        self.form = form
        self.num_classes = 3

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return logits if self.form is None else self.form(logits)


def test_a_network_of_timm_becomes_a_file_by_itself(tmp_path: Path) -> None:
    network = Network()
    network.pretrained_cfg = TIMM
    export_module(gaussianize(network, p=0.1), None, tmp_path / "tiny.onnx")
    model = Model(tmp_path / "tiny.onnx")
    assert model.metadata.image == ImageSpec(
        8, 8, 3, mean=(0.5,) * 3, std=(0.25,) * 3, resize=Resize(ResizeMode.CROP, 10, ResizeFilter.BICUBIC)
    )
    assert (model.classes, model.metadata.architecture) == (("0", "1", "2"), "tiny")


def test_names_come_from_the_network_unless_given() -> None:
    network = Network()
    names = {0: "cat", 1: "dog", 2: "owl"}
    network.config = SimpleNamespace(to_dict=lambda: {"id2label": names}, num_labels=3)
    assert describe(network, {"size": 8}).classes == ("cat", "dog", "owl")
    assert describe(network, {"size": 8}, classes=["a", "b", "c"]).classes == ("a", "b", "c")
    assert describe(network, classes=["a", "b", "c"], image=ImageSpec(8, 8, 3)).image == ImageSpec(8, 8, 3)


def test_a_network_that_carries_nothing_is_refused() -> None:
    with raises("argument.source"):
        describe(Network())


@pytest.mark.parametrize(
    "form",
    [
        lambda z: SimpleNamespace(logits=z),
        lambda z: {"logits": z, "features": z},
        lambda z: (z, z.mean()),
    ],
)
def test_logits_are_found_in_what_a_network_returns(form: Any, tmp_path: Path) -> None:
    plain, wrapped = (
        export_module(gaussianize(Network(one), p=0.1), describe(Network(), image=ImageSpec(8, 8, 3)), tmp_path / name)
        for one, name in ((None, "plain.onnx"), (form, "wrapped.onnx"))
    )
    images = torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8).numpy()
    answers = [Model(done.path).predict(images).probabilities for done in (plain, wrapped)]
    assert (answers[0] == answers[1]).all()


def test_a_network_without_logits_is_refused(tmp_path: Path) -> None:
    described = describe(Network(), image=ImageSpec(8, 8, 3))
    for form, code in (
        (lambda z: SimpleNamespace(loss=z), "head.no-logits"),
        (torch.sigmoid, "head.probabilities"),
        (lambda z: z.softmax(1), "head.probabilities"),
    ):
        with raises(code):
            export_module(gaussianize(Network(form), p=0.1), described, tmp_path / "none.onnx")
    assert not list(tmp_path.iterdir())

"""The networks are the published ones."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from tests.helpers.errors import raises
from uce_edge.errors import UsageError
from uce_edge_train.choices import Architecture
from uce_edge_train.networks import architectures
from uce_edge_train.networks.efficientnet_lite import SamePadding

PUBLISHED = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "densenet121": 7_978_856,
    "densenet169": 14_149_480,
    "efficientnet-lite0": 4_652_008,
    "efficientnet-lite1": 5_416_680,
    "efficientnet-lite2": 6_092_072,
    "mobilenetv3-small": 2_542_856,
    "vit-tiny": 5_717_416,
}
STEMS = [name for name in architectures.ARCHITECTURES if name.has_stems]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_imagenet_form_has_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = architectures.ARCHITECTURES[name](1000, "imagenet")
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("name", STEMS)
@pytest.mark.parametrize(("stem", "reduction"), [("cifar", 1), ("imagenet", 4)])
def test_the_stem_decides_the_resolution(name: str, stem: str, reduction: int) -> None:
    stages = 3 if name in ("resnet8", "resnet9", "resnet20") else 4
    with torch.device("meta"):
        model = architectures.ARCHITECTURES[name](7, stem, 1).eval()
        seen = []
        model.pool.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[-1]))
        assert model(torch.zeros(2, 1, 64, 64)).shape == (2, 7)
    assert seen == [64 // reduction // 2 ** (stages - 1)]


@pytest.mark.parametrize("name", sorted(set(architectures.ARCHITECTURES) - set(STEMS)))
def test_a_network_for_large_images_takes_its_size(name: Architecture) -> None:
    with torch.device("meta"):
        model = architectures.build(name, 7, 1).eval()
        assert model(torch.zeros(2, 1, name.side, name.side)).shape == (2, 7)


def test_a_transformer_refuses_other_image_sizes() -> None:
    with torch.device("meta"), raises("architecture.image-size"):
        architectures.build("vit-tiny", 3, 3)(torch.zeros(1, 3, 192, 192))


@pytest.mark.parametrize(("size", "zeros"), [(224, (0, 1)), (225, (1, 1))])
def test_strided_layers_pad_as_tensorflow_does(size: int, zeros: tuple[int, int]) -> None:
    # ceil(224 / 2) outputs of 3 pixels, 2 apart, need one more pixel, which lies at the end.
    padded = SamePadding(3, 2)(torch.ones(1, 1, size, size))
    row = padded[0, 0, size // 2]
    assert padded.shape[2:] == (size + sum(zeros), size + sum(zeros))
    assert (int((row == 0).nonzero().min() == 0), int(row[-1] == 0)) == zeros


def own(classes: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Flatten(), nn.LazyLinear(classes))


def broken(classes: int, channels: int) -> str:
    return "no module"


def test_a_users_own_network_is_looked_for_in_the_current_folder(tmp_path, monkeypatch, call) -> None:
    (tmp_path / "mynet_here.py").write_text(
        "import torch\n\n\ndef small(classes, channels):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with raises("argument.arch", UsageError):  # a run.json may name code that lies here, and nobody asked for it
        architectures.build("mynet_here:small", 3, 1)
    assert architectures.check("mynet_here:small", tmp_path)
    assert isinstance(architectures.build("mynet_here:small", 3, 1), torch.nn.Sequential)
    assert sys.path == before
    # The images do not exist, and the network is checked first.
    refused = call("train", "--data", "no-such-folder", "--arch", "mynet_there:small", "--out", tmp_path / "run")
    assert (refused.code, refused.error) == (2, "argument.arch")
    assert "Put the folder of mynet_there.py on PYTHONPATH" in refused.err


@pytest.mark.parametrize("arch", ["mynet_there:small", "resnet10"])
def test_a_network_that_is_not_there_is_refused_before_torch_is_loaded(arch: str) -> None:
    code = (
        "import sys\nfrom uce_edge.cli import main\n"
        f"sys.argv = ['uce-edge', 'train', '--arch', {arch!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 2\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert arch in done.stderr


def test_a_users_own_network_is_found_by_its_import_path() -> None:
    model = architectures.build("test_architectures:own", 3, 1)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize("name", ["resnet10", "nowhere.module:function", "test_architectures:missing", ":", "a:"])
def test_an_unknown_network_is_refused(name: str) -> None:
    with raises("argument.arch", UsageError):
        architectures.build(name, 3, 1)


def test_a_function_that_returns_no_network_is_refused() -> None:
    with raises("architecture.not-a-module"):
        architectures.build("test_architectures:broken", 3, 1)


def test_an_unknown_stem_is_refused() -> None:
    with raises("argument.stem", UsageError):
        architectures.resnet8(10, "mnist")

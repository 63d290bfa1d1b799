"""The networks of the zoo. torch is imported when one is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


SIZE = 224
CLASSES = 1000
RATE = 0.05
"""Of Gaussian dropout, in every layer but the first."""


@dataclass(frozen=True)
class Network:
    """One row of the zoo."""

    name: str
    """As its library calls it."""
    library: str
    make: "Callable[..., nn.Module]"
    """With options of the library, which tests use to make it smaller."""
    kind: str
    """The family, for people who look for their own network."""
    small: dict[str, Any] | None = None
    """The options of a small one for `make test-zoo`; None if it is not among the tests."""
    test_size: int = 64
    """The image size of the small one."""

    def build(self, *, small: bool = False) -> "nn.Module":
        """The network in evaluation mode, always with the same weights."""
        import torch
        from random_weights import enliven

        torch.manual_seed(0)
        model = self.make(**(self.small or {}) if small else {})
        return enliven(model, self.test_size if small else SIZE, CLASSES, RATE)


def _timm(
    name: str,
    kind: str,
    small: dict[str, Any] | None = None,
    test_size: int = 64,
    settings: dict[str, Any] | None = None,
) -> Network:
    def make(**options: Any) -> "nn.Module":
        from torchvision_stub import import_timm

        return import_timm().create_model(name, pretrained=False, **(settings or {}) | options)  # type: ignore[no-any-return]

    return Network(name, "timm", make, kind, small, test_size)


def _hub(name: str, kind: str, settings: dict[str, Any] | None = None, small: dict[str, Any] | None = None) -> Network:
    """A class of transformers, made from its configuration."""

    def make(**options: Any) -> "nn.Module":
        import transformers

        model = getattr(transformers, f"{name}ForImageClassification")
        config = model.config_class(**{"num_labels": CLASSES} | (settings or {}) | options)
        return model(config)  # type: ignore[no-any-return]

    return Network(f"{name}ForImageClassification", "transformers", make, kind, small)


_TINY = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}

NETWORKS = {
    network.name: network
    for network in (
        _timm("resnet18", "ResNet", {}),
        _timm("resnet50", "ResNet"),
        _timm("densenet121", "DenseNet"),
        _timm("regnety_002", "RegNet"),
        _timm("repvgg_a0", "RepVGG"),
        _timm("mobilenetv3_small_100", "MobileNetV3", {}),
        _timm("mobilenetv4_conv_small", "MobileNetV4"),
        _timm("ghostnet_100", "GhostNet"),
        _timm("efficientnet_lite0", "EfficientNet-Lite"),
        _timm("efficientnet_b0", "EfficientNet"),
        _timm("nf_regnet_b1", "no normalisation", {}),
        _timm("eca_nfnet_l0", "no normalisation"),
        _timm("convnext_atto", "ConvNeXt", {"depths": (1, 1, 1, 1)}),
        _timm("convnextv2_atto", "ConvNeXt V2"),
        _timm("vit_tiny_patch16_224", "ViT", {"img_size": 64, "depth": 2}),
        _timm("beit_base_patch16_224", "BEiT, 192 wide", settings={"embed_dim": 192, "num_heads": 3}),
        _timm("swin_tiny_patch4_window7_224", "Swin", {"img_size": 64, "window_size": 4, "depths": (2, 2)}),
        _timm("levit_128s", "LeViT", {"img_size": 224}, 224),
        _timm("xcit_nano_12_p16_224", "XCiT", {"img_size": 64, "depth": 2}),
        _timm("cait_xxs24_224", "CaiT"),
        _timm("mobilevit_xxs", "MobileViT", {}, test_size=128),  # at 64, its last stage has one patch
        _timm("fastvit_t8", "FastViT"),
        _timm("efficientformer_l1", "EfficientFormer"),
        _timm("poolformer_s12", "PoolFormer", {}),
        _timm("mixer_s16_224", "MLP-Mixer"),
        _hub("ViT", "ViT, 192 wide", _TINY),
        _hub("Dinov2", "DINOv2, 192 wide",
             {"hidden_size": 192, "num_attention_heads": 3, "image_size": SIZE, "patch_size": 14},
             {"image_size": 56, "num_hidden_layers": 2}),
        _hub("ConvNext", "ConvNeXt", {"hidden_sizes": (40, 80, 160, 320), "depths": (2, 2, 6, 2)},
             {"depths": (1, 1, 1, 1)}),
        _hub("MobileNetV2", "MobileNetV2", None, {}),
        _hub("EfficientNet", "EfficientNet", {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}),
        _hub("Segformer", "SegFormer"),
        _hub("Cvt", "CvT"),
    )
}  # fmt: skip
"""By name, from convolutions to attention."""
TESTED = {name: network for name, network in NETWORKS.items() if network.small is not None}

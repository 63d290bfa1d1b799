"""Networks come with image settings: they are read, or refused with the reason."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.errors import raises

from uce_edge.contract import ResizeFilter, ResizeMode
from uce_edge.images.resize import STRETCH, Resize
from uce_edge_export.options import ChannelOrder, SourceSpec
from uce_edge_export.source import image_settings

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


@pytest.mark.parametrize(
    ("document", "size", "resize"),
    [
        # The files of google/vit-base-patch16-224, facebook/convnext-tiny-224 and -384, facebook/dinov2-base,
        # facebook/levit-128S and an old google/vit.
        ({"size": {"height": 224, "width": 224}, "resample": 2}, (224, 224), STRETCH),
        (
            {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "resample": 3},
            (224, 224),
            Resize(ResizeMode.CROP, 256, ResizeFilter.BICUBIC),
        ),
        (
            {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 384, "crop_pct": None, "resample": 3},
            (384, 384),
            Resize(filter=ResizeFilter.BICUBIC),
        ),
        (
            {
                "size": {"shortest_edge": 256},
                "do_center_crop": True,
                "crop_size": {"height": 224, "width": 224},
                "resample": 3,
            },
            (224, 224),
            Resize(ResizeMode.CROP, 256, ResizeFilter.BICUBIC),
        ),
        (
            {
                "image_processor_type": "LevitImageProcessor",
                "size": {"shortest_edge": 224},
                "do_center_crop": True,
                "crop_size": 224,
                "resample": 3,
            },
            (224, 224),
            Resize(ResizeMode.CROP, 256, ResizeFilter.BICUBIC),
        ),
        ({"size": 224}, (224, 224), STRETCH),
    ],
)
def test_a_preprocessor_is_translated(document: dict[str, Any], size: tuple[int, int], resize: Resize) -> None:
    found = image_settings.of_preprocessor(document | IMAGENET, {"id2label": {"1": "dog", "0": "cat"}})
    assert (found.image.height, found.image.width) == size
    assert found.image.resize == resize
    assert (found.image.scale, found.image.mean) == (255, (0.485, 0.456, 0.406))
    assert found.classes == ("cat", "dog")


def test_pixels_that_are_not_scaled_stay_as_they_are() -> None:
    document = {"size": 32, "do_rescale": False, "do_normalize": False, "do_flip_channel_order": True}
    found = image_settings.of_preprocessor(document)
    assert (found.image.scale, found.image.mean, found.image.std) == (1, (0.0,), (1.0,))
    assert found.bgr
    assert found.image.channels == 3
    assert image_settings.of_preprocessor({"size": 32, "image_mean": [0.5], "image_std": [0.5]}).image.channels == 1
    assert image_settings.of_preprocessor({"size": 32}, {"num_channels": 1}).image.channels == 1


@pytest.mark.parametrize(
    "document",
    [
        {"size": 224, "do_resize": False},
        {"size": 224, "rescale_offset": True},
        {"size": {"shortest_edge": 256}},  # images of many sizes
        {"size": {"shortest_edge": 200}, "do_center_crop": True, "crop_size": 224},
        {"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": 224},
        {"size": 224, "resample": 0},
    ],
)
def test_what_the_contract_cannot_express_is_refused(document: dict[str, Any]) -> None:
    with raises("source.image-settings"):
        image_settings.of_preprocessor(document)


def test_timms_configuration_is_translated() -> None:
    config = {"input_size": (3, 224, 224), "crop_pct": 0.9, "interpolation": "bicubic", "mean": (0.5,) * 3}
    image = image_settings.of_timm(config | {"std": (0.5,) * 3, "crop_mode": "center"}).image
    assert image.resize == Resize(ResizeMode.CROP, 248, ResizeFilter.BICUBIC)
    assert image.mean == (0.5, 0.5, 0.5)
    squashed = config | {"crop_mode": "squash", "crop_pct": 1.0, "interpolation": "bilinear"}
    assert image_settings.of_timm(squashed).image.resize == STRETCH
    with raises("source.image-settings"):
        image_settings.of_timm(squashed | {"crop_pct": 0.9})


def test_torchvisions_transforms_are_translated() -> None:
    transforms = SimpleNamespace(
        crop_size=[224], resize_size=[232], mean=[0.5], std=[0.2], interpolation=SimpleNamespace(value="bilinear")
    )
    found = image_settings.of_torchvision(
        SimpleNamespace(transforms=lambda: transforms, meta={"categories": ["a", "b"]})
    )
    assert found.image.resize == Resize(ResizeMode.CROP, 232)
    assert found.classes == ("a", "b")


def test_a_preprocessor_fills_what_is_not_given(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"size": 48, "do_flip_channel_order": True, **IMAGENET})
    )
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {0: "cat", 1: "cat", 2: "dog"}}))
    filled = image_settings.completed(SourceSpec(preprocessor=tmp_path, scale=1.0, resize=Resize(ResizeMode.PAD)))
    assert (filled.scale, filled.mean, filled.resize) == (1.0, None, Resize(ResizeMode.PAD))
    assert (filled.size, filled.channels) == ((48, 48), ChannelOrder.BGR)
    assert filled.classes == ("cat (0)", "cat (1)", "dog")
    assert image_settings.completed(SourceSpec(preprocessor=tmp_path)).mean == (0.485, 0.456, 0.406)
    for content in ("[]", "{"):
        (tmp_path / "preprocessor_config.json").write_text(content)
        with raises("source.preprocessor"):
            image_settings.completed(SourceSpec(preprocessor=tmp_path))

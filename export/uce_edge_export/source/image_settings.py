"""The image settings that networks come with.

Hugging Face writes them into preprocessor_config.json, timm into `pretrained_cfg`, torchvision into the transforms of
its weights. What the model contract cannot express is refused.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uce_edge._util.atomic_files import read_regular
from uce_edge.contract import ResizeFilter, ResizeMode
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.images.resize import STRETCH, Resize
from uce_edge.metadata import ImageSpec
from uce_edge_export.options import ChannelOrder, SourceSpec

PREPROCESSOR = "preprocessor_config.json"
CONFIG = "config.json"
_FILTERS = {1: ResizeFilter.LANCZOS, 2: ResizeFilter.BILINEAR, 3: ResizeFilter.BICUBIC}
"""By Pillow's numbers."""
# These shrink the shorter side to more than they cut out, without saying so in their files.
_CONVNEXT, _LEVIT, _STRETCHED_FROM = ("ConvNext", "Levit", 384)


@dataclass(frozen=True)
class ImageSettings:
    """How a network wants its images."""

    image: ImageSpec
    bgr: bool = False
    """Whether it takes blue, green, red."""
    classes: tuple[str, ...] | None = None
    """The class names, if they are known."""


def completed(spec: SourceSpec) -> SourceSpec:
    """Fill what is not given with the settings of `preprocessor`, if there is one."""
    if spec.preprocessor is None:
        return spec
    settings = of_folder(spec.preprocessor)
    image, gives_numbers = settings.image, (spec.scale, spec.mean, spec.std) != (None, None, None)
    if not gives_numbers:
        spec = replace(spec, scale=image.scale, mean=image.mean, std=image.std)
    return replace(
        spec,
        classes=settings.classes if spec.classes is None else spec.classes,
        channels=spec.channels or (ChannelOrder.BGR if settings.bgr else ChannelOrder.RGB),
        size=spec.size or (image.height, image.width),
        resize=spec.resize or image.resize,
    )


def of_folder(path: str | Path, config: Mapping[str, Any] | None = None) -> ImageSettings:
    """Read the settings of a Hugging Face model.

    Args:
        path: Its preprocessor_config.json, or the folder of it. Class names come from the config.json beside it.
        config: The content of config.json where there is none.
    """
    path = Path(path)
    file = path / PREPROCESSOR if path.is_dir() else path
    beside = file.with_name(CONFIG)
    return of_preprocessor(_document(file), _document(beside) if beside.is_file() else config)


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(read_regular(path))
    except (OSError, ValueError) as error:
        raise UsageError(
            expected("`preprocessor`", "a preprocessor_config.json of Hugging Face", str(path), f"{error}. Check it"),
            "source.preprocessor",
        ) from None
    if not isinstance(document, dict):
        raise UsageError(
            expected("`preprocessor`", "a JSON object", type(document).__name__, "Check the file"),
            "source.preprocessor",
        )
    return document


def of_preprocessor(document: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> ImageSettings:
    """Translate the settings of a Hugging Face image processor.

    Args:
        document: The content of preprocessor_config.json.
        config: That of config.json, which may have the class names.
    """
    kind = str(document.get("image_processor_type") or document.get("feature_extractor_type") or "")
    side, crop = document.get("size"), document.get("crop_size")
    shortest = side.get("shortest_edge") if isinstance(side, dict) else side if _keeps_ratio(kind) else None
    size = _pair(side) if shortest is None else None
    cuts = bool(document.get("do_center_crop", crop is not None))
    if not document.get("do_resize", True):
        raise _inexpressible("it does not resize its images")
    if document.get("rescale_offset"):
        raise _inexpressible("it scales pixels with an offset")
    if _CONVNEXT in kind and isinstance(shortest, int):
        share = float(document.get("crop_pct") or 224 / 256)
        size, crop, cuts = None, shortest, True
        stretched = shortest >= _STRETCHED_FROM
        size, shortest = ((shortest, shortest), None) if stretched else (None, int(shortest / share))
        cuts = not stretched
    elif _LEVIT in kind and isinstance(shortest, int):
        shortest = int(256 / 224 * shortest)
    filter_ = _filter(document.get("resample", 2))
    cut = _pair(crop) if cuts else None
    if shortest is not None and cut is None:
        raise _inexpressible("it resizes the shorter side and cuts nothing out, so that images differ in size")
    if cut is not None and shortest is not None:
        (height, width), resize = cut, Resize(ResizeMode.CROP, int(shortest), filter_)
        if shortest < max(cut):
            raise _inexpressible(f"it cuts {height}x{width} out of images whose shorter side is {shortest}")
    elif size is not None and cut in (None, size):
        (height, width), resize = size, _stretch(filter_)
    else:
        raise _inexpressible(f"it stretches images to {side} and then cuts out {crop}")
    normalises = document.get("do_normalize", True)
    mean, std = ((document.get(key) or default) if normalises else default for key, default in _NEUTRAL)
    factor = float(document.get("rescale_factor", 1 / 255)) if document.get("do_rescale", True) else 1.0
    gray = len(_numbers(document.get("image_mean") or _COLOUR)) == 1
    channels = int((config or {}).get("num_channels") or (1 if gray else 3))
    image = _spec(height, width, channels, round(1 / factor, 9), mean, std, resize)
    return ImageSettings(image, bool(document.get("do_flip_channel_order")), class_names(config or {}))


_NEUTRAL = (("image_mean", (0.0,)), ("image_std", (1.0,)))
_COLOUR = (0.0, 0.0, 0.0)


def of_timm(config: Mapping[str, Any]) -> ImageSettings:
    """Translate timm's `pretrained_cfg`."""
    channels, height, width = config["input_size"]
    share = float(config.get("crop_pct") or 0.875)
    filter_ = _filter(config.get("interpolation") or "bicubic")
    mode = config.get("crop_mode") or "center"
    if mode == "center":
        resize = Resize(ResizeMode.CROP, math.floor(max(height, width) / share), filter_)
    elif mode == "squash" and share == 1:
        resize = _stretch(filter_)
    else:
        raise _inexpressible(f"timm's crop_mode is {mode} with crop_pct {share:g}")
    names = config.get("label_names")
    image = _spec(height, width, channels, 255.0, config.get("mean", (0.0,)), config.get("std", (1.0,)), resize)
    return ImageSettings(image, classes=tuple(names) if names else None)


def of_torchvision(weights: Any) -> ImageSettings:
    """Translate the transforms of torchvision's weights.

    Args:
        weights: An entry such as `ResNet18_Weights.DEFAULT`.
    """
    transforms = weights.transforms()
    (crop,), (size,) = transforms.crop_size, transforms.resize_size
    filter_ = _filter(getattr(transforms.interpolation, "value", transforms.interpolation))
    image = _spec(
        crop, crop, 3, 255.0, transforms.mean, transforms.std, Resize(ResizeMode.CROP, max(size, crop), filter_)
    )
    return ImageSettings(image, classes=tuple(weights.meta["categories"]) if "categories" in weights.meta else None)


def class_names(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names of `id2label`, in the order of the outputs."""
    names = config.get("id2label")
    if not names:
        return None
    by_output = {int(key): str(name) for key, name in names.items()}
    if sorted(by_output) != list(range(len(by_output))):
        raise _inexpressible("id2label does not number the outputs from 0")
    ordered = [by_output[index] for index in range(len(by_output))]
    return tuple(name if ordered.count(name) == 1 else f"{name} ({index})" for index, name in enumerate(ordered))


def _keeps_ratio(kind: str) -> bool:
    """Whether one number is the shorter side, and not both sides."""
    return any(name in kind for name in (_CONVNEXT, _LEVIT, "MobileNet", "MobileViT", "Poolformer", "PoolFormer"))


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, dict) and {"height", "width"} <= set(value):
        return int(value["height"]), int(value["width"])
    return (value, value) if isinstance(value, int) else None


def _filter(given: Any) -> ResizeFilter:
    found = _FILTERS.get(given) if isinstance(given, int) else None
    if isinstance(given, str):
        name = "bilinear" if given == "random" else given
        found = ResizeFilter(name) if name in list(ResizeFilter) else None
    if found is None:
        raise _inexpressible(f"its filter is {given!r}, and the contract has {', '.join(ResizeFilter)}")
    return found


def _stretch(filter_: ResizeFilter) -> Resize:
    return STRETCH if filter_ is ResizeFilter.BILINEAR else Resize(filter=filter_)


def _numbers(values: Any) -> tuple[float, ...]:
    listed: Sequence[Any] = values if isinstance(values, list | tuple) else [values]
    return tuple(float(value) for value in listed)


def _spec(height: int, width: int, channels: int, scale: float, mean: Any, std: Any, resize: Resize) -> ImageSpec:
    return ImageSpec(height, width, channels, scale=scale, mean=_numbers(mean), std=_numbers(std), resize=resize)


def _inexpressible(why: str) -> UceEdgeError:
    return UceEdgeError(
        f"The network's own image settings cannot be taken over: {why}. Give them yourself: ImageSpec(...) in Python; "
        "--size, --resize, --scale, --mean and --std on the command line",
        "source.image-settings",
    )

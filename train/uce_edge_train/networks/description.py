"""Describe a network by the settings that it carries."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from uce_edge.contract import Inference
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge_export.pipeline import default_samples
from uce_edge_export.source import image_settings
from uce_edge_export.source.image_settings import ImageSettings

Source = str | Path | Mapping[str, Any]
"""A folder, a file or the content of a preprocessor_config.json, or an entry of torchvision's weights."""


def describe(
    model: nn.Module,
    source: Source | Any = None,
    *,
    classes: Sequence[str] | None = None,
    image: ImageSpec | None = None,
    inference: Inference | str = Inference.MC,
    samples: int | None = None,
) -> Metadata:
    """The metadata of a pretrained network's file.

    Args:
        model: A network of timm, whose `pretrained_cfg` has size, crop, filter, mean and std; or of transformers.
        source: Where else the settings are: the folder of a Hugging Face model, a preprocessor_config.json or its
            content, or an entry of torchvision's weights such as `ResNet18_Weights.DEFAULT`. None for those that the
            model carries.
        classes: Class names; None for those of the settings, or else numbers.
        image: The image; None for that of the settings.
        inference: The kind of graph.
        samples: The default number of passes.

    Example:
        >>> network = timm.create_model("vit_tiny_patch16_224", pretrained=True)
        >>> export_module(gaussianize(network, layers="tail", p=0.02), describe(network), "vit.onnx")
    """
    found = None if image is not None and classes is not None else _settings(model, source, image)
    if found is not None and found.bgr and image is None:
        raise UceEdgeError(
            "The network takes blue, green, red, which export_module does not turn round. Write it as ONNX and use: "
            "uce-edge export --from model.onnx --preprocessor preprocessor_config.json",
            "source.image-settings",
        )
    names = tuple(classes) if classes is not None else found.classes if found is not None else None
    count = _outputs(model)
    if names is not None and count is not None and len(names) != count:
        names = None if classes is None else names  # a new head: the settings name the old classes
    if names is None:
        if count is None:
            raise UsageError(
                expected("`classes`", "the class names", None, "The network does not carry them. Use: classes=[...]")
            )
        names = tuple(map(str, range(count)))
    inference = Inference(inference)
    image = image if image is not None else found.image if found is not None else None
    assert image is not None
    passes = default_samples(inference) if samples is None else samples
    return Metadata(names, image, inference=inference, samples=passes, architecture=_name(model))


def _settings(model: nn.Module, source: Any, image: ImageSpec | None) -> ImageSettings | None:
    config: Any = getattr(model, "config", None)
    document: Mapping[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
    found = _given(source, document) if source is not None else _carried(model, document)
    if found is None and image is None:
        raise UsageError(
            expected(
                "`source`",
                "a Hugging Face folder, a preprocessor_config.json or torchvision's weights",
                source,
                f"{type(model).__name__} carries no image settings. Use: image=ImageSpec(224, 224, 3, ...)",
            )
        )
    names = image_settings.class_names(document)
    return replace(found, classes=names) if found is not None and found.classes is None and names else found


def _given(source: Any, config: Mapping[str, Any]) -> ImageSettings:
    if isinstance(source, Mapping):
        return image_settings.of_preprocessor(source, config)
    if hasattr(source, "transforms") and hasattr(source, "meta"):
        return image_settings.of_torchvision(source)
    return image_settings.of_folder(source, config)


def _carried(model: nn.Module, config: Mapping[str, Any]) -> ImageSettings | None:
    timm = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if isinstance(timm, Mapping) and "input_size" in timm:
        return image_settings.of_timm(timm)
    folder = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    if folder and (Path(folder) / image_settings.PREPROCESSOR).is_file():
        return image_settings.of_folder(folder)
    return None


def _outputs(model: nn.Module) -> int | None:
    """The number of classes, as the network gives it."""
    for holder, name in ((model, "num_classes"), (getattr(model, "config", None), "num_labels")):
        count = getattr(holder, name, None)
        if isinstance(count, int) and count > 1:
            return count
    return None


def _name(model: nn.Module) -> str:
    timm = getattr(model, "pretrained_cfg", None)
    named = timm.get("architecture") if isinstance(timm, Mapping) else None
    return str(named or type(model).__name__)

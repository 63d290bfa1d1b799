"""Heatmaps drawn over images, in colours that colour-blind people can tell apart."""

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge.metadata import ImageSpec
from uce_edge.runtime.prediction import ImagePrediction

Map = npt.NDArray[np.float32]

# Viridis: brightness rises with the value, so that it also reads in gray.
_COLOURS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float32)
_OPAQUE = 0.75  # of the largest value


def scaled(values: Map, largest: float) -> Map:
    """From 0 to 1: what speaks against the class is 0."""
    unit: Map = np.clip(values / largest, 0, 1).astype(np.float32) if largest > 0 else np.zeros_like(values)
    return unit


def placed(values: Map, size: tuple[int, int], spec: ImageSpec) -> Map:
    """A map over the whole image, back through the resize of the file.

    Args:
        values: [height, width], of the model's feature map.
        size: Width and height of the image to draw on, in its own proportions.
        spec: The image that the model takes.

    Returns:
        [height, width] of the image; 0 for what the file cuts off.
    """
    layout = spec.resize.layout(size, (spec.width, spec.height))
    seen = Image.fromarray(values.astype(np.float32)).resize((spec.width, spec.height), Image.Resampling.BILINEAR)
    whole = Image.new("F", (layout.width, layout.height), 0)
    whole.paste(seen, (layout.left, layout.top))
    return np.asarray(whole.resize(size, Image.Resampling.BILINEAR), np.float32)


def overlaid(image: Image.Image, values: Map) -> Image.Image:
    """An image with a map from 0 to 1 of its size over it: 0 is clear."""
    positions = np.linspace(0, 1, len(_COLOURS))
    colours = np.stack([np.interp(values, positions, channel) for channel in _COLOURS.T], axis=-1)
    alpha = _OPAQUE * values[..., None]
    gray = np.asarray(image.convert("L").convert("RGB"), np.float32)  # the colours of the map alone
    return Image.fromarray(np.rint(gray * (1 - alpha) + colours * alpha).astype(np.uint8))


def panels(prediction: ImagePrediction, image: Image.Image) -> list[tuple[str, Image.Image]]:
    """The pictures of a prediction's maps, with captions; none without maps.

    Args:
        prediction: The prediction.
        image: Its image, in its own proportions.
    """
    spec, heatmap, spread = prediction.spec, prediction.heatmap, prediction.heatmap_spread
    if spec is None or heatmap is None:
        return []
    maps = {"where it looked": heatmap}
    if spread is not None and heatmap.max() > 0:
        maps[f"where the passes disagree: {spread.max() / heatmap.max():.0%}"] = spread
    return [
        (caption, overlaid(image, placed(scaled(values, float(values.max())), image.size, spec)))
        for caption, values in maps.items()
    ]

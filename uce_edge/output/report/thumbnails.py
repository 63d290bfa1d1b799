"""Inline images as PNG data URIs."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge.evaluation import Example
from uce_edge.metadata import ImageSpec
from uce_edge.output.heatmap_overlay import panels
from uce_edge.output.report.markup import Markup, element
from uce_edge.output.wording import number, percent

_LARGEST = 160  # pixels: a page of two dozen photos stays small
_SMALL = 64  # pixels: smaller images are scaled without blur


def gallery(examples: tuple[Example, ...], spec: ImageSpec) -> Markup:
    """Images with predicted and true labels."""
    return element("ul", *(_card(example, spec) for example in examples), class_="gallery")


def strip(pictures: Sequence[npt.NDArray[Any]], spec: ImageSpec, what: str) -> Markup:
    """The same image at several severities."""
    shown = (_picture(pixels, spec, f"{what}, severity {index}") for index, pixels in enumerate(pictures))
    return element("div", *shown, class_="strip")


def data_uri(pixels: npt.NDArray[Any], spec: ImageSpec) -> str:
    """A PNG of the pixels of a model's image, as a data URI."""
    return _uri(_image(pixels, spec))


def _image(pixels: npt.NDArray[Any], spec: ImageSpec) -> Image.Image:
    values = pixels if spec.dtype == "uint8" else np.clip(pixels / np.float32(spec.scale) * 255, 0, 255)
    image = Image.fromarray(values.astype(np.uint8)[..., 0] if spec.channels == 1 else values.astype(np.uint8))
    image.thumbnail((_LARGEST, _LARGEST))
    return image


def _uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _card(example: Example, spec: ImageSpec) -> Markup:
    right = example.label == example.truth
    words = f"right: {example.truth}" if right else f"{example.label}, truth {example.truth}"
    picture = _picture(example.pixels, spec, f"image {example.index}: {words}")
    verdict = (
        element("span", "✓ ", element("b", example.label), class_="right")
        if right
        else element("span", "✗ ", element("b", example.label), ", truth ", element("b", example.truth), class_="wrong")
    )
    rest = [
        f"uncertainty {number(example.uncertainty)}",
        f"confidence {percent(example.confidence, 0)}",
        f"image {example.index}" if example.name is None else example.name,
    ]
    maps = [] if example.mapped is None else panels(example.mapped, _image(example.pixels, spec))
    drawn = [_shown(_uri(image), spec, caption) for caption, image in maps]
    return element("li", picture, *drawn, verdict, *(element("span", words, class_="quiet") for words in rest))


def _picture(pixels: npt.NDArray[Any], spec: ImageSpec, words: str) -> Markup:
    return _shown(data_uri(pixels, spec), spec, words)


def _shown(uri: str, spec: ImageSpec, words: str) -> Markup:
    small = "pixels" if max(spec.height, spec.width) < _SMALL else None
    return element("img", src=uri, alt=words, class_=small)

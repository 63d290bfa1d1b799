"""Corrupt images in five severities.

| kind | parameter | 1 | 2 | 3 | 4 | 5 |
| --- | --- | --- | --- | --- | --- | --- |
| noise | standard deviation, of the full range | 0.04 | 0.08 | 0.12 | 0.18 | 0.26 |
| blur | standard deviation, in 1/32 of the shorter side, at least in pixels | 0.5 | 0.7 | 0.9 | 1.2 | 1.6 |
| brightness | added, of the full range | 0.1 | 0.2 | 0.3 | 0.4 | 0.5 |
| contrast | what is left of the distance to the image's mean | 0.75 | 0.6 | 0.45 | 0.3 | 0.15 |
| jpeg | quality | 70 | 45 | 25 | 12 | 6 |
| pixelate | what is left of each side's pixels | 0.85 | 0.65 | 0.5 | 0.38 | 0.27 |

Blur and pixelate scale with the image, so that a severity looks alike at 32x32 and at 224x224. The kinds are those of
ImageNet-C (Hendrycks & Dietterich 2019); the strengths are not, so that scores do not compare.
"""

import hashlib
import io
from collections.abc import Callable
from enum import StrEnum
from functools import partial

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from uce_edge.errors import ImageError, UsageError, expected
from uce_edge.metrics.argument_checks import choice, whole

Images = npt.NDArray[np.uint8]


class Kind(StrEnum):
    """What is done to an image."""

    NOISE = "noise"
    """Gaussian noise on every value: a sensor in the dark."""
    BLUR = "blur"
    """A Gaussian blur: out of focus."""
    BRIGHTNESS = "brightness"
    """Brighter, and white where the range ends: overexposed. White itself stays as it is."""
    CONTRAST = "contrast"
    """Every channel drawn towards its mean: fog."""
    JPEG = "jpeg"
    """Compressed too far. Exactly the same bytes only with the same build of Pillow's JPEG library."""
    PIXELATE = "pixelate"
    """Too few pixels, enlarged."""


KINDS = tuple(Kind)
"""All kinds, in the order of the table."""
SEVERITIES = (1, 2, 3, 4, 5)
"""From hardly visible to hard for people."""

_STRENGTHS: dict[Kind, tuple[float, ...]] = {
    Kind.NOISE: (0.04, 0.08, 0.12, 0.18, 0.26),
    Kind.BLUR: (0.5, 0.7, 0.9, 1.2, 1.6),
    Kind.BRIGHTNESS: (0.1, 0.2, 0.3, 0.4, 0.5),
    Kind.CONTRAST: (0.75, 0.6, 0.45, 0.3, 0.15),
    Kind.JPEG: (70, 45, 25, 12, 6),
    # At 8x8 these leave 7, 5, 4, 3 and 2: enlarging 6 to 8 by whole pixels shifts more than it coarsens.
    Kind.PIXELATE: (0.85, 0.65, 0.5, 0.38, 0.27),
}


def corrupt(images: Images, kind: Kind | str, severity: int, seed: int = 0) -> Images:
    """The images, corrupted.

    Only `noise` is random. It follows from the seed and the image's own pixels: it is the same in every batch and at
    every place in it, and in all severities but for its strength.

    Args:
        images: uint8 [n, height, width, channels], with 1 or 3 channels.
        kind: What is done to them.
        severity: From 1 to 5.
        seed: Another seed gives other noise.

    Returns:
        New images of the same shape.
    """
    choice("kind", kind, tuple(map(str, KINDS)), "Choose one of them.")
    if whole("severity", severity, 1, "Give a whole number from 1 to 5.") not in SEVERITIES:
        raise UsageError(expected("severity", "an integer from 1 to 5", severity, "5 is the most severe."))
    seed = whole("seed", seed, 0, "Any whole number will do, such as 0.")
    good = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 4 and images.size > 0
    if not good or images.shape[3] not in (1, 3):
        shape = f"{images.dtype} {list(images.shape)}" if isinstance(images, np.ndarray) else type(images).__name__
        rule = "a non-empty uint8 array of shape [n, height, width, 1 or 3]"
        remedy = "Put the channels last, scale to 0..255 and use .astype(np.uint8)."
        raise ImageError(expected("`images`", rule, shape, remedy))
    kind = Kind(kind)
    method = partial(_noise, seed=seed) if kind is Kind.NOISE else _METHODS[kind]
    return np.stack([method(image, _STRENGTHS[kind][severity - 1]) for image in images])


def _noise(image: Images, deviation: float, seed: int) -> Images:
    # From the content, not the place: a test set cut into batches or shuffled keeps its noise.
    content = hashlib.blake2b(repr(image.shape).encode() + image.tobytes(), digest_size=16).digest()
    rng = np.random.default_rng([seed, int.from_bytes(content, "little")])
    return _rounded(image + 255 * deviation * rng.standard_normal(image.shape, dtype=np.float32))


def _blur(image: Images, deviation: float) -> Images:
    # Below half a pixel, Pillow rounds most of the blur away.
    radius = deviation * max(1, min(image.shape[:2]) / 32)
    return _from_pillow(_to_pillow(image).filter(ImageFilter.GaussianBlur(radius)), image)


def _brightness(image: Images, shift: float) -> Images:
    return _rounded(image + np.float32(255 * shift))


def _contrast(image: Images, left: float) -> Images:
    mean = image.mean(axis=(0, 1), dtype=np.float64)
    return _rounded(mean + left * (image - mean))


def _jpeg(image: Images, quality: float) -> Images:
    file = io.BytesIO()
    _to_pillow(image).save(file, "JPEG", quality=int(quality))
    with Image.open(file) as compressed:
        return _from_pillow(compressed, image)


def _pixelate(image: Images, left: float) -> Images:
    height, width = image.shape[:2]
    small = max(1, round(left * width)), max(1, round(left * height))
    few = _to_pillow(image).resize(small, Image.Resampling.BOX)
    return _from_pillow(few.resize((width, height), Image.Resampling.NEAREST), image)


_METHODS: dict[Kind, Callable[[Images, float], Images]] = {
    Kind.BLUR: _blur,
    Kind.BRIGHTNESS: _brightness,
    Kind.CONTRAST: _contrast,
    Kind.JPEG: _jpeg,
    Kind.PIXELATE: _pixelate,
}


def _to_pillow(image: Images) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)


def _from_pillow(picture: Image.Image, like: Images) -> Images:
    return np.asarray(picture, np.uint8).reshape(like.shape)


def _rounded(values: npt.NDArray[np.floating]) -> Images:
    pixels: Images = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return pixels

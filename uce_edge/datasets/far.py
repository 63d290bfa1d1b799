"""Images that are no photos at all, made by rule: what no model should accept, and many do."""

import string
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.metadata import ImageSpec

NAME = "far"
"""What the set is called where a dataset is named."""
EACH = 200
"""Images of every kind."""

Floats = npt.NDArray[np.float64]


def far(spec: ImageSpec, each: int = EACH, seed: int = 0) -> npt.NDArray[Any]:
    """Noise, single colours, gratings, checkerboards and text, equally many of each; always the same.

    Args:
        spec: What the model takes as an image.
        each: How many of every kind.
        seed: Of what is random in them.

    Returns:
        [kinds * each, height, width, channels], kind after kind as in `KINDS`.
    """
    rng = np.random.default_rng(seed)
    shape = (spec.height, spec.width, spec.channels)
    made = [kind(rng, shape) for kind in KINDS.values() for _ in range(each)]
    return np.stack([np.clip(np.rint(image), 0, 255) for image in made]).astype(spec.dtype)


def kinds(each: int = EACH) -> tuple[str, ...]:
    """The kind of every image of `far`."""
    return tuple(name for name in KINDS for _ in range(each))


def _noise(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Every pixel by itself: uniform, or around a gray, with any contrast."""
    if rng.random() < 0.5:
        return rng.uniform(0, 256, shape)
    return rng.normal(rng.uniform(64, 192), rng.uniform(30, 90), shape)


def _constant(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """One colour, with the faint noise of a sensor: a covered lens, a dead camera."""
    return np.broadcast_to(_colour(rng, shape), shape) + rng.normal(0, rng.uniform(0, 3), shape)


def _grating(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """A wave of two colours, in any direction, 2 to 16 periods wide."""
    height, width, _ = shape
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    angle, periods, phase = rng.uniform(0, np.pi), rng.uniform(2, 16), rng.uniform(0, 2 * np.pi)
    wave = 0.5 + 0.5 * np.sin(2 * np.pi * periods * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    return _between(wave, rng, shape)


def _checkerboard(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Squares of two colours, 2 to 16 along the shorter side."""
    height, width, _ = shape
    side = max(1, min(height, width) // int(rng.integers(2, 17)))
    y, x = np.mgrid[0:height, 0:width] // side
    return _between(((x + y + rng.integers(2)) % 2).astype(np.float64), rng, shape)


def _text(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Lines of random letters and digits, in one colour on another."""
    from PIL import Image, ImageDraw, ImageFont

    height, width, _ = shape
    points = max(7, int(min(height, width) * rng.uniform(0.2, 0.5)))
    canvas = Image.new("L", (width, height), 0)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(points)
    letters = list(string.ascii_letters + string.digits)
    for top in range(-points // 4, height, points):
        line = "".join(rng.choice(letters, 1 + 3 * width // points))
        draw.text((-int(rng.integers(points)), top), line, 255, font)
    return _between(np.asarray(canvas, np.float64) / 255, rng, shape)


def _between(share: Floats, rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """From one colour, where the share is 0, to another one, which is not too near."""
    first, second = _colour(rng, shape), _colour(rng, shape)
    while np.abs(first - second).max() < 64:
        second = _colour(rng, shape)
    return first + share[..., None] * (second - first)


def _colour(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return rng.uniform(0, 256, shape[2])


KINDS: dict[str, Callable[[np.random.Generator, tuple[int, int, int]], Floats]] = {
    "noise": _noise,
    "single colours": _constant,
    "gratings": _grating,
    "checkerboards": _checkerboard,
    "text": _text,
}
"""The kinds, in the order of the images."""

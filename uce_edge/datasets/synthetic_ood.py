"""Synthetic out-of-distribution images.

The kinds are divided into two fixed sets. `CHOICE` is for choosing a level: `calibrate` shows the share that every
level accepts. `JUDGE` is used for no choice, so that the results of `evaluate` and the model cards are unbiased.
"""

import string
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uce_edge.metadata import ImageSpec

EACH = 200
"""Images of every kind."""

Floats = npt.NDArray[np.float64]
Shape = tuple[int, int, int]
Kinds = Mapping[str, Callable[[np.random.Generator, Shape], Floats]]


class Far(NamedTuple):
    """Images, and the kind of each."""

    images: npt.NDArray[Any]
    """[images, height, width, channels]."""
    kinds: tuple[str, ...]


def far(spec: ImageSpec, kinds: Kinds, own: npt.NDArray[Any] | None = None, each: int = EACH, seed: int = 0) -> Far:
    """Make equally many images of every kind, reproducibly.

    Args:
        spec: The image format of the model.
        kinds: `CHOICE` or `JUDGE`.
        own: In-distribution images. `JUDGE` includes copies of them with shuffled patches.
        each: The number of images of every kind.
        seed: The seed of the random numbers.
    """
    shape = (spec.height, spec.width, spec.channels)
    if own is not None and kinds is JUDGE:
        kinds = {**kinds, SHUFFLED: lambda rng, _: _shuffled(rng, own)}
    images = np.empty((len(kinds) * each, *shape), spec.dtype)
    for number, (name, make) in enumerate(kinds.items()):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])  # independent of the other kinds
        for index in range(each):
            images[number * each + index] = np.clip(np.rint(make(rng, shape)), 0, 255)
    return Far(images, tuple(name for name in kinds for _ in range(each)))


def _noise(rng: np.random.Generator, shape: Shape) -> Floats:
    """Every pixel by itself: uniform, or around a gray, with any contrast."""
    if rng.random() < 0.5:
        return rng.uniform(0, 256, shape)
    return rng.normal(rng.uniform(64, 192), rng.uniform(30, 90), shape)


def _constant(rng: np.random.Generator, shape: Shape) -> Floats:
    """One colour, with the faint noise of a sensor: a covered lens, a dead camera."""
    return np.broadcast_to(_colour(rng, shape), shape) + rng.normal(0, rng.uniform(0, 3), shape)


def _grating(rng: np.random.Generator, shape: Shape) -> Floats:
    """A wave of two colours, in any direction, 2 to 16 periods wide."""
    height, width, _ = shape
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    angle, periods, phase = rng.uniform(0, np.pi), rng.uniform(2, 16), rng.uniform(0, 2 * np.pi)
    wave = 0.5 + 0.5 * np.sin(2 * np.pi * periods * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    return _between(wave, rng, shape)


def _checkerboard(rng: np.random.Generator, shape: Shape) -> Floats:
    """Squares of two colours, 2 to 16 along the shorter side."""
    height, width, _ = shape
    side = max(1, min(height, width) // int(rng.integers(2, 17)))
    y, x = np.mgrid[0:height, 0:width] // side
    return _between(((x + y + rng.integers(2)) % 2).astype(np.float64), rng, shape)


def _text(rng: np.random.Generator, shape: Shape) -> Floats:
    """Lines of random letters and digits, in one colour on another."""
    return _between(_drawn(rng, shape, _add_lines), rng, shape)


def _add_lines(draw: Any, rng: np.random.Generator, width: int, height: int) -> None:
    from PIL import ImageFont

    points = max(7, int(min(height, width) * rng.uniform(0.2, 0.5)))
    font, letters = ImageFont.load_default(points), list(string.ascii_letters + string.digits)
    for top in range(-points // 4, height, points):
        line = "".join(rng.choice(letters, 1 + 3 * width // points))
        draw.text((-int(rng.integers(points)), top), line, 255, font)


def _pink(rng: np.random.Generator, shape: Shape) -> Floats:
    """Noise with the spectrum of photos: amplitudes fall as 1/f, or a little slower or faster."""
    height, width, channels = shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    spectrum = rng.normal(size=(channels, 2, *frequency.shape)) / frequency ** rng.uniform(0.8, 1.2)
    waves = np.fft.irfft2(spectrum[:, 0] + 1j * spectrum[:, 1], (height, width))
    waves += rng.uniform(0, 2) * waves[:1]  # channels that are more or less alike
    waves /= np.maximum(waves.std(axis=(1, 2), keepdims=True), 1e-9)
    return rng.uniform(80, 176) + rng.uniform(25, 70) * waves.transpose(1, 2, 0)


def _mosaic(rng: np.random.Generator, shape: Shape) -> Floats:
    """Voronoi cells around 6 to 40 random points, each of one colour."""
    height, width, _ = shape
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    nearest, image = np.full((height, width), np.inf), np.zeros(shape)
    for _ in range(int(rng.integers(6, 41))):
        distance = np.hypot(
            y - rng.random() * height / max(height, width), x - rng.random() * width / max(height, width)
        )
        image[distance < nearest] = _colour(rng, shape)
        nearest = np.minimum(nearest, distance)
    return image


def _shapes(rng: np.random.Generator, shape: Shape) -> Floats:
    """Three to eight filled ellipses, rectangles and triangles on one colour."""
    image = np.broadcast_to(_colour(rng, shape), shape).copy()
    for _ in range(int(rng.integers(3, 9))):
        image[_drawn(rng, shape, _add_shape) > 0.5] = _colour(rng, shape)
    return image


def _add_shape(draw: Any, rng: np.random.Generator, width: int, height: int) -> None:
    corners = rng.uniform(-0.1, 1.1, (3, 2)) * (width, height)
    box = [*corners[:2].min(axis=0), *corners[:2].max(axis=0)]
    match int(rng.integers(3)):
        case 0:
            draw.ellipse(box, fill=255)
        case 1:
            draw.rectangle(box, fill=255)
        case _:
            draw.polygon([tuple(corner) for corner in corners], fill=255)


def _xray(rng: np.random.Generator, shape: Shape) -> Floats:
    """A chest radiograph: two dark fields, a bright spine, ribs and grain."""
    height, width, _ = shape
    y, x = (np.mgrid[0:height, 0:width] + 0.5) / np.array([height, width])[:, None, None] * 2 - 1
    y, x = y + rng.normal(0, 0.08), x + rng.normal(0, 0.08)

    def field(centre: float, across: float, down: float) -> Floats:
        inside: Floats = 0.5 - 0.5 * np.tanh(6 * (((x - centre) / across) ** 2 + (y / down) ** 2 - 1))
        return inside

    lungs = field(-0.42, rng.uniform(0.25, 0.36), 0.7) + field(0.42, rng.uniform(0.25, 0.36), 0.7)
    ribs = np.sin(rng.uniform(14, 26) * (y + rng.uniform(0.2, 0.6) * np.abs(x)) + rng.uniform(0, 6))
    gray = rng.uniform(0.5, 0.7) * field(0, 0.98, 1.3) + 0.25 * np.exp(-((x / 0.12) ** 2))
    gray += lungs * (0.06 * ribs - rng.uniform(0.25, 0.45)) + rng.normal(0, rng.uniform(0.005, 0.03), gray.shape)
    return np.broadcast_to(255 * gray[..., None], shape)


def _thermal(rng: np.random.Generator, shape: Shape) -> Floats:
    """A thermal image: a few warm spots, in false colours for three channels."""
    height, width, channels = shape
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    heat = rng.uniform(0, 0.3) + rng.normal(0, 0.2) * x + rng.normal(0, 0.2) * y
    for _ in range(int(rng.integers(2, 7))):
        distance = ((x - rng.random()) / rng.uniform(0.08, 0.4)) ** 2 + (
            (y - rng.random()) / rng.uniform(0.08, 0.4)
        ) ** 2
        heat = heat + rng.uniform(0.2, 0.8) * np.exp(-distance)
    heat = np.clip(heat + rng.normal(0, 0.01, heat.shape), 0, 1)
    if channels != 3:
        return np.broadcast_to(255 * heat[..., None], shape)
    return np.stack([np.interp(heat, np.linspace(0, 1, len(_IRON)), colour) for colour in _IRON.T], axis=-1)


def _chart(rng: np.random.Generator, shape: Shape) -> Floats:
    """A diagram: two axes, and one to three lines or rows of bars."""
    image = np.broadcast_to(rng.uniform(200, 256, shape[2]), shape).copy()
    image[_drawn(rng, shape, _add_axes) > 0.5] = rng.uniform(0, 60)
    for _ in range(int(rng.integers(1, 4))):
        image[_drawn(rng, shape, _add_series) > 0.5] = _colour(rng, shape)
    return image


def _add_axes(draw: Any, _: np.random.Generator, width: int, height: int) -> None:
    points = [(0.1 * width, 0.05 * height), (0.1 * width, 0.9 * height), (0.95 * width, 0.9 * height)]
    draw.line(points, fill=255, width=max(1, width // 64))


def _add_series(draw: Any, rng: np.random.Generator, width: int, height: int) -> None:
    count = int(rng.integers(4, 13))
    x = np.linspace(0.15, 0.9, count) * width
    y = np.clip(0.5 + 0.12 * np.cumsum(rng.normal(size=count)), 0.1, 0.85) * height
    if rng.random() < 0.5:
        draw.line(list(zip(x, y, strict=True)), fill=255, width=max(1, width // 32))
        return
    for left, top in zip(x, y, strict=True):
        draw.rectangle([left, top, left + 0.3 * width / count, 0.9 * height], fill=255)


def _shuffled(rng: np.random.Generator, own: npt.NDArray[Any]) -> Floats:
    """An in-distribution image with its square patches in random order."""
    image: Floats = own[rng.integers(len(own))].astype(np.float64)
    height, width, channels = image.shape
    side = max(1, min(height, width) // int(rng.integers(4, 9)))
    down, across = height // side, width // side
    inner = image[: down * side, : across * side]
    patches = inner.reshape(down, side, across, side, channels).swapaxes(1, 2).reshape(-1, side, side, channels)
    patches = rng.permutation(patches).reshape(down, across, side, side, channels)
    image[: down * side, : across * side] = patches.swapaxes(1, 2).reshape(inner.shape)
    return image


def _drawn(rng: np.random.Generator, shape: Shape, add: Callable[[Any, np.random.Generator, int, int], None]) -> Floats:
    """A drawing by Pillow, 0 to 1."""
    from PIL import Image, ImageDraw

    height, width, _ = shape
    canvas = Image.new("L", (width, height), 0)
    add(ImageDraw.Draw(canvas), rng, width, height)
    return np.asarray(canvas, np.float64) / 255


def _between(share: Floats, rng: np.random.Generator, shape: Shape) -> Floats:
    """Interpolate between two random colours that are not too similar."""
    first, second = _colour(rng, shape), _colour(rng, shape)
    while np.abs(first - second).max() < 64:
        second = _colour(rng, shape)
    return first + share[..., None] * (second - first)


def _colour(rng: np.random.Generator, shape: Shape) -> Floats:
    return rng.uniform(0, 256, shape[2])


_IRON = np.array([(0, 0, 20), (70, 0, 130), (190, 20, 120), (245, 110, 20), (255, 210, 60), (255, 255, 235)], float)
"""The colours of heat, from cold to hot."""

SHUFFLED = "shuffled patches"
"""The kind that is made of in-distribution images."""
CHOICE: Kinds = {
    "noise": _noise,
    "gratings": _grating,
    "shapes": _shapes,
    "text": _text,
    "X-rays": _xray,
    "mosaics": _mosaic,
}
"""The kinds for choosing a level."""
JUDGE: Kinds = {
    "pink noise": _pink,
    "checkerboards": _checkerboard,
    "single colours": _constant,
    "charts": _chart,
    "thermal": _thermal,
}
"""The kinds for evaluation only; with in-distribution images, `SHUFFLED` is one of them."""
HALVES: Mapping[str, Kinds] = {"far": JUDGE, "far-choice": CHOICE}
"""The names of the sets on the command line."""

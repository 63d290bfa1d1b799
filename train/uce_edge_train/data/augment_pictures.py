"""Generated pictures that PixMix mixes into training images.

`SEEN` names what they are alike among the kinds of `uce_edge.datasets.synthetic_ood`; a test shows that the others stay
unseen.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

PICTURES = 300
"""The number of pictures of a training."""
_LEAST_CONTRAST = 0.12  # standard deviation of the values 0 to 1: what is flatter is drawn again
_TRIES = 50  # a picture of one pixel is always flat

Floats = npt.NDArray[np.float64]


def mixing_pictures(height: int, width: int, channels: int, seed: int, count: int = PICTURES) -> npt.NDArray[np.uint8]:
    """A reproducible set of pictures [count, channels, height, width]."""
    rng = np.random.default_rng([seed, 0x91C7])  # apart from whatever else the seed decides
    kinds = list(KINDS.values())
    bank = np.empty((count, channels, height, width), np.uint8)
    for index in range(count):
        make = kinds[index % len(kinds)]
        for _ in range(_TRIES):
            picture = _coloured(make(rng, height, width), channels, rng)
            if picture.std(axis=(1, 2)).mean() >= _LEAST_CONTRAST:
                break
        bank[index] = np.rint(255 * picture)
    return bank


def _plasma(rng: np.random.Generator, height: int, width: int) -> Floats:
    """Clouds: random waves, weaker at high frequencies."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    spectrum = rng.normal(size=(2, *frequency.shape)) / frequency ** rng.uniform(1.4, 2.2)
    return np.fft.irfft2(spectrum[0] + 1j * spectrum[1], (height, width))


def _julia(rng: np.random.Generator, height: int, width: int) -> Floats:
    """Escape speed of z² + c near the Mandelbrot set."""
    turn = np.exp(2j * np.pi * rng.random())
    c = (turn / 2 - turn**2 / 4) * rng.uniform(1.01, 1.12)
    y, x = _grid(rng, height, width, rng.uniform(0.4, 1.3))
    z = x + 1j * y
    speed = np.zeros((height, width))
    for _ in range(40):
        z = np.where(np.abs(z) < 4, z**2 + c, z)
        speed += np.exp(-np.abs(z))  # smooth, where a count of steps would have edges
    return speed


def _iterated(rng: np.random.Generator, height: int, width: int) -> Floats:
    """Density of the chaos game of random contractions."""
    maps = int(rng.integers(2, 5))
    angle, shrink = rng.uniform(0, 2 * np.pi, (2, maps)), rng.uniform(0.45, 0.8, (2, maps))
    matrices = np.array(
        [[shrink[0] * np.cos(angle[0]), -shrink[1] * np.sin(angle[1])],
         [shrink[0] * np.sin(angle[0]), shrink[1] * np.cos(angle[1])]]
    ).transpose(2, 0, 1)  # fmt: skip
    offsets = rng.uniform(-1, 1, (maps, 2))
    points = rng.uniform(-1, 1, (4 * height * width, 2))
    for _ in range(16):
        chosen = rng.integers(maps, size=len(points))
        points = np.einsum("nij,nj->ni", matrices[chosen], points) + offsets[chosen]
    low, high = np.quantile(points, [0.02, 0.98], axis=0)
    ranges = list(zip(low, high + 1e-9, strict=True))
    visits, *_ = np.histogram2d(points[:, 0], points[:, 1], bins=(height, width), range=ranges)
    return np.log1p(_smooth(visits))


def _mosaic(rng: np.random.Generator, height: int, width: int) -> Floats:
    """Voronoi cells around 12 to 40 random points."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    sites = rng.random((int(rng.integers(12, 41)), 2))
    distance = np.hypot(y[..., None] - sites[:, 0], x[..., None] - sites[:, 1])
    nearest, second = np.sort(distance, axis=-1)[..., :2].transpose(2, 0, 1)
    values: Floats = rng.random(len(sites))[distance.argmin(-1)] + rng.uniform(0, 1) * nearest / second
    return values


def _grid(rng: np.random.Generator, height: int, width: int, extent: float) -> tuple[Floats, Floats]:
    """Coordinates of a rotated square with a random centre."""
    y, x = (np.mgrid[0:height, 0:width] / max(height, width) * 2 - 1) * extent
    angle, shift = rng.uniform(0, 2 * np.pi), rng.normal(0, 0.3, 2)
    return x * np.sin(angle) + y * np.cos(angle) + shift[0], x * np.cos(angle) - y * np.sin(angle) + shift[1]


def _smooth(values: Floats) -> Floats:
    """The mean of every 3x3 neighbourhood."""
    padded = np.pad(values, 1, mode="edge")
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    return (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]) / 9


def _coloured(values: Floats, channels: int, rng: np.random.Generator) -> Floats:
    """Map values to a picture through random colours."""
    low, high = values.min(), values.max()
    share = (values - low) / max(high - low, 1e-9)
    colours = rng.random((int(rng.integers(3, 6)), channels))
    places = np.linspace(0, 1, len(colours))
    return np.stack([np.interp(share, places, colours[:, channel]) for channel in range(channels)])


KINDS: dict[str, Callable[[np.random.Generator, int, int], Floats]] = {
    "plasma": _plasma,
    "julia sets": _julia,
    "iterated functions": _iterated,
    "mosaics": _mosaic,
}
"""The kinds, by their names."""
SEEN = (*KINDS, "pink noise")  # clouds have its spectrum; mosaics are called alike
"""Names of the kinds, as in `Recipe.seen`."""

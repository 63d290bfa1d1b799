"""Images per second of a whole folder, against the slower of its two halves: decoding alone, and the model alone."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from uce_edge._util.prefetch import cores
from uce_edge.images.loader import load
from uce_edge.models import bundled
from uce_edge.runtime.model import Model

FOLDERS = {"32x32 PNG": (400, (32, 32), "png"), "1920x1080 JPEG": (160, (1920, 1080), "jpg")}
"""Number, width and height, and format: in the first the model is the slower half, in the second decoding is."""
_ROUNDS = 5


@dataclass(frozen=True)
class Rates:
    """Images per second, the best of some rounds that took turns."""

    decoding: float
    model: float
    both: float

    @property
    def share(self) -> float:
        """Of the slower half's rate that the whole reaches."""
        return self.both / min(self.decoding, self.model)

    @property
    def of_sum(self) -> float:
        """The same against both halves one after another, each on all cores: a floor where they share the cores."""
        return self.both * (1 / self.decoding + 1 / self.model)


def make(kind: str, place: Path) -> list[Path]:
    """A folder of made pictures."""
    count, (width, height), suffix = FOLDERS[kind]
    # Enlarged noise compresses as photos do.
    coarse = np.random.default_rng(0).integers(0, 256, (count, height // 8, width // 8, 3), dtype=np.uint8)
    paths = [place / f"{number}.{suffix}" for number in range(count)]
    for path, pixels in zip(paths, coarse, strict=True):
        Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(path)
    return paths


def measure(paths: list[Path]) -> Rates:
    """The rates of decoding alone, of the bundled model alone, and of a folder as `uce-edge predict` answers it."""
    model = Model(bundled(name="cifar10"), spin=False)
    spec = model.metadata.image

    def decode() -> np.ndarray:
        with ThreadPoolExecutor(cores()) as pool:
            return np.stack(list(pool.map(lambda path: load(path, spec), paths)))

    pixels = decode()
    best = dict.fromkeys(("decoding", "model", "both"), 0.0)
    for _ in range(_ROUNDS):
        for name, work in (
            ("decoding", decode),
            ("model", lambda: model.predict(pixels)),
            ("both", lambda: list(model.answers(paths))),
        ):
            start = time.perf_counter()
            done = work()
            best[name] = max(best[name], len(paths) / (time.perf_counter() - start))
            assert len(done) == len(paths)
    return Rates(**best)

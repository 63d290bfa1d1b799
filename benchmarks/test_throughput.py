"""Images per second of a whole folder, against the slower of its two halves: decoding alone, and the model alone.

Two kinds of folders: many small PNGs, where the model is the slower half, and JPEGs of a camera, where decoding is.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from uce_edge.ahead import cores
from uce_edge.images import load
from uce_edge.model import Model
from uce_edge.models import bundled

FOLDERS = {"small": (400, (32, 32), "png"), "camera": (40, (1920, 1080), "jpg")}
ROUNDS = 3


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    count, (width, height), kind = FOLDERS[request.param]
    place, rng = tmp_path_factory.mktemp(request.param), np.random.default_rng(0)
    # Enlarged noise compresses as photos do.
    coarse = rng.integers(0, 256, (count, height // 8, width // 8, 3), dtype=np.uint8)
    paths = [place / f"{number}.{kind}" for number in range(count)]
    for path, pixels in zip(paths, coarse, strict=True):
        Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(path)
    return paths


def test_a_folder_is_answered_about_as_fast_as_its_slower_half(folder: list[Path]) -> None:
    model = Model(bundled(), spin=False)  # as `uce-edge predict` opens it
    spec = model.metadata.image

    def decode() -> np.ndarray:
        with ThreadPoolExecutor(cores()) as pool:
            return np.stack(list(pool.map(lambda path: load(path, spec), folder)))

    pixels = decode()
    best = dict.fromkeys(("decoding", "model", "both"), 0.0)
    for _ in range(ROUNDS):  # taking turns
        for name, work in (
            ("decoding", decode),
            ("model", lambda: model.predict(pixels)),
            ("both", lambda: list(model.answers(folder))),
        ):
            start = time.perf_counter()
            done = work()
            best[name] = max(best[name], len(folder) / (time.perf_counter() - start))
            assert len(done) == len(folder)
    slower = min(best["decoding"], best["model"])
    rates = ", ".join(f"{name} {rate:.0f}/s" for name, rate in best.items())
    print(f"\n{folder[0].suffix}: {rates}; both against the slower half: {best['both'] / slower:.2f}")
    # On cores that decoding and the model share, the sum of both is the floor.
    assert best["both"] >= 0.8 / (1 / best["decoding"] + 1 / best["model"])

"""The files of tests/golden/pixels, and a second writing of each rule."""

import json
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from PIL import Image

from uce_edge.images.loader import load
from uce_edge.images.resize import Resize
from uce_edge.metadata import ImageSpec

FOLDER = GOLDEN / "pixels"
CASES = json.loads((FOLDER / "cases.json").read_text())


def wanted(case: dict[str, Any]) -> np.ndarray:
    shape = case["height"], case["width"], case["channels"]
    return np.frombuffer((FOLDER / case["expected"]).read_bytes(), np.uint8).reshape(shape).astype(int)


def expected_of(name: str) -> np.ndarray:
    return wanted(next(case for case in CASES if case["file"] == name))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["expected"])
def test_a_file_gives_the_golden_pixels(case: dict[str, Any]) -> None:
    resize = Resize.from_document(case.get("resize", {}))
    pixels = load(FOLDER / case["file"], ImageSpec(case["height"], case["width"], case["channels"], resize=resize))
    assert np.abs(pixels.astype(int) - wanted(case)).max() <= case["within"]


def test_every_file_of_the_folder_has_a_case() -> None:
    named = {case[key] for case in CASES for key in ("file", "expected")} | {"cases.json"}
    assert {path.name for path in FOLDER.iterdir()} == named


def test_transparency_is_laid_on_white_by_its_share() -> None:
    over = np.asarray(Image.open(FOLDER / "rgba.png")).astype(float)
    share = over[..., 3:] / 255
    exact = over[..., :3] * share + 255 * (1 - share)
    assert np.abs(expected_of("rgba.png") - exact).max() <= 1
    assert (expected_of("rgba.png")[0] == 255).all()


def test_cmyk_is_ink_on_white() -> None:
    *inks, black = np.moveaxis(np.asarray(Image.open(FOLDER / "cmyk.tif")).astype(float), -1, 0)
    exact = np.stack([(255 - black) * (1 - ink / 255) for ink in inks], -1)
    assert np.abs(expected_of("cmyk.tif") - exact).max() <= 1


def test_all_orientations_show_what_the_first_shows_upright() -> None:
    """By numpy: what a viewer does to stored rows and columns, before anything is stretched."""
    turns = {
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
        8: np.rot90,
    }
    stored = np.asarray(Image.open(FOLDER / "orientation-1.jpg"))
    for number, turn in turns.items():
        upright = np.ascontiguousarray(turn(stored))
        pixels = load(FOLDER / f"orientation-{number}.jpg", ImageSpec(*upright.shape))
        assert np.abs(pixels.astype(int) - upright).max() <= 1, number

"""The sample images may be shipped: small files, each with its source and licence."""

import re

import pytest
from conftest import ROOT
from PIL import Image

FOLDER = ROOT / "examples" / "images"
PICTURES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".jpg", ".png"))
FREE = re.compile(r"CC0|public domain|no known copyright restrictions|\[CC BY \d\.\d\]\(https:.*\)")


def test_every_picture_has_a_free_licence() -> None:
    rows = re.findall(r"^\| (\S+\.\w+) \|.*\| ([^|]+) \|$", (FOLDER / "LICENSES.md").read_text("utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == [path.name for path in PICTURES]
    assert [name for name, licence in rows if not FREE.fullmatch(licence)] == []


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_a_photo_of_ordinary_size(path) -> None:
    assert path.stat().st_size < 500_000
    with Image.open(path) as image:
        assert 224 <= max(image.size) <= 640
        assert min(image.size) >= 224


def test_all_pictures_are_small() -> None:
    assert 20 <= len(PICTURES) <= 30
    assert sum(path.stat().st_size for path in PICTURES) < 4e6

"""The sample images may be shipped: small files, each with its source and licence."""

import re

import pytest
from conftest import ROOT
from PIL import Image

from uce_edge import Model

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


def test_the_default_model_answers_them_as_the_readme_states() -> None:
    answers = Model(None, "cpu").predict(PICTURES, reject="auto")
    accepted = {path.stem: image.label for path, image in zip(PICTURES, answers, strict=True) if image.reason is None}
    assert accepted == {
        "bee": "bee", "coffee": "espresso", "dog": "German shepherd", "duck": "goose", "hens": "hen",
        "panda": "giant panda", "photographer": "tripod",
    }  # fmt: skip
    assert sum(image.out_of_distribution for image in answers) == 5
    assert sum(image.reason == "uncertain" for image in answers) == 12
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"all {len(PICTURES)} pictures of [examples/images]" in readme
    assert 'It accepts seven. Six of these are right. The white duck is labelled "goose"' in readme

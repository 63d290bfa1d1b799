"""Labels in any script on pictures: a font of the system draws them, or their number stands for them; never boxes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from PIL import Image, ImageDraw, ImageFont

from uce_edge.output import fonts
from uce_edge.output.annotate import annotated
from uce_edge.runtime.answers import Answer
from uce_edge.runtime.model import Model


def dejavu() -> Path:
    """A font with Cyrillic letters and without Chinese ones, which comes with matplotlib."""
    matplotlib = pytest.importorskip("matplotlib")
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@pytest.fixture(params=[True, False], ids=["with fonts", "without fonts"])
def has_fonts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    folders = [dejavu()] if request.param else [Path("absent")]
    monkeypatch.setattr(fonts, "_folders", lambda: folders)
    for cached in (fonts._installed, fonts._with_letters):
        cached.cache_clear()
    return bool(request.param)


def test_a_text_is_drawn_in_the_first_font_that_has_it(has_fonts: bool) -> None:
    assert fonts.drawable("cat 12.5%", "class 3") == "cat 12.5%"
    assert fonts.drawable("кошка", "class 3") == ("кошка" if has_fonts else "class 3")
    assert fonts.drawable("Käfer", "class 3") == ("Käfer" if has_fonts else "Kafer")
    assert fonts.drawable("猫", "class 3") == "class 3"


def test_no_letter_of_a_picture_is_a_box(has_fonts: bool) -> None:
    for text in ("кошка", "Käfer", "ship"):
        words = fonts.drawable(text, "class 3")
        font = fonts.font_for(words, 20)
        assert font is not None
        box = font.getmask("\U0010ffff")
        assert all(bytes(font.getmask(letter)) != bytes(box) for letter in words)


@pytest.mark.usefixtures("has_fonts")
def test_labels_that_differ_look_different(tmp_path: Path) -> None:
    model = Model(GOLDEN / "digits-mc.onnx", "cpu")
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    (answer,) = model.answers([tmp_path / "a.png"])
    assert answer.prediction is not None

    def drawn(label: str, number: int) -> np.ndarray:
        assert answer.prediction is not None
        said: Answer = replace(answer, prediction=replace(answer.prediction, label=label, class_id=number))
        return np.asarray(annotated(said, 144))

    one, other = drawn("猫", 3), drawn("狗", 5)
    assert one.shape == other.shape
    assert not np.array_equal(one, other)


def test_pillow_still_draws_a_box_for_what_it_lacks() -> None:
    """What the choice of a font rests on."""
    own, canvas = ImageFont.load_default(20), Image.new("L", (40, 40))
    ImageDraw.Draw(canvas).text((2, 2), "猫", 255, own)
    assert canvas.getbbox() is not None
    assert bytes(own.getmask("猫")) == bytes(own.getmask("狗")) != bytes(own.getmask("±"))

"""Gray values of more than 8 bits: what a stored range makes of them, how it is chosen, and what is announced."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from helpers.errors import raises
from PIL import Image

from uce_edge._util.field_rules import RecordError
from uce_edge.datasets import splits
from uce_edge.errors import UsageError
from uce_edge.images import gray_range, loader
from uce_edge.images.gray_range import Range
from uce_edge.images.gray_survey import RangeWarning
from uce_edge.metadata import ImageSpec

RAMP = np.arange(4096, dtype=np.uint16).reshape(64, 64)
SPEC = ImageSpec(64, 64, 1)
TWELVE = ImageSpec(64, 64, 1, range=Range(0, 4095))


def save(values: np.ndarray, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


def test_the_golden_cases_hold_for_files() -> None:
    for case in json.loads((ROOT / "tests" / "golden" / "range.json").read_text())["cases"]:
        values = np.array([case["values"]], np.uint16)
        kept = None if case["range"] is None else Range.from_document(case["range"])
        spec = ImageSpec(1, values.size, 1, range=kept)
        with warnings.catch_warnings(action="ignore"):
            assert loader.prepare(values, spec)[0, :, 0].tolist() == case["bytes"]


def test_an_absent_range_is_that_of_16_bits_to_the_bit() -> None:
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    absent = loader.prepare(every, ImageSpec(256, 256, 1))
    np.testing.assert_array_equal(absent[..., 0], (every.astype(int) + 128) // 257)
    np.testing.assert_array_equal(loader.prepare(every, ImageSpec(256, 256, 1, range=gray_range.FULL)), absent)


def test_12_bits_in_16_are_nearly_black_without_a_range_and_that_is_announced(tmp_path: Path) -> None:
    path = save(RAMP, tmp_path / "sensor.png")
    with pytest.warns(RangeWarning, match=r"from 0 to 4095.*small part.*0\.\.65535.*--range auto"):
        assert loader.load(path, SPEC).max() == 16
    pixels = loader.load(path, TWELVE)
    assert (pixels.min(), pixels.max()) == (0, 255)
    np.testing.assert_array_equal(pixels[..., 0], np.floor(RAMP * (255 / 4095) + 0.5))


def test_8_bits_are_taken_as_they_are_whatever_the_range(tmp_path: Path) -> None:
    values = np.arange(64 * 64).astype(np.uint8).reshape(64, 64)
    np.testing.assert_array_equal(loader.load(save(values, tmp_path / "a.png"), TWELVE)[..., 0], values)


def test_float_pixels_of_any_size_have_a_brightness_when_the_model_has_a_range(tmp_path: Path) -> None:
    values = np.linspace(-1000, 400, 64 * 64, dtype=np.float32).reshape(64, 64)
    path = save(values, tmp_path / "hounsfield.tif")
    pixels = loader.load(path, ImageSpec(64, 64, 1, range=Range(-1000, 400)))
    np.testing.assert_array_equal(pixels[..., 0], np.floor((values.astype(float) + 1000) * 255 / 1400 + 0.5))


def test_a_float32_model_with_a_range_gets_it_unrounded() -> None:
    pixels = loader.prepare(RAMP, ImageSpec(64, 64, 1, dtype="float32", range=Range(0, 4095)))
    np.testing.assert_allclose(pixels[..., 0], RAMP * (255 / 4095), rtol=1e-6)


@pytest.mark.parametrize("usual", [0.0, 0.5])
def test_many_pixels_outside_of_the_range_are_announced_unless_training_images_had_as_many(usual: float) -> None:
    values = np.where(np.arange(64 * 64).reshape(64, 64) % 3 == 0, 40000, RAMP).astype(np.uint16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader.prepare(values, ImageSpec(64, 64, 1, range=Range(0, 4095, usual)))
    warned = [str(one.message) for one in caught]
    assert bool(warned) == (usual == 0.0)
    assert not warned or "33% of its pixels lie outside of the model's range 0..4095" in warned[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", "auto"),
        ("full", None),
        ("12bit", Range(0, 4095)),
        ("8BIT", Range(0, 255)),
        ("-1000..400", Range(-1000, 400)),
        ("0.25..1.5", Range(0.25, 1.5)),
    ],
)
def test_what_a_user_may_write(text: str, expected: object) -> None:
    assert gray_range.parse(text) == expected


@pytest.mark.parametrize("text", ["", "12", "17bit", "bit", "5..5", "9..1", "a..b", "1...2", "nan..1", "0..inf", "1.."])
def test_other_words_are_refused_with_the_rule(text: str) -> None:
    with raises("argument.range", UsageError):
        gray_range.parse(text)


def test_a_range_that_ends_before_it_starts_is_no_metadata() -> None:
    document = SPEC.to_document() | {"range": {"low": 4095, "high": 0}}
    with raises("argument.range.high", RecordError):
        ImageSpec.from_document(document)


def test_metadata_has_a_range_only_if_there_is_one() -> None:
    assert "range" not in SPEC.to_document()
    assert TWELVE.to_document()["range"] == {"low": 0, "high": 4095}
    assert ImageSpec.from_document(TWELVE.to_document()) == TWELVE


def folder_of(root: Path, top: int, low: int = 0, dtype: type = np.uint16) -> Path:
    rng = np.random.default_rng(top)
    for name in ("a", "b"):
        for number in range(6):
            save(rng.integers(low, top, (16, 16)).astype(dtype), root / name / f"{number}.tif")
    return root


@pytest.mark.parametrize(
    ("top", "low", "dtype", "chosen"),
    [
        (4000, 0, np.uint16, Range(0, 4095)),
        (16000, 0, np.uint16, Range(0, 16383)),
        (200, 0, np.uint16, Range(0, 255)),
        (65000, 0, np.uint16, None),  # all 16 bits, which needs no key
        (1700, -1000, np.float32, Range(-1024, 2047)),
        (200, 0, np.uint8, None),
    ],
)
def test_auto_finds_the_bit_depth_of_the_training_images(
    tmp_path: Path, top: int, low: int, dtype: type, chosen: Range | None
) -> None:
    dataset = splits.load(str(folder_of(tmp_path, top, low, dtype)), size=(16, 16), range_="auto")
    assert dataset.gray.range == chosen
    assert (dataset.gray.words is None) == (dtype is np.uint8)
    assert dataset.splits["train"].images.max() > 180


def test_a_dead_pixel_does_not_decide_the_depth(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 4000)
    values = np.full((64, 64), 100, np.uint16)
    values[3, 3] = 65535
    save(values, folder / "a" / "dead.tif")
    assert splits.load(str(folder), size=(16, 16), range_="auto").gray.range == Range(0, 4095)


def test_the_usual_share_outside_of_a_chosen_range_is_stored(tmp_path: Path) -> None:
    dataset = splits.load(str(folder_of(tmp_path, 4000)), size=(16, 16), range_=Range(0, 1000))
    assert dataset.gray.range is not None
    assert 0.7 < dataset.gray.range.clipped < 0.85


def test_many_odd_images_are_one_warning_and_a_count(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 4000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        splits.load(str(folder), size=(16, 16))
    warned = [str(one.message) for one in caught]
    assert len(warned) == 2
    assert "small part" in warned[0]
    assert "the last warning also holds for 11 other images" in warned[1]

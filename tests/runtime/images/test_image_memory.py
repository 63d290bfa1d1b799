"""An image takes the memory of its pixels and little more, and gives the same pixels for it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers.errors import raises
from helpers.pictures import encoded, png_header
from PIL import Image

from uce_edge.images import converter, loader, memory_budget
from uce_edge.metadata import ImageSpec

RGB = ImageSpec(height=9, width=5, channels=3)


def random_image(mode: str) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (61, 47, 4), np.uint8)
    match mode:
        case "P":
            return Image.fromarray(pixels[..., :3]).quantize(16)
        case "I;16":
            return Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "I;16", "P"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("spec", [RGB, ImageSpec(9, 5, 1, "float32")], ids=["uint8", "float32"])
def test_an_image_in_strips_gives_the_pixels_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, mode: str, orientation: int, spec: ImageSpec
) -> None:
    image = random_image(mode)
    assert image.mode == mode
    image.getexif()[0x0112] = orientation
    whole = loader.prepare(image, spec)
    monkeypatch.setattr(converter, "_STRIP", 200)
    np.testing.assert_array_equal(loader.prepare(image, spec), whole)


def test_rows_and_then_columns_are_what_pillow_resizes() -> None:
    image = random_image("RGB")
    np.testing.assert_array_equal(
        loader.prepare(image, RGB), np.asarray(image.resize((5, 9), Image.Resampling.BILINEAR))
    )


def test_a_value_that_is_no_number_is_found_in_any_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros((40, 40), np.float32)
    values[20, 20] = np.nan
    monkeypatch.setattr(converter, "_STRIP", 100)
    with raises("image.not-finite"):
        loader.prepare(Image.fromarray(values), RGB)


@pytest.mark.parametrize("size", [(99_000_000, 1), (1, 99_000_000)])
def test_an_image_of_one_endless_row_is_refused_from_its_header(size: tuple[int, int]) -> None:
    with raises("image.too-large"):
        loader.load(png_header(*size), RGB)


@pytest.mark.parametrize(
    ("kind", "options", "read"),
    [("PNG", {}, True), ("JPEG", {}, True), ("JPEG", {"progressive": True}, False), ("WEBP", {}, False)],
)
def test_a_decoder_that_holds_an_image_several_times_is_given_smaller_ones(
    monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any], read: bool
) -> None:
    monkeypatch.setattr(memory_budget, "MAX_BYTES", 17_000_000)
    large, small = (encoded(Image.new("L", (side, 1000)), kind, **options) for side in (1400, 1000))
    loader.load(small, RGB)
    if read:
        loader.load(large, RGB)
        return
    with raises("image.too-large"):
        loader.load(large, RGB)


def test_threads_decode_no_more_at_once_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.new("RGB", (64, 64))
    monkeypatch.setattr(memory_budget, "MAX_BYTES", 2 * 5 * 64 * 64)
    inside, most, together = threading.Semaphore(2), [], threading.Barrier(2)

    def held(number: int) -> None:
        with memory_budget.taken(image, "image"):
            most.append(inside.acquire(blocking=False))
            together.wait(timeout=10)  # there is room for two: they do meet
            inside.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(held, range(8)))
    assert most == [True] * 8
    with memory_budget.taken(image, "image"), memory_budget.taken(image, "image"):
        pass  # all of it was given back


def test_a_pipe_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        def seekable(self) -> bool:
            return False

        def read(self, size: int) -> bytes:
            return bytes(size)

    monkeypatch.setattr(loader, "MAX_FILE", 5 << 20)
    with raises("image.too-large"):
        loader.read_stream(Endless(), "The image data")

"""What a user gives as an image, and the pixels or the message that come of it."""

import contextlib
import io
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from helpers.errors import raises
from helpers.pictures import encoded, png_header
from PIL import Image, ImageFile

from uce_edge.errors import ImageError
from uce_edge.images import loader
from uce_edge.metadata import ImageSpec

RGB = ImageSpec(height=2, width=3, channels=3)
GRAY = ImageSpec(height=2, width=3, channels=1)
FLOAT_RGB = ImageSpec(height=2, width=3, channels=3, dtype="float32")
FLOAT_GRAY = ImageSpec(height=2, width=3, channels=1, dtype="float32")
SIZE = (3, 2)


def noise(height: int = 64, width: int = 64) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def alpha_palette() -> Image.Image:
    image = Image.new("P", SIZE, 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.info["transparency"] = bytes([128, 255])
    return image


def keyed(mode: str, value: object) -> Image.Image:
    image = Image.new(mode, SIZE, value)
    image.info["transparency"] = value
    return image


def full(mode: str, value: object) -> Image.Image:
    return Image.new(mode, SIZE, value)


def sixteen(value: int) -> Image.Image:
    return Image.fromarray(np.full((2, 3), value, np.uint16))


def denied(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


def refusal(source: object, spec: ImageSpec = RGB) -> ImageError:
    with pytest.raises(ImageError) as caught:
        loader.load(source, spec)
    # The message is the whole story: nothing of Pillow's own trace is shown with it.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("form", [str, Path, Path.read_bytes])
def test_lossless_file_gives_its_exact_pixels(tmp_path, kind, form):
    pixels = noise(2, 3)
    path = tmp_path / "cat"
    Image.fromarray(pixels).save(path, kind)
    loaded = loader.load(form(path), RGB)
    assert loaded.dtype == np.uint8
    assert loaded.flags.writeable
    np.testing.assert_array_equal(loaded, pixels)


@pytest.mark.parametrize("kind", loader.FORMATS)
def test_every_listed_format_is_read(kind):
    assert loader.load(encoded(Image.fromarray(noise()), kind), GRAY).shape == (2, 3, 1)


CONVERSIONS = [
    ("PNG", full("L", 100), RGB, (100, 100, 100)),
    ("PNG", full("RGB", (255, 0, 0)), GRAY, (76,)),
    ("PNG", full("1", 1), RGB, (255, 255, 255)),
    ("PNG", full("1", 1), GRAY, (255,)),
    ("TIFF", full("CMYK", (0, 255, 255, 0)), RGB, (255, 0, 0)),
    ("TIFF", full("CMYK", (0, 255, 255, 0)), GRAY, (76,)),
    ("PNG", full("RGBA", (255, 0, 0, 128)), RGB, (255, 127, 127)),
    ("PNG", full("RGBA", (0, 0, 0, 0)), RGB, (255, 255, 255)),
    ("PNG", full("RGBA", (10, 20, 30, 255)), RGB, (10, 20, 30)),
    ("PNG", full("LA", (0, 128)), GRAY, (127,)),
    ("PNG", full("LA", (0, 128)), RGB, (127, 127, 127)),
    ("PNG", alpha_palette(), RGB, (255, 127, 127)),
    ("PNG", keyed("RGB", (1, 2, 3)), RGB, (255, 255, 255)),
    ("PNG", keyed("L", 7), GRAY, (255,)),
    ("PNG", sixteen(0), GRAY, (0,)),
    ("PNG", sixteen(65535), GRAY, (255,)),
    ("PNG", sixteen(257 * 100), RGB, (100, 100, 100)),
    ("PNG", sixteen(257 * 100 + 129), GRAY, (101,)),
    ("PNG", keyed("I;16", 1000), GRAY, (255,)),
    ("TIFF", full("I;16B", 257 * 7), GRAY, (7,)),
    ("PPM", sixteen(257 * 100).convert("I"), GRAY, (100,)),
    ("TIFF", full("I", 65535), GRAY, (255,)),
    ("TIFF", full("F", 1.0), GRAY, (255,)),
    ("TIFF", full("F", 0.2), RGB, (51, 51, 51)),
    ("PNG", full("L", 100), FLOAT_RGB, (100, 100, 100)),
    ("PNG", full("RGB", (10, 20, 30)), FLOAT_RGB, (10, 20, 30)),
    ("PNG", full("RGBA", (255, 0, 0, 128)), FLOAT_RGB, (255, 127, 127)),
    ("PNG", sixteen(65535), FLOAT_GRAY, (65535,)),
    ("PNG", sixteen(1234), FLOAT_RGB, (1234, 1234, 1234)),
    ("TIFF", full("I", 70000), FLOAT_GRAY, (70000,)),
    ("TIFF", full("F", -1.5), FLOAT_GRAY, (-1.5,)),
]


@pytest.mark.parametrize(
    ("kind", "image", "spec", "pixel"),
    CONVERSIONS,
    ids=[f"{i.mode}-{i.getpixel((0, 0))}-{s.dtype}-{s.channels}" for _, i, s, _ in CONVERSIONS],
)
def test_mode_is_converted_to_defined_values(kind, image, spec, pixel):
    loaded = loader.load(encoded(image, kind), spec)
    assert loaded.dtype == spec.dtype
    np.testing.assert_array_equal(loaded, np.full((2, 3, spec.channels), pixel, spec.dtype))


@pytest.mark.parametrize(
    ("mode", "value", "spec", "code"),
    [
        ("I", -1, GRAY, "image.range"),
        ("I", 70000, GRAY, "image.range"),
        ("F", 255.0, GRAY, "image.range"),
        ("F", float("nan"), GRAY, "image.not-finite"),
        ("F", float("nan"), FLOAT_GRAY, "image.not-finite"),
    ],
)
def test_undefined_range_is_refused_and_named(tmp_path, mode, value, spec, code):
    path = tmp_path / "depth.tif"
    full(mode, value).save(path)
    error = refusal(path, spec)
    assert error.code == code
    assert str(path) in str(error)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation, kind):
    upright = np.zeros((16, 24, 3), np.uint8)
    upright[:8, :8] = 255  # one white corner tells all eight apart, together with the sides
    upright[:8, 8:16] = 120
    # What a camera held that way stores, written out by hand.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: upright.swapaxes(0, 1)[::-1],
        7: upright[::-1, ::-1].swapaxes(0, 1),
        8: upright.swapaxes(0, 1)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, quality=95)
    loaded = loader.load(data, ImageSpec(16, 24, 3))
    np.testing.assert_allclose(loaded.astype(int), upright.astype(int), atol=8)


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\0\x09", b"Exif\0\0"])
def test_unreadable_exif_leaves_the_image_as_stored(exif):
    pixels = noise(2, 3)
    np.testing.assert_array_equal(loader.load(encoded(Image.fromarray(pixels), "PNG", exif=exif), RGB), pixels)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_first_frame_is_used(kind):
    frames = [full("RGB", color) for color in ("red", "blue", "green")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(loader.load(data, RGB), np.full((2, 3, 3), (255, 0, 0)))


def test_resize_is_bilinear_with_antialias():
    pixels = noise()
    small = Image.fromarray(pixels).resize(SIZE, Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(loader.prepare(pixels, RGB), np.asarray(small))
    # Antialias means area averages: no noise is left at this reduction.
    assert np.ptp(loader.prepare(pixels, RGB).astype(int)) < 60


def test_float_resize_does_not_round():
    ramp = np.arange(0, 60000, 100, dtype=np.uint16).reshape(1, -1).repeat(4, axis=0)
    wide = loader.prepare(Image.fromarray(ramp), ImageSpec(2, 7, 1, dtype="float32"))
    expected = Image.fromarray(ramp.astype(np.float32)).resize((7, 2), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(wide[..., 0], np.asarray(expected))
    colour = loader.prepare(noise(), FLOAT_RGB)
    np.testing.assert_allclose(colour, loader.prepare(noise(), RGB), atol=1)
    assert (colour != np.rint(colour)).any()


@pytest.mark.parametrize(
    ("shape", "spec", "pixel"),
    [
        ((2, 3), RGB, (9, 9, 9)),
        ((2, 3, 1), GRAY, (9,)),
        ((2, 3, 3), RGB, (9, 9, 9)),
        ((2, 3, 4), RGB, (246, 246, 246)),
        ((2, 3, 3), FLOAT_GRAY, (9,)),
    ],
)
def test_an_array_takes_the_model_s_shape(shape, spec, pixel):
    array = np.full(shape, 9, np.uint8)
    np.testing.assert_array_equal(loader.prepare(array, spec), np.full((2, 3, spec.channels), pixel))


def test_preparing_neither_changes_nor_shares_its_input():
    array = noise(2, 3)
    before = array.copy()
    loader.prepare(array, RGB)[:] = 0
    np.testing.assert_array_equal(array, before)
    np.testing.assert_array_equal(loader.prepare(array[:, ::-1], RGB), before[:, ::-1])


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (np.zeros((2, 3, 3), np.float32), "argument.image"),
        (np.zeros((2, 3, 3), np.uint16), "argument.image"),
        (np.zeros((3, 2, 5), np.uint8), "argument.image"),
        (np.zeros((1, 2, 3, 3), np.uint8), "argument.image"),
        (np.zeros(6, np.uint8), "argument.image"),
        (np.zeros((0, 3, 3), np.uint8), "argument.image"),
        (np.zeros((2, 0), np.uint8), "argument.image"),
        ("cat.png", "argument.image"),
        (Image.new("RGB", (0, 5)), "image.no-pixels"),
        (Image.new("La", SIZE), "image.damaged"),
    ],
)
def test_pixels_that_cannot_be_prepared_are_refused_by_rule(image, code):
    with raises(code, ImageError):
        loader.prepare(image, RGB)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "image.empty"),
        (b"These are my notes.\n" * 20, "image.unknown-format"),
        (b"\x89PNG\r\n\x1a\n", "image.unknown-format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "image.unknown-format"),
    ],
)
def test_file_that_is_no_image_is_refused(tmp_path, content, code):
    path = tmp_path / "cat.png"
    path.write_bytes(content)
    assert refusal(path).code == refusal(content).code == code
    assert str(refusal(path)).startswith(str(path))


def test_missing_file_is_refused(tmp_path):
    assert refusal(tmp_path / "no.png").code == "image.missing"


def test_folder_is_refused(tmp_path):
    assert refusal(str(tmp_path)).code == "image.folder"


def test_source_of_another_type_is_refused():
    assert refusal(7).code == "argument.source"


@pytest.mark.parametrize("name", ["x" * 5000, "nul\0.png", "\ud800.png\0"])
def test_impossible_name_is_refused(name):
    assert refusal(name).code == "image.unreadable"


def test_unreadable_file_is_refused(tmp_path, monkeypatch):
    # Not chmod: continuous integration often runs as root, who may read everything.
    monkeypatch.setattr(Path, "open", denied)
    error = refusal(tmp_path / "secret.png")
    assert error.code == "image.unreadable"
    assert "Permission denied" in str(error)


@pytest.mark.parametrize("kind", loader.FORMATS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.98])
def test_truncated_image_is_refused(tmp_path, kind, share):
    data = encoded(Image.fromarray(noise()), kind)
    path = tmp_path / "cut"
    path.write_bytes(data[: int(len(data) * share)])
    error = refusal(path)
    assert str(error).startswith(str(path))
    if kind in ("PNG", "JPEG", "BMP", "PPM"):
        assert error.code == "image.truncated"


def test_truncated_image_that_is_to_be_prepared_is_refused():
    data = encoded(Image.fromarray(noise()), "PNG")
    with raises("image.truncated"):
        loader.prepare(Image.open(io.BytesIO(data[:5000])), RGB)


@pytest.mark.parametrize("kind", loader.FORMATS)
def test_damaged_bytes_raise_nothing_but_image_errors(kind):
    generator = np.random.default_rng(1)
    data = np.frombuffer(encoded(Image.fromarray(noise(16, 16)), kind), np.uint8)
    for _ in range(60):
        damaged = data.copy()
        places = generator.integers(0, min(len(data), 200), 4)
        damaged[places] = generator.integers(0, 256, 4)
        with contextlib.suppress(ImageError):
            loader.load(damaged.tobytes(), RGB)


@pytest.mark.parametrize(("side", "reason"), [(30_000, "900 megapixels"), (11_000, "121 megapixels")])
def test_decompression_bomb_is_refused_from_its_header(tmp_path, monkeypatch, side, reason):
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side))
    # Pillow allocates the pixels in `load`, so that without it no memory is taken.
    monkeypatch.setattr(ImageFile.ImageFile, "load", denied)
    start = time.perf_counter()
    error = refusal(path)
    assert time.perf_counter() - start < 0.5
    assert error.code == "image.too-large"
    assert reason in str(error)


def test_size_that_only_pillow_minds_gives_no_warning():
    # 95 megapixels: over Pillow's warning, under the limit; warnings are errors in this suite.
    assert refusal(png_header(9750, 9750)).code == "image.truncated"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipe_is_read(tmp_path):
    def send(content: bytes) -> Path:
        threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True).start()
        return pipe

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    loaded = loader.load(send(encoded(full("RGB", "red"), "PNG")), RGB)
    np.testing.assert_array_equal(loaded, np.full((2, 3, 3), (255, 0, 0)))
    assert refusal(send(b"notes")).code == "image.unknown-format"


def test_the_command_line_says_an_error_of_pillow_once(tmp_path):
    # In a process of its own: pytest's log handlers would hide it.
    path = tmp_path / "many.tif"
    data = encoded(full("RGB", "red"), "TIFF")
    samples = struct.pack("<HHI", 277, 3, 1)
    assert samples in data
    path.write_bytes(data.replace(samples + b"\x03", samples + b"\xff"))
    command = [sys.executable, "-m", "uce_edge", "predict", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert str(path) in done.stdout + done.stderr
    assert "samples per pixel" not in done.stderr


def test_the_log_of_pillow_is_left_to_the_program():
    script = "import logging, uce_edge.images.loader; assert not logging.getLogger('PIL').handlers"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_collect_expands_folders_and_keeps_the_rest(tmp_path):
    for name in ("b.PNG", "a.jpg", "c.tiff", ".hidden.png", "notes.txt", "png"):
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "folder.png" / "deep.png").touch()
    given = ["-", "missing.png", str(tmp_path), "./notes.txt", "x" * 5000]
    inside = [str(tmp_path / name) for name in ("a.jpg", "b.PNG", "c.tiff")]
    assert loader.collect(given) == ["-", "missing.png", *inside, "./notes.txt", "x" * 5000]


def test_collect_refuses_a_folder_without_images(tmp_path):
    (tmp_path / "notes.txt").touch()
    with raises("folder.empty", ImageError) as caught:
        loader.collect([str(tmp_path)])
    assert all(suffix in str(caught.value) for suffix in loader.SUFFIXES)


def test_collect_refuses_a_folder_it_may_not_list(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "iterdir", denied)
    with raises("folder.unreadable"):
        loader.collect([str(tmp_path)])


def test_libtiff_does_not_write_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(noise).save(file, "TIFF", compression="tiff_lzw")
    content = bytearray(file.getvalue())
    content[200:-400] = b"\xa5" * len(content[200:-400])
    with raises("image.damaged"):
        loader.load(bytes(content), ImageSpec(8, 8, 3))
    assert capfd.readouterr().err == ""

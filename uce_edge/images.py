"""From what a user gives, a file, bytes, a Pillow image or an array, to the pixels a model takes."""

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from uce_edge.errors import ImageError, expected
from uce_edge.metadata import ImageSpec
from uce_edge.pillow_warnings import silenced

MAX_PIXELS = 100_000_000
"""Larger images are refused from their header; a phone makes 12 to 50 megapixels, a scan of A4 35."""

# A closed list: Pillow would also hand PostScript to Ghostscript, which no classifier needs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
SUFFIXES = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

STDIN = "-"
BACKGROUND = "white"
"""What shows through transparent pixels: the paper a browser and a print put behind them."""

_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Pixels = npt.NDArray[Any]


def collect(paths: Iterable[str]) -> list[str]:
    """Expand folders to the images directly in them, by name; everything else stays as it is.

    Missing files and `-` (standard input) are kept, so that each is reported or read in its turn.

    Raises:
        ImageError: A folder has no images or cannot be listed.
    """
    files: list[str] = []
    for path in paths:
        if path == STDIN or not _is_folder(Path(path)):
            files.append(path)
            continue
        try:
            names = sorted(entry.name for entry in Path(path).iterdir() if is_image(entry))
        except OSError as error:
            raise ImageError(
                f"The folder {path} cannot be listed: {error.strerror}. Check that you may read it."
            ) from None
        if not names:
            raise ImageError(
                f"The folder {path} has no images ({', '.join(SUFFIXES)}); its subfolders are not searched. "
                "Name a folder with images in it, or the files themselves."
            )
        files.extend(str(Path(path) / name) for name in names)
    return files


def is_image(path: Path) -> bool:
    """Whether a file of a folder is meant: by its ending, and not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def load(source: str | Path | bytes, spec: ImageSpec, name: str = "The image data") -> Pixels:
    """Read one image file, or its bytes, and `prepare` it; of several frames or pages the first is used.

    Args:
        source: A path, or the content of a file.
        spec: What the model takes.
        name: What messages call bytes.

    Raises:
        ImageError: Whatever is wrong with it, in one sentence with the remedy.
    """
    if isinstance(source, bytes):
        return _prepared(_decode(io.BytesIO(source), name), spec, name)
    if not isinstance(source, str | Path):
        raise ImageError(
            expected("`source`", "a path or bytes", source, "For pixels or Pillow images, call prepare instead.")
        )
    with _opened(Path(source)) as stream:
        return _prepared(_decode(stream, str(source)), spec, str(source))


def read(path: str | Path) -> bytes:
    """The content of a file, or what is wrong with it in one sentence."""
    with _opened(Path(path)) as stream:
        return stream.read()


def picture(source: str | Path | bytes, size: int) -> Image.Image:
    """An image as a person sees it: upright, RGB, on white, its longer side so many pixels.

    Small images are enlarged without smoothing, so that their pixels show.
    """
    spec = ImageSpec(1, 1, 3)
    if isinstance(source, bytes):
        image = _viewed(_decode(io.BytesIO(source), "The image data"), spec, "The image data")
    else:
        with _opened(Path(source)) as stream:
            image = _viewed(_decode(stream, str(source)), spec, str(source))
    factor = size / max(image.size)
    width, height = (max(1, round(side * factor)) for side in image.size)
    method = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BILINEAR
    return image.resize((width, height), method)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file that can be rewound."""
    try:
        with path.open("rb") as file:
            # A pipe, such as the shell's <(...), cannot be rewound.
            yield file if file.seekable() else io.BytesIO(file.read())
    except FileNotFoundError:
        raise ImageError(f"{path} does not exist. Check its spelling and the folder you are in.") from None
    except (OSError, ValueError) as error:
        if _is_folder(path):
            raise ImageError(f"{path} is a folder, where one image file is needed. Name a file in it.") from None
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"{path} cannot be read: {reason}. Check its name and permissions.") from None


def prepare(image: Image.Image | Pixels, spec: ImageSpec) -> Pixels:
    """Bring pixels into the model's shape, [height, width, channels], and dtype.

    Upright by EXIF, transparent parts on white, gray repeated or colour made gray, then resized.
    A uint8 model gets 16-bit gray divided by 257, and float gray times 255, which must be within 0..1.
    A float32 model gets the values of the file unchanged: 0..255 from 8 bits, 0..65535 from 16.

    Args:
        image: A Pillow image (its current frame), or uint8 [h, w], [h, w, 1], [h, w, 3] or [h, w, 4].
        spec: What the model takes.

    Raises:
        ImageError: The pixels cannot be read, or their range is not defined.
    """
    if isinstance(image, np.ndarray):
        image = _from_array(image)
    elif not isinstance(image, Image.Image):
        raise ImageError(expected("`image`", "a Pillow image or an array", image, "For a file, call load instead."))
    return _prepared(image, spec, "The image")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long: the loader reports it
        return False


def _decode(stream: BinaryIO, name: str) -> Image.Image:
    try:
        with silenced():
            return Image.open(stream, formats=FORMATS)
    except Image.DecompressionBombError as error:
        size = re.search(r"\d+", str(error))
        raise ImageError(_too_large(name, int(size[0]) if size else MAX_PIXELS)) from None
    except UnidentifiedImageError:
        if stream.seek(0, io.SEEK_END) == 0:
            raise ImageError(f"{name} is empty (0 bytes). Copy or download it again.") from None
        raise ImageError(
            f"{name} is not an image that can be read ({', '.join(FORMATS)}), or its header is damaged. "
            "Check that it opens in an image viewer, and save it as PNG."
        ) from None
    except Exception as error:  # plugins raise whatever their parsing ran into
        raise ImageError(_damage(name, error)) from None


def _prepared(image: Image.Image, spec: ImageSpec, name: str) -> Pixels:
    return _resize(_viewed(image, spec, name), spec)


def _viewed(image: Image.Image, spec: ImageSpec, name: str) -> Image.Image:
    """The decoded image, upright, in the model's mode."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError(_too_large(name, width * height))
    if width * height == 0:
        raise ImageError(f"{name} has no pixels: it is {width} x {height}. Use one of at least 1 x 1.")
    try:
        with silenced():
            # The full decode: a truncated file fails here. Not at a fraction of the size, as Pillow's draft mode does
            # for JPEGs: its pixels are others, and so are the answers (docs/contract.md).
            image.load()
            return _to_mode(_upright(image), spec, name)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(_damage(name, error)) from None


def _too_large(name: str, pixels: int) -> str:
    return (
        f"{name} has {pixels / 1e6:.0f} megapixels, and at most {MAX_PIXELS / 1e6:.0f} are read. Make it smaller first."
    )


def _damage(name: str, error: Exception) -> str:
    if "truncated" in str(error).lower():
        return f"{name} is truncated: its data ends before the image does. Copy or download it again."
    return f"{name} cannot be decoded ({error}). Copy or download it again, or save it as PNG."


def _from_array(array: Pixels) -> Image.Image:
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3, 4) or array.size == 0:
        raise ImageError(
            expected(
                "`image`",
                "a non-empty uint8 array of shape [h, w], [h, w, 1], [h, w, 3] or [h, w, 4]",
                f"{array.dtype} {list(array.shape)}",
                "Scale its values to 0..255, put the channels last and convert it with .astype(np.uint8).",
            )
        )
    return Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)


def _upright(image: Image.Image) -> Image.Image:
    # Not ImageOps.exif_transpose: it rewrites the EXIF block, and fails on odd tags nobody needs here.
    try:
        method = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # an unreadable EXIF block says nothing, and viewers show the image as stored
        return image
    return image if method is None else image.transpose(method)


def _to_mode(image: Image.Image, spec: ImageSpec, name: str) -> Image.Image:
    """The image as L or RGB, or as F where a float32 model takes more than 8 bits."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_wide(image, spec, name))
    if image.has_transparency_data:
        top = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", top.size, BACKGROUND), top)
    mode = "L" if spec.channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)  # which copies even what has the mode already


def _wide(image: Image.Image, spec: ImageSpec, name: str) -> Pixels:
    """Gray of more than 8 bits, as float32 unchanged or as uint8 by its full range."""
    values = np.array(image)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):  # 16-bit PNG marks transparent pixels by one gray value
        values[values == transparent] = np.uint16(65535)
    low, high = values.min(), values.max()
    top = 1 if image.mode == "F" else 65535
    if spec.dtype != "uint8":
        if not np.isfinite((low, high)).all():
            raise ImageError(f"{name} has pixels that are not finite numbers. Replace NaN and infinity first.")
        return values.astype(np.float32)
    if not (low >= 0 and high <= top):  # also catches NaN
        raise ImageError(
            f"{name} has {'float' if top == 1 else '32-bit'} pixels from {low:g} to {high:g}, and only "
            f"0 to {top} has a defined brightness. Scale them, or save the image with 8 or 16 bits."
        )
    scaled = np.rint(values * np.float32(255)) if top == 1 else (values.astype(np.uint32) + 128) // 257
    return scaled.astype(np.uint8)


def _resize(image: Image.Image, spec: ImageSpec) -> Pixels:
    bands = [image] if spec.dtype == "uint8" else [band.convert("F") for band in image.split()]
    if image.size != (spec.width, spec.height):
        bands = [band.resize((spec.width, spec.height), Image.Resampling.BILINEAR) for band in bands]
    pixels = np.dstack([np.asarray(band) for band in bands])
    return pixels if pixels.shape[2] == spec.channels else np.repeat(pixels, spec.channels, axis=2)

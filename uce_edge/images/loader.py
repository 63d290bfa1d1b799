"""Load images: from files, bytes, Pillow and arrays to pixels."""

import glob
import io
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from uce_edge.errors import ImageError, expected
from uce_edge.images import gray_survey, medical, memory_budget
from uce_edge.images.converter import Pixels, View, damage, is_wide
from uce_edge.images.decoder_warnings import silenced
from uce_edge.images.gray_range import Range
from uce_edge.images.gray_survey import Survey
from uce_edge.images.resize import Layout
from uce_edge.metadata import ImageSpec

# A closed list: Pillow would also hand PostScript to Ghostscript, which no classifier needs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
SUFFIXES = (
    ".bmp", ".dcm", ".dicom", ".gif", ".jp2", ".jpeg", ".jpg", ".nii", ".nii.gz", ".pgm", ".png", ".ppm", ".tif",
    ".tiff", ".webp",
)  # fmt: skip
_GRAY = {"1", "L", "LA", "I", "I;16", "F"}

MAX_FILE = 1 << 30
"""The largest file in bytes; the largest uncompressed image is smaller."""

_BLOCK = 1 << 20

STDIN = "-"


def collect(paths: Iterable[str]) -> list[str]:
    """Expand folders and patterns to images, sorted by name.

    Other words stay as they are. Missing files and `-` (standard input) stay too: each is reported or read in turn.
    In a pattern, `**` is any number of folders.

    Raises:
        ImageError: A folder or pattern has no images, or a folder cannot be listed.
    """
    files: list[str] = []
    for path in paths:
        if _is_pattern(path):
            files.extend(_matching(path))
            continue
        if path == STDIN or not _is_folder(Path(path)):
            files.append(path)
            continue
        try:
            names = sorted(entry.name for entry in Path(path).iterdir() if is_image(entry))
        except OSError as error:
            raise ImageError(
                f"The folder {path} cannot be listed: {error.strerror}. Check that you may read it.",
                "folder.unreadable",
            ) from None
        if not names:
            raise ImageError(
                f"The folder {path} has no images ({', '.join(SUFFIXES)}); its subfolders are not searched. "
                "Name a folder with images in it, or the files themselves.",
                "folder.empty",
            )
        files.extend(str(Path(path) / name) for name in names)
    return files


def _is_pattern(path: str) -> bool:
    """Whether a word is a pattern, not a file's name."""
    return glob.has_magic(path) and not _is_address(path) and not os.path.lexists(path)


def _matching(pattern: str) -> list[str]:
    names = sorted(name for name in glob.iglob(pattern, recursive=True) if is_image(Path(name)))  # noqa: PTH207 - absolute ones, too
    if not names:
        raise ImageError(
            f"No image matches {pattern} ({', '.join(SUFFIXES)}). Check the pattern and the folder you are in.",
            "folder.empty",
        )
    return names


def _is_address(text: str) -> bool:
    """Whether a text is a network address."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) is not None


def _download_first(address: str) -> str:
    """How to download an address; nothing is fetched here."""
    name = address.partition("?")[0].rstrip("/").rpartition("/")[2] or "image"
    command = f"curl -L -o {shlex.quote(name)} {shlex.quote(address)}"
    if not address.lower().startswith(("http://", "https://", "ftp://")):
        command = f"copy it here as {name}"
    return (
        f"{address} is an address, and only files are read: nothing is fetched from a network. "
        f"Download it first: {command}"
    )


def is_image(path: Path) -> bool:
    """Whether a file in a folder is an image.

    By its suffix, or DICOM without one; hidden files are not.
    """
    if path.name.startswith(".") or not path.is_file():
        return False
    return is_image_name(path.name) or medical.is_dicom(path)


def is_image_name(name: str) -> bool:
    """Whether the suffix is that of an image."""
    return name.lower().endswith(SUFFIXES)


def is_gray(path: Path) -> bool | None:
    """Whether an image is gray; None if unreadable."""
    try:
        with _opened(path) as stream:
            image = _decode(stream, str(path))
            return image.gray if isinstance(image, medical.Opened) else image.mode in _GRAY
    except ImageError:
        return None


def survey(path: str | Path) -> Survey | None:
    """Survey the gray values of an image file.

    None for 8 bits, for colours, and for a file that cannot be read.
    """
    try:
        with _opened(Path(path)) as stream:
            image = _decode(stream, str(path))
            wide = image.gray if isinstance(image, medical.Opened) else is_wide(image)
            if not wide:
                return None
            with memory_budget.taken(image, str(path)):
                return _view(image, str(path)).survey()
    except ImageError:
        return None


def load(
    source: str | Path | bytes,
    spec: ImageSpec,
    name: str = "The image data",
    note: Callable[[str], None] = gray_survey.warn,
) -> Pixels:
    """Read one image file, or its bytes, and `prepare` it.

    Of several frames or pages, the first is used.

    Of a DICOM file, `study.dcm#3` is the third frame; of a NIfTI volume, `volume.nii.gz#z=40` is a slice, and without
    such an ending the middle one is used.

    Args:
        source: A path, or the content of a file.
        spec: The image that the model takes.
        name: The name of bytes in messages; it may end in a part like those.
        note: Receives warnings: gray values far from those of the model, or other frames.

    Raises:
        ImageError: The image cannot be used.
    """
    if isinstance(source, bytes):
        return _prepared(_decode(io.BytesIO(source), name), spec, name, note)
    if not isinstance(source, str | Path):
        raise ImageError(
            expected("`source`", "a path or bytes", source, "For pixels or Pillow images, call prepare instead.")
        )
    with _opened(source) as stream:
        return _prepared(_decode(stream, str(source)), spec, str(source), note)


def read(path: str | Path) -> bytes:
    """Read a file."""
    with _opened(path) as stream:
        return read_stream(stream, str(path))


def picture(
    source: str | Path | bytes | Image.Image | Pixels, size: int, name: str | None = None, shown: Range | None = None
) -> Image.Image:
    """An image for display: upright, RGB, on white.

    Small images are enlarged without smoothing, so that their pixels show.

    Args:
        source: A path, or the content of a file.
        size: Pixels of the longer side.
        name: The name of bytes, as in `load`.
        shown: The gray values that the model shows as black and white, if it stores them.
    """
    if isinstance(source, bytes):
        name = name or "The image data"
        return _pictured(_decode(io.BytesIO(source), name), size, name, shown)
    if isinstance(source, np.ndarray | Image.Image):
        return _pictured(_from_array(source) if isinstance(source, np.ndarray) else source, size, "The image", shown)
    with _opened(source) as stream:
        return _pictured(_decode(stream, str(source)), size, str(source), shown)


def _pictured(image: Image.Image | medical.Opened, size: int, name: str, shown: Range | None) -> Image.Image:
    with memory_budget.taken(image, name):
        view = _view(image, name)
        factor = size / max(view.width, view.height)
        method = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BILINEAR
        width, height = (max(1, round(side * factor)) for side in (view.width, view.height))
        (drawn,) = view.resized(ImageSpec(height, width, 3, range=shown), method)
    return drawn.convert("RGB")


def read_stream(stream: BinaryIO, name: str) -> bytes:
    """Read a stream, at most as long as an image."""
    content: bytes | None
    if stream.seekable():
        # The exact size: blocks that shrink after reading fragment the memory.
        size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        content = stream.read(size) if size <= MAX_FILE else None
    else:
        blocks = islice(iter(lambda: stream.read(_BLOCK), b""), MAX_FILE // _BLOCK + 1)
        content = b"".join(blocks)
    if content is None or len(content) > MAX_FILE:
        raise ImageError(
            f"{name} has more than {MAX_FILE >> 30} GiB, which no image needs. Check that it is one.", "image.too-large"
        )
    return content


@contextmanager
def _opened(given: str | Path) -> Iterator[BinaryIO]:
    """Open a file for seeking.

    Of a frame or slice, the file that contains it.
    """
    path = medical.split(Path(given))[0]
    try:
        with path.open("rb") as file:
            # A pipe, such as the shell's <(...), cannot be rewound.
            yield file if file.seekable() else io.BytesIO(read_stream(file, str(path)))
    except FileNotFoundError:
        if _is_address(str(given)):
            raise ImageError(_download_first(str(given)), "image.address") from None
        raise ImageError(
            f"{path} does not exist. Check its spelling and the folder you are in.", "image.missing"
        ) from None
    except (OSError, ValueError) as error:
        if _is_folder(path):
            raise ImageError(
                f"{path} is a folder, where one image file is needed. Name a file in it.", "image.folder"
            ) from None
        reason = getattr(error, "strerror", None) or error
        raise ImageError(
            f"{path} cannot be read: {reason}. Check its name and permissions.", "image.unreadable"
        ) from None


def prepare(image: Image.Image | Pixels, spec: ImageSpec) -> Pixels:
    """Convert pixels to the model's shape and dtype.

    The shape is [height, width, channels].

    Upright by EXIF, transparent parts on white, gray repeated or colour made gray, then resized.
    Gray of more than 8 bits is scaled from the range of the model to 0..255, if it has one. Otherwise, a uint8 model
    gets 16-bit gray divided by 257, and float gray times 255, which must be within 0..1; a float32 model gets the
    values of the file unchanged: 0..255 from 8 bits, 0..65535 from 16.
    An array that has the model's shape and type is finished, and copied.

    Args:
        image: A Pillow image (its current frame), or uint8 [h, w], [h, w, 1], [h, w, 3] or [h, w, 4]; or uint16
            [h, w] or [h, w, 1].
        spec: The image that the model takes.

    Raises:
        ImageError: The pixels cannot be read, or their range is not defined.
    """
    if isinstance(image, np.ndarray):
        if image.shape == (spec.height, spec.width, spec.channels) and image.dtype == spec.dtype:
            return image.copy()
        image = _from_array(image)
    elif not isinstance(image, Image.Image):
        raise ImageError(expected("`image`", "a Pillow image or an array", image, "For a file, call load instead."))
    return _prepared(image, spec, "The image", gray_survey.warn)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long, which the loader reports
        return False


def _decode(stream: BinaryIO, name: str) -> Image.Image | medical.Opened:
    kind = medical.sniff(stream, name)
    if kind is not None and stream.seek(0, io.SEEK_END) > 0:
        stream.seek(0)
        return medical.open_(kind, stream, name, medical.split(Path(name))[1])
    stream.seek(0)
    try:
        with silenced():
            return Image.open(stream, formats=FORMATS)
    except Image.DecompressionBombError as error:
        size = re.search(r"\d+", str(error))
        raise ImageError(
            memory_budget.too_large(name, int(size[0]) if size else memory_budget.MAX_PIXELS, memory_budget.MAX_PIXELS),
            "image.too-large",
        ) from None
    except UnidentifiedImageError:
        if stream.seek(0, io.SEEK_END) == 0:
            raise ImageError(f"{name} is empty (0 bytes). Copy or download it again.", "image.empty") from None
        raise ImageError(
            f"{name} is not an image that can be read ({', '.join(FORMATS)}), or its header is damaged. "
            "Check that it opens in an image viewer, and save it as PNG.",
            "image.unknown-format",
        ) from None
    except Exception as error:  # plugins raise any exception
        raise damage(name, error) from None


def _prepared(image: Image.Image | medical.Opened, spec: ImageSpec, name: str, note: Callable[[str], None]) -> Pixels:
    with memory_budget.taken(image, name):
        view = _view(image, name)
        bands, layout = view.resized(spec), view.layout(spec)
    for message in (image.note if isinstance(image, medical.Opened) else None, view.note):
        if message is not None:
            note(message)
    pixels = np.dstack([np.asarray(band) for band in bands])
    if pixels.shape[2] != spec.channels:
        pixels = np.repeat(pixels, spec.channels, axis=2)
    return pixels if pixels.shape[:2] == (spec.height, spec.width) else _padded(pixels, spec, layout)


def _padded(pixels: Pixels, spec: ImageSpec, layout: Layout) -> Pixels:
    """The pixels where the layout puts them, and the fill beside them."""
    whole = np.empty((spec.height, spec.width, spec.channels), pixels.dtype)
    whole[:] = spec.resize.fill
    left, top = -layout.left, -layout.top
    whole[top : top + layout.height, left : left + layout.width] = pixels
    return whole


def _view(image: Image.Image | medical.Opened, name: str) -> View:
    """The image, decoded."""
    return View(*image.decoded(), name=name) if isinstance(image, medical.Opened) else View(image, name=name)


def _from_array(array: Pixels) -> Image.Image:
    channels = array.shape[2] if array.ndim == 3 else 1
    known = {"uint8": (1, 3, 4), "uint16": (1,)}.get(str(array.dtype), ())
    if array.ndim not in (2, 3) or channels not in known or array.size == 0:
        raise ImageError(
            expected(
                "`image`",
                "a non-empty uint8 array of shape [h, w], [h, w, 1], [h, w, 3] or [h, w, 4], or uint16 [h, w]",
                f"{array.dtype} {list(array.shape)}",
                "Scale its values to 0..255, put the channels last and convert it with .astype(np.uint8).",
            )
        )
    return Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)

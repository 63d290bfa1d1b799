"""Read one frame of a DICOM file."""

import io
import math
import struct
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge.errors import ImageError
from uce_edge.images.gray_range import Range
from uce_edge.images.gray_survey import Display
from uce_edge.images.medical.file_type import Part
from uce_edge.images.medical.header import Bounded, Opened, need, reported

_DEFLATED = "1.2.840.10008.1.2.1.99"
_PILLOW = {f"1.2.840.10008.1.2.4.{number}" for number in (50, 51, 90, 91)}  # what Pillow decodes for pydicom
_JP2 = b"\0\0\0\x0cjP  "
_GRAY = ("MONOCHROME1", "MONOCHROME2")
_COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT", "PALETTE COLOR")
_CODECS = {
    "57": "pylibjpeg pylibjpeg-libjpeg", "70": "pylibjpeg pylibjpeg-libjpeg", "51": "pylibjpeg pylibjpeg-libjpeg",
    "80": "pyjpegls", "81": "pyjpegls",
}  # fmt: skip
_OTHER_CODEC = "pylibjpeg pylibjpeg-openjpeg"
_STEP = 1e-3  # how wide a window is that has no width: DICOM's is a step there
# Where frames of an enhanced file keep what others have on top.
_GROUPS = {
    "RescaleSlope": "PixelValueTransformationSequence", "RescaleIntercept": "PixelValueTransformationSequence",
    "WindowCenter": "FrameVOILUTSequence", "WindowWidth": "FrameVOILUTSequence",
    "VOILUTFunction": "FrameVOILUTSequence",
}  # fmt: skip


class Dicom(Opened):
    """A frame of a DICOM file."""

    def __init__(self, stream: BinaryIO, name: str, part: Part) -> None:
        """Read the header; the arguments are those of `open_`."""
        pydicom = need("pydicom", "Reading DICOM")
        self._stream, self._name = Bounded(stream), name
        self.info: dict[str, Any] = {}
        with reported(name):
            self._syntax = _transfer_syntax(stream)
            if self._syntax == _DEFLATED:
                raise ImageError(
                    f"{name} is a deflated DICOM file, which may grow without a bound when it is read. "
                    "Save it uncompressed, for instance with dcmtk's dcmconv +te.",
                    "image.unsupported",
                )
            try:
                self._data = pydicom.dcmread(self._stream, stop_before_pixels=True, force=True)
            except pydicom.errors.InvalidDicomError:
                self._data = {}
            self._frames = self._checked(part)
            self._frame = (part.frame or 1) - 1
        if self._frames > 1 and not part.chosen:
            self.note = f"{name} has {self._frames} frames, of which the first is used; name another one as {name}#2"

    def decoded(self) -> tuple[Image.Image, Display | None]:
        """The decompressed frame, in the units of the file."""
        with reported(self._name):
            stored = self._stored()
            if not self.gray:
                return Image.fromarray(self._coloured(stored)), None
            values, display = self._shown(stored)
            return Image.fromarray(np.ascontiguousarray(values, np.float32)), display

    def _checked(self, part: Part) -> int:
        """Check the header and count the frames."""
        data, name = self._data, self._name
        if "Rows" not in data or "Columns" not in data:
            raise ImageError(
                f"{name} has no pixels: it is a DICOM file about something else, such as a report or a directory, or "
                "none at all. Name the image files.",
                "image.no-pixels",
            )
        self.size = (int(data.Columns), int(data.Rows))
        self._colours = str(data.get("PhotometricInterpretation", "MONOCHROME2")).strip().upper()
        self.gray = self._colours in _GRAY
        self.format = "DICOM" if self.gray else "DICOM in colour"
        samples = int(data.get("SamplesPerPixel") or 1)
        if not self.gray and self._colours not in _COLOURS:
            known = ", ".join(_GRAY + _COLOURS)
            raise ImageError(
                f"{name} has the photometric interpretation {self._colours}, and only {known} are read. Convert it to "
                "RGB or MONOCHROME2.",
                "image.unsupported",
            )
        if samples != (1 if self.gray or self._colours == "PALETTE COLOR" else 3):
            raise ImageError(
                f"{name} has {samples} samples per pixel, which {self._colours} cannot have. Save it again.",
                "image.damaged",
            )
        frames = int(data.get("NumberOfFrames") or 1)
        if part.slice is not None or part.volume:
            raise ImageError(f"{name} is a DICOM file: name a frame by its number, as in study.dcm#3.", "image.part")
        if part.frame is not None and not 1 <= part.frame <= frames:
            raise ImageError(
                f"{name} is not there: the file has {frames} frames, which count from 1.", "image.part-missing"
            )
        return frames

    def _stored(self) -> npt.NDArray[Any]:
        """The stored frame; YBR colours as RGB."""
        from pydicom.pixels import get_decoder, pixel_array
        from pydicom.uid import UID

        uid = UID(self._syntax)
        try:
            decoder = get_decoder(uid)
        except NotImplementedError:
            raise ImageError(
                f"{self._name} is stored as {uid.name or 'nothing known'}, which is not read. Save it uncompressed, "
                "for instance with dcmtk's dcmconv +te.",
                "image.unsupported",
            ) from None
        if not decoder.is_available:
            package = _CODECS.get(self._syntax.rpartition(".")[2], _OTHER_CODEC)
            raise ImageError(
                f"{self._name} is compressed with {uid.name}, which no installed package decodes. "
                f"Run: pip install {package}",
                "part.missing",
            )
        if uid.is_encapsulated:
            self._check_inside()
        self._stream.seek(0)
        array: npt.NDArray[Any] = pixel_array(self._stream, index=self._frame)
        if array.shape[:2] != self.size[::-1]:
            raise ImageError(
                f"{self._name} has other pixels inside than its header says. Copy or save it again.", "image.damaged"
            )
        return array

    def _check_inside(self) -> None:
        """Check the size and the end of a compressed picture."""
        from pydicom.encaps import get_frame
        from pydicom.pixels.utils import _array_common

        self._stream.seek(0)
        _array_common(self._stream, [])
        frame = get_frame(self._stream, self._frame, number_of_frames=self._frames)
        if frame.startswith(_JP2) and not _boxes_end(frame):
            raise ImageError(
                f"{self._name} has a damaged JPEG 2000 picture inside. Copy or save it again.", "image.damaged"
            )
        if self._syntax not in _PILLOW:
            return
        with Image.open(io.BytesIO(frame), formats=("JPEG", "JPEG2000")) as inside:
            if inside.size != self.size:
                raise ImageError(
                    f"{self._name} has a picture of {inside.width} x {inside.height} pixels inside, and its header "
                    f"says {self.size[0]} x {self.size[1]}. Copy or save it again.",
                    "image.damaged",
                )

    def _coloured(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        if self._colours == "PALETTE COLOR":
            from pydicom.pixels import apply_color_lut

            stored = apply_color_lut(stored, self._data)[..., :3]
            bits = 8 * stored.dtype.itemsize
        else:
            bits = int(self._data.BitsStored)
        if bits == 8:
            return np.ascontiguousarray(stored, np.uint8)
        return np.floor(Range(0, 2**bits - 1).shown(stored) + 0.5).astype(np.uint8)

    def _shown(self, stored: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Display]:
        """Gray values in the file's units, and their display."""
        inverted = self._colours == "MONOCHROME1"
        values, full = self._rescaled(stored)
        tables = self._data.get("VOILUTSequence")
        if tables:
            looked_up, full = _looked_up(values, tables[0])
            return looked_up, Display(full, True, inverted)
        window = self._window()
        if window is None:
            return values, Display(full, False, inverted)
        centre, width, function = window
        if function == "SIGMOID":
            with np.errstate(over="ignore"):
                bright = 255 / (1 + np.exp(-4 * (values - centre) / width))
            return bright, Display(Range(0, 255), True, inverted)
        if function == "LINEAR":
            centre, width = centre - 0.5, max(width - 1, _STEP)
        return values, Display(Range(centre - width / 2, centre + width / 2), True, inverted)

    def _rescaled(self, stored: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Range | None]:
        """The values in their units, and their possible range."""
        if self._data.get("ModalityLUTSequence"):
            return _looked_up(stored, self._data.ModalityLUTSequence[0])
        slope, intercept = self._number("RescaleSlope", 1.0), self._number("RescaleIntercept", 0.0)
        if slope == 0:
            raise ImageError(
                f"{self._name} has a rescale slope of 0, which makes all pixels the same. Save it again.",
                "image.damaged",
            )
        values = stored.astype(np.float32)
        values *= np.float32(slope)
        values += np.float32(intercept)
        if stored.dtype.kind == "f":
            return values, None
        bits = int(self._data.BitsStored)
        low = -(2 ** (bits - 1)) if int(self._data.get("PixelRepresentation") or 0) else 0
        ends = sorted(slope * end + intercept for end in (low, low + 2**bits - 1))
        return values, Range(*ends)

    def _window(self) -> tuple[float, float, str] | None:
        """Centre, width and function of the first usable window."""
        function = str(self._found("VOILUTFunction") or "LINEAR").strip().upper()
        centre, width = self._number("WindowCenter", math.nan), self._number("WindowWidth", math.nan)
        least = 1 if function == "LINEAR" else 0
        usable = math.isfinite(centre) and math.isfinite(width) and width > 0 and width >= least
        return (centre, width, function) if usable else None

    def _number(self, keyword: str, default: float) -> float:
        found = self._found(keyword)
        if found is None or found == "":
            return default
        first = found if isinstance(found, int | float | str) else next(iter(found))  # of several, the first
        return float(first)

    def _found(self, keyword: str) -> Any:
        """The value for the frame, all frames, or the file."""
        groups = [*self._group("PerFrameFunctionalGroupsSequence", self._frame)]
        groups += self._group("SharedFunctionalGroupsSequence", 0)
        for group in groups:
            inner = group.get(_GROUPS[keyword])
            if inner and keyword in inner[0]:
                return inner[0].get(keyword)
        return self._data.get(keyword)

    def _group(self, keyword: str, index: int) -> list[Any]:
        groups = self._data.get(keyword) or []
        return [groups[index]] if index < len(groups) else []


def _boxes_end(frame: bytes) -> bool:
    """Whether the boxes of a JP2 file end.

    pydicom would loop forever on one of length 0.
    """
    place = 12
    while place < len(frame):
        length = int.from_bytes(frame[place : place + 4], "big")
        if frame[place + 4 : place + 8] == b"jp2c":
            return True
        if length == 0:
            return False
        place += length
    return True


def _looked_up(values: npt.NDArray[Any], item: Any) -> tuple[npt.NDArray[Any], Range]:
    """Apply a look-up table; also give its range.

    Values beside the table get its ends.
    """
    count, first, bits = (int(number) for number in item.LUTDescriptor)
    count, data = count or 65536, item.LUTData
    if isinstance(data, bytes):
        table = np.frombuffer(data, "<u2" if bits > 8 or len(data) >= 2 * count else "u1")
    else:
        table = np.asarray(data, np.uint16)
    places = np.rint(values).astype(np.int32) if values.dtype.kind == "f" else values.astype(np.int32)
    places -= first
    return table[np.clip(places, 0, min(count, len(table)) - 1, out=places)], Range(0, 2**bits - 1)


def _transfer_syntax(stream: BinaryIO) -> str:
    """The transfer syntax, from the elements of group 2.

    They come first and always have the same encoding.
    """
    bounded = Bounded(stream)
    bounded.seek(128)
    found = "1.2.840.10008.1.2"  # the default of DICOM
    if bounded.read(4) == b"DICM":
        while len(head := bounded.read(8)) == 8 and head[:2] == b"\2\0":
            length = struct.unpack("<H", head[6:])[0]
            if head[4:6] in (b"OB", b"UN", b"OW", b"SQ", b"UT", b"UC"):
                length = struct.unpack("<I", bounded.read(4).ljust(4, b"\0"))[0]
            if head[2:4] == b"\x10\0":
                found = bounded.read(length).strip(b"\0 ").decode("ascii", "replace")
                break
            bounded.seek(length, io.SEEK_CUR)
    bounded.seek(0)
    return found

"""Read one slice of a NIfTI volume.

It is shown as an axial DICOM image is.
"""

import gzip
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge.errors import ImageError
from uce_edge.images.gray_range import Range
from uce_edge.images.gray_survey import Display
from uce_edge.images.medical.file_type import Part
from uce_edge.images.medical.header import Bounded, Opened, need, reported

_AXES = "xyz"
_mute = threading.local()


@contextmanager
def _quiet() -> Iterator[None]:
    """Mute nibabel's log in this thread."""
    log = logging.getLogger("nibabel.global")
    if _is_heard not in log.filters:
        log.addFilter(_is_heard)
    _mute.on = True
    try:
        yield
    finally:
        _mute.on = False


def _is_heard(_: logging.LogRecord) -> bool:
    return not getattr(_mute, "on", False)


class Nifti(Opened):
    """A slice of a volume.

    The volume is turned to its closest anatomical axes: x grows to the right of the patient, y to the front, z to the
    head. A slice is shown as DICOM shows it: the right or the front of the patient on the left, the front or the head
    on top.
    """

    format = "NIFTI"

    def __init__(self, stream: BinaryIO, name: str, part: Part) -> None:
        """Read the header; the arguments are those of `open_`."""
        nibabel = need("nibabel", "Reading NIfTI")
        self._name, self.gray = name, True
        with reported(name):
            zipped = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            bounded: Any = Bounded(stream)
            self._stream: Any = gzip.GzipFile(fileobj=bounded) if zipped else bounded
            self._check(part)
            second = self._is_second()
            kind = nibabel.Nifti2Image if second else nibabel.Nifti1Image
            with _quiet():
                self._volume = kind.from_stream(self._stream)
            self._turn = nibabel.io_orientation(self._volume.affine)
            self._choose(part)

    def decoded(self) -> tuple[Image.Image, Display | None]:
        """The slice, scaled as the header says."""
        with reported(self._name):
            values = np.asarray(self._volume.dataobj[self._index])
            if values.dtype.kind not in "iuf" or values.ndim != 2:
                raise ImageError(
                    f"{self._name} has {values.dtype} values, and only numbers make an image. Convert it.",
                    "image.unsupported",
                )
            image = self._upright(values)
            return Image.fromarray(np.ascontiguousarray(image, np.float32)), self._display(values)

    def _check(self, part: Part) -> None:
        if part.frame is not None:
            raise ImageError(f"{self._name} is a NIfTI file: name a slice, as in volume.nii.gz#z=40.", "image.part")

    def _is_second(self) -> bool:
        head = self._stream.read(8)
        self._stream.seek(0)
        return bool(head[4:7] == b"n+2")

    def _choose(self, part: Part) -> None:
        """Find the slice in the volume as it is stored."""
        shape = self._volume.shape
        if not 2 <= len(shape) <= 4 or (len(shape) > 3 and not part.volume < shape[3]) or min(shape) < 1:
            raise ImageError(
                f"{self._name} has the shape {list(shape)}, which has no such slice. Check its number.",
                "image.part-missing",
            )
        turned = [*self._turn]
        axis = _AXES.index(part.axis)
        self._stored = next((place for place, (to, _) in enumerate(turned) if to == axis), -1)
        if len(shape) == 2:
            self._stored, count = -1, 1
        elif self._stored < 0:
            raise ImageError(
                f"{self._name} does not say where its axes point. Save it with an affine.", "image.unsupported"
            )
        else:
            count = int(shape[self._stored])
        wanted = count // 2 if part.slice is None else part.slice
        if not 0 <= wanted < count:
            raise ImageError(
                f"{self._name} is not there: the volume has {count} slices, which count from 0.", "image.part-missing"
            )
        backwards = self._stored >= 0 and turned[self._stored][1] < 0
        index: list[Any] = [slice(None)] * min(len(shape), 3)
        if self._stored >= 0:
            index[self._stored] = count - 1 - wanted if backwards else wanted
        self._index = (*index, part.volume) if len(shape) > 3 else tuple(index)
        rest = [place for place in range(min(len(shape), 3)) if place != self._stored]
        across, up = sorted(rest, key=lambda place: turned[place][0])
        self.size = (int(shape[across]), int(shape[up]))
        self._order = (rest.index(up), rest.index(across))
        self._flips = (turned[up][1] > 0, turned[across][1] > 0)
        # Slices across the slowest axis lie together; for others the whole volume is read.
        together = self._stored in (2, -1)
        size = int(np.prod([int(side) for side in shape[:3]])) * self._volume.header.get_data_dtype().itemsize
        self.info = {} if together else {"held": size}
        if part.slice is None and count > 1:
            self.note = (
                f"{self._name} has {count} slices, of which {part.axis}={wanted} in the middle is used; "
                f"name another one as {self._name}#{part.axis}=0"
            )

    def _upright(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        image = values.transpose(self._order)
        rows, columns = self._flips
        return image[:: -1 if rows else 1, :: -1 if columns else 1]

    def _display(self, values: npt.NDArray[Any]) -> Display:
        """The header's display range, or that of its type."""
        low, high = (float(self._volume.header[key]) for key in ("cal_min", "cal_max"))
        if low < high < float("inf"):
            return Display(Range(low, high), windowed=True)
        kind = self._volume.header.get_data_dtype()
        if kind.kind not in "iu" or values.dtype.kind not in "iu":
            return Display(None)
        return Display(Range(int(np.iinfo(kind).min), int(np.iinfo(kind).max)))

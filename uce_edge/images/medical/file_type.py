"""Recognise DICOM and NIfTI, and parse frame and slice names."""

import re
import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from uce_edge.errors import ImageError

__all__ = ["Kind", "Part", "fragment", "is_dicom", "is_part", "part_of", "sniff", "split"]

_INDEX = "DICOMDIR"  # a table of contents, without pixels
_HEAD = 544  # bytes that identify the format
_SELECTION = re.compile(r"(.+)#(\d{1,9}|[xyzt]=\d{1,9}(?:,[xyzt]=\d{1,9})*)", re.DOTALL | re.ASCII)


class Kind(StrEnum):
    """The format of a medical file."""

    DICOM = "DICOM"
    NIFTI = "NIfTI"


@dataclass(frozen=True)
class Part:
    """A part of a file with several images.

    `#3` is a frame of DICOM, `#z=40,t=2` a slice of NIfTI.
    """

    frame: int | None = None
    """From 1, as DICOM counts."""
    axis: str = "z"
    """Across which the slices of a volume lie."""
    slice: int | None = None
    """From 0, as NIfTI counts; None for the middle one."""
    volume: int = 0
    """Of a series in time, from 0."""

    @property
    def chosen(self) -> bool:
        """Whether a part was named."""
        return self != Part()


def is_dicom(path: Path) -> bool:
    """Whether a file without an image suffix is DICOM.

    DICOM names often have no suffix, or end in a number.
    """
    if path.name.upper() == _INDEX or not (path.suffix == "" or path.suffix[1:].isdecimal()):
        return False
    try:
        with path.open("rb") as file:
            return sniff(file) is Kind.DICOM
    except OSError:
        return False


def split(path: Path) -> tuple[Path, Part]:
    """Split a name into file and part.

    A file whose own name ends like a part is that file.
    """
    part = fragment(str(path))
    return (path, Part()) if part is None else (Path(str(path)[: -len(part) - 1]), part_of(str(path)))


def fragment(name: str) -> str | None:
    """The part of a name behind `#`.

    None for the name of a file.
    """
    found = _SELECTION.fullmatch(name)
    try:
        itself = found is None or Path(name).exists()
    except OSError:  # such as a name that is too long, which opening reports
        itself = True
    return None if found is None or itself else found[2]


def is_part(text: str) -> bool:
    """Whether a text behind `#` names one frame or slice."""
    try:
        return part_of(f"file#{text}").chosen
    except ImageError:
        return False


def part_of(name: str) -> Part:
    """Parse the part of a name after `#`.

    Raises:
        ImageError: It names one axis twice, or two axes.
    """
    found = _SELECTION.fullmatch(name)
    if found is None:
        return Part()
    if found[2].isdecimal():
        return Part(frame=int(found[2]))
    pairs = [pair.split("=") for pair in found[2].split(",")]
    given = {axis: int(number) for axis, number in pairs}
    axes = [axis for axis, _ in pairs if axis != "t"]
    if len(given) != len(pairs) or len(axes) > 1:
        raise ImageError(
            f"{name} names more than one slice. Name one across x, y or z: {found[1]}#z=40, or #z=40,t=2.", "image.part"
        )
    return Part(axis=(axes or ["z"])[0], slice=given[axes[0]] if axes else None, volume=given.get("t", 0))


def sniff(stream: BinaryIO, name: str = "") -> Kind | None:
    """Recognise a stream by its first bytes, or its name.

    The stream is rewound.
    """
    head = stream.read(_HEAD)
    stream.seek(0)
    if head[128:132] == b"DICM":
        return Kind.DICOM
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD)
        except zlib.error:
            head = b""
    if _is_nifti(head):
        return Kind.NIFTI
    name = split(Path(name))[0].name.lower()
    if name.endswith((".nii", ".nii.gz")):
        return Kind.NIFTI
    return Kind.DICOM if name.endswith((".dcm", ".dicom")) else None


def _is_nifti(head: bytes) -> bool:
    if len(head) < 348:
        return False
    sizes = {struct.unpack(order, head[:4])[0] for order in ("<i", ">i")}
    return (348 in sizes and head[344:348] == b"n+1\0") or (540 in sizes and head[4:8] == b"n+2\0")

"""DICOM and NIfTI: one frame or slice as an image."""

from typing import BinaryIO

from uce_edge.images.medical.file_type import Kind, Part, fragment, is_dicom, is_part, part_of, sniff, split
from uce_edge.images.medical.header import Opened

__all__ = ["Kind", "Opened", "Part", "fragment", "is_dicom", "is_part", "open_", "part_of", "sniff", "split"]


def open_(kind: Kind, stream: BinaryIO, name: str, part: Part) -> Opened:
    """Read the header of a file.

    Args:
        kind: What it is.
        stream: Its content, which can be rewound and stays open until the pixels are read.
        name: What messages call it.
        part: Which frame or slice of it is meant.

    Raises:
        ImageError: Whatever is wrong with it, in one sentence.
    """
    if kind is Kind.DICOM:
        from uce_edge.images.medical.dicom import Dicom

        return Dicom(stream, name, part)
    from uce_edge.images.medical.nifti import Nifti

    return Nifti(stream, name, part)

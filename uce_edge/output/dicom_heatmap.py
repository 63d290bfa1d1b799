"""Heatmaps as DICOM secondary captures, in the study of the image.

The picture is the annotated copy of `predict --save`: the image, its maps and the answer. Patient and study are copied
from the header of the image, as in the structured report.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from uce_edge._util.atomic_files import replacing
from uce_edge.images.medical import part_of

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer

_SERIES = 9_001  # behind that of the reports
_WIDTH = 512  # of one picture
_COPIED = ("BurnedInAnnotation", "LossyImageCompression", "LossyImageCompressionRatio", "LossyImageCompressionMethod")
"""Of the image; what it does not state stays unstated."""


def write(answer: "Answer", image: Any, out: Path, maker: str) -> None:
    """Write the heatmap of one answer.

    Args:
        answer: With a heatmap, and with the bytes of its file.
        image: The header of the image, a pydicom dataset.
        out: The file.
        maker: Named as the manufacturer.
    """
    with replacing(out, "--dicom-sr") as temporary:
        build(answer, image, maker).save_as(temporary, enforce_file_format=True)


def frame_of(answer: "Answer", image: Any) -> int | None:
    """The frame that an answer is about, from 1; None for an image of one frame."""
    if int(image.get("NumberOfFrames") or 1) == 1:
        return None
    named = None if answer.part is None else part_of(f"file#{answer.part}").frame
    return named or 1


def build(answer: "Answer", image: Any, maker: str) -> Any:
    """The secondary capture, a pydicom dataset."""
    import numpy as np
    from highdicom.sc import SCImage
    from highdicom.uid import UID
    from pydicom.dataset import Dataset

    from uce_edge.output.annotate import annotated

    capture = SCImage.from_ref_dataset(
        image,
        pixel_array=np.asarray(annotated(answer, _WIDTH, maps=True)),
        photometric_interpretation="RGB",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=("L", "P"),  # replaced: pictures side by side have none
        series_instance_uid=UID(),
        series_number=_SERIES,
        sop_instance_uid=UID(),
        instance_number=1,
        manufacturer=maker,
    )
    capture.PatientOrientation = None  # type: ignore[assignment]
    capture.Laterality = image.get("Laterality")  # empty where the image does not state it
    capture.ImageType = ["DERIVED", "SECONDARY"]
    capture.SeriesDescription = "uce-edge heatmap"
    for name in _COPIED:
        if name in image:
            setattr(capture, name, image[name].value)
        elif name in capture:
            delattr(capture, name)
    source = Dataset()
    source.ReferencedSOPClassUID, source.ReferencedSOPInstanceUID = image.SOPClassUID, image.SOPInstanceUID
    frame = frame_of(answer, image)
    if frame is not None:
        source.ReferencedFrameNumber = frame
    capture.SourceImageSequence = [source]
    return capture

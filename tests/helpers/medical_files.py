"""DICOM files and NIfTI volumes for tests, made on the spot."""

import io
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage


def dataset(values: np.ndarray | None, photometric: str = "MONOCHROME2", bits: int = 12, **elements: Any) -> Dataset:
    """A data set with these pixels, [rows, columns] or with frames first or colours last."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.SOPClassUID, data.SOPInstanceUID = SecondaryCaptureImageStorage, "1.2.3.4"
    data.PatientName = "Invented^Patient"
    if values is not None:
        data.set_pixel_data(values, photometric, bits)
    for keyword, value in elements.items():
        setattr(data, keyword, value)
    return data


def dicom(values: np.ndarray | None, photometric: str = "MONOCHROME2", bits: int = 12, **elements: Any) -> bytes:
    """The same as the bytes of a file."""
    return written(dataset(values, photometric, bits, **elements))


def written(data: Dataset) -> bytes:
    """A data set as the bytes of a file."""
    file = io.BytesIO()
    data.save_as(file, enforce_file_format=True)
    return file.getvalue()

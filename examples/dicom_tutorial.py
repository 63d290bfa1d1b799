"""Writes the X-rays of PneumoniaMNIST as DICOM files of invented patients, for docs/tutorial-pneumonia.md.

python examples/dicom_tutorial.py data/pneumoniamnist.npz

makes xrays/train, xrays/val and xrays/test, each with a folder normal and a folder pneumonia, xrays/manifest.csv, and
incoming/ with some of the test images, without labels. The pixels have 12 bits; every third file stores white as 0
(MONOCHROME1). Names and identifiers are made up.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, generate_uid

CLASSES = ("normal", "pneumonia")
WHITE = 4095  # of a detector with 12 bits
ARRIVED = 50


def study(pixels: npt.NDArray[np.uint8], patient: str, number: int) -> Dataset:
    """One X-ray as a computed radiography image."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.SOPClassUID = ComputedRadiographyImageStorage
    data.SOPInstanceUID = generate_uid(entropy_srcs=[patient, str(number)])
    data.PatientID, data.PatientName, data.Modality = patient, f"Invented^{patient}", "CR"
    deep = np.rint(pixels * (WHITE / 255)).astype(np.uint16)
    inverted = number % 3 == 0
    data.set_pixel_data(WHITE - deep if inverted else deep, "MONOCHROME1" if inverted else "MONOCHROME2", 12)
    return data


def write(data: Dataset, path: Path) -> None:
    """Save a data set as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)


def main(archive: str) -> None:
    """Write all files; every patient has one to three X-rays, all of one class."""
    arrays: dict[str, Any] = dict(np.load(archive))
    rng, rows, patients = np.random.default_rng(0), [], 0
    for part in ("train", "val", "test"):
        labels = arrays[f"{part}_labels"].ravel()
        for label, name in enumerate(CLASSES):
            left = 0
            for pixels in arrays[f"{part}_images"][labels == label]:
                if left == 0:
                    patients, left = patients + 1, int(rng.integers(1, 4))
                left -= 1
                patient = f"P{patients:05d}"
                file = f"{part}/{name}/{patient}-{left}.dcm"
                write(study(pixels, patient, len(rows)), Path("xrays") / file)
                rows.append((file, name, patient, part))
    with Path("xrays/manifest.csv").open("w", newline="") as table:
        csv.writer(table).writerows([("path", "label", "patient", "split"), *rows])
    for index, pixels in enumerate(arrays["test_images"][:ARRIVED]):
        write(study(pixels, f"N{index:05d}", index), Path("incoming") / f"N{index:05d}.dcm")
    print(f"xrays/ has {len(rows)} X-rays of {patients} invented patients, and incoming/ some without a label.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

"""Writes chest X-rays as DICOM files of patients, for docs/tutorial-pneumonia.md.

python examples/dicom_tutorial.py chest_xray/

reads the images of Kermany et al. 2018, in folders NORMAL and PNEUMONIA of any depth, and makes xrays/normal,
xrays/pneumonia, xrays/manifest.csv, and incoming/ with the X-rays of some patients, without labels. The shorter side
has 256 pixels, of 12 bits; every third file stores white as 0 (MONOCHROME1). The names of the files tell patients
apart; the patients' names are made up.
"""

import csv
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, generate_uid

PATIENT = re.compile(r"(person\d+|IM-\d+)")
SIDE, WHITE = 256, 4095  # a detector with 12 bits
ARRIVES = 20  # the X-rays of one patient of so many arrive later


def study(pixels: npt.NDArray[Any], patient: str, number: int) -> Dataset:
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


def gray(path: Path) -> npt.NDArray[np.uint8]:
    """An X-ray, reduced to the size of the tutorial."""
    with Image.open(path) as image:
        scale = SIDE / min(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        return np.asarray(image.convert("L").resize(size, Image.Resampling.BICUBIC))


def main(folder: str) -> None:
    """Write all files."""
    rows, patients, arrived = [], set(), 0
    files = sorted(path for path in Path(folder).rglob("*.jp*g") if path.parent.name in ("NORMAL", "PNEUMONIA"))
    for number, path in enumerate(files):
        found = PATIENT.search(path.name)
        if found is None:
            sys.exit(f"{path} has no patient in its name.")
        patient, label = found[1], path.parent.name.lower()
        later = int(re.sub(r"\D", "", patient)) % ARRIVES == 0
        file = Path(label) / f"{path.stem}.dcm"
        target = Path("incoming") / file.name if later else Path("xrays") / file
        target.parent.mkdir(parents=True, exist_ok=True)
        study(gray(path), patient, number).save_as(target, enforce_file_format=True)
        arrived += later
        if not later:
            patients.add(patient)
            rows.append((file.as_posix(), label, patient))
    with Path("xrays/manifest.csv").open("w", newline="") as table:
        csv.writer(table).writerows([("path", "label", "patient"), *rows])
    print(f"xrays/ has {len(rows)} X-rays of {len(patients)} patients, and incoming/ {arrived} without a label.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

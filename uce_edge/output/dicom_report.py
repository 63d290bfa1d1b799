"""Answers as DICOM structured reports, for a PACS.

The report is a measurement report (TID 1500) in the study of the image. Patient and study come from the image's own
header; nothing about the patient is added or changed. Names that DICOM has no code for are coded with a scheme of this
project, 99UCEEDGE. Classes have a scheme of their own, 99UCECLASS: the code is the class number, and the version is the
start of the model's digest, so that equal codes of two models are not taken for one label.
"""

import io
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uce_edge import __version__
from uce_edge._util.atomic_files import replacing
from uce_edge._util.printable import shown
from uce_edge.calibration.label_sets import in_words
from uce_edge.errors import ImageError, MissingPartError, UsageError, expected
from uce_edge.images.medical import Kind, sniff
from uce_edge.output import dicom_heatmap
from uce_edge.output.annotate import CopyNames

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer

SCHEME, CLASSES = "99UCEEDGE", "99UCECLASS"
_MEANING = 64  # characters of a code meaning; the full text follows in a text item
_MAKER = "uce-edge"
_SERIES = 9_000  # of reports, far from those of a modality
_PATIENT = ("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyInstanceUID", "SeriesInstanceUID",
            "SOPInstanceUID", "SOPClassUID")  # fmt: skip
_UNICODE = "ISO_IR 192"
_MAY_BE_EMPTY = ("AccessionNumber", "StudyID", "StudyDate", "StudyTime", "ReferringPhysicianName")
_MEASURED = {
    "confidence": "Probability of the label",
    "uncertainty": "Normalised predictive entropy",
    "model_uncertainty": "Mutual information of label and weights",
    "error_probability": "Estimated probability of a wrong label",
    "novelty": "Share of calibration images at least as far away",
}


def check_place(place: Path, images: int, *, endless: bool = False) -> None:
    """Refuse a file for several images, and other names than .dcm.

    Raises:
        UsageError: With the remedy.
        MissingPartError: highdicom is not installed.
    """
    try:
        import highdicom  # noqa: F401
    except ImportError:
        raise MissingPartError("A structured report", "highdicom", "medical") from None
    if place.suffix.lower() == ".dcm":
        if images != 1 or endless:
            rule = "a folder for several images"
            raise UsageError(expected("`dicom_sr`", rule, place, "Use: --dicom-sr reports/"), "dicom-sr.several")
    elif place.suffix:
        rule = "a file that ends in .dcm, or a folder"
        raise UsageError(expected("`dicom_sr`", rule, place, "Use: --dicom-sr report.dcm"), "dicom-sr.name")


def heatmap_beside(place: Path) -> Path:
    """The secondary capture of a report in one file: out-heatmap.dcm beside out.dcm."""
    return place.with_name(f"{place.stem}-heatmap{place.suffix}")


def write(answer: "Answer", place: Path, model: Path, sha256: str, names: CopyNames) -> list[Path]:
    """Write the report of one answer, and its heatmap if there is one.

    Args:
        answer: Of a DICOM file, with its bytes.
        place: The file of the report, or the folder for NAME-sr.dcm. The heatmap goes to NAME-heatmap.dcm beside it.
        model: The model file.
        sha256: Its digest.
        names: The names of the folder.

    Returns:
        The files.

    Raises:
        ImageError: The image is no DICOM file, or lacks what a report must state.
    """
    image, single = _header(answer), place.suffix.lower() == ".dcm"
    name = names.of(_named(answer))
    out = place if single else place / f"{name}-sr.dcm"
    report = build(answer, image, model.name, sha256)
    with replacing(out, "--dicom-sr") as temporary:
        report.save_as(temporary, enforce_file_format=True)
    if answer.prediction is None or answer.prediction.heatmap is None:
        return [out]
    heatmap = heatmap_beside(place) if single else place / f"{name}-heatmap.dcm"
    dicom_heatmap.write(answer, image, heatmap, _MAKER)
    return [out, heatmap]


def _named(answer: "Answer") -> str:
    """A name that ends in a suffix; the dots of a UID are none."""
    whole = answer.path if answer.part is None else answer.path.removesuffix(f"#{answer.part}")
    name = Path(whole).name
    stem = name[: -len(".dcm")] if name.lower().endswith(".dcm") else name
    return f"{stem}.png" if answer.part is None else f"{stem}-{answer.part}.png"


def build(answer: "Answer", image: Any, model: str, sha256: str) -> Any:
    """The report of one answer, a pydicom dataset."""
    from highdicom.sr import (
        AlgorithmIdentification,
        CodedConcept,
        ComprehensiveSR,
        DeviceObserverIdentifyingAttributes,
        Measurement,
        MeasurementReport,
        MeasurementsAndQualitativeEvaluations,
        ObservationContext,
        ObserverContext,
        QualitativeEvaluation,
        RelationshipTypeValues,
        SourceImageForMeasurementGroup,
        TextContentItem,
        TrackingIdentifier,
    )
    from highdicom.uid import UID
    from pydicom.dataset import Dataset
    from pydicom.sr.codedict import codes

    prediction = answer.prediction
    assert prediction is not None
    unit = codes.UCUM.NoUnits

    def concept(code: str, meaning: str) -> Any:
        return CodedConcept(code[:16], SCHEME, _line(meaning))

    def label_of(number: int, label: str) -> Any:
        return CodedConcept(f"C{number}", CLASSES, _line(label), sha256[:16])

    algorithm = AlgorithmIdentification(
        name=shown(model),
        version=sha256[:16],
        parameters=[f"sha256={sha256}", f"seed={prediction.seed}", f"passes={prediction.passes}",
                    f"uce-edge={__version__}"],
    )  # fmt: skip
    values = {name: getattr(prediction, name) for name in _MEASURED}
    measurements = [
        Measurement(concept(name.upper()[:16], _MEASURED[name]), float(value), unit)
        for name, value in values.items()
        if value is not None
    ]
    is_label, in_set = concept("LABEL", "Predicted label"), concept("SET", "Label of the prediction set")
    labels = list(zip(prediction.set_ids or (), prediction.label_set or (), strict=True))
    members = [label_of(number, label) for number, label in labels]
    if prediction.label_set == ():  # unlike a file without sets, which has no such entry
        members = [concept("EMPTY", in_words(()))]
    decided = "not decided" if prediction.decision is None else str(prediction.decision)
    evaluations = [
        QualitativeEvaluation(is_label, label_of(prediction.class_id, prediction.label)),
        QualitativeEvaluation(
            concept("DECISION", "Decision of the reject rule"),
            concept("NONE" if prediction.decision is None else decided.upper(), decided),
        ),
        *(QualitativeEvaluation(in_set, member) for member in members),
    ]
    named = [(is_label, prediction.label), *((in_set, label) for _, label in labels)]
    full = [(name, shown(text)) for name, text in named if len(shown(text)) > _MEANING]
    if prediction.why:
        full.append((concept("REASON", "Reason of the decision"), shown(prediction.why)))
    frame = dicom_heatmap.frame_of(answer, image)
    _declare_characters(image, [model, prediction.label, prediction.why, *(prediction.label_set or ())])
    group = MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(uid=UID(), identifier="image"),
        algorithm_id=algorithm,
        source_images=[SourceImageForMeasurementGroup.from_source_image(image, [frame] if frame is not None else None)],
        measurements=measurements,
        qualitative_evaluations=evaluations,
    )
    for name, text in full:
        group[0].ContentSequence.append(TextContentItem(name, text, RelationshipTypeValues.CONTAINS))
    content = MeasurementReport(
        observation_context=ObservationContext(
            observer_device_context=ObserverContext(
                observer_type=codes.DCM.Device,
                observer_identifying_attributes=DeviceObserverIdentifyingAttributes(
                    uid=_device(sha256), name=_MAKER, manufacturer_name=_MAKER, model_name=shown(model)
                ),
            )
        ),
        procedure_reported=concept("CLASSIFY", "Image classification with uncertainty"),
        imaging_measurements=[group],
        title=codes.DCM.ImagingMeasurementReport,
    )
    report = ComprehensiveSR(
        evidence=[image],
        content=content,
        series_instance_uid=UID(),
        series_number=_SERIES,
        sop_instance_uid=UID(),
        instance_number=1,
        manufacturer=_MAKER,
        is_complete=True,
        is_final=False,
        is_verified=False,  # a person has not looked at it
    )
    schemes = {SCHEME: "uce-edge, names of its outputs", CLASSES: "uce-edge, classes of a model by number"}
    report.CodingSchemeIdentificationSequence = [Dataset() for _ in schemes]
    for scheme, (designator, name) in zip(report.CodingSchemeIdentificationSequence, schemes.items(), strict=True):
        scheme.CodingSchemeDesignator, scheme.CodingSchemeName = designator, name
        scheme.CodingSchemeResponsibleOrganization = _MAKER
    report.CodingSchemeIdentificationSequence[1].CodingSchemeVersion = sha256[:16]
    return report


def _line(text: str) -> str:
    """A value of the type LO: a line of 64 characters, without the backslash that separates values."""
    line = shown(text).replace("\\", "/")
    return line if len(line) <= _MEANING else f"{line[: _MEANING - 3]}..."


def _device(sha256: str) -> str:
    """The UID of a model as a device, the same in every report."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_URL, f'urn:sha256:{sha256}').int}"


def _declare_characters(image: Any, texts: list[str]) -> None:
    """Decode a header where its character set cannot hold these texts, so that its copies are written in UTF-8.

    Otherwise its bytes are copied as they are, whatever they mean.
    """
    from highdicom.enum import SpecificCharacterSetValues

    declared = image.get("SpecificCharacterSet")
    if not declared and "SpecificCharacterSet" in image:
        del image.SpecificCharacterSet  # empty, as if it were not there
    simple = ["", *(known.value for known in SpecificCharacterSetValues)]  # several switch within a text
    if (declared or "") not in simple or not all(text.isascii() for text in texts):
        image.decode()
        image.SpecificCharacterSet = _UNICODE


def _header(answer: "Answer") -> Any:
    """The header of the image, checked for what a report must repeat."""
    import pydicom

    content = answer.content
    assert content is not None
    if sniff(io.BytesIO(content)) is not Kind.DICOM:
        raise ImageError(
            f"{answer.path} is no DICOM file, so that a structured report has no patient and study. "
            "Leave --dicom-sr out for it.",
            "dicom-sr.not-dicom",
        )
    image = pydicom.dcmread(io.BytesIO(content), force=True, stop_before_pixels=True)
    missing = [name for name in _PATIENT if name not in image]
    if missing:
        raise ImageError(
            f"{answer.path} lacks {', '.join(missing)}, which a structured report repeats. They may be empty; add them "
            "where the file is made.",
            "dicom-sr.incomplete",
        )
    for name in _MAY_BE_EMPTY:
        if name not in image:  # de-identified files lack them
            setattr(image, name, None)
    return image

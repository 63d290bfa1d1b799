"""Structured reports: read back by highdicom's own reader, with the patient and study of the image."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, Call

from tests.helpers.medical_files import dataset, written
from uce_edge.output import dicom_heatmap, dicom_report
from uce_edge.runtime.model import Model
from uce_edge_export.publish.draft import graph_of, publish

highdicom = pytest.importorskip("highdicom", reason="highdicom is not installed: pip install uce-edge[medical]")
MODEL = GOLDEN / "digits-rule-all.onnx"
HEADER = {
    "PatientID": "P-17", "PatientBirthDate": "", "PatientSex": "O", "StudyInstanceUID": "1.2.3", "StudyID": "S1",
    "SeriesInstanceUID": "1.2.3.1", "StudyDate": "20260102", "StudyTime": "101500", "AccessionNumber": "A9",
    "ReferringPhysicianName": "", "Modality": "OT",
}  # fmt: skip


def digit(**elements: object) -> bytes:
    pixels = np.frombuffer((GOLDEN / "digit-0.raw").read_bytes(), np.uint8).reshape(8, 8)
    return written(dataset(pixels, bits=8, **HEADER | elements))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "study.dcm").write_bytes(digit())
    return tmp_path / "study.dcm"


def test_a_report_has_the_answer_and_the_patient_of_the_image(study: Path, call: Call) -> None:
    out = study.parent / "report.dcm"
    made = call("predict", study, "--model", MODEL, "--reject", "auto", "--dicom-sr", out, "--json")
    assert made.code == 0, made.err
    report = highdicom.sr.srread(out)
    assert isinstance(report, highdicom.sr.ComprehensiveSR)
    for name in ("PatientID", "PatientName", "PatientSex", "StudyInstanceUID", "AccessionNumber", "StudyDate"):
        assert str(report[name].value) == str(HEADER.get(name, "Invented^Patient"))
    assert report.VerificationFlag == "UNVERIFIED"
    model = Model(MODEL, "cpu")
    schemes = [(one.CodingSchemeDesignator, one.get("CodingSchemeVersion")) for one in
               report.CodingSchemeIdentificationSequence]  # fmt: skip
    assert schemes == [("99UCEEDGE", None), ("99UCECLASS", model.sha256[:16])]
    expected = model.predict([study], reject="auto")[0]
    (group,) = report.content.get_image_measurement_groups()
    measured = {one.name.value: float(one.value) for one in group.get_measurements()}
    assert measured["UNCERTAINTY"] == pytest.approx(expected.uncertainty, abs=1e-6)
    assert measured["CONFIDENCE"] == pytest.approx(expected.confidence, abs=1e-6)
    found = {one.name.value: one.value.meaning for one in group.get_qualitative_evaluations()}
    assert found["LABEL"] == expected.label
    assert found["DECISION"] == str(expected.decision)
    assert ("REASON", expected.why) in texts(report)
    words = out.read_bytes().decode("latin-1")
    for text in (f"sha256={model.sha256}", "seed=0", f"passes={expected.passes}"):
        assert text in words
    (evidence,) = report.CurrentRequestedProcedureEvidenceSequence
    assert evidence.StudyInstanceUID == "1.2.3"


def relabelled(source: str, classes: Sequence[str], out: Path) -> Path:
    """A golden file with other names of its classes."""
    model = Model(GOLDEN / source, "cpu")
    with publish(graph_of(model), replace(model.metadata, classes=tuple(classes)), out):
        pass
    return out


def texts(report: Any) -> list[tuple[str, str]]:
    (group,) = report.content.get_image_measurement_groups()
    return [
        (one.ConceptNameCodeSequence[0].CodeValue, one.TextValue)
        for one in group[0].ContentSequence
        if one.ValueType == "TEXT"
    ]


def evaluations(report: Any) -> list[tuple[str, str, str]]:
    (group,) = report.content.get_image_measurement_groups()
    return [(one.name.value, one.value.value, one.value.meaning) for one in group.get_qualitative_evaluations()]


@pytest.mark.parametrize(
    ("declared", "name"),
    [(None, "Invented^Patient"), ("ISO_IR 100", "M\u00fcller^J\u00f6rg"), ("ISO_IR 192", "\u732b^\u5c71"),
     (["", "ISO 2022 IR 87"], "Yamada^Tarou=\u5c71\u7530^\u592a\u90ce")],
)  # fmt: skip
@pytest.mark.parametrize("label", ["cat", "Katze \u00fc \u732b"])
def test_labels_and_names_of_patients_survive(study: Path, call: Call, declared: Any, name: str, label: str) -> None:
    import pydicom

    study.write_bytes(digit(SpecificCharacterSet=declared, PatientName=name))
    classes = [f"{label} {number}" for number in range(10)]
    model, out = relabelled("digits-heatmap.onnx", classes, study.parent / "m.onnx"), study.parent / "out.dcm"
    made = call("predict", study, "--model", model, "--dicom-sr", out)
    assert made.code == 0, made.err
    report, capture = highdicom.sr.srread(out), pydicom.dcmread(study.parent / "out-heatmap.dcm")
    assert report.PatientName == capture.PatientName == name
    if not label.isascii():
        assert report.SpecificCharacterSet == "ISO_IR 192"
    ((_, _, found),) = [one for one in evaluations(report) if one[0] == "LABEL"]
    assert found == Model(model, "cpu").predict([study])[0].label
    assert found.startswith(label)


def test_bytes_of_an_undeclared_name_are_kept(study: Path, call: Call) -> None:
    """Which letters they are is not known."""
    raw = digit(PatientName="M_ller^J_rg").replace(b"M_ller^J_rg", b"M\xfcller^J\xf6rg")
    study.write_bytes(raw)
    made = call("predict", study, "--model", MODEL, "--dicom-sr", study.parent / "out.dcm")
    assert made.code == 0, made.err
    assert b"M\xfcller^J\xf6rg" in (study.parent / "out.dcm").read_bytes()


def test_a_label_is_one_value(study: Path, call: Call) -> None:
    """A backslash separates values in DICOM."""
    model = relabelled("digits-mc.onnx", [f"a\\b\n{number}" for number in range(10)], study.parent / "m.onnx")
    assert call("predict", study, "--model", model, "--dicom-sr", study.parent / "out.dcm").code == 0
    assert evaluations(highdicom.sr.srread(study.parent / "out.dcm"))[0][2].startswith("a/b/n")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((3, 8), [("SET", "C3", "3"), ("SET", "C8", "8")]),
        ((8, 3), [("SET", "C8", "8"), ("SET", "C3", "3")]),
        ((), [("SET", "EMPTY", "none of the labels")]),
        (None, []),
    ],
)
def test_a_report_has_the_set_an_empty_one_or_none(
    study: Path, names: tuple[int, ...] | None, expected: list[tuple[str, str, str]]
) -> None:
    import pydicom

    (answer,) = Model(MODEL, "cpu").answers([study], keep=True)
    assert answer.prediction is not None
    labels = None if names is None else tuple(map(str, names))
    answer = replace(answer, prediction=replace(answer.prediction, label_set=labels, set_ids=names))
    report = dicom_report.build(answer, pydicom.dcmread(study), "m.onnx", "ab" * 32)
    report = highdicom.sr.ComprehensiveSR.from_dataset(report)
    assert [one for one in evaluations(report) if one[0] == "SET"] == expected


def test_the_set_of_a_file_is_in_its_report(study: Path, call: Call) -> None:
    model = GOLDEN / "digits-sets-lac.onnx"
    assert call("predict", study, "--model", model, "--dicom-sr", study.parent / "out.dcm").code == 0
    report = highdicom.sr.srread(study.parent / "out.dcm")
    (prediction,) = Model(model, "cpu").predict([study])
    names = prediction.label_set or ("none of the labels",)
    assert tuple(meaning for name, _, meaning in evaluations(report) if name == "SET") == names


def test_a_code_means_one_label_of_one_file(study: Path, call: Call) -> None:
    """A PACS may look for codes alone: no other class, place in a set or file shares one."""
    meanings: dict[tuple[str, str, str], str] = {}
    for number, classes in enumerate((list("abcdefghij"), list("jihgfedcba"), ["crane"] * 10)):
        model = relabelled("digits-sets-lac.onnx", classes, study.parent / f"{number}.onnx")
        (prediction,) = Model(model, "cpu").predict([study])
        assert prediction.set_ids is not None
        assert prediction.label_set == tuple(classes[one] for one in prediction.set_ids)
        for turns in range(4):  # sets of other sizes and orders
            pixels = np.frombuffer((GOLDEN / "digit-0.raw").read_bytes(), np.uint8).reshape(8, 8)
            image = study.with_name(f"{turns}.dcm")
            image.write_bytes(written(dataset(np.rot90(pixels, turns), bits=8, **HEADER)))
            out = study.parent / f"{number}-{turns}.dcm"
            assert call("predict", image, "--model", model, "--dicom-sr", out).code == 0
            (group,) = highdicom.sr.srread(out).content.get_image_measurement_groups()
            for one in group.get_qualitative_evaluations():
                if one.value.value.startswith("C"):
                    assert classes[int(one.value.value[1:])] == one.value.meaning
                    key = (one.value.scheme_designator, one.value.scheme_version, one.value.value)
                    assert meanings.setdefault(key, one.value.meaning) == one.value.meaning
    assert len({version for _, version, _ in meanings}) == 3


def test_a_model_is_one_device(study: Path, call: Call) -> None:
    def device(model: Path, out: Path) -> str:
        assert call("predict", study, "--model", model, "--dicom-sr", out).code == 0
        (context,) = highdicom.sr.srread(out).content.get_observer_contexts()
        uid = str(context.observer_identifying_attributes.uid)
        assert UID(uid).is_valid
        return uid

    from pydicom.uid import UID

    first, second = (device(MODEL, study.parent / f"{number}.dcm") for number in range(2))
    assert first == second
    assert device(GOLDEN / "digits-mc.onnx", study.parent / "other.dcm") != first


def test_long_labels_and_reasons_are_whole(study: Path, call: Call) -> None:
    """Code meanings end after 64 characters."""
    classes = [f"{number}: " + "finding " * 12 + "." for number in range(10)]
    model = relabelled("digits-sets-lac.onnx", classes, study.parent / f"{'m' * 80}.onnx")
    out = study.parent / "out.dcm"
    made = call("predict", study, "--model", model, "--reject", "0.0001", "--dicom-sr", out)
    assert made.code == 0, made.err
    report = highdicom.sr.srread(out)
    (prediction,) = Model(model, "cpu").predict([study], reject=0.0001)
    found = {name: meaning for name, _, meaning in evaluations(report)}
    assert found["LABEL"] == f"{prediction.label[:61]}..."
    assert ("LABEL", prediction.label) in texts(report)
    assert ("REASON", prediction.why) in texts(report)
    assert [text for name, text in texts(report) if name == "SET"] == list(prediction.label_set or ())
    assert model.name.encode() in out.read_bytes()


def test_several_images_go_to_a_folder(study: Path, call: Call) -> None:
    (study.parent / "other.dcm").write_bytes(digit(SOPInstanceUID="1.2.3.9"))
    folder = study.parent / "reports"
    made = call("predict", study, study.parent / "other.dcm", "--model", MODEL, "--dicom-sr", folder)
    assert made.code == 0, made.err
    assert sorted(path.name for path in folder.iterdir()) == ["other-sr.dcm", "study-sr.dcm"]


def test_images_of_one_name_and_uids_as_names_keep_their_reports(study: Path, call: Call) -> None:
    first, second = study.parent / "1.2.840.1.1", study.parent / "series" / "1.2.840.1.1"
    other = study.parent / "1.2.840.1.2"
    second.parent.mkdir()
    for number, path in enumerate((first, second, other)):
        path.write_bytes(digit(SOPInstanceUID=f"1.2.3.{number}"))
    folder = study.parent / "reports"
    made = call("predict", first, second, other, "--model", MODEL, "--dicom-sr", folder)
    assert made.code == 0, made.err
    names = [path.name for path in folder.iterdir()]
    assert sorted(names) == ["1.2.840.1.1-2-sr.dcm", "1.2.840.1.1-sr.dcm", "1.2.840.1.2-sr.dcm"]


def test_reports_never_go_to_the_images(study: Path, call: Call) -> None:
    """A heatmap is an image, which the next run would read."""
    before = study.read_bytes()
    refused = call("predict", study, "--model", GOLDEN / "digits-heatmap.onnx", "--dicom-sr", study.parent)
    assert refused.error == "argument.dicom_sr"
    assert (sorted(study.parent.iterdir()), study.read_bytes()) == ([study], before)


def test_a_sign_in_the_path_is_no_frame(study: Path, call: Call) -> None:
    folder = study.parent / "ward#2"
    folder.mkdir()
    for number, name in enumerate(("a", "b")):
        (folder / f"{name}.dcm").write_bytes(digit(SOPInstanceUID=f"1.2.3.{number}"))
    made = call("predict", *folder.iterdir(), "--model", MODEL, "--dicom-sr", study.parent / "reports")
    assert made.code == 0, made.err
    assert sorted(path.name for path in (study.parent / "reports").iterdir()) == ["a-sr.dcm", "b-sr.dcm"]


def test_a_long_name_is_shortened_for_the_longest_ending(study: Path, call: Call) -> None:
    stem = "e" * 250
    study.rename(study.parent / f"{stem}.dcm")
    folder = study.parent / "reports"
    model = GOLDEN / "digits-heatmap.onnx"
    made = call("predict", study.parent / f"{stem}.dcm", "--model", model, "--dicom-sr", folder)
    assert made.code == 0, made.err
    heatmap, report = sorted(path.name for path in folder.iterdir())
    assert len(heatmap) == 255
    assert heatmap.removesuffix("-heatmap.dcm") == report.removesuffix("-sr.dcm")


def test_a_de_identified_image_is_reported(study: Path, call: Call) -> None:
    kept = {name: value for name, value in HEADER.items() if name not in ("StudyID", "StudyTime", "AccessionNumber")}
    pixels = np.frombuffer((GOLDEN / "digit-0.raw").read_bytes(), np.uint8).reshape(8, 8)
    study.write_bytes(written(dataset(pixels, bits=8, **kept)))
    made = call("predict", study, "--model", GOLDEN / "digits-heatmap.onnx", "--dicom-sr", study.parent / "reports")
    assert made.code == 0, made.err
    assert not highdicom.sr.srread(study.parent / "reports" / "study-sr.dcm").AccessionNumber


def test_a_folder_also_gets_the_heatmap_as_a_capture_of_the_study(study: Path, call: Call) -> None:
    import pydicom

    before, folder = study.read_bytes(), study.parent / "reports"
    made = call("predict", study, "--model", GOLDEN / "digits-heatmap.onnx", "--dicom-sr", folder)
    assert made.code == 0, made.err
    assert sorted(path.name for path in folder.iterdir()) == ["study-heatmap.dcm", "study-sr.dcm"]
    image, capture = pydicom.dcmread(study), highdicom.imread(folder / "study-heatmap.dcm")
    for name in ("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyInstanceUID", "StudyID",
                 "AccessionNumber", "StudyDate", "StudyTime", "ReferringPhysicianName"):  # fmt: skip
        assert str(capture[name].value) == str(image[name].value), name
    report = pydicom.dcmread(folder / "study-sr.dcm")
    assert len({one.SeriesInstanceUID for one in (image, capture, report)}) == 3
    assert capture.SourceImageSequence[0].ReferencedSOPInstanceUID == image.SOPInstanceUID
    assert "BurnedInAnnotation" not in capture
    assert capture.Modality == "OT"
    pixels = capture.pixel_array
    assert pixels.shape[2] == 3
    assert np.ptp(pixels.astype(int), axis=2).max() > 100  # the colours of the map
    assert study.read_bytes() == before


def test_a_report_in_one_file_has_its_heatmap_beside_it(study: Path, call: Call) -> None:
    out, beside = study.parent / "out.dcm", study.parent / "out-heatmap.dcm"
    made = call("predict", study, "--model", GOLDEN / "digits-heatmap.onnx", "--dicom-sr", out)
    assert made.code == 0, made.err
    assert "1 structured report" in made.err
    assert "and 1 heatmap beside" in made.err
    assert highdicom.imread(beside).PatientID == "P-17"
    assert "heatmap" not in call("predict", study, "--model", MODEL, "--dicom-sr", study.parent / "b.dcm").err
    assert not (study.parent / "b-heatmap.dcm").exists()
    before = study.rename(beside).read_bytes()
    refused = call("predict", beside, "--model", GOLDEN / "digits-heatmap.onnx", "--dicom-sr", out)
    assert (refused.error, beside.read_bytes()) == ("argument.dicom_sr", before)


@pytest.mark.filterwarnings("ignore:.*the first is used:uce_edge.images.gray_survey.RangeWarning")
@pytest.mark.parametrize(("named", "frame"), [("", 1), ("#2", 2)])
def test_report_and_capture_name_the_frame(study: Path, call: Call, named: str, frame: int) -> None:
    from pydicom.uid import MultiFrameGrayscaleByteSecondaryCaptureImageStorage as Frames

    pixels = np.frombuffer((GOLDEN / "digit-0.raw").read_bytes(), np.uint8).reshape(8, 8)
    study.write_bytes(written(dataset(np.stack([pixels, pixels.T]), bits=8, **HEADER | {"SOPClassUID": Frames})))
    out = study.parent / "out.dcm"
    made = call("predict", f"{study}{named}", "--model", GOLDEN / "digits-heatmap.onnx", "--dicom-sr", out)
    assert made.code == 0, made.err
    (group,) = highdicom.sr.srread(out).content.get_image_measurement_groups()
    (source,) = group.source_images
    assert source.referenced_frame_numbers == [frame]
    capture = highdicom.imread(study.parent / "out-heatmap.dcm")
    assert capture.SourceImageSequence[0].ReferencedFrameNumber == frame


def test_an_image_of_one_frame_has_no_frame_number(study: Path) -> None:
    import pydicom

    (answer,) = Model(MODEL, "cpu").answers([f"{study}#1"])
    assert dicom_heatmap.frame_of(answer, pydicom.dcmread(study)) is None


@pytest.mark.parametrize("label", ["cat", "Katze ü 猫"])
def test_a_validator_finds_no_error(study: Path, call: Call, label: str) -> None:
    validator = shutil.which("dciodvfy")
    if validator is None:
        pytest.skip("dciodvfy is not installed: apt-get install dicom3tools")
    study.write_bytes(digit(SpecificCharacterSet="ISO_IR 100", PatientName="Müller^Jörg"))
    classes = [f"{label} {number}" for number in range(10)]
    folder = study.parent / "reports"
    for source in ("digits-heatmap.onnx", "digits-sets-lac.onnx"):
        model = relabelled(source, classes, study.parent / source)
        made = call("predict", study, "--model", model, "--dicom-sr", folder / source / "out.dcm")
        assert made.code == 0, made.err
    files = sorted(folder.glob("*/*.dcm"))
    assert len(files) == 3
    for file in files:
        lines = subprocess.run([validator, file], capture_output=True, text=True, check=False).stderr
        assert "Error" not in lines, lines


def test_what_cannot_be_reported_is_refused(study: Path, call: Call) -> None:
    folder = study.parent
    for place in ("report.txt", "study.dcm"):
        assert call("predict", study, "--model", MODEL, "--dicom-sr", folder / place).code == 2
    before = study.read_bytes()
    assert call("predict", study, study, "--model", MODEL, "--dicom-sr", folder / "one.dcm").code == 2
    picture = folder / "picture.png"
    from PIL import Image

    Image.new("L", (8, 8)).save(picture)
    plain = call("predict", picture, "--model", MODEL, "--dicom-sr", folder / "out.dcm")
    assert plain.code == 1
    assert "no DICOM file" in plain.err
    nameless = folder / "nameless.dcm"
    nameless.write_bytes(digit())
    import pydicom

    data = pydicom.dcmread(nameless)
    del data.StudyInstanceUID
    data.save_as(nameless)
    lacking = call("predict", nameless, "--model", MODEL, "--dicom-sr", folder / "out.dcm")
    assert lacking.code == 1
    assert "StudyInstanceUID" in lacking.err
    assert study.read_bytes() == before
    assert not (folder / "out.dcm").exists()

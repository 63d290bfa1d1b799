"""DICOM and NIfTI files as images: units, windows, colours, frames, slices, and what is refused."""

import gzip
import io
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Call
from helpers.errors import raises
from PIL import Image

pytest.importorskip("pydicom", reason="pydicom is not installed: the extra medical brings it")
nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: the extra medical brings it")

# ruff: noqa: E402
import pydicom
from helpers.medical_files import dataset, dicom, written
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless, JPEGBaseline8Bit, JPEGLossless, RLELossless

from uce_edge import Model
from uce_edge.errors import ImageError
from uce_edge.images import loader
from uce_edge.images.gray_range import Range
from uce_edge.images.gray_survey import RangeWarning
from uce_edge.metadata import ImageSpec

RNG = np.random.default_rng(0)
VALUES = RNG.integers(0, 4096, (20, 30)).astype(np.uint16)
SPEC = ImageSpec(20, 30, 1)
COLOUR = ImageSpec(20, 30, 3)


def in_bytes(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.floor(np.clip((values.astype(float) - low) * 255 / (high - low), 0, 255) + 0.5)


def loaded(content: bytes, spec: ImageSpec = SPEC, name: str = "study.dcm") -> np.ndarray:
    pixels = loader.load(content, spec, name)
    return pixels[..., 0] if spec.channels == 1 else pixels


def refusal(content: bytes, name: str = "study.dcm", spec: ImageSpec = SPEC) -> str:
    """The code of the error about a file."""
    with pytest.raises(ImageError) as caught:
        loader.load(content, spec, name)
    assert str(caught.value).startswith(name)
    return caught.value.code


def seen_by_pydicom(content: bytes) -> np.ndarray:
    """What pydicom makes of a gray file, from 0 to 255: another implementation of the same standard."""
    data = pydicom.dcmread(io.BytesIO(content))
    shown = apply_voi_lut(apply_modality_lut(data.pixel_array, data), data).astype(float)
    slope, intercept = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
    if data.get("VOILUTSequence"):
        low, high = 0.0, 2.0 ** data.VOILUTSequence[0].LUTDescriptor[2] - 1
    elif data.PixelRepresentation:
        low, high = (
            -(2 ** (data.BitsStored - 1)) * slope + intercept,
            (2 ** (data.BitsStored - 1) - 1) * slope + intercept,
        )
    else:
        low, high = intercept, (2**data.BitsStored - 1) * slope + intercept
    bright = np.clip((shown - low) * 255 / (high - low), 0, 255)
    return 255 - bright if data.PhotometricInterpretation == "MONOCHROME1" else bright


def table(entries: np.ndarray, first: int, bits: int) -> pydicom.Dataset:
    item = pydicom.Dataset()
    item.LUTDescriptor = [len(entries), first, bits]
    item["LUTDescriptor"].VR = "SS" if first < 0 else "US"
    item.add_new("LUTData", "US", entries.tolist())
    return item


GAMMA = table((4095 * (np.arange(4096) / 4095) ** 2).astype(int), 0, 12)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_modality_table_gives_the_units_and_its_ends_beside_it(as_bytes: bool) -> None:
    entries = np.arange(500, 1500, dtype=np.uint16)[::-1]
    item = table(entries, 1000, 12)
    if as_bytes:
        item.add_new("LUTData", "OW", entries.astype("<u2").tobytes())
    content = dicom(VALUES, ModalityLUTSequence=[item])
    expected = entries[np.clip(VALUES.astype(int) - 1000, 0, 999)]
    np.testing.assert_array_equal(loaded(content), in_bytes(expected, 0, 4095))
    ranged = ImageSpec(20, 30, 1, range=Range(500, 1499))
    np.testing.assert_array_equal(loaded(content, ranged), in_bytes(expected, 500, 1499))


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(
    "elements",
    [
        {},
        {"WindowCenter": 2000, "WindowWidth": 1000},
        {"WindowCenter": [1000, 3000], "WindowWidth": [500, 800]},
        {"WindowCenter": 2000, "WindowWidth": 1},
        {"WindowCenter": 2000, "WindowWidth": 1000, "VOILUTFunction": "LINEAR_EXACT"},
        {"WindowCenter": 2000, "WindowWidth": 1000, "VOILUTFunction": "SIGMOID"},
        {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400},
        {"RescaleSlope": 0.25, "RescaleIntercept": 7, "WindowCenter": 500, "WindowWidth": 300},
        {"VOILUTSequence": [GAMMA]},
    ],
    ids=lambda elements: "+".join(elements) or "nothing",
)
def test_gray_is_seen_as_pydicom_sees_it(photometric: str, elements: dict[str, object]) -> None:
    content = dicom(VALUES, photometric, **elements)
    assert np.abs(loaded(content) - seen_by_pydicom(content)).max() <= 0.5 + 1e-3


def test_signed_values_and_unused_bits_are_what_the_header_says() -> None:
    values = RNG.integers(-2048, 2048, (20, 30)).astype(np.int16)
    np.testing.assert_array_equal(loaded(dicom(values)), in_bytes(values, -2048, 2047))
    overlay = VALUES | 0x8000  # older files keep drawings in the bits that are not stored
    data = dataset(VALUES)
    data.PixelData = overlay.tobytes()
    np.testing.assert_array_equal(loaded(written(data)), in_bytes(VALUES, 0, 4095))


def test_the_range_of_a_model_counts_in_rescaled_units_and_overrides_the_window() -> None:
    content = dicom(VALUES, RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=40, WindowWidth=400)
    spec = ImageSpec(20, 30, 1, range=Range(-1000, 3000))
    np.testing.assert_array_equal(loaded(content, spec), in_bytes(VALUES.astype(int) - 1024, -1000, 3000))
    inverted = dicom(VALUES, "MONOCHROME1", RescaleSlope=1, RescaleIntercept=-1024)
    spec = ImageSpec(20, 30, 1, range=Range(-1024, 3071))
    assert np.abs(loaded(inverted, spec) - (255 - VALUES * (255 / 4095))).max() <= 0.5 + 1e-3


def test_a_window_without_a_width_is_none() -> None:
    content = dicom(VALUES, WindowCenter=40, WindowWidth=0)
    np.testing.assert_array_equal(loaded(content), in_bytes(VALUES, 0, 4095))


def test_a_float32_model_gets_the_window_unrounded() -> None:
    pixels = loaded(dicom(VALUES), ImageSpec(20, 30, 1, dtype="float32"))
    np.testing.assert_allclose(pixels, VALUES * (255 / 4095), atol=1e-3)


def test_colours_are_rgb_whatever_the_file_has() -> None:
    rgb = RNG.integers(0, 256, (20, 30, 3)).astype(np.uint8)
    np.testing.assert_array_equal(loaded(dicom(rgb, "RGB", 8), COLOUR), rgb)
    ybr = np.asarray(Image.fromarray(rgb).convert("YCbCr"))
    assert np.abs(loaded(dicom(ybr, "YBR_FULL", 8), COLOUR).astype(int) - rgb).max() <= 3  # as far as YBR is invertible
    wide = (rgb.astype(np.uint16) * 257).astype(np.uint16)
    np.testing.assert_array_equal(loaded(dicom(wide, "RGB", 16), COLOUR), rgb)


def test_a_palette_is_looked_up() -> None:
    indices = RNG.integers(0, 4, (20, 30)).astype(np.uint8)
    colours = {"Red": [0, 255, 0, 10], "Green": [0, 0, 255, 20], "Blue": [0, 9, 8, 30]}
    data = dataset(indices, "PALETTE COLOR", 8)
    for name, entries in colours.items():
        setattr(data, f"{name}PaletteColorLookupTableDescriptor", [4, 0, 8])
        setattr(data, f"{name}PaletteColorLookupTableData", bytes(entries))
    expected = np.stack([np.array(entries)[indices] for entries in colours.values()], axis=-1)
    np.testing.assert_array_equal(loaded(written(data), COLOUR), expected)


def test_the_frames_are_counted_and_each_is_an_image(tmp_path: Path) -> None:
    frames = RNG.integers(0, 4096, (3, 20, 30)).astype(np.uint16)
    path = tmp_path / "cine.dcm"
    path.write_bytes(dicom(frames))
    with pytest.warns(RangeWarning, match=r"has 3 frames, of which the first is used; name another .*cine\.dcm#2"):
        first = loader.load(path, SPEC)
    for number in (1, 2, 3):
        found = loader.load(f"{path}#{number}", SPEC)
        np.testing.assert_array_equal(found[..., 0], in_bytes(frames[number - 1], 0, 4095))
    np.testing.assert_array_equal(first, loader.load(f"{path}#1", SPEC))
    for wrong, code in (("#0", "image.part-missing"), ("#4", "image.part-missing"), ("#z=1", "image.part")):
        with raises(code, ImageError):
            loader.load(f"{path}{wrong}", SPEC)


def test_an_enhanced_file_has_a_window_for_every_frame() -> None:
    frames = RNG.integers(0, 4096, (2, 20, 30)).astype(np.uint16)

    def group(**sequences: dict[str, object]) -> pydicom.Dataset:
        item = pydicom.Dataset()
        for keyword, elements in sequences.items():
            inner = pydicom.Dataset()
            for name, value in elements.items():
                setattr(inner, name, value)
            setattr(item, keyword, [inner])
        return item

    windows = [group(FrameVOILUTSequence={"WindowCenter": c, "WindowWidth": 500}) for c in (0, 1000)]
    shared = group(PixelValueTransformationSequence={"RescaleSlope": 1, "RescaleIntercept": -1000})
    content = dicom(frames, PerFrameFunctionalGroupsSequence=windows, SharedFunctionalGroupsSequence=[shared])
    for number, centre in ((1, 0), (2, 1000)):
        low = centre - 0.5 - 499 / 2
        expected = in_bytes(frames[number - 1].astype(int) - 1000, low, low + 499)
        np.testing.assert_array_equal(loaded(content, name=f"ct.dcm#{number}"), expected)


def test_compressed_files_are_read_where_a_codec_is_there() -> None:
    data = dataset(VALUES)
    data.compress(RLELossless)
    np.testing.assert_array_equal(loaded(written(data)), in_bytes(VALUES, 0, 4095))


def encapsulated(picture: Image.Image, syntax: str, kind: str, photometric: str) -> pydicom.Dataset:
    file = io.BytesIO()
    picture.save(file, kind)
    data = dataset(np.asarray(picture), photometric, 8)
    data.PixelData = pydicom.encaps.encapsulate([file.getvalue()])
    data["PixelData"].VR = "OB"
    data.file_meta.TransferSyntaxUID = syntax
    return data


def test_jpeg_inside_is_read_and_may_not_be_larger_than_the_header_says() -> None:
    gray = Image.fromarray((VALUES >> 4).astype(np.uint8))
    lossless = encapsulated(gray, JPEG2000Lossless, "JPEG2000", "MONOCHROME2")
    np.testing.assert_array_equal(loaded(written(lossless)), VALUES >> 4)
    bomb = encapsulated(gray.resize((300, 200)), JPEGBaseline8Bit, "JPEG", "MONOCHROME2")
    bomb.Rows, bomb.Columns = 20, 30
    assert refusal(written(bomb)) == "image.damaged"


def test_a_jpeg_2000_picture_without_end_is_refused() -> None:
    data = encapsulated(Image.fromarray((VALUES >> 4).astype(np.uint8)), JPEG2000Lossless, "JPEG2000", "MONOCHROME2")
    picture = pydicom.encaps.get_frame(data.PixelData, 0, number_of_frames=1)
    data.PixelData = pydicom.encaps.encapsulate([picture[:12] + bytes(4) + picture[16:]])
    assert refusal(written(data)) == "image.damaged"


def test_an_absent_codec_is_named_with_its_package() -> None:
    data = encapsulated(Image.fromarray((VALUES >> 4).astype(np.uint8)), JPEGLossless, "JPEG", "MONOCHROME2")
    with raises("part.missing", ImageError) as caught:
        loader.load(written(data), SPEC, "study.dcm")
    assert "pip install pylibjpeg" in str(caught.value)


def test_what_has_no_pixels_is_said_to_have_none() -> None:
    assert refusal(dicom(None)) == "image.no-pixels"
    assert refusal(b"nothing of the kind") == "image.no-pixels"
    assert refusal(b"") == "image.empty"
    truncated = dicom(VALUES)[:-200]
    assert refusal(truncated) == "image.damaged"
    data = dataset(VALUES)
    del data.PixelData
    assert refusal(written(data)) == "image.damaged"


def test_a_deflated_file_is_refused_because_it_may_grow_without_a_bound() -> None:
    data = dataset(VALUES)
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    assert refusal(written(data)) == "image.unsupported"


def test_other_colour_spaces_are_refused_by_name() -> None:
    assert refusal(dicom(VALUES, PhotometricInterpretation="CMYK")) == "image.unsupported"


def test_a_header_that_asks_for_too_much_is_refused_before_anything_is_decoded() -> None:
    for rows, columns in ((60000, 60000), (6000, 8000)):
        assert refusal(dicom(VALUES, Rows=rows, Columns=columns)) == "image.too-large"


def test_without_the_packages_the_command_to_install_them_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    for content, name, package in ((dicom(VALUES), "a", "pydicom"), (volume_bytes(), "a.nii.gz", "nibabel")):
        with raises("part.missing", ImageError) as caught:
            loader.load(content, SPEC, name)
        assert package in str(caught.value)


def test_in_folders_files_count_by_their_ending_or_their_preamble(tmp_path: Path) -> None:
    for name in ("a.dcm", "B.DCM", "IM0001", "1.2.840.113619.2.5", "DICOMDIR", ".hidden"):
        (tmp_path / name).write_bytes(dicom(VALUES))
    (tmp_path / "volume.nii.gz").write_bytes(volume_bytes())
    for name in ("README", "notes.txt", "old.gz"):
        (tmp_path / name).write_text("no image")
    found = [Path(path).name for path in loader.collect([str(tmp_path)])]
    assert found == ["1.2.840.113619.2.5", "B.DCM", "IM0001", "a.dcm", "volume.nii.gz"]


def test_a_file_may_have_a_name_that_looks_like_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "picture#3"
    Image.fromarray(np.full((20, 30), 7, np.uint8)).save(path, "PNG")
    assert loader.load(path, SPEC).max() == 7


VOLUME = RNG.integers(0, 2000, (30, 20, 9)).astype(np.int16)
NIFTI = ImageSpec(20, 30, 1, range=Range(0, 2000))


def volume_bytes(values: np.ndarray = VOLUME, affine: np.ndarray | None = None, *, zipped: bool = True) -> bytes:
    content = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine).to_bytes()
    return gzip.compress(content, 1) if zipped else content


@pytest.mark.parametrize("zipped", [True, False])
def test_a_slice_is_seen_as_dicom_shows_it(zipped: bool) -> None:
    content = volume_bytes(zipped=zipped)
    expected = in_bytes(VOLUME[::-1, ::-1, 3].T, 0, 2000)
    np.testing.assert_array_equal(loaded(content, NIFTI, "v.nii.gz#z=3"), expected)
    with pytest.warns(RangeWarning, match=r"has 9 slices, of which z=4 in the middle is used"):
        middle = loaded(content, NIFTI, "v.nii.gz")
    np.testing.assert_array_equal(middle, loaded(content, NIFTI, "v.nii.gz#z=4"))
    side = loaded(content, ImageSpec(9, 20, 1, range=Range(0, 2000)), "v.nii#x=2")
    np.testing.assert_array_equal(side, in_bytes(VOLUME[2, ::-1, ::-1].T, 0, 2000))


def test_slices_are_those_of_the_patient_however_the_volume_is_stored() -> None:
    image = nibabel.Nifti1Image(VOLUME, np.eye(4))
    for axes in ("LPS", "SAR", "PIR"):
        target = nibabel.orientations.axcodes2ornt(axes)
        turned = image.as_reoriented(nibabel.orientations.ornt_transform(nibabel.io_orientation(np.eye(4)), target))
        content = volume_bytes(np.asarray(turned.dataobj), turned.affine)
        np.testing.assert_array_equal(
            loaded(content, NIFTI, "v.nii.gz#z=3"), in_bytes(VOLUME[::-1, ::-1, 3].T, 0, 2000)
        )


def test_a_series_in_time_has_volumes() -> None:
    series = np.stack([VOLUME, VOLUME[::-1]], axis=-1)
    content = volume_bytes(series)
    found = loaded(content, NIFTI, "v.nii.gz#z=3,t=1")
    np.testing.assert_array_equal(found, in_bytes(series[::-1, ::-1, 3, 1].T, 0, 2000))
    assert refusal(content, "v.nii.gz#z=3,t=2", NIFTI) == "image.part-missing"
    assert refusal(content, "v.nii.gz#z=9", NIFTI) == "image.part-missing"
    assert refusal(content, "v.nii.gz#z=3,y=2", NIFTI) == "image.part"
    assert refusal(content, "v.nii.gz#3", NIFTI) == "image.part"


def test_a_volume_without_a_defined_brightness_is_announced_or_refused() -> None:
    with pytest.warns(RangeWarning, match=r"small part of the range of its type, -32768\.\.32767"):
        loaded(volume_bytes(), SPEC, "v.nii.gz#z=3")
    assert refusal(volume_bytes(VOLUME.astype(np.float32)), "v.nii.gz#z=3") == "image.range"
    image = nibabel.Nifti1Image(VOLUME.astype(np.float32), np.eye(4))
    image.header["cal_min"], image.header["cal_max"] = 0, 2000
    np.testing.assert_array_equal(
        loaded(image.to_bytes(), SPEC, "v.nii#z=3"), in_bytes(VOLUME[::-1, ::-1, 3].T, 0, 2000)
    )


def test_a_volume_of_zeros_that_is_small_when_packed_takes_bounded_memory() -> None:
    header = bytearray(volume_bytes(np.zeros((2, 2, 2), np.int16), zipped=False)[:352])
    header[42:48] = np.array([4000, 4000, 4000], "<i2").tobytes()  # 128 GB
    content = gzip.compress(bytes(header) + bytes(10_000_000))
    assert refusal(content, "v.nii.gz#x=0", NIFTI) == "image.too-large"
    assert refusal(content, "v.nii.gz#z=3", NIFTI)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_a_model_answers_a_dicom_file_as_it_answers_the_pixels(tmp_path: Path, photometric: str) -> None:
    model = Model(GOLDEN / "digits-mc.onnx", "cpu")
    spec = model.metadata.image
    digit = np.frombuffer((GOLDEN / "digit-0.raw").read_bytes(), np.uint8).reshape(spec.height, spec.width)
    deep = np.rint(digit.astype(float) * 4095 / 255).astype(np.uint16)
    stored = 4095 - deep if photometric == "MONOCHROME1" else deep
    path = tmp_path / "digit.dcm"
    path.write_bytes(dicom(stored, photometric))
    [answer] = model.answers([path])
    [plain] = model.predict(digit[None, ..., None])
    assert answer.prediction is not None
    np.testing.assert_array_equal(answer.prediction.probabilities, plain.probabilities)


def test_many_odd_files_are_warned_of_once_and_counted(tmp_path: Path) -> None:
    model = Model(GOLDEN / "digits-mc.onnx", "cpu")
    for number in range(3):
        (tmp_path / f"{number}.dcm").write_bytes(dicom(np.stack([VALUES, VALUES])))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = list(model.answers(loader.collect([str(tmp_path)])))
    assert all(answer.ok for answer in answers)
    warned = [str(one.message) for one in caught if one.category is RangeWarning]
    assert len(warned) == 2
    assert "2 frames" in warned[0]
    assert "2 other images" in warned[1]


def test_a_frame_is_logged_and_computed_again(call: Call, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    path = tmp_path / "studies" / "cine.dcm"
    path.write_bytes(dicom(np.stack([VALUES, VALUES[::-1], VALUES // 2])))
    model, log = GOLDEN / "digits-mc.onnx", tmp_path / "log.jsonl"
    frames = (f"{path}#2", f"{path}#3")
    printed = call("predict", "--model", model, *frames, "--reject", 0.3, "--audit", log, "--save", tmp_path)
    assert printed.code == 0, printed.err
    assert {file.name for file in tmp_path.glob("*.png")} == {"cine.png", "cine-2.png"}
    again = call("replay", log, "--images", path.parent, "--model", model)
    assert again.code == 0, again.out + again.err

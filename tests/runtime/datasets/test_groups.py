"""Images that belong together lie in one split, and a promise counts each group once."""

from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from PIL import Image

from uce_edge.datasets import labelled, sources, splits
from uce_edge.datasets.splits import Split
from uce_edge.metadata import ImageSpec
from uce_edge.rejection import guarantee

PATIENTS, EACH = 40, 5


@pytest.fixture
def scans(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A folder of two classes with five images of each of 40 patients, and a manifest of them."""
    lines = ["path,label,patient"]
    for patient in range(PATIENTS):
        for i in range(EACH):
            label = "ab"[(patient + i) % 2]
            path = tmp_path / "photos" / label / f"patient{patient:02}-{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8)).save(path)
            lines.append(f"photos/{label}/{path.name},{label},p{patient}")
    (tmp_path / "scans.csv").write_text("\n".join(lines))
    return tmp_path


def patients_of(split: Split) -> set[str]:
    return {name.split("patient")[1][:2] for name in split.names}


@pytest.mark.parametrize(("data", "group"), [("scans.csv", "patient"), ("photos", r"patient(\d+)")])
def test_no_group_is_in_two_splits(data: str, group: str, scans: Path) -> None:
    dataset = splits.load(str(scans / data), size=(4, 4), group=group)
    assert dataset.group == group
    found = {name: patients_of(split) for name, split in dataset.splits.items()}
    assert {name: len(some) for name, some in found.items()} == {
        "train": 24, "calibration": 4, "guarantee": 4, "test": 8,
    }  # fmt: skip
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == PATIENTS
    assert sum(map(len, dataset.splits.values())) == PATIENTS * EACH
    first, second = dataset.splits["train"].halves()
    assert not patients_of(first) & patients_of(second)
    assert len(patients_of(first)) == 12
    assert splits.load(str(scans / data), size=(4, 4), group=group).hashes() == dataset.hashes()


def test_a_column_called_group_groups_without_being_asked(scans: Path) -> None:
    path = scans / "scans.csv"
    path.write_text(path.read_text().replace("patient\n", "Group\n", 1))
    dataset = splits.load(str(path))
    assert dataset.group == "group"
    assert len(patients_of(dataset.splits["guarantee"])) == 4


def test_one_image_of_each_group_is_drawn_without_favour(scans: Path) -> None:
    split = splits.load(str(scans / "scans.csv"), size=(4, 4), group="patient").splits["train"]
    single = split.one_per_group()
    assert len(single) == len(patients_of(single)) == 24
    assert single.one_per_group().sha256() == single.sha256() == split.one_per_group().sha256()
    groups = np.repeat(np.arange(4000), 5)
    drawn = Split(np.tile(np.arange(5, dtype=np.uint8), 4000)[:, None, None, None], groups * 0, groups).one_per_group()
    counts = np.bincount(drawn.images.ravel(), minlength=5)
    assert counts.sum() == 4000
    assert np.abs(counts - 800).max() < 4 * np.sqrt(800 * 0.8), "each of the five is drawn equally often"
    assert Split(split.images, split.labels).one_per_group().sha256() == split.sha256(), "images without groups stay"


def test_given_splits_are_cut_no_further_than_groups_allow(scans: Path) -> None:
    path = scans / "scans.csv"
    head, *lines = path.read_text().splitlines()
    part = {f"p{i}": "train" if i < 20 else "val" if i < 30 else "test" for i in range(PATIENTS)}
    path.write_text("\n".join([f"{head},split", *(f"{line},{part[line.split(',')[2]]}" for line in lines)]))
    found = {name: patients_of(some) for name, some in splits.load(str(path), group="patient").splits.items()}
    assert {name: len(some) for name, some in found.items()} == {
        "train": 20, "calibration": 5, "guarantee": 5, "test": 10,
    }  # fmt: skip
    assert not found["calibration"] & found["guarantee"]
    torn = path.read_text().replace("p3,train", "p3,test", 1).replace("p7,train", "p7,val", 1)
    path.write_text(torn)
    with raises("group.split"):
        splits.load(str(path), group="patient")


@pytest.mark.parametrize(
    ("data", "group", "code"),
    [
        ("scans.csv", "person", "argument.group"),
        ("photos", "patient", "argument.group"),
        ("photos", r"(pat)(\d+)", "argument.group"),
        ("photos", "(", "argument.group"),
        ("photos", r"(doctor\d+)", "group.unmatched"),
        ("photos", r"(patient0\d)", "group.unmatched"),
        ("scans.csv", r"(doctor\d+)", "group.unmatched"),
        ("data.npz", "patient", "group.no-names"),
        ("few.csv", "patient", "dataset.too-small"),
        ("empty.csv", "patient", "manifest.cell"),
    ],
)
def test_a_grouping_that_does_not_fit_is_refused(data: str, group: str, code: str, scans: Path) -> None:
    np.savez(scans / "data.npz", x=np.zeros((40, 4, 4), np.uint8), y=np.arange(40) % 2)
    lines = (scans / "scans.csv").read_text().splitlines()
    (scans / "few.csv").write_text("\n".join(lines[: 1 + 3 * EACH]))
    (scans / "empty.csv").write_text("\n".join([*lines[:2], lines[2].rpartition(",")[0] + ",", *lines[3:]]))
    with raises(code):
        splits.load(str(scans / data), group=group)


def test_images_for_a_model_follow_the_grouping_of_its_run(scans: Path) -> None:
    spec, classes = ImageSpec(4, 4, 1), ("a", "b")
    dataset = splits.load(str(scans / "scans.csv"), size=(4, 4), group="patient")
    own = labelled.Own(dataset.hashes(), dataset.group)
    split, words = labelled.load_test(str(scans / "scans.csv"), spec, classes, own=own)
    assert (words, split.sha256()) == ("test images", dataset.hashes()["test"])
    assert labelled.load(str(scans / "scans.csv"), spec, classes, own).sha256() == dataset.hashes()["calibration"]
    assert len(labelled.load(str(scans / "scans.csv"), spec, classes, own, r"patient(\d)")) == PATIENTS * EACH
    with pytest.warns(sources.UngroupedWarning, match="grouped by patient"):
        other = labelled.load(str(scans / "photos"), spec, classes, own)
    assert other.groups is None


def test_groups_survive_resizing_for_a_model(scans: Path) -> None:
    split = labelled.load(str(scans / "scans.csv"), ImageSpec(8, 8, 3), ("b", "a"), group="patient")
    assert len(split.one_per_group()) == PATIENTS
    named, names = labelled.load_with_names(str(scans / "photos"), ImageSpec(8, 8, 3), 2, r"(patient\d+)")
    assert names == ("a", "b")
    assert len(named.one_per_group()) == PATIENTS


def test_a_promise_from_one_image_of_each_group_is_kept_where_images_of_a_group_share_their_fate(
    rng: np.random.Generator,
) -> None:
    """Over all images, an error of 0.4 h at the uncertainty h: up to a threshold t it is 0.2 t, and 0.5 keeps 0.1."""
    redraws, broken = 100, {"one": 0, "all": 0}
    for _ in range(redraws):
        certain, sizes = rng.random(400), rng.integers(1, 12, 400)
        group = np.repeat(np.arange(400), sizes)
        wrong = (rng.random(400) < 0.4 * certain)[group]
        # The label is the place of an image, so that the chosen ones are known.
        every = Split(np.zeros((len(group), 1, 1, 1), np.uint8), np.arange(len(group)), group)
        for name, index in (("one", every.one_per_group().labels), ("all", every.labels)):
            try:
                found = guarantee.find(certain[group][index], wrong[index], 0.1, 0.95)
            except guarantee.NoGuaranteeError:
                continue
            broken[name] += found.threshold > 0.5
    assert broken["one"] <= 0.05 * redraws
    assert broken["all"] > 0.1 * redraws, "counting every image by itself breaks it at least twice as often as promised"

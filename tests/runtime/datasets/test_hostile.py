"""Manifests and folders that were made to hang or to stop a reader: read, or refused in a sentence, soon."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.errors import raises
from PIL import Image

from uce_edge.datasets import groups, splits
from uce_edge.datasets.image_lists import parse
from uce_edge.errors import UsageError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes of ten images."""
    for number in range(20):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8), 10 * number, np.uint8)).save(folder / f"{number}.png")
    return tmp_path


def manifest(data: Path, labels: tuple[str, str]) -> Path:
    path = data / "list.jsonl"
    rows = [{"path": f"{'ab'[n % 2]}/{n}.png", "label": labels[n % 2]} for n in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_label_of_thousands_of_digits_is_a_name(data: Path) -> None:
    assert splits.load(str(manifest(data, ("1", "2" * 5000)))).class_names == ("1", "2" * 5000)


@pytest.mark.parametrize("label", ["\ud800", "a\nb", "\x1b[31m", "\0"])
def test_a_class_that_no_screen_can_show_is_refused(data: Path, label: str) -> None:
    with pytest.raises(UsageError) as refused:
        splits.load(str(manifest(data, ("a", label))))
    str(refused.value).encode()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_folder_whose_name_is_no_text_is_no_class(data: Path) -> None:
    (data / "a").rename(data / os.fsdecode(b"\xff"))
    with raises("dataset.class-names"):
        splits.load(str(data))


def test_the_work_of_a_manifest_grows_with_its_length() -> None:
    columns = ",".join(f"c{number}" for number in range(50_000))
    assert parse(columns + "\n", ".csv", "wide.csv") == []
    long = ["g" * 1_000_000] + [str(number) for number in range(100_000)]  # as an array of texts, 400 GB
    assert len(set(groups.numbered(long, ["all"] * len(long), "long.csv").tolist())) == len(long)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_from_every_folder_to_every_other_are_followed_once(data: Path) -> None:
    folders = [data / "a" / str(number) for number in range(12)]
    for folder in folders:
        folder.mkdir()
    for folder in folders:
        for other in folders:
            (folder / f"to-{other.name}").symlink_to(other)
    assert sum(map(len, splits.load(str(data)).splits.values())) == 20


@pytest.mark.skipif(os.name == "nt", reason="names are shorter there")
def test_folders_deeper_than_the_stack_are_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data / "a")
    depth = 1200
    for _ in range(depth):
        Path("d").mkdir()
        os.chdir("d")
    try:
        assert sum(map(len, splits.load(str(data)).splits.values())) == 20
    finally:
        for _ in range(depth):  # shutil.rmtree, which cleans up, would not get so deep
            os.chdir("..")
            Path("d").rmdir()

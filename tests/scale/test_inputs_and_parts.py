"""What can be scored, and what is stored; without Ray."""

import json
from collections import Counter
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `ray` is not installed: make test-scale")

import pyarrow.parquet as pq  # noqa: E402

from uce_edge.errors import UceEdgeError, UsageError  # noqa: E402
from uce_edge.scale import inputs  # noqa: E402
from uce_edge.scale.inputs import Block, Entry, Kind, blocks, fingerprint, read, sources  # noqa: E402
from uce_edge.scale.parts import MANIFEST, Counts, Folder, Manifest  # noqa: E402

MANIFESTED = Manifest("model", "photos", 2, "print", 25, 0, "auto")
ROW = {"path": "a.png", "status": "ok", "decision": "accept", "error_kind": None}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b/2.png", "a.JPG", "b/c/3.png", "notes.md"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "photos"


def entries(block: Block) -> list[Entry]:
    return [read(source) for source in sources(block)]


def names(given: object, size: int = 2) -> list[list[str]]:
    return [[Path(address).name for address in block.addresses] for block in blocks(str(given), size)]


def test_a_folder_is_cut_into_blocks_in_one_order(photos: Path) -> None:
    assert names(photos) == [["a.JPG", "2.png"], ["3.png"]]
    assert fingerprint(blocks(str(photos), 2)) == fingerprint(blocks(str(photos), 2))
    assert fingerprint(blocks(str(photos), 2)) != fingerprint(blocks(str(photos), 1))
    assert names(f"file://{photos}") == names(photos)


def test_a_pattern_takes_what_it_names(photos: Path) -> None:
    assert names(photos / "**" / "*.png", 9) == [["2.png", "3.png"]]
    assert names(photos / "b" / "*.png", 9) == [["2.png"]]
    assert names(photos / "a.JPG") == [["a.JPG"]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "label,path\ncat,a.JPG\ndog,b/2.png\n"),
        ("list.tsv", "path\tlabel\na.JPG\tcat\nb/2.png\tdog\n"),
        ("list.txt", "a.JPG\n\nb/2.png\n"),
        ("list.jsonl", '{"path": "a.JPG"}\n{"path": "b/2.png"}\n'),
    ],
)
def test_a_list_names_files_beside_it(photos: Path, name: str, text: str) -> None:
    (photos / name).write_text(text)
    assert names(photos / name) == [["a.JPG", "2.png"]]


def test_what_cannot_be_read_is_an_entry(photos: Path) -> None:
    (photos / "list.txt").write_text("a.JPG\ngone.png\n")
    (block,) = blocks(str(photos / "list.txt"), 9)
    first, second = entries(block)
    assert (first.content, first.error) == (b"a.JPG", None)
    assert second.content is None
    assert "gone.png cannot be read" in str(second.error)


def test_a_bucket_is_reached_once_for_all_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def reached(address: str) -> tuple[str, str, str]:
        asked.append(address)
        return address, address.partition("://")[2], ""

    monkeypatch.setattr(inputs, "_system", reached)
    inputs._bucket.cache_clear()
    names = ["s3://one/a b.png", "s3://one/c/d%20e.png", "gs://two/f.png"]
    places = [inputs._reached(name)[1] for name in names]
    inputs._bucket.cache_clear()
    assert places == ["one/a b.png", "one/c/d%20e.png", "two/f.png"]
    assert asked == ["s3://one", "gs://two"]
    assert Block(0, Kind.FILES, (names[0],)).far
    assert not Block(0, Kind.FILES, ("/photos/a.png",)).far
    assert not Block(0, Kind.ROWS, ("s3://one/x.parquet",)).far


def test_parquet_is_scored_by_row_groups(tmp_path: Path) -> None:
    table = pa.table({"image": [b"1", None, b"3"], "path": ["one", "two", "three"]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    first, second = blocks(str(tmp_path), 64)
    assert (first.kind, second.row_group) == (Kind.ROWS, 1)
    assert [(entry.path, entry.content) for entry in entries(first)] == [("one", b"1"), ("two", None)]
    assert [entry.path for entry in entries(second)] == ["three"]
    nested = pa.table({"image": [{"bytes": b"1", "path": "hf.png"}]})
    pq.write_table(nested, tmp_path / "x.parquet")
    (block,) = blocks(str(tmp_path), 64)
    assert [(entry.path, entry.content) for entry in entries(block)] == [("hf.png", b"1")]


def test_what_is_no_input_is_told(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.csv").write_text("label\ncat\n")
    (tmp_path / "bad.parquet").write_bytes(b"no")
    wrong = {
        tmp_path / "gone": "exists",
        tmp_path / "empty": "images",
        tmp_path / "empty" / "*.png": "images",
        tmp_path / "nothing.csv": "`path`",
        tmp_path / "bad.parquet": "Parquet",
        "nowhere://bucket": "cannot be reached",
    }
    for given, words in wrong.items():
        with pytest.raises(UsageError, match=words):
            blocks(str(given), 64)
    (photos / "x.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match="not both"):
        blocks(str(photos), 64)
    with pytest.raises(UsageError, match="`block`"):
        blocks(str(photos), 0)


def test_a_folder_goes_on_and_refuses_other_jobs(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "out"))
    assert folder.begin(MANIFESTED) == {}
    stored = folder.write(1, [ROW, ROW | {"status": "error", "decision": None, "error_kind": "not an image"}])
    assert stored == Counts(accepted=1, errors=Counter({"not an image": 1}))
    assert Folder(str(tmp_path / "out")).begin(MANIFESTED) == {1: stored}
    (tmp_path / "out" / "part-00000002.parquet.77.tmp").write_bytes(b"half")
    folder.clean()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [MANIFEST, "part-00000001.parquet"]
    for changed, words in ({"model_sha256": "x"}, "another model"), ({"fingerprint": "x"}, "another input"):
        with pytest.raises(UsageError, match=words):
            folder.begin(Manifest(**{**vars(MANIFESTED), **changed}))
    (tmp_path / "photo.png").write_text("mine")
    with pytest.raises(UsageError, match="no _manifest"):
        Folder(str(tmp_path)).begin(MANIFESTED)


def test_two_jobs_on_one_folder_are_refused(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "out"))
    folder.begin(MANIFESTED)
    with folder.locked(), pytest.raises(UceEdgeError, match="Another job"), Folder(str(tmp_path / "out")).locked():
        pass
    with folder.locked():
        assert json.loads((tmp_path / "out" / MANIFEST).read_text())["input"] == "photos"

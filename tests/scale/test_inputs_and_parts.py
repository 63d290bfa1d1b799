"""What can be scored, and what is stored; without Ray."""

import json
import os
import shutil
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.errors import raises

pa = pytest.importorskip("pyarrow", reason="the extra `ray` is not installed: make test-scale")

import pyarrow.parquet as pq  # noqa: E402

from uce_edge.errors import UsageError  # noqa: E402
from uce_edge.scale import places  # noqa: E402
from uce_edge.scale.inputs import Block, Entry, Kind, blocks, fingerprint, read, sources  # noqa: E402
from uce_edge.scale.parquet_parts import MANIFEST, AgainWarning, Counts, Folder, Manifest  # noqa: E402

MANIFESTED = Manifest("model", "photos", 2, "print", 25, 0, "auto")
STAMPS = ["first", "second"]
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
    assert "gone.png" in str(second.error)


def test_a_bucket_is_reached_once_for_all_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def from_uri(address: str) -> tuple[str, str]:
        asked.append(address)
        return address, address.partition("://")[2]

    monkeypatch.setattr(places, "_from_uri", from_uri)
    monkeypatch.setattr(places, "_probe", lambda address: None)
    monkeypatch.setattr(places, "_reachable", {})
    names = ["s3://one/a b.png", "s3://one/c/d%20e.png", "gs://two/f.png"]
    assert [places.reached(name)[1] for name in names] == ["one/a b.png", "one/c/d%20e.png", "two/f.png"]
    assert asked == ["s3://one", "gs://two"]
    assert Block(0, Kind.FILES, (names[0],)).far
    assert not Block(0, Kind.FILES, ("/photos/a.png", "file:///photos/b.png")).far
    assert not Block(0, Kind.ROWS, ("s3://one/x.parquet",)).far


def test_a_bucket_that_ends_a_process_or_does_not_answer_is_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_unreachable", {})
    for script in ("import os; os.abort()", "import time; time.sleep(60)"):
        monkeypatch.setattr(places, "_PROBE", script)
        monkeypatch.setattr(places, "_PATIENCE", 0.5)
        assert "does not answer" in str(read("abfs://nobody@nowhere/a.png").error)
    monkeypatch.setattr(places, "_PATIENCE", 60)
    monkeypatch.setattr(places, "_probe", lambda address: pytest.fail("it is remembered"))
    assert "does not answer" in str(read("abfs://nobody@nowhere/b.png").error)


def test_every_address_of_a_list_is_one_entry(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(photos / "fifo.png")
    (photos / "null.png").symlink_to("/dev/zero")
    (photos / "dangling.png").symlink_to("nowhere")
    (photos / "itself.png").symlink_to("itself.png")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(photos)  # the path of a socket must be short
        listening.bind("socket.png")
    odd = ["foo://x/y.png", "file://host/x.png", "s3://", "a\0b.png", "fifo.png", "null.png", "dangling.png"]
    odd += ["itself.png", "socket.png", "b", "a" * 5000, "a.JPG"]
    (photos / "list.jsonl").write_text("\n".join(json.dumps({"path": name}) for name in odd))
    found = [entry for block in blocks(str(photos / "list.jsonl"), 4) for entry in entries(block)]
    assert [entry.content for entry in found] == [None] * 11 + [b"a.JPG"]
    assert all(entry.error for entry in found[:-1])


def test_a_folder_lists_what_has_the_name_of_an_image(photos: Path) -> None:
    os.mkfifo(photos / "fifo.png")
    (photos / "dangling.png").symlink_to("nowhere")
    assert names(photos, 9) == [["a.JPG", "2.png", "3.png", "dangling.png", "fifo.png"]]


def test_a_folder_is_listed_once_whatever_links_to_it(photos: Path) -> None:
    (photos / "b" / "c" / "up").symlink_to(photos)
    (photos / "a-link").symlink_to(photos / "b")
    outside = photos.parent / "outside"
    outside.mkdir()
    (outside / "4.png").write_bytes(b"4")
    (photos / "link").symlink_to(outside)
    (outside / "back").symlink_to(photos)
    (block,) = blocks(str(photos), 9)
    assert [str(Path(name).relative_to(photos)) for name in block.addresses] == [
        "a.JPG", "b/2.png", "b/c/3.png", "link/4.png",
    ]  # fmt: skip


def test_a_folder_that_cannot_be_listed_is_an_entry(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if Path(path).name == "c":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    (block,) = blocks(str(photos), 9)
    assert [(entry.path.endswith("b/c/"), entry.content is None) for entry in entries(block)] == [
        (False, False), (False, False), (True, True),
    ]  # fmt: skip


def test_names_that_are_no_utf8_are_read_and_stored(tmp_path: Path, photos: Path) -> None:
    shutil.copy(photos / "a.JPG", os.fsencode(photos) + b"/\xff.png")
    (block,) = blocks(str(photos), 9)
    assert Block.from_json(block.to_json()) == block
    (entry,) = (entry for entry in entries(block) if "\udcff" in entry.path)
    assert entry.content == b"a.JPG"
    folder = Folder(str(tmp_path / "out"))
    with folder.locked():
        folder.write(0, "key", [ROW | {"path": entry.path, "error": "\ud800"}])
    (row,) = pq.read_table(tmp_path / "out" / "part-00000000.parquet").to_pylist()
    assert (row["path"], row["error"]) == (f"{photos}/\\udcff.png", "\\ud800")


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(1 << 40)
    assert "1 GiB" in str(read(str(tmp_path / "large.png")).error)


def test_the_stamp_of_a_block_changes_with_its_files(photos: Path) -> None:
    (photos / "list.txt").write_text("a.JPG\nb/2.png\ngone.png\nfoo://x\n")
    for given in (photos, photos / "list.txt", photos / "**" / "*", photos / "a.JPG"):
        before = blocks(str(given), 9)
        assert blocks(str(given), 9) == before
        os.utime(photos / "a.JPG", ns=(0, time.time_ns()))
        after = blocks(str(given), 9)
        assert fingerprint(after) == fingerprint(before)
        assert [one.stamp for one in after] != [one.stamp for one in before]


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


def test_damaged_parquet_is_one_entry_beside_sound_rows(tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"image": [os.urandom(2000) for _ in range(20)]})
        pq.write_table(table, tmp_path / f"{number}.parquet", write_page_checksum=True, compression="snappy")
    (tmp_path / "1.parquet").write_bytes((tmp_path / "1.parquet").read_bytes()[:-100])
    content = bytearray((tmp_path / "2.parquet").read_bytes())
    content[4:60] = bytes(56)  # the head of the first page
    (tmp_path / "2.parquet").write_bytes(content)
    found = [entries(block) for block in blocks(str(tmp_path), 9)]
    assert [len(one) for one in found] == [20, 1, 1]
    assert [one[-1].error is None for one in found] == [True, False, False]
    (tmp_path / "0.parquet").unlink()
    (tmp_path / "2.parquet").unlink()
    with raises("input.unreadable"):
        blocks(str(tmp_path), 9)


def test_a_wrong_input_is_an_error(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.csv").write_text("label\ncat\n")
    (tmp_path / "bad.parquet").write_bytes(b"no")
    wrong = {
        tmp_path / "gone": "input.missing",
        tmp_path / "empty": "input.empty",
        tmp_path / "empty" / "*.png": "input.empty",
        tmp_path / "bad.parquet": "input.unreadable",
        "nowhere://bucket": "bucket.unreachable",
    }
    for given, code in wrong.items():
        with raises(code):
            blocks(str(given), 64)
    with pytest.raises(UsageError):
        blocks(str(tmp_path / "nothing.csv"), 64)
    (photos / "x.parquet").write_bytes(b"")
    with raises("input.mixed"):
        blocks(str(photos), 64)
    with raises("argument.block"):
        blocks(str(photos), 0)


def begun(place: Path, manifest: Manifest = MANIFESTED) -> dict[int, Counts]:
    folder = Folder(str(place))
    with folder.locked():
        return folder.begin(manifest, STAMPS)


def stored(place: Path) -> Counts:
    """Both parts of the job."""
    begun(place)
    rows = [ROW, ROW | {"status": "error", "decision": None, "error_kind": "not an image"}]
    for number, stamp in enumerate(STAMPS):
        counts = Folder(str(place)).write(number, MANIFESTED.key(number, stamp), rows)
    assert counts == Counts(accepted=1, errors=Counter({"not an image": 1}))
    return counts


def test_a_folder_goes_on_and_refuses_other_jobs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    counts = stored(out)
    assert begun(out) == {0: counts, 1: counts}
    (out / "part-00000002.parquet.77.tmp").write_bytes(b"half")
    Folder(str(out)).clean()
    names = ["_lock", MANIFEST, "part-00000000.parquet", "part-00000001.parquet"]
    assert sorted(path.name for path in out.iterdir()) == names
    for changed in ({"model_sha256": "x"}, {"fingerprint": "x"}):
        with raises("job.another") as caught:
            begun(out, Manifest(**{**vars(MANIFESTED), **changed}))
        assert caught.value.fields["key"] in changed
    for mine in ("photo.png", "letter.tmp"):
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / mine).write_text("mine")
        with raises("job.not-empty"):
            begun(tmp_path / "other")
        Folder(str(tmp_path / "other")).clean()
        assert [path.name for path in (tmp_path / "other").iterdir()] == [mine]
        shutil.rmtree(tmp_path / "other")


def test_a_job_that_was_killed_before_its_manifest_goes_on(tmp_path: Path) -> None:
    (tmp_path / f"{MANIFEST}.0123456789abcdef.tmp").write_bytes(b"{")
    (tmp_path / "_lock").touch()
    assert begun(tmp_path) == {}


def without_key(path: Path) -> None:
    pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)


def with_other_columns(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["seed"]), path)


def with_a_flipped_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = content.index(b"a.png")  # in the data of a page
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PAR1" + os.urandom(500) + b"PAR1"),
        lambda path: shutil.copy(path.with_name("part-00000000.parquet"), path),
        without_key,
        with_other_columns,
        with_a_flipped_bit,
    ],
    ids=["truncated", "empty", "garbage", "another part", "without a key", "other columns", "a bit"],
)
def test_a_damaged_part_is_computed_again(tmp_path: Path, damage: Any) -> None:
    counts = stored(tmp_path)
    damage(tmp_path / "part-00000001.parquet")
    with pytest.warns(AgainWarning, match=r"1 of 2 files .*part-00000001"):
        assert begun(tmp_path) == {0: counts}


def test_a_part_whose_images_have_changed_is_computed_again(tmp_path: Path) -> None:
    counts = stored(tmp_path)
    folder = Folder(str(tmp_path))
    with folder.locked(), pytest.warns(AgainWarning, match="have changed"):
        assert folder.begin(MANIFESTED, ["another", "second"]) == {1: counts}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, content: bytes) -> None:
    stored(tmp_path)
    (tmp_path / MANIFEST).write_bytes(content)
    with raises("job.damaged"):
        begun(tmp_path)


@pytest.mark.parametrize("name", ["part-abc.parquet", "part-00000002.parquet", "other.parquet"])
def test_unknown_parts_are_rejected(tmp_path: Path, name: str) -> None:
    counts = stored(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert begun(tmp_path) == {0: counts, 1: counts}
    (tmp_path / name).touch()
    with raises("job.unknown-part") as caught:
        begun(tmp_path)
    assert caught.value.fields["file"] == name


def test_an_unwritable_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "file" / "x")
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "_lock").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "_lock").symlink_to(tmp_path / "created")
    for place in ("file", "file/x", "dangling", "locked", "linked", "a" * 300, "a\0b"):
        with raises("job.unwritable"):
            begun(tmp_path / place)
    assert not (tmp_path / "created").exists()


def test_two_jobs_on_one_folder_are_refused(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "out"))
    with folder.locked(), raises("job.locked"), Folder(str(tmp_path / "out")).locked():
        pass
    begun(tmp_path / "out")
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["input"] == "photos"

"""A file is written whole or not at all, and nothing else of the process changes."""

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from helpers.errors import raises

from uce_edge._util.atomic_files import read_regular, replacing, sole_writer

DAY = 24 * 3600


def test_the_target_changes_only_when_the_block_has_succeeded(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    with replacing(target) as path:
        path.write_text("first")
        assert not target.exists()
    with pytest.raises(ZeroDivisionError), replacing(target) as path:
        raise ZeroDivisionError(path.write_text("half"))
    assert target.read_text() == "first"
    assert list(target.parent.iterdir()) == [target]


def test_the_temporary_path_has_the_suffix_that_writers_go_by(tmp_path: Path) -> None:
    with replacing(tmp_path / "picture.png") as path:
        assert (path.suffix, path.parent) == (".png", tmp_path)


def test_a_name_as_long_as_the_disk_allows_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 251 + ".txt")
    with replacing(target) as path:
        path.write_text("x")
    assert target.read_text() == "x"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize(("mask", "mode"), [("0022", 0o644), ("0077", 0o600), ("0002", 0o664)])
def test_a_file_has_the_permissions_of_any_other(tmp_path: Path, mask: str, mode: int) -> None:
    target = tmp_path / "file.txt"
    code = (
        f"import os; os.umask(0o{mask})\n"
        "def forbidden(*_): raise AssertionError('umask was changed')\n"
        "os.umask = forbidden\n"
        "from uce_edge._util.atomic_files import replacing\n"
        f"with replacing({str(target)!r}) as path: path.write_text('x')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_an_error_of_other_code_inside_the_block_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), replacing(tmp_path / "file.txt"):
        (tmp_path / "elsewhere").read_text()
    with pytest.raises(ConnectionResetError), replacing(tmp_path / "file.txt"):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_with_the_name_of_the_target(tmp_path: Path) -> None:
    with raises("file.unwritable"), replacing(tmp_path / "file.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_target_that_is_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with raises("file.unwritable"), replacing(tmp_path / "taken") as path:
        path.write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.skipif(os.name == "nt", reason="no such files there")
def test_a_pipe_is_neither_waited_for_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(pipe)
    with raises("file.unwritable"), replacing(pipe):
        pass
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"four")
    assert read_regular(file, 4) == b"four"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_regular(file, 3)


@pytest.mark.skipif(os.name == "nt", reason="files are not locked there")
def test_one_process_at_a_time_writes_a_file_by_whatever_name(tmp_path: Path) -> None:
    target, link = tmp_path / "state.json", tmp_path / "link.json"
    link.symlink_to(target)
    target.with_name(".state.json.uce-edge-lock").touch()  # as a killed process leaves it
    for name in (target, link):
        with sole_writer(name):
            for other in (target, link):
                with raises("file.locked"), sole_writer(other):
                    pass
    assert list(tmp_path.iterdir()) == [link]


@pytest.mark.skipif(os.name == "nt", reason="files are not locked there")
def test_a_lock_that_comes_and_goes_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Each adds 1 to a number some hundred times; all of them arrive."""
    number = tmp_path / "number"
    number.write_text("0")
    code = """
import sys
from pathlib import Path
from uce_edge.errors import UceEdgeError
from uce_edge._util.atomic_files import sole_writer
number, added = Path(sys.argv[1]), 0
while added < 300:
    try:
        with sole_writer(number):
            number.write_text(str(int(number.read_text()) + 1))
            added += 1
    except UceEdgeError:
        pass
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, str(number)], cwd=ROOT) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert number.read_text() == "900"


def test_a_folder_that_is_a_file_is_told_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    place = tmp_path / "file" / "sheet.png"
    with raises("file.unwritable"), replacing(place, "--sheet"):
        pass


def test_content_is_flushed_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, steps = tmp_path / "file.txt", []

    def recorded(handle: int) -> None:
        steps.append((stat.S_ISDIR(os.fstat(handle).st_mode), target.exists()))

    monkeypatch.setattr(os, "fsync", recorded)
    with replacing(target) as path:
        path.write_text("x")
    assert steps[0] == (False, False)
    assert steps[1:] == ([] if os.name == "nt" else [(True, True)])


def test_what_killed_processes_left_is_removed_a_day_later(tmp_path: Path) -> None:
    left = []
    code = "import os, sys; from uce_edge._util.atomic_files import replacing\nwith replacing(sys.argv[1]): os._exit(9)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, tmp_path / "model.onnx"], cwd=ROOT, check=False)
        left += [path for path in tmp_path.iterdir() if path not in left]
    assert len(left) == 2
    mine = tmp_path / ".uce-edge-notes.txt"
    mine.write_text("a user's own")
    long_ago = time.time() - 2 * DAY
    for path in (left[0], mine):
        os.utime(path, (long_ago, long_ago))
    with replacing(tmp_path / "model.onnx") as path:
        path.write_text("x")
    assert {path.name for path in tmp_path.iterdir()} == {left[1].name, mine.name, "model.onnx"}


@pytest.mark.skipif(os.name == "nt", reason="files are not locked there")
def test_a_lock_follows_links_and_touches_no_file_of_the_user(tmp_path: Path) -> None:
    target, link = tmp_path / "poetry", tmp_path / "link"
    target.write_text("state")
    (tmp_path / "poetry.lock").write_text("versions")
    link.symlink_to(target)
    with sole_writer(link) as place:
        assert place == target.resolve()
    assert (tmp_path / "poetry.lock").read_text() == "versions"
    assert link.is_symlink()

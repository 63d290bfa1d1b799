"""Progress without a terminal, and memory that a program keeps."""

import os
import subprocess
import sys
import threading
import time

import pytest

from uce_edge._util import heap, progress


@pytest.fixture
def lines(monkeypatch):
    """What is printed while a clock stands still until it is moved."""
    printed, now = [], [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_is_hidden", False)
    for name in ("_print_line", "_last_line"):
        monkeypatch.setattr(progress, name, getattr(progress, name))  # restored afterwards
    progress.print_lines(printed.append)
    return printed, now


def test_a_long_task_prints_a_line_every_ten_seconds_with_the_time_left(lines) -> None:
    printed, now = lines
    with progress.progress("calibrating", 200, unit="images") as advance:
        for _ in range(200):
            now[0] += 0.25
            advance(1)
    assert printed == [
        "calibrating: 40 of 200 images, about 40 s left",
        "calibrating: 80 of 200 images, about 30 s left",
        "calibrating: 120 of 200 images, about 20 s left",
        "calibrating: 160 of 200 images, about 10 s left",
    ]


def test_short_tasks_in_a_row_share_the_clock(lines) -> None:
    printed, now = lines
    for task in ("one", "two", "three", "four"):
        with progress.progress(task, 4) as advance:
            for _ in range(4):
                now[0] += 1
                advance(1)
    assert printed == ["three: 2 of 4, about 2 s left"]


def test_a_resumed_task_counts_only_its_own_steps_for_the_time_left(lines) -> None:
    printed, now = lines
    with progress.progress("training", 2000) as advance:
        advance(1000)
        now[0] += 10
        advance(10)
    assert printed == ["training: 1,010 of 2,000, about 16 min left"]


def test_work_without_steps_prints_a_line_now_and_then(monkeypatch) -> None:
    printed = []
    monkeypatch.setattr(progress, "EVERY", 0.03)
    monkeypatch.setattr(progress, "_is_hidden", False)
    for name in ("_print_line", "_last_line"):
        monkeypatch.setattr(progress, name, getattr(progress, name))  # restored afterwards
    progress.print_lines(printed.append)
    with progress.working("tracing"):
        until = time.monotonic() + 5
        while len(printed) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert printed[:2] == ["tracing: 1 s so far"] * 2
    count = len(printed)
    time.sleep(0.1)
    assert len(printed) == count, "it ends with the work"
    with pytest.raises(ValueError, match="broken"), progress.working("tracing"):
        raise ValueError("broken")
    assert all(not thread.name.endswith("(_repeat)") for thread in threading.enumerate())


def test_a_terminal_has_one_bar_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(progress, "_is_hidden", False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal
    with progress.progress("outer", 2) as outer, progress.working("inner"), progress.progress("inmost", 2) as inmost:
        outer(1)
        inmost(1)
    assert not progress._is_drawn
    with progress.working("outer"), progress.progress("inner", 1) as inner:
        inner(1)
    assert not progress._is_drawn


def test_steps_of_work_show_their_bar_and_their_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_is_hidden", False)

    def work() -> None:
        with progress.working("outer"), progress.progress("inner", 20) as advance:
            for _ in range(20):
                time.sleep(0.06)
                advance(1)

    with monkeypatch.context() as terminal:
        terminal.setenv("FORCE_COLOR", "1")
        work()
        drawn = capsys.readouterr().err
        assert "outer" in drawn
        assert "inner" in drawn
    printed: list[str] = []
    monkeypatch.setattr(progress, "EVERY", 0.3)
    for name in ("_print_line", "_last_line"):
        monkeypatch.setattr(progress, name, getattr(progress, name))  # restored afterwards
    progress.print_lines(printed.append)
    work()
    assert printed
    assert all(line.startswith("inner: ") for line in printed), printed


def test_a_step_of_more_than_ten_seconds_reports_too(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    monkeypatch.setattr(progress, "EVERY", 0.05)
    monkeypatch.setattr(progress, "_is_hidden", False)
    for name in ("_print_line", "_last_line"):
        monkeypatch.setattr(progress, name, getattr(progress, name))  # restored afterwards
    progress.print_lines(printed.append)
    with progress.progress("calibrating", 9, unit="images") as advance:
        time.sleep(0.5)
        advance(1)
        time.sleep(0.5)
    assert printed[0] == "calibrating: 1 s so far"
    assert {"calibrating: 1 of 9 images, about 4 s left", "calibrating: 1 of 9 images, about 3 s left"} & {*printed}
    assert printed[-1].startswith("calibrating: 1 of 9 images, about ")


def test_a_library_and_a_quiet_program_print_nothing(lines, capfd) -> None:
    printed, now = lines
    progress.print_lines(None)
    for hidden in (False, True):
        progress.hide(hidden)
        with progress.working("work"), progress.progress("task", 3) as advance:
            now[0] += 60
            advance(1)
    assert printed == []
    assert capfd.readouterr() == ("", "")


_FAULTS = """
import resource, sys
import numpy as np
from uce_edge._util.heap import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else None
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(10_000_000, np.float32)  # glibc maps blocks above 32 MB one by one, always
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **variables: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True, env=variables
    )
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no mallopt")
def test_freed_memory_stays_in_the_process() -> None:
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    kept, few = faults("keep", **path)
    if kept == "False":
        pytest.skip("this C library is not glibc")
    assert few < 0.5 * faults("leave", **path)[1]
    assert faults("keep", **path, MALLOC_TRIM_THRESHOLD_="1000000")[0] == "False", "the user has chosen"


def test_another_c_library_is_left_alone(monkeypatch) -> None:
    def unknown(name: str) -> str:
        raise ValueError(name)

    monkeypatch.setattr(heap.os, "confstr", unknown, raising=False)
    assert heap.keep_freed_memory() is False

"""Event files as TensorBoard itself reads them."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from uce_edge.errors import UceEdgeError
from uce_edge_train.loop.event_log import EventLog, crc32c


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_the_checksum_is_castagnoli_s() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the CRC catalogue
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_tensorboard_reads_every_scalar_back(tmp_path: Path) -> None:
    before = time.time()
    with EventLog(tmp_path / "new" / "run") as log:
        for step in range(200):
            log.scalar("loss/train", 1 / (1 + step), step)
            log.scalar("genauigkeit/prüf", step / 200, step)
    found = read(tmp_path / "new" / "run")
    assert set(found.Tags()["scalars"]) == {"loss/train", "genauigkeit/prüf"}
    events = found.Scalars("loss/train")
    assert [event.step for event in events] == list(range(200))
    assert [event.value for event in events] == [np.float32(1 / (1 + step)) for step in range(200)]
    assert all(before <= event.wall_time <= time.time() for event in events)
    assert found.file_version == 2.0


@pytest.mark.parametrize("step", [0, 127, 128, 2**31, 2**63 - 1, -1, np.int64(300)])
def test_steps_of_any_size(tmp_path: Path, step: int) -> None:
    with EventLog(tmp_path) as log:
        log.scalar("x", 0.5, step)
    assert points(tmp_path, "x") == [(step, 0.5)]


@pytest.mark.parametrize(
    ("value", "found"),
    [(math.inf, math.inf), (-math.inf, -math.inf), (1e39, math.inf), (-1e39, -math.inf), (np.float32(0.1), 0.1)],
)
def test_values_of_any_size(tmp_path: Path, value: float, found: float) -> None:
    with EventLog(tmp_path) as log:
        log.scalar("x", value, 1)
        log.scalar("x", math.nan, 2)
    (_, first), (_, second) = points(tmp_path, "x")
    assert first == pytest.approx(found)
    assert math.isnan(second)


def test_a_value_is_on_disk_before_the_log_is_closed(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.scalar("x", 1.0, 1)
    assert points(tmp_path, "x") == [(1, 1.0)]
    log.close()


def test_a_torn_last_record_costs_nothing_else(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.scalar("x", 1.0, 1)
        log.scalar("x", 2.0, 2)
    log.path.write_bytes(log.path.read_bytes()[:-3])
    assert points(tmp_path, "x") == [(1, 1.0)]


def test_tensorboard_notices_a_flipped_bit_by_our_checksum(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.scalar("x", 1.0, 1)
    content = bytearray(log.path.read_bytes())
    content[-8] ^= 1
    log.path.write_bytes(content)
    assert len(list(EventFileLoader(str(log.path)).Load())) == 1  # the version only


def test_two_logs_of_one_second_are_two_files_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_600_000_000.5)
    for step in (1, 2, 3):
        with EventLog(tmp_path) as log:
            log.scalar("x", step, step)
        assert log.path.name.startswith("events.out.tfevents.1600000000.")
    assert len(list(tmp_path.iterdir())) == 3
    assert points(tmp_path, "x") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_resumed_training_replaces_the_steps_it_repeats(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        for step in range(6):
            log.scalar("x", 0.0, step)
    with EventLog(tmp_path, resume_at=4) as log:  # the checkpoint was written after step 3
        for step in range(4, 8):
            log.scalar("x", 1.0, step)
    assert points(tmp_path, "x") == [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0), (5, 1.0), (6, 1.0), (7, 1.0)]


def test_a_forbidden_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UceEdgeError, match=r"Cannot write an event log to .*file"):
        EventLog(tmp_path / "file")

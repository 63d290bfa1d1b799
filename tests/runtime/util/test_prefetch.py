"""Reading ahead: in order, bounded, without a thread that is left behind, and without a change of the warnings."""

import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from PIL import Image

from uce_edge import Model
from uce_edge._util.prefetch import done_ahead
from uce_edge.images.decoder_warnings import silenced
from uce_edge.runtime.providers import open_session


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("uce-edge")]


def test_results_come_in_order_whatever_takes_longest() -> None:
    def work(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item

    lists = list(done_ahead(work, range(50), ahead=12, threads=4, at_most=5))
    assert [item for part in lists for item in part] == list(range(50))
    assert max(map(len, lists)) <= 5
    assert names() == []


def test_without_an_end_to_patience_the_same_items_make_the_same_lists() -> None:
    def work(item: int) -> int:
        time.sleep(0.3 if item == 2 else 0)  # longer than a list usually waits
        return item

    lists = list(done_ahead(work, range(11), ahead=8, threads=3, at_most=4, patience=None))
    assert lists == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_no_more_is_taken_than_may_wait() -> None:
    taken = 0

    def items() -> object:
        nonlocal taken
        for item in range(100):
            taken += 1
            yield item

    results = done_ahead(lambda item: item, items(), ahead=7, threads=2, at_most=3)
    seen = len(next(results))
    assert taken <= seen + 7
    results.close()
    assert names() == []


def test_a_single_item_needs_no_thread() -> None:
    places = list(done_ahead(lambda _: threading.current_thread(), ["one"], ahead=4, threads=4, at_most=4))
    assert places == [[threading.main_thread()]]


def test_answers_that_are_not_taken_to_the_end_leave_no_thread(tmp_path: Path) -> None:
    paths = []
    for number in range(100):
        paths.append(tmp_path / f"{number}.png")
        Image.new("L", (8, 8), number).save(paths[-1])
    answers = Model(GOLDEN / "digits-moments.onnx", "cpu").answers(paths)
    next(answers)
    answers.close()
    assert names() == []


def test_many_files_give_the_answers_of_each_alone(tmp_path: Path, rng: np.random.Generator) -> None:
    paths = []
    for number in range(70):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(paths[-1])
    paths[13].write_bytes(b"no image")
    model = Model(GOLDEN / "digits-moments.onnx", "cpu")
    together = [answer.as_dict() for answer in model.answers(paths)]
    alone = [answer.as_dict() for path in paths for answer in model.answers([path])]
    for key in ("path", "status", "label", "error"):
        assert [answer[key] for answer in together] == [answer[key] for answer in alone]
    # Old ONNX Runtimes round otherwise in a batch.
    numbers = [[answer["uncertainty"] or 0.0 for answer in answers] for answers in (together, alone)]
    np.testing.assert_allclose(*numbers, atol=1e-6)
    assert [answer["status"] for answer in together].count("error") == 1


def test_many_threads_leave_the_filters_of_warnings_as_they_were() -> None:
    before = list(warnings.filters)

    def decode() -> None:
        for _ in range(200):
            with silenced():
                time.sleep(0)

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


def test_warnings_of_others_are_heard_while_images_are_decoded() -> None:
    with silenced(), pytest.warns(UserWarning, match="mine"):
        warnings.warn("mine", UserWarning, stacklevel=1)


def test_lists_fill_when_the_next_result_is_a_moment_away() -> None:
    def work(item: int) -> int:
        time.sleep(0.001)
        return item

    assert [len(part) for part in done_ahead(work, range(8), ahead=8, threads=1, at_most=4)] == [4, 4]


def test_a_result_does_not_wait_for_a_slow_one_behind_it() -> None:
    released = threading.Event()

    def work(item: int) -> int:
        if item == 1:
            released.wait(30)
        return item

    results = done_ahead(work, range(3), ahead=3, threads=2, at_most=3)
    assert next(results) == [0]
    released.set()
    assert [item for part in results for item in part] == [1, 2]


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_threads_decode_than_the_model_was_given(threads: int, tmp_path: Path) -> None:
    paths = []
    for number in range(40):
        paths.append(tmp_path / f"{number}.png")
        Image.new("L", (8, 8), number).save(paths[-1])
    answers = Model(GOLDEN / "digits-moments.onnx", "cpu", threads=threads).answers(paths)
    next(answers)
    assert 1 <= len(names()) <= threads
    answers.close()


def test_threads_that_do_not_spin_give_the_same_answers(rng: np.random.Generator) -> None:
    path = GOLDEN / "digits-moments.onnx"
    images = rng.integers(0, 256, (5, 8, 8, 1), np.uint8)
    spinning, sleeping = (Model(path, "cpu", threads=2, spin=spin).predict(images) for spin in (True, False))
    np.testing.assert_array_equal(spinning.probabilities, sleeping.probabilities)


def test_spinning_is_switched_off_in_onnx_runtime() -> None:
    options = open_session(str(GOLDEN / "digits-moments.onnx"), "cpu", spin=False).get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"

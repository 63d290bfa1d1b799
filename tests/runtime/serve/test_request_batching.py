"""The queue of a model, with a run that records its calls."""

import asyncio
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from uce_edge.serve.request_batching import Batcher, BusyError, StoppingError


class Recorder:
    """Gives every job the sum of its pixels, and waits before the first call until it is let go."""

    def __init__(self) -> None:
        self.calls: list[tuple[Hashable, int]] = []
        self.go = threading.Event()

    def __call__(self, key: Hashable, jobs: Sequence[Any]) -> list[int]:
        self.go.wait(10)
        self.calls.append((key, sum(map(len, jobs))))
        if key == "broken":
            raise ValueError("no")
        return [int(job.sum()) for job in jobs]


def pixels(*values: int) -> Any:
    return np.array(values)[:, None]


def test_what_arrives_meanwhile_shares_the_next_call() -> None:
    async def scene() -> None:
        run = Recorder()
        batcher = Batcher(run, max_images=3, max_waiting=100, observe=lambda _: None)
        first = asyncio.create_task(batcher.submit("a", pixels(1)))
        await asyncio.sleep(0.01)
        keys = [("a", (2,)), ("b", (3,)), ("a", (4,)), ("a", (5, 6)), ("a", (7,))]
        rest = [asyncio.create_task(batcher.submit(key, pixels(*values))) for key, values in keys]
        await asyncio.sleep(0.01)
        run.go.set()
        assert await asyncio.gather(first, *rest) == [1, 2, 3, 4, 11, 7]
        # At most three images a call, and no key twice in one.
        assert run.calls == [("a", 1), ("a", 3), ("b", 1), ("a", 2)]
        await batcher.close()

    asyncio.run(scene())


def test_a_full_queue_refuses_and_a_client_that_left_costs_nothing() -> None:
    async def scene() -> None:
        run = Recorder()
        batcher = Batcher(run, max_images=8, max_waiting=2, observe=lambda _: None)
        running = asyncio.create_task(batcher.submit("a", pixels(1)))
        await asyncio.sleep(0.01)
        left = asyncio.create_task(batcher.submit("a", pixels(2)))
        waits = asyncio.create_task(batcher.submit("a", pixels(3)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await batcher.submit("a", pixels(4))
        left.cancel()
        run.go.set()
        assert await asyncio.gather(running, waits) == [1, 3]
        assert run.calls == [("a", 1), ("a", 1)]
        await batcher.close()

    asyncio.run(scene())


def test_a_failed_call_fails_its_jobs_alone() -> None:
    async def scene() -> None:
        run = Recorder()
        run.go.set()
        batcher = Batcher(run, max_images=8, max_waiting=8, observe=lambda _: None)
        with pytest.raises(ValueError, match="no"):
            await batcher.submit("broken", pixels(1))
        assert await batcher.submit("a", pixels(2)) == 2
        await batcher.close()

    asyncio.run(scene())


def test_closing_does_not_wait_for_a_call_whose_clients_have_left() -> None:
    async def scene() -> None:
        run = Recorder()
        batcher = Batcher(run, max_images=8, max_waiting=8, observe=lambda _: None)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.submit("a", pixels(1)), 0.05)
        assert batcher.busy
        await asyncio.wait_for(batcher.close(), 1)
        assert (batcher.busy, run.calls) == (True, [])
        run.go.set()

    asyncio.run(scene())


def test_closing_answers_what_waits_and_takes_nothing_more() -> None:
    async def scene() -> None:
        run = Recorder()
        batcher = Batcher(run, max_images=1, max_waiting=8, observe=lambda _: None)
        jobs = [asyncio.create_task(batcher.submit("a", pixels(value))) for value in (1, 2, 3)]
        await asyncio.sleep(0.01)
        run.go.set()
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        with pytest.raises(StoppingError):
            await batcher.submit("a", pixels(4))
        assert await asyncio.gather(*jobs) == [1, 2, 3]
        await closing

    asyncio.run(scene())

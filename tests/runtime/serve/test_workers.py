"""Threads beside the event loop."""

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import pytest

from uce_edge.serve.workers import Workers


def test_work_whose_client_gave_up_ends_before_the_next_begins() -> None:
    """Or two lines of a log would get the same number."""

    async def scene() -> None:
        workers, go, order = Workers(1, "test"), threading.Event(), list[str]()

        def work(name: str) -> None:
            order.append(f"{name} begins")
            go.wait(10)
            order.append(f"{name} ends")

        for name in ("first", "never"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await workers.run(work, name)
        last = asyncio.create_task(workers.run(work, "last"))
        await asyncio.sleep(0.05)
        assert order == ["first begins"]
        go.set()
        await last
        assert order == ["first begins", "first ends", "last begins", "last ends"]
        workers.close()

    asyncio.run(scene())


def test_workers_are_stuck_when_none_of_them_goes_on() -> None:
    async def scene() -> None:
        workers, go = Workers(2, "test"), threading.Event()
        first = asyncio.create_task(workers.run(go.wait, 10))
        await asyncio.sleep(0.05)
        assert not workers.stuck(0.01)
        second = asyncio.create_task(workers.run(go.wait, 10))
        await asyncio.sleep(0.05)
        assert workers.stuck(0.01)
        assert not workers.stuck(60)
        go.set()
        await asyncio.gather(first, second)
        assert not workers.stuck(0.0)
        workers.close()

    asyncio.run(scene())


def test_an_error_does_not_keep_what_was_given() -> None:
    class Body:
        pass

    def fail(_: Body) -> None:
        raise ValueError

    async def ask(workers: Workers) -> "weakref.ref[Body]":
        body = Body()
        with suppress(ValueError):  # what pytest.raises keeps would keep it
            await workers.run(fail, body)
        return weakref.ref(body)

    async def scene() -> None:
        workers = Workers(1, "test")
        given = await ask(workers)
        await asyncio.sleep(0.05)
        assert given() is None
        workers.close()

    gc.disable()
    try:
        asyncio.run(scene())
    finally:
        gc.enable()

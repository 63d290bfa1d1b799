"""Threads for work that would hold up the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Workers:
    """A few threads, each with one piece of work at a time; it is known how long they have been at it."""

    def __init__(self, count: int, name: str) -> None:
        """Prepare threads; they start with the work."""
        self._count, self._threads = count, ThreadPoolExecutor(count, f"uce-edge-{name}")
        self._free = asyncio.Semaphore(count)
        self._began: dict[asyncio.Future[Any], float] = {}

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function in a thread.

        Who is cancelled before a thread is free leaves nothing behind. Work that has begun goes on to its end, and its
        place is taken until then: with one thread, two pieces of work never overlap.
        """
        await self._free.acquire()
        try:
            work = asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        except BaseException:
            self._free.release()
            raise
        self._began[work] = work.get_loop().time()
        work.add_done_callback(self._ended)
        try:
            return await asyncio.shield(work)
        finally:
            del work  # an error holds this frame, which would hold it: megabytes would wait for the garbage collector

    def stuck(self, seconds: float) -> bool:
        """Whether every thread has been at the same work for longer than some seconds."""
        now = asyncio.get_running_loop().time()
        return len(self._began) == self._count and all(now - began > seconds for began in self._began.values())

    def close(self) -> None:
        """Wait for what has begun, and take nothing more."""
        self._threads.shutdown()

    def _ended(self, work: "asyncio.Future[Any]") -> None:
        del self._began[work]
        self._free.release()

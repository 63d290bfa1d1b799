"""Threads for work that would block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Workers:
    """A thread pool that knows how long each thread has been busy."""

    def __init__(self, count: int, name: str) -> None:
        """Prepare the threads; they start with the first work."""
        self._count, self._threads = count, ThreadPoolExecutor(count, f"uce-edge-{name}")
        self._free = asyncio.Semaphore(count)
        self._began: dict[asyncio.Future[Any], float] = {}

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in a thread and return its result.

        A call that is cancelled before a thread is free has no effect. Work that has begun continues to its end and
        occupies its thread until then: with one thread, no two calls overlap.
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
            del work  # a traceback holds this frame, so megabytes would wait for the garbage collector

    def stuck(self, seconds: float) -> bool:
        """Whether every thread has been busy with one call for longer than this."""
        now = asyncio.get_running_loop().time()
        return len(self._began) == self._count and all(now - began > seconds for began in self._began.values())

    @property
    def busy(self) -> bool:
        """Whether a thread is at work."""
        return bool(self._began)

    def close(self, *, wait: bool = True) -> None:
        """Accept no more work; by default, wait for the work under way."""
        self._threads.shutdown(wait=wait)

    def _ended(self, work: "asyncio.Future[Any]") -> None:
        del self._began[work]
        self._free.release()

"""Batching of requests: those that arrive while the model is busy share its next call.

Batching is exact: a pass depends on its image and seed alone, so an answer is the same in every batch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.serve.workers import Workers

Pixels = npt.NDArray[Any]
Run = Callable[[Hashable, Sequence[Pixels]], Sequence[Any]]
"""Takes a key and the images of several jobs, and returns one result per job. Runs in its own thread."""


class BusyError(Exception):
    """The queue is full."""


class StoppingError(Exception):
    """The server is shutting down."""


@dataclass(eq=False)
class _Job:
    key: Hashable
    pixels: Pixels
    done: "asyncio.Future[Any]"


class Batcher:
    """The queue of one model."""

    def __init__(
        self, run: Run, *, max_images: int, max_waiting: int, delay: float = 0.0, observe: Callable[[int], None]
    ) -> None:
        """Prepare the queue; its thread starts with the first job.

        Args:
            run: Computes a batch.
            max_images: The largest number of images in one call. A larger job is a call of its own.
            max_waiting: The largest number of waiting images.
            delay: Seconds to wait for more jobs before a call.
            observe: Called with the number of images of every call.
        """
        self._run, self._observe = run, observe
        self._max_images, self._max_waiting, self._delay = max_images, max_waiting, delay
        self._jobs: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._arrived = asyncio.Event()
        self._thread = Workers(1, "batch")
        self._worker: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def waiting(self) -> int:
        """The number of waiting images."""
        return sum(len(job.pixels) for job in self._jobs)

    async def submit(self, key: Hashable, pixels: Pixels) -> Any:
        """Return the result for some images; jobs with the same key share a call.

        Raises:
            BusyError: Too many images wait.
            StoppingError: `close` was called.
        """
        if self._stopping:
            raise StoppingError
        if self._jobs and self.waiting + len(pixels) > self._max_waiting:
            raise BusyError
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        job = _Job(key, pixels, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._arrived.set()
        try:
            return await job.done
        finally:
            del job  # a traceback holds this frame, which would keep the pixels

    async def close(self) -> None:
        """Accept no more jobs and finish those that a client waits for; a call without a client is abandoned."""
        self._stopping = True
        self._arrived.set()
        if self._worker is not None:
            await asyncio.gather(*(job.done for job in (*self._running, *self._jobs)), return_exceptions=True)
            self._worker.cancel()
        self._thread.close(wait=False)

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._thread.busy

    def stuck(self, seconds: float) -> bool:
        """Whether one call has taken longer than this."""
        return self._thread.stuck(seconds)

    async def _work(self) -> None:
        while self._jobs or not self._stopping:
            if not self._jobs:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            if self._delay and not self._stopping and self.waiting < self._max_images:
                await asyncio.sleep(self._delay)
            batch = self._running = self._next()
            if not batch:
                continue
            self._observe(sum(len(job.pixels) for job in batch))
            try:
                results = await self._thread.run(self._run, batch[0].key, [job.pixels for job in batch])
            except Exception as error:
                for job in batch:
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            for job, result in zip(batch, results, strict=True):
                if not job.done.done():
                    job.done.set_result(result)
            self._running = []

    def _next(self) -> list[_Job]:
        """Take the oldest job and those with its key that fit; skip jobs whose client has left."""
        while self._jobs and self._jobs[0].done.done():
            self._jobs.popleft()
        if not self._jobs:
            return []
        batch: list[_Job] = []
        images, others = 0, deque[_Job]()
        for job in self._jobs:
            if job.done.done():
                continue
            fits = not batch or (job.key == batch[0].key and images + len(job.pixels) <= self._max_images)
            if fits:
                batch.append(job)
                images += len(job.pixels)
            else:
                others.append(job)
        self._jobs = others
        return batch


def split(values: dict[str, npt.NDArray[Any]], axes: dict[str, int], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Split the outputs of a batch into those of its jobs."""
    ends = np.cumsum(lengths)[:-1]
    parts = {name: np.split(array, ends, axis=axes[name]) for name, array in values.items()}
    return [{name: parts[name][index] for name in parts} for index in range(len(lengths))]

"""Work ahead in threads; yield results in order."""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from typing import TypeVar

__all__ = ["cores", "done_ahead"]

_PATIENCE = 0.2  # seconds that a list waits for more, because longer lists cost less per item

Item = TypeVar("Item")
Result = TypeVar("Result")


def done_ahead(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    ahead: int,
    threads: int,
    at_most: int,
    patience: float | None = _PATIENCE,
) -> Generator[list[Result], None, None]:
    """Yield lists of results, in the order of the items.

    A list has what is ready within a moment: at least one result, at most `at_most`.

    While a list is used, threads work on what comes next. A single item is worked on here: it needs no thread. No
    thread is left when the iterator ends or is closed.

    Args:
        work: What is done with an item; it must not fail.
        items: They are taken one by one, `ahead` of the results at most.
        ahead: How many items may be under way or waiting.
        threads: How many are worked on at once.
        at_most: The length of a list.
        patience: Seconds that a list waits for more. None waits until it has `at_most`, however long that takes: only
            then the same items make the same lists.
    """
    remaining = iter(items)
    first = list(islice(remaining, 2))
    if len(first) < 2:
        yield from ([work(item)] for item in first)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="uce-edge-ahead")
    pending: deque[Future[Result]] = deque()
    upcoming = chain(first, remaining)

    def refill() -> None:
        pending.extend(pool.submit(work, item) for item in islice(upcoming, ahead - len(pending)))

    try:
        refill()
        while pending:
            ready = [pending.popleft().result()]
            deadline = None if patience is None else time.monotonic() + patience
            while pending and len(ready) < at_most:
                wait([pending[0]], None if deadline is None else max(0.0, deadline - time.monotonic()))
                if not pending[0].done():
                    break
                ready.append(pending.popleft().result())
                refill()
            refill()
            yield ready
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def cores() -> int:
    """The processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no such call
        return os.cpu_count() or 1

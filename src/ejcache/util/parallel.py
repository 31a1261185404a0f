"""Many requests at once to storage that answers slowly, with as few results in memory as there are threads."""

from __future__ import annotations

import collections
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ejcache.util.threads import DaemonPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS: Final = 16
"""Requests at once: at 30 ms each, 500 a second."""

_pool: Final = DaemonPool()
"""Not that of `call_with_timeout`, which the functions use: they would wait for threads that wait for them."""


def in_parallel(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int = THREADS
) -> Iterator[Result]:
    """Yield what `function` returns for each of `items`, in their order; raises what it raises.

    Works during exit too, when no thread can be started.

    Args:
        function: called in other threads; in this one if `threads` is 1.
        items: taken one by one.
        threads: how many calls run at once.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    calls: collections.deque[Future[Result]] = collections.deque()
    try:
        for item in items:
            calls.append(_pool.submit(partial(function, item)))
            if len(calls) >= threads:
                yield calls.popleft().result()
        while calls:
            yield calls.popleft().result()
    finally:
        for call in calls:
            call.cancel()
        # The caller may close what the remaining calls use.
        wait(calls)

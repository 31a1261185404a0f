"""Tells a function of each call that a program traces in a block, before its configuration is chosen."""

from __future__ import annotations

import contextlib
import itertools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from ejcache.autotune.tuning_blocks import traced_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.autotune.call import Call

_ahead: Final[ContextVar[Callable[[Call], object] | None]] = ContextVar("ejcache_autotune_ahead", default=None)

_blocks: Final = itertools.count()


@contextlib.contextmanager
def each_call(told: Callable[[Call], object]) -> Iterator[None]:
    """Tell a function of each call that a program traces in this block, before its configuration is chosen.

    The choice is then one of records and of the operation's own guess: nothing else is measured in this block.
    """
    token = _ahead.set(told)
    try:
        # A program that was traced before would reuse its trace, and call no operation.
        with traced_apart(f"ahead {next(_blocks)}"):
            yield
    finally:
        _ahead.reset(token)


def is_ahead() -> bool:
    """True if it is called in a block of `each_call`."""
    return _ahead.get() is not None


def tell_ahead(call: Call) -> bool:
    """Tell who asked for each call of this one; False outside of such a block."""
    told = _ahead.get()
    if told is None:
        return False
    # Operations that a candidate calls are none of the program's.
    token = _ahead.set(None)
    try:
        told(call)
    finally:
        _ahead.reset(token)
    return True

"""Finds out whether gevent or eventlet has replaced `threading` since ejcache has made threads or their locks."""

from __future__ import annotations

import threading
from typing import Final

_FOR_EVER: Final = threading.Lock()
_FOR_EVER.acquire()
_get_ident: object = None
"""What `threading.get_ident` was when we made the first scheduler or thread."""


def note_functions() -> None:
    """Note the functions of `threading` as they are now: a thread of ours is about to start, or its locks are made."""
    global _get_ident
    if _get_ident is None:
        _get_ident = threading.get_ident


def is_patched_late() -> bool:
    """True if gevent or eventlet has replaced the functions of `threading` since we have made a lock or a thread.

    Then those are real ones, and what is made from now on belongs to greenlets: a process in which the two meet hangs,
    or dies when it ends. So we do nothing any more.
    """
    return _get_ident not in {None, threading.get_ident}


def wait_if_patched_late() -> None:
    """Have this thread of ours do nothing any more, in a lock that nobody replaces, once `is_patched_late`."""
    if is_patched_late():
        _FOR_EVER.acquire()

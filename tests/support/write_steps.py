"""The steps of a write to a local store, seen from outside: a hook is called where a process may die."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import ejcache.stores.local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["STEPS", "seeing_steps", "tell_steps"]

STEPS = {
    "file-begun": ("writing.py", "        done = os.write(fd, data)"),
    "file-written": ("writing.py", "pending = _Pending(path, os.fstat(fd), worth)\n        yield pending"),
    "evicted": ("writing.py", "change.note({name: Change(before, size, seen, seen)}, worth=pending.worth)"),
    "noted": ("writing.py", "        os.rename(pending.path, last, dst_dir_fd=directory)"),
    "renamed": ("writing.py", "pending.is_placed = True"),
    "before-commit": ("transaction.py", "cache.set(_STATE, self.state.encode())"),
    "committed": ("transaction.py", "        self._file.begin(self.state.number)\n        known.read"),
    "begun-anew": ("changes.py", "os.ftruncate(self._fd, len(base))"),
    "done": ("order.py", "self._is_inside = False\n        if threading.current_thread()"),
    "order-made": ("order.py", "cache = Cache(own[0], timeout=0, disk=_TextsOnly, **_SETTINGS)"),
}
"""Each step is told before the last line of its text is executed; a text is found once in its file, or a test fails."""


def _lines() -> dict[tuple[str, int], str]:
    found = {}
    for step, (name, text) in STEPS.items():
        path = Path(ejcache.stores.local.__path__[0]) / name
        source = path.read_text()
        before, *after = source.split(text)
        assert len(after) == 1, f"{name} has the text of the step {step} {len(after)} times"
        found[str(path), before.count("\n") + text.count("\n") + 1] = step
    return found


def tell_steps(hook: Callable[[str], object]) -> None:
    """Have `hook` called with the name of each step, in this thread and in those that begin after this."""
    lines = _lines()
    files = {path for path, _ in lines}

    def see(frame, event, _):
        if event == "line" and (step := lines.get((frame.f_code.co_filename, frame.f_lineno))):
            hook(step)
        return see

    def begin(frame, *_):
        return see if frame.f_code.co_filename in files else None

    threading.settrace(begin)
    sys.settrace(begin)


@contextmanager
def seeing_steps(hook: Callable[[str], object]) -> Iterator[None]:
    """Have `hook` called with the name of each step of this thread in this block."""
    before = sys.gettrace()
    tell_steps(hook)
    threading.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)

"""Answers JAX if a step of ours fails: with what was compiled already, or else with what its own function gives.

Each function of ours in the place of one of JAX's runs in `answer`. An error of ours must never reach the program: a
file of ours that cannot be opened, because no descriptor is left or a mount has gone, memory that is used up, a module
that `pip install -U ejcache` has removed. Errors that the program has to get are those of its own compilation, which
`note_compilation` keeps apart, those of a class that says so (`is_for_program`), and warnings that it made errors.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class _Request:
    """What was compiled for one request of JAX.

    Attributes:
        made: the executable, in a tuple; empty before there is one.
        error: why there is none.
    """

    def __init__(self) -> None:
        self.made: tuple[Any, ...] = ()
        self.error: BaseException | None = None


_here: Final = threading.local()
"""`request`: the one that this thread answers now."""


def answer(
    ours: Callable[[], T],
    own: Callable[[], T],
    *,
    is_raised: Callable[[], bool],
    report: Callable[[str, Exception], object],
) -> T:
    """Return what `ours` returns or, if a step of ours fails, what is compiled already, or else what `own` returns.

    Args:
        ours: our function.
        own: JAX's.
        is_raised: says whether the program wants errors of the cache itself.
        report: counts and logs a failure: what could not be done, and the error. It may fail, too.

    Raises:
        BaseException: the program's own error or an interrupt, unchanged.
    """
    before: _Request | None = getattr(_here, "request", None)
    request = _here.request = _Request()
    try:
        return ours()
    except Exception as exc:
        if exc is request.error or is_for_program(exc) or is_raised():
            raise
        failure = exc
    finally:
        _here.request = before
    report_failure(failure, report)
    if request.made:
        executable: T = request.made[0]
        return executable
    if request.error is not None:
        raise request.error
    return own()


def note_compilation(compile_it: Callable[[], T]) -> T:
    """Call `compile_it`, and note for the request of this thread the executable that it returns or what it raises."""
    request: _Request = getattr(_here, "request", None) or _Request()  # none is answered: nobody will ask
    try:
        executable = compile_it()
    except BaseException as exc:
        request.error = exc
        raise
    # The first is the one that JAX asks for; a later one is there to be compared with it.
    request.made = request.made or (executable,)
    return executable


def is_for_program(exc: BaseException) -> bool:
    """True if an error, or a warning that the program made an error, is there for the program to see."""
    return isinstance(exc, Warning) or getattr(exc, "is_for_program", False)


def report_failure(exc: Exception, report: Callable[[str, Exception], object]) -> None:
    """Count and log a failure by `report`; if what that needs fails, too, log it at least."""
    try:
        report("look up or store a program", exc)
    except Exception:
        with contextlib.suppress(Exception):  # no memory is left
            text = "ejcache: a step of it failed, and the program goes on without it: %s: %s"
            warn_once("own failure", text, type(exc).__name__, exc)

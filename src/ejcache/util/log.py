"""Logs for the package: a warning once, and a line about a long wait."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

log: Final = logging.getLogger("ejcache")

LONG_WAIT: Final = 5.0
"""Seconds that a process waits for another one in silence. Then `say_waiting` says for which."""

_MOST_KEYS: Final = 1_000

_seen: Final[dict[Hashable, object]] = {}


def warn_once(
    key: Hashable, message: str, *args: object, logger: logging.Logger = log, exc_info: BaseException | None = None
) -> bool:
    """Log a warning the first time that this process passes `key`, and at DEBUG after that.

    The 1,000 most recent keys are remembered. Safe for threads.

    Args:
        key: what must not be repeated, such as `("corrupt", url)`.
        message: a format.
        args: its arguments.
        logger: where to log.
        exc_info: an exception whose traceback is logged too.

    Returns:
        Whether this was the first time.
    """
    mark = object()
    first = _seen.setdefault(key, mark) is mark
    if len(_seen) > _MOST_KEYS:
        _seen.pop(next(iter(list(_seen))), None)
    logger.log(logging.WARNING if first else logging.DEBUG, message, *args, exc_info=exc_info)
    return first


def say_waiting(what: str, *, so_far: float, limit: float) -> None:
    """Log that this process has waited long.

    Args:
        what: who is waited for and what that process does, such as "rank 0, which compiles jit_step".
        so_far: seconds waited.
        limit: seconds until this process waits no longer; infinite if it waits until that is done.
    """
    most = f", at most {limit:.0f} s" if limit < math.inf else ""
    log.warning("ejcache: waiting for %s: %.0f s so far%s", what, so_far, most)


def forget_warnings() -> None:
    """Let every warning be logged once more."""
    _seen.clear()

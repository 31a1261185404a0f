"""Keeps the processes of a host from measuring one call at the same time.

Processes of a host that measure at the same time would disturb each other's times. So one measures a call, and the
others wait for its record, for as long as measuring may take. A process that dies releases the lock; one that is
stopped keeps it until the others have waited long enough, and then they measure.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from ejcache.autotune.log import logger
from ejcache.errors import StoreBusyError
from ejcache.settings.directories import state_directory
from ejcache.util.files import make_private
from ejcache.util.locks import exclusive
from ejcache.util.store_keys import key_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.autotune.records.record_key import RecordKey

_POLL_SECONDS: Final = 0.05


@contextlib.contextmanager
def one_of_a_host(key: RecordKey, url: str, *, seconds: float) -> Iterator[bool]:
    """Keep other processes from measuring a call in this block; yields True if one of them did before.

    Args:
        key: of the call.
        url: of the store: what is measured for another one would not be found.
        seconds: how long to wait for another process. After that, or without a place for a lock, both measure.
    """
    with contextlib.ExitStack() as stack:
        waited = False
        try:
            directory = state_directory() / "tuning"
            make_private(directory)
            path = directory / f"{key_digest(f'{url} {key.digest}', 40)}.lock"
            try:
                stack.enter_context(exclusive(path, deadline=time.monotonic(), lasting=False))
            except StoreBusyError:
                waited = True
                logger.info("another process measures %s; this one waits for its record", key.operation)
                deadline = time.monotonic() + seconds
                stack.enter_context(exclusive(path, deadline=deadline, poll=_POLL_SECONDS, lasting=False))
        except (OSError, StoreBusyError) as exc:
            logger.debug("%s is measured without a lock: %r", key.operation, exc)
        yield waited

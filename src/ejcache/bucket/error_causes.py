"""What may be behind an error of shared storage, of the causes that a user can do something about."""

from __future__ import annotations

import socket
from enum import StrEnum
from typing import TYPE_CHECKING

from ejcache.bucket.retry import ThrottledError
from ejcache.errors import NoPermissionError, StoreBusyError, StoreReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Iterator


class StorageTrouble(StrEnum):
    """A cause, in the words of a sentence about storage."""

    THROTTLED = "the storage asks to slow down (429)"
    MAY_NOT_READ = "these credentials may not read there, or not list (403)"
    MAY_NOT_WRITE = "these credentials may not write there (403)"
    NO_ADDRESS = "no address is found for the name of its host (DNS)"
    PORTAL = "somebody else answers in its place, perhaps a proxy or a login page"
    SILENT = "there is no answer"


def trouble_behind(error: BaseException) -> StorageTrouble | None:
    """Return the cause of an error of a bucket; None for another one."""
    chain = list(_chain(error))
    if any(isinstance(each, socket.gaierror) for each in chain):
        return StorageTrouble.NO_ADDRESS
    if any("a login page" in str(each) for each in chain):
        return StorageTrouble.PORTAL
    for kind, cause in (
        (ThrottledError, StorageTrouble.THROTTLED),
        (NoPermissionError, StorageTrouble.MAY_NOT_READ),
        (StoreReadOnlyError, StorageTrouble.MAY_NOT_WRITE),
        (StoreBusyError, StorageTrouble.SILENT),
    ):
        if isinstance(error, kind):
            return cause
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__

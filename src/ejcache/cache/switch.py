"""What operators say of a cache: whether it is used at all, and which of its entries nobody loads any more.

`ejcache config set --dir CACHE enabled=false` turns a cache off, and `ejcache recall` takes entries back. What is
stored with the cache says both (`maintenance.stored_policy`). A cache on a local disk is asked directly;
`shared_switch` asks one on shared storage. A process of a cache that is off says so once, and goes on without it.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from ejcache.common_errors import EntryError
from ejcache.util.log import log, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.entry import Header
    from ejcache.maintenance.recalls import Recalls

FRESH_SECONDS: Final = 55.0
"""At which age what is known is asked for anew: what is turned off is off everywhere within a minute."""
MAX_BYTES: Final = 64 << 10


class CacheSwitch:
    """What the stored policy of a cache says of its use and its entries, at most a minute old. Safe for threads, forks.

    Args:
        url: of the cache, for messages.
        read: reads the stored policy; no bytes if there is none.
        clock: seconds since the epoch.

    Attributes:
        when_recalled: called with what is recalled, whenever that has become more; from any thread.
        off: who turned the cache off, as was known last; empty if nobody did.
        number: of the last recall that this process knows; 0 for none.
    """

    def __init__(self, url: str, read: Callable[[], bytes], *, clock: Callable[[], float] = time.time) -> None:
        self._url = url
        self._read = read
        self._clock = clock
        self.when_recalled: Callable[[Recalls], object] | None = None
        self.off = ""
        self.number = 0
        self._recalls: Recalls | None = None
        self._taken = b""
        self._looked_at = float("-inf")

    def is_off(self) -> bool:
        """True if the cache is not to be used."""
        if self._clock() - self._looked_at > FRESH_SECONDS:
            self._looked_at = self._clock()
            with contextlib.suppress(OSError):
                self._take(self._read())
        return bool(self.off)

    def is_recalled(self, header: Header, data: bytes) -> bool:
        """True if nobody is to load this entry."""
        if self._recalls is None:
            return False
        from ejcache.maintenance.recalls import stamp_of

        return self._recalls.includes(stamp_of(header, data))

    def _take(self, data: bytes) -> None:
        if data == self._taken:
            return  # processes look every few seconds, and it changes once in months
        self._taken = data
        off, recalls = "", None
        if data:
            said = self._decode(data)
            if said is None:
                return
            off, recalls = said
        if off and not self.off:
            warn_once(
                ("off", self._url, off),
                "ejcache: %s is turned off (%s): nothing is read from it or stored there; "
                "`ejcache config set --dir %s enabled=true` turns it on",
                self._url,
                off,
                self._url,
            )
        elif self.off and not off:
            log.info("ejcache: %s is turned on again", self._url)
        self.off = off
        if recalls is not None and recalls.number > self.number:
            self._recalls, self.number = recalls, recalls.number
            if self.when_recalled is not None:
                self.when_recalled(recalls)

    def _decode(self, data: bytes) -> tuple[str, Recalls] | None:
        """Return who turned the cache off, and what is recalled; None, and a warning, if this cannot be read."""
        from ejcache.maintenance.stored_policy import decode_policy, recalls_of, who_turned_off

        try:
            policy = decode_policy(data)
            return who_turned_off(policy), recalls_of(policy)
        except EntryError as exc:
            warn_once(("switch", self._url), "ejcache: what is stored with %s cannot be read: %s", self._url, exc)
            return None

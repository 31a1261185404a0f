"""Watches the policy that is stored with a cache: whether the cache is used, what is recalled, where its entries are.

`ejcache config set --dir CACHE enabled=false` turns a cache off, and `ejcache recall` takes entries back. The policy
says both (`maintenance.stored_policy`). On a local disk it is read directly; `shared_policy_watch` reads that of shared
storage. A process of a cache that is off says so once, and goes on without it.

What cannot be read, or is gone, changes nothing: who knew what it said goes on by that.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.errors import EntryError
from ejcache.util.log import log, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.entry import Header
    from ejcache.maintenance.recalls import Recalls
    from ejcache.stores.base import Store
    from ejcache.stores.epochs import Epochs, FormerEpoch

FRESH_SECONDS: Final = 55.0
"""At which age what is known is asked for anew: what is turned off is off everywhere within a minute."""
MAX_BYTES: Final = 128 << 10


class Reading(NamedTuple):
    """What is stored: its bytes, none if nothing is, and a text that changes with it."""

    data: bytes
    generation: str = ""


class Said(NamedTuple):
    """What a policy says: who turned the cache off, what is recalled, and where the entries are."""

    off: str
    recalls: Recalls
    epochs: Epochs


class PolicyWatch:
    """What the stored policy of a cache says of its use and its entries, at most a minute old. Safe for threads, forks.

    Args:
        url: of the cache, for messages.
        read: reads the stored policy.
        clock: monotonic seconds.

    Attributes:
        when_recalled: called with what is recalled, whenever that or the epoch has changed; from any thread.
        off: who turned the cache off, or why it is not used, as was known last; empty if it is on.
        epoch: in which the cache is; None while nobody could read that.
        former: the epochs that are over.
        since: what is stored now is dated no earlier, in seconds since the epoch (`recalls.Recalls.since`).
        is_shared: hosts share the cache.
    """

    is_shared = False
    storage_url = ""
    """Of the storage that hosts share."""
    trouble: Exception | None = None
    """Why this host could never read the policy, until that was reported."""

    def __init__(self, url: str, read: Callable[[], Reading], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._read = read
        self._clock = clock
        self.when_recalled: Callable[[Recalls], object] | None = None
        self.off = ""
        self.epoch: str | None = ""
        self.former: tuple[FormerEpoch, ...] = ()
        self.since = 0.0
        self._recalls: Recalls | None = None
        self._taken: bytes | None = None
        self._looked_at = float("-inf")

    def is_off(self) -> bool:
        """True if the cache is not to be used."""
        if self._clock() - self._looked_at > FRESH_SECONDS:
            self._looked_at = self._clock()
            with contextlib.suppress(OSError):
                found = self._read()
                if not found.data and self._taken:
                    self._say_gone()
                elif found.data != self._taken:
                    self._take_or_stop(found)
        return bool(self.off)

    def is_recalled(self, header: Header, data: bytes) -> bool:
        """True if nobody is to load this entry."""
        if self._recalls is None:
            return False
        from ejcache.maintenance.recalls import stamp_of  # the door to a stored policy

        return self._recalls.condemns(stamp_of(header, data))

    def store_in(self, opened: Store) -> Store:
        """Return the store at the place that the policy names, if that is not the one that was opened before."""
        return opened

    def stop(self) -> None:
        """Look no more in a thread of its own, if it has one."""

    def _take_or_stop(self, found: Reading) -> None:
        """Take what is stored. Who has never known what it says keeps away from the cache: it may be turned off."""
        if not found.data:
            self._taken = b""
            return
        said = self._decode(found.data)
        if said is not None:
            self._take(found, said)
        elif self._taken is None:
            self.off = "its policy cannot be read"

    def _take(self, found: Reading, said: Said | None = None, *, age: float = 0.0) -> None:
        """Go by what is stored, and say what that changes."""
        if found.data == self._taken:
            return  # processes look every few seconds, and it changes once in months
        said = said or self._decode(found.data)
        if said is None:
            return
        self._taken = found.data
        if said.off and said.off != self.off:
            warn_once(
                ("off", self._url, said.off),
                "ejcache: %s is turned off (%s): nothing is read from it or stored there; "
                "`ejcache config set --dir %s enabled=true` turns it on",
                self._url,
                said.off,
                self._url,
            )
        elif self.off and not said.off:
            log.info("ejcache: %s is turned on again", self._url)
        log.info(
            "ejcache: %s is used by version %s of its policy, read %.0f s ago",
            self._url,
            found.generation or "-",
            age,
        )
        before = self._recalls, self.epoch
        self.off, self._recalls, self.since = said.off, said.recalls, said.recalls.since
        self.epoch, self.former = said.epochs.present, said.epochs.former
        if (said.recalls, self.epoch) != before and self.when_recalled is not None:
            self.when_recalled(said.recalls)

    def _say_gone(self) -> None:
        warn_once(
            ("gone", self._url),
            "ejcache: %s/v1/policy.json is gone; this process keeps to what it said. `ejcache config set` or "
            "`ejcache recall` with --dir %s stores another one",
            self._url,
            self._url,
        )

    def _decode(self, data: bytes) -> Said | None:
        """Return what a policy says; None, and a warning, if this cannot be read."""
        from ejcache.maintenance.stored_policy import (  # the door to a stored policy
            decode_policy,
            epochs_of,
            recalls_of,
            who_turned_off,
        )

        try:
            policy = decode_policy(data)
            return Said(who_turned_off(policy), recalls_of(policy), epochs_of(policy))
        except EntryError as exc:
            self._say_unreadable(exc)
            return None

    def _say_unreadable(self, exc: Exception) -> None:
        goes_on = (
            "this process keeps to the one that it knows"
            if self._taken is not None
            else "the cache is not used meanwhile"
        )
        warn_once(
            ("policy", self._url),
            "ejcache: %s/v1/policy.json cannot be read (%s): %s. `ejcache config set --replace` with --dir %s stores "
            "another one",
            self._url,
            exc,
            goes_on,
            self._url,
        )

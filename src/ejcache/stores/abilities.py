"""What only some stores can do, beside the contract of all (`base`).

A store that has the methods of `Clearable` or `DeletesMany` is one; a store of two tiers says so
(`Store.has_two_tiers`), because every hit asks, and a hit does not import this: a Protocol takes half a millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ejcache.util.time_budget import Budget


@runtime_checkable
class Clearable(Protocol):
    """A store that removes all its entries in one step."""

    def clear(self) -> None:
        """Remove every entry; counters stay."""


@runtime_checkable
class DeletesMany(Protocol):
    """A store that removes many entries as quickly as one."""

    def delete_many(self, keys: Iterable[str]) -> set[str]:
        """Remove these entries; return the keys of those that were there and could be removed.

        Raises `StoreError` if none of them could be.
        """


@runtime_checkable
class TwoTiers(Protocol):
    """A store of this host over one that hosts share, to which it uploads in the background."""

    def get_verified(
        self,
        key: str,
        *,
        local_only: bool = False,
        budget: Callable[[], Budget] | None = None,
        beside: Callable[[], object] | None = None,
    ) -> tuple[bytes | None, object]:
        """Get as `Store.get` does, with what the verification of exactly these bytes returned; None if there was none.

        Args:
            key: of the entry.
            local_only: do not ask the shared tier.
            budget: what the shared tier is waited for is taken from it.
            beside: called before the shared tier is asked, if its last answer was slow, and that there is no entry:
                what is needed after such an answer can be done meanwhile.
        """

    def put_here(self, key: str, data: bytes, *, replacing: bool = False) -> bool:
        """Create the entry, or replace it, on this host only; False if there was one already. Raises as `Store.put`."""

    def drop_copy(self, key: str, data: bytes) -> bool:
        """Remove this host's copy of the entry if it still is exactly `data`; False if it is not."""

    def note_used_here(self, key: str) -> None:
        """Note that the entry was used now, and tell the shared tier nothing."""

    def note_local(self, key: str, number: float) -> None:
        """Remember on this host that the entry of `key` is not for the shared tier, and a number of the caller's."""

    def local_note(self, key: str) -> float | None:
        """Return the number of the note, from 0 on; None without one, or once the entry was put into both tiers."""

    def has_local(self, key: str) -> bool:
        """True if this host has the entry, so that `get_verified` makes no request."""

    def patience(self) -> float:
        """Return the seconds that it is worth waiting for the shared tier: none while it is not asked."""

    def prefetch(
        self, keys: Iterable[str], *, requests: int, wanted: Callable[[str], bool]
    ) -> Iterator[tuple[str, bool]]:
        """Bring entries to this host by concurrent requests; yields each key, and whether its entry is here."""

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to upload; False if something is."""

    def take_tier_counters(self) -> dict[str, float]:
        """Return the counters of each tier since the last call."""

    def when_closing(self, callback: Callable[[], object]) -> None:
        """Call `callback` whenever the store is closed, before its tiers are."""

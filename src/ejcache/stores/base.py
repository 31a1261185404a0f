"""Says what a store is: bytes under a key, whatever the bytes mean.

A store is shared by threads and processes. The rules that every backend and every wrapper keeps
(the classes of `tests/support/store_suite.py` check them):

* an entry is whole or absent, whenever and however a writer dies;
* `put` creates only: of several writers of one key exactly one gets True, and its bytes stay;
* absence is `None` or False, a failure is a `StoreError`, and no call waits without a deadline;
* with `max_size > 0`, the bytes of all entries are at most `max_size` when a local `put` or `replace` returns: the
  least recently used entries are evicted, never the one just written.

A store that has the methods of `Clearable` or `DeletesMany` is one. A store of two tiers says so
(`Store.has_two_tiers`), because every hit asks.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast, runtime_checkable

from ejcache.errors import StoreReadOnlyError, StoreTooSmallError
from ejcache.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ejcache.util.time_budget import Budget


class EntryInfo(NamedTuple):
    """An entry in a listing, which does not read it.

    Attributes:
        key: the key it was put under.
        size: bytes of the entry.
        created: seconds since the epoch.
        last_used: seconds since the epoch; the later of creation and the last use that was noted.
        version: on storage that versions its objects, which version was listed; empty elsewhere.
        hits: how many uses the journal of a shared cache has; None where that is not counted.
        worth: what one use is worth (`EntryUse`); None where nobody has said it.
    """

    key: str
    size: int
    created: float
    last_used: float
    version: str = ""
    hits: int | None = None
    worth: float | None = None


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


UNLIMITED: Final = -1


class Store(Closing):
    """Bytes under a key, shared by threads and processes; `open_store` returns one.

    It is not there to be subclassed, and may get other methods: for storage of your own, write a file system for fsspec
    (docs/shared.md).
    """

    url: str
    """Where the entries are, as `open_store` takes it."""
    max_size: int = UNLIMITED
    """The bytes of all entries are at most this; -1 for no limit."""
    read_only: bool = False
    """Writes raise `StoreReadOnlyError`, and reads leave no trace."""
    has_two_tiers: bool = False
    """It has what `TwoTiers` names; `two_tiers` asks for it."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the bytes under `key`, or None. It does not count as a use: who uses the entry calls `note_used`."""

    @abstractmethod
    def peek(self, key: str, *, length: int | None = None) -> bytes | None:
        """Return the bytes under `key`, or their first `length`, or None; nothing is copied or counted."""

    @abstractmethod
    def note_used(self, key: str) -> None:
        """Note that the entry was used now, so that it is the most recently used; nothing in a read-only store.

        Nothing happens if there is none.
        """

    @abstractmethod
    def put(self, key: str, data: bytes) -> bool:
        """Create the entry; False if there is one already.

        Raises:
            StoreTooSmallError: `data` is larger than `max_size`; nothing was evicted.
            StoreReadOnlyError: the store is read-only.
            StoreError: the storage failed; the entry is absent.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes) -> None:
        """Put, whether or not there is an entry; readers see the old or the new one, complete."""

    @abstractmethod
    def contains(self, key: str) -> bool:
        """True if `get` would find an entry; reads no entry's bytes."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Remove the entry; False if there was none."""

    @abstractmethod
    def entries(self) -> Iterator[EntryInfo]:
        """Return every entry, in no particular order; entries that come or go meanwhile may or may not be seen."""

    @abstractmethod
    def size(self) -> int:
        """Return the bytes of all entries."""

    @abstractmethod
    def quarantine(self, key: str, data: bytes, *, wrong: bool = False) -> bool:
        """Quarantine the entry if it still is exactly `data`: nobody reads it any more; False if it is not.

        The comparison keeps a reader that found a damaged entry from removing the intact one that another process has
        written meanwhile. A backend may keep a bounded number of copies for inspection.

        Args:
            key: of the entry.
            data: the entry.
            wrong: it is intact, and not what its key promises, so `restore` never puts it back.
        """

    @abstractmethod
    def add_counters(self, amounts: Mapping[str, float]) -> None:
        """Add to the counters kept with the store, atomically against other processes; lost in a read-only store."""

    @abstractmethod
    def counters(self) -> dict[str, float]:
        """Return the counters kept with the store, since it was made or `reset_counters` was called."""

    @abstractmethod
    def reset_counters(self) -> None:
        """Start counting from zero."""

    @abstractmethod
    def close(self) -> None:
        """Release what this process holds; the entries stay. A closed store may be used again: it reopens itself."""

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnlyError(f"{self.url} is open for reading only")

    def _check_write(self, data: bytes) -> None:
        """Refuse to write what this store cannot hold, whatever it holds now."""
        self._check_writable()
        if not isinstance(data, bytes):
            raise TypeError(f"an entry is bytes, not {type(data).__name__}")
        if 0 <= self.max_size < len(data):
            raise StoreTooSmallError(
                f"an entry of {len(data)} bytes does not fit into {self.url}, whose limit is {self.max_size}"
            )

    # What most stores have no use for.

    def prepare(self, *, wait: float = 0.0) -> None:
        """Begin in the background what it needs to store an entry; wait for it so many seconds."""

    def restore(self, key_of: Callable[[bytes], str | None]) -> int:  # noqa: ARG002
        """Put back what quarantine keeps and is intact; return how many entries that was.

        Args:
            key_of: the key in an intact entry; None of bytes that are none.
        """
        return 0

    def check(self, *, fix: bool = False) -> list[str]:  # noqa: ARG002
        """Return the damage of the store's own structures, one sentence each; with `fix` it is repaired."""
        return []

    def overhead(self, number: int) -> int:  # noqa: ARG002
        """Return at most how many bytes of a disk are taken beyond those of so many entries; 0 if that is not known."""
        return 0

    def failed_tries(self) -> int:
        """Return the number of requests of this process that failed, got no answer, or were throttled."""
        return 0


def two_tiers(store: Store) -> TwoTiers | None:
    """Return `store` if it has two tiers, otherwise None; `isinstance` takes as long as reading an entry's row."""
    return cast("TwoTiers", store) if store.has_two_tiers else None

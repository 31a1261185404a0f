"""`CompilationCache` is the cache as a program uses it: what `ejcache.enable()` and `ejcache.active()` return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from ejcache import entry
from ejcache.cache.stats import count_miss, stats_of_process, stats_of_store
from ejcache.entry import encode
from ejcache.errors import UsageError
from ejcache.keys.key import is_side_key
from ejcache.settings.resolve import resolve_if_changed
from ejcache.util.store_keys import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from ejcache.cache.reading import CacheReader
    from ejcache.cache.stats import Stats
    from ejcache.settings.table import Settings
    from ejcache.stores.base import EntryInfo


_HEADER_FIELDS: Final = (
    "kind",
    "name",
    "platform",
    "jax",
    "jaxlib",
    "variant",
    "logical_key",
    "profile_digest",
    "components",
)


class CompilationCache:
    """Compiled executables under their keys, kept in a store.

    `ejcache.enable` returns one. All methods may be called from any thread and after a fork. A failure of the storage
    raises nothing: it is logged once, counted, and means a miss or an entry that is not stored; only
    `jax_raise_persistent_cache_errors` lets the error through.

    Args:
        reader: reads and writes the entries.
        settings: returns the current settings; called at each operation, because a program may change them any time.

    Attributes:
        when_left: called at the end of a `with` block; `ejcache.enable` sets it.

    Everybody who can write to a cache can run code in the programs that read it: share it only with people you trust.
    """

    def __init__(self, reader: CacheReader, *, settings: Callable[[], Settings] = resolve_if_changed) -> None:
        self._reader = reader
        self._settings = settings
        self.when_left: Callable[[], None] | None = None
        self._blocks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"CompilationCache({self.url!r})"

    def __enter__(self) -> Self:
        """Enter `with ejcache.enable(...):`. At its end the state before that call of `enable` comes back.

        A cache that `enable` has not returned is closed instead.
        """
        self._blocks.append(self.when_left or self.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.pop()()

    @property
    def url(self) -> str:
        """The place of the entries, as `ejcache.open_store` takes it."""
        return self._reader.url

    @property
    def read_only(self) -> bool:
        """True if nothing is written."""
        return self._settings().read_only

    def get(self, key: str) -> bytes | None:
        """Return the bytes that were put under `key`, or None; `stats().misses_by_reason` says why there are none.

        A damaged entry is counted as corrupt and quarantined, and the result is None.
        """
        found = self._reader.read(check_key(key), self._settings(), kind=None)
        if not isinstance(found, entry.Entry):
            count_miss(self._reader, found)
            return None
        self._reader.count_hit(found.header, load_seconds=0.0)
        return found.raw

    def put(
        self, key: str, value: bytes, *, compile_seconds: float = 0.0, metadata: Mapping[str, Any] | None = None
    ) -> bool:
        """Store `value` under `key`; False if it was not stored (`stats().skipped` says why).

        Args:
            key: a text of at most 700 bytes without control characters.
            value: any bytes.
            compile_seconds: what it took to make, compared with the minimum compile time. 0.0 means that the time is
                not known; then the minimum does not apply.
            metadata: JSON fields for the entry's header; the names of fields of `entry.Header` set those fields.

        Raises:
            UsageError: the header cannot hold that `metadata`, or that `compile_seconds`.
        """
        fields = dict(metadata or {})
        known = {name: fields.pop(name) for name in fields.keys() & _HEADER_FIELDS}
        header = entry.Header(key=check_key(key), compile_seconds=compile_seconds, **known, extra=fields)
        from ejcache.cache.writing import EntryWriter  # the door to a miss

        try:
            encode(header, b"", level=0)
        except ValueError as exc:
            raise UsageError(str(exc)) from exc

        return EntryWriter(self._reader).write(header, value, self._settings()).skip is None

    def contains(self, key: str) -> bool:
        """True if there is an entry under `key`; it is neither read nor counted."""
        return self._reader.contains(check_key(key), self._settings())

    def entries(self) -> Iterator[EntryInfo]:
        """Yield every entry of the store, in no particular order; none if the store cannot be opened.

        Module texts, profiles and records, which are stored beside the entries, are left out.

        Raises:
            StoreError: the store cannot be listed.
        """
        store = self._reader.opened(self._settings())
        if store is not None:
            yield from (info for info in store.entries() if not is_side_key(info.key))

    def stats(self, *, whole_store: bool = False) -> Stats:
        """Return the counters of this process; with `whole_store`, of all processes since the store was made."""
        return stats_of_store(self._reader, self._settings()) if whole_store else stats_of_process(self._reader)

    def flush(self, timeout: float | None = None) -> bool:
        """Write the counters of this process to the store.

        Args:
            timeout: also wait up to this many seconds until other hosts can see what was stored.

        Returns:
            False if an upload has not finished within `timeout`.
        """
        return self._reader.flush(timeout)

    def close(self) -> None:
        """Write the counters and close the store. The cache may be used again: it opens the store again."""
        self._reader.close()


def _none() -> None:
    return None


_in_use: Callable[[], CompilationCache | None] = _none


def use_cache(active: Callable[[], CompilationCache | None]) -> None:
    """Have `cache_in_use` take what this function returns."""
    global _in_use
    _in_use = active


def cache_in_use() -> CompilationCache | None:
    """Return the cache that compilations of this process use now; None without one, and where JAX is not imported."""
    return _in_use()

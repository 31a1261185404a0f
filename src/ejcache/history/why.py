"""Lists the misses that somebody asks about, each with its cause: of a function, of a cache, or the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.history.causes import cause
from ejcache.history.host_log import lost_before, misses_of
from ejcache.history.known_entries import KnownEntries
from ejcache.history.nearest_program import Earlier
from ejcache.journal.recorder import recorder
from ejcache.journal.start_records import read_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.cache.reading import CacheReader
    from ejcache.history.causes import Cause
    from ejcache.journal.line import ProgramRecord
    from ejcache.settings.table import Settings

    IsWithin = Callable[[str, float], bool]


def cause_in(cache: CacheReader, record: ProgramRecord, settings: Settings) -> Cause | None:
    """Say why the program of `record` was not loaded from `cache`, or None if its store cannot be opened."""
    store = cache.opened(settings)
    if store is None:
        return None
    known = KnownEntries(store)
    records = read_starts()
    earlier = Earlier(records, entries=lambda _: known, process=recorder.id, lost_before=lost_before(records))
    return cause(record, earlier)


def causes_of(
    what: str | None,
    is_within: IsWithin,
    known: Callable[[ProgramRecord], KnownEntries | Exception | None],
    *,
    most: int | None,
    named: Callable[[Iterable[ProgramRecord], str], list[ProgramRecord]],
    stored: Callable[[str], list[ProgramRecord]] = lambda _: [],
) -> list[tuple[ProgramRecord, Cause]]:
    """Return the misses of this user on this host, each with its cause, the latest first.

    Args:
        what: a name or a key; None for any.
        is_within: whether to count what happened in a cache (its URL) at a time (seconds since the epoch).
        known: the entries of the cache in which a program was missed, or why there are none.
        most: how many misses to explain; None for all.
        named: the misses that have a name or key.
        stored: entries of a name in place of its misses, if there are none.
    """
    starts = read_starts()
    misses = misses_of(starts)
    within = [record for record in misses if is_within(record.url, record.time)]
    records = within if what is None else named(within, what) or stored(what)
    earlier = Earlier(starts, entries=known, lost_before=lost_before(starts))
    return [(record, cause(record, earlier, diff_up_to=float("inf"))) for record in records[:most]]

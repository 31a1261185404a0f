"""Which processes are one start: the ranks of a program, or its processes that compiled or loaded at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ejcache.journal.start_records import StartRecord

_TOGETHER: Final = 60.0
"""Seconds within which the ranks of one start begin."""


def in_starts(records: Iterable[StartRecord]) -> list[list[StartRecord]]:
    """Return the records of each start, the earliest start first, in it by rank and host."""
    found: list[list[StartRecord]] = []
    latest: dict[tuple[str, int], list[StartRecord]] = {}
    for record in sorted(records, key=lambda record: record.process.began):
        process = record.process
        members = latest.get((process.program, process.ranks))
        if members is None or not _belongs(record, members):
            members = latest[process.program, process.ranks] = []
            found.append(members)
        members.append(record)
    return [sorted(each, key=lambda record: (record.process.rank, record.process.began)) for each in found]


def _belongs(record: StartRecord, members: Sequence[StartRecord]) -> bool:
    process = record.process
    if process.ranks > 1:
        ranks = {each.process.rank for each in members}
        return process.began - members[0].process.began <= _TOGETHER and process.rank not in ranks
    return process.began <= max(each.programs[-1].time for each in members)

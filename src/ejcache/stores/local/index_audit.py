"""The audit of a local store: index, rows, files and sums. The content of entries is not examined."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ejcache.stores.local.index_upkeep import (
    delete_orphans,
    filenames,
    integrity_problems,
    recount,
    remove,
    whole_rows,
)
from ejcache.stores.local.value_files import committed, delete_unfinished, is_present, size_of, unfinished
from ejcache.util.locks import exclusive, living
from ejcache.util.store_keys import is_key

if TYPE_CHECKING:
    from ejcache.stores.local.index import EntryIndex
    from ejcache.stores.local.layout import Layout


_FATAL: Final = "the index is damaged: "
UNREADABLE: Final = _FATAL + "it cannot be read at all"
_PAGE: Final = 1_000


def check_index(index: EntryIndex, layout: Layout, *, fix: bool) -> list[str]:
    """Say what is wrong, in one sentence each; with `fix`, correct it, unless only a new index would (`is_fatal`).

    Rows and files that other processes create and delete meanwhile are not reported: each finding is confirmed.
    """
    problems = [_FATAL + line for line in integrity_problems(index)]
    if problems:
        return problems
    problems += _rows(index, fix=fix)
    problems += _files(index, layout, fix=fix)
    drift = index.total() - index.sum_of_sizes()
    if drift:
        problems.append(f"the stored sum of sizes is wrong by {drift} bytes")
        if fix:
            with index.transact():
                recount(index)
    return problems


def is_fatal(problem: str) -> bool:
    """True if only a new index corrects `problem`."""
    return problem.startswith(_FATAL)


def _rows(index: EntryIndex, *, fix: bool) -> list[str]:
    """List rows that this store does not write, or whose value is not there; with `fix`, remove them."""
    problems: list[str] = []
    after = -(2**63)
    while True:
        page = whole_rows(index, after, _PAGE)
        for key, raw, row in page:
            named = raw == 1 and is_key(key)
            if not named or not row.trustworthy(key):
                problem = f"the row of {key!r:.100} is not one that this store writes"
            elif not is_present(index.generation, row):
                length = size_of(index.generation, row.filename)
                if index.find(key, whole=False) != row:
                    continue  # replaced or removed since
                problem = f"{key} has {'no file' if length is None else f'a file of {length} bytes, not {row.size}'}"
            else:
                continue
            problems.append(problem)
            if fix and remove(index, row):
                index.delete_pending()
        if len(page) < _PAGE:
            return problems
        after = page[-1][2].rowid


def _files(index: EntryIndex, layout: Layout, *, fix: bool) -> list[str]:
    if index.read_only:
        # Without the write lock, a file without a row may be one that another process is writing.
        return []
    with exclusive(Path(layout.lock), deadline=index.deadline):
        alive = living(Path(layout.present))
    problems = [f"a killed process left {name} unfinished" for name in unfinished(index.generation, alive)]
    found = set(committed(index.generation))
    if found - filenames(index):
        with index.transact():
            problems += [f"no row names the file {name}" for name in sorted(found - filenames(index))]
    if fix and problems:
        delete_unfinished(index.generation, alive)
        delete_orphans(index)
    return problems

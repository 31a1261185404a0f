"""The audit of a local store's own structures: index, rows, files and sums. What entries hold is not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.stores.local_locks import exclusive, living

if TYPE_CHECKING:
    from ejcache.stores.local_layout import Layout
    from ejcache.stores.local_session import Session

__all__ = ["UNREADABLE", "check", "is_fatal"]

_FATAL: Final = "the index is damaged: "
UNREADABLE: Final = _FATAL + "it cannot be read at all"
_PAGE: Final = 1_000


def check(session: Session, layout: Layout, *, fix: bool) -> list[str]:
    """What is wrong, one sentence each; with `fix` it is mended, but for what `is_fatal`.

    Rows and files that come and go meanwhile are not held against the store: each suspicion is confirmed.
    """
    index = session.index
    problems = [_FATAL + line for line in index.integrity()]
    if problems:
        return problems
    problems += _rows(session, fix=fix)
    problems += _files(session, layout, fix=fix)
    drift = index.drift()
    if drift:
        problems.append(f"the kept sum of sizes is wrong by {drift} bytes")
        if fix:
            with index._transact():  # noqa: SLF001 (diskcache's name)
                index.recount()
    return problems


def is_fatal(problem: str) -> bool:
    """Whether `problem` is mended by a new index only."""
    return problem.startswith(_FATAL)


def _rows(session: Session, *, fix: bool) -> list[str]:
    index = session.index
    problems: list[str] = []
    after = -(2**63)
    while True:
        page = index.whole_rows(after, _PAGE)
        for key, raw, row in page:
            named = isinstance(key, str) and raw == 1
            if not named or not row.trustworthy(key):
                problem = f"the row of {key!r:.100} is not one that this store writes"
            elif not index.values.present(row):
                length = index.values.size(row.filename)
                if index.find(key, whole=False) != row:
                    continue  # replaced or removed since
                problem = f"{key} has {'no file' if length is None else f'a file of {length} bytes, not {row.size}'}"
            else:
                continue
            problems.append(problem)
            if fix and index.remove(row):
                index.bury()
        if len(page) < _PAGE:
            return problems
        after = page[-1][2].rowid


def _files(session: Session, layout: Layout, *, fix: bool) -> list[str]:
    if session.read_only:
        # Without the write lock a file without a row may be a writer's that has not finished.
        return []
    index = session.index
    with exclusive(layout.lock, deadline=index.deadline):
        alive = living(layout.present)
    problems = [f"a killed process left {name} unfinished" for name in index.values.staged(alive)]
    found = set(index.values.placed())
    if found - index.filenames():
        with index._transact():  # noqa: SLF001 (diskcache's name)
            problems += [f"no row names the file {name}" for name in sorted(found - index.filenames())]
    if fix and problems:
        index.values.sweep_staged(alive)
        index.sweep_placed()
    return problems

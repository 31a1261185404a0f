"""`ejcache why`: the reason for a miss, and what differs from the nearest entry."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.catalog import check_wanted
from ejcache.cli.opened import opened_place
from ejcache.cli.options import Dir, Json  # noqa: TC001  # typer reads annotations at run time
from ejcache.errors import NotAStoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.explaining import Explanation
    from ejcache.misses import MissRecord
    from ejcache.stores.base import Store

__all__ = ["why"]


def why(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|KEY]", help="A function's name as `ls` shows it, or the beginning of a key."),
    ] = None,
    directory: Dir = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", help="The last N misses of this user on this host.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say why programs were compiled rather than loaded: the nearest entry, and what differs.

    Without arguments, the last miss. A name or key that was not missed on this host is looked for among the entries,
    and compared with the entry of the same function that was stored before it.
    """
    if last is not None and (what is not None or last < 1):
        raise UsageError("--last takes a number of misses from 1 on, and no name or key beside it")
    if what is not None:
        check_wanted(what)
    number = last or 1
    with _store(directory) as store:
        records = list(itertools.islice(_records(what, store), number if what is None else 1))
        explained = [(record, _explanation(record, store)) for record in records]
    if not explained:
        about = f" of {what!r}" if what is not None else ""
        output.warn(f"nothing is known{about}: no miss was recorded on this host, and no entry is called so")
        raise typer.Exit(1)
    if as_json:
        output.print_json([_fields(record, explanation) for record, explanation in explained])
        return
    for record, explanation in explained:
        _print(record, explanation)


@contextlib.contextmanager
def _store(directory: str | None) -> Iterator[Store | None]:
    try:
        with opened_place(directory) as place:
            yield place.store
    except NotAStoreError:
        # Misses are remembered even where nothing could be stored.
        yield None


def _records(what: str | None, store: Store | None) -> Iterator[MissRecord]:
    from ejcache.explaining import identities
    from ejcache.misses import STORED, MissRecord, read_misses

    names = {what, f"jit_{what}"}
    for record in read_misses():
        if what is None or record.name in names or (record.key and record.key.startswith(what)) or _has(record, what):
            yield record
    if what is None or store is None:
        return
    entries = [i for i in identities(store) if i.name in names or i.key.startswith(what) or f"-{what}" in i.key]
    for identity in sorted(entries, key=lambda i: -i.created):
        yield MissRecord(
            time=identity.created,
            url=store.url,
            reason="absent",
            outcome=STORED,
            compile_seconds=0.0,
            key=identity.key,
            name=identity.name,
            components=identity.components,
            details=identity.details,
            signature=identity.signature,
            module=identity.module,
        )


def _has(record: MissRecord, what: str) -> bool:
    """Whether `what` is the beginning of the key's digest, as `ls` shows it."""
    return len(what) >= 6 and f"-{what.partition('-')[0]}" in record.key


def _explanation(record: MissRecord, store: Store | None) -> Explanation:
    from ejcache.explaining import Explanation, explain

    if store is None:
        return Explanation(f"{record.name} was compiled: there is no cache at {record.url} to compare with")
    return explain(record, store)


def _fields(record: MissRecord, explanation: Explanation) -> dict[str, Any]:
    return {
        "name": record.name,
        "key": record.key,
        "time": record.time,
        "reason": record.reason,
        "outcome": record.outcome,
        "compile_seconds": record.compile_seconds,
        **explanation.to_dict(),
    }


def _print(record: MissRecord, explanation: Explanation) -> None:
    from ejcache.explaining import why_not_stored
    from ejcache.misses import STORED

    output.say(explanation.sentence.split(". The nearest")[0] + ".")
    when = f"{output.ago(record.time, now=time.time())}, {output.seconds(record.compile_seconds)} s"
    kept = "stored" if record.outcome == STORED else f"not stored: {why_not_stored(record.outcome)}"
    lines = [("when", when), ("then", kept)]
    if record.key:
        lines.append(("key", record.key))
    if explanation.nearest is not None:
        lines.append(("nearest", explanation.nearest.key))
        lines += [("differs", difference.sentence) for difference in explanation.differences]
    output.print_pairs(lines)
    if explanation.diff:
        output.say()
        output.say(explanation.diff)
    output.say()

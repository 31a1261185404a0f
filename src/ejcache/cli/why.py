"""`ejcache why`: the reason for a miss, and what differs from the nearest entry."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.catalog import OURS, Row, check_wanted, match_rows
from ejcache.cli.opened import opened_place
from ejcache.cli.options import Dir, Json  # noqa: TC001  # typer reads annotations at run time
from ejcache.errors import NotAStoreError, UsageError
from ejcache.upkeep.names import describe_key

if TYPE_CHECKING:
    from ejcache.explaining import Explanation, Known
    from ejcache.misses import MissRecord

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

    Without arguments, the last miss, in whichever cache it was; with --dir, of that one. A name or key that was not
    missed on this host is looked for among the entries, and compared with the entry of the same function that was
    stored before it. Of very many entries of one function the 2,000 newest are compared.
    """
    if last is not None and (what is not None or last < 1):
        raise UsageError("--last takes a number of misses from 1 on, and no name or key beside it")
    if what is not None:
        check_wanted(what)
    with contextlib.ExitStack() as stack:
        caches = _Caches(stack, directory, quiet=as_json)
        records = _missed(what, caches)[: last or 1] or _stored(what, caches)
        explained = [(record, _explanation(record, caches)) for record in records]
    if not explained:
        about = f" of {what!r}" if what is not None else ""
        output.warn(f"nothing is known{about}: no miss was recorded on this host, and no entry is called so")
        raise typer.Exit(1)
    if as_json:
        output.print_json([_fields(record, explanation) for record, explanation in explained])
        return
    for record, explanation in explained:
        _print(record, explanation)


class _Caches:
    """The cache that is asked for, and those in which what is asked for was missed; each is opened and listed once."""

    def __init__(self, stack: contextlib.ExitStack, directory: str | None, *, quiet: bool) -> None:
        self.directory = directory
        self._stack = stack
        self._quiet = quiet
        self._opened: dict[str, Known | None] = {}

    def chosen(self) -> Known | None:
        """The one that `--dir`, or else the settings, name; None if nothing is there."""
        return self._open("", self.directory)

    def of(self, record: MissRecord) -> Known | None:
        """The one that was asked then; None if it is not there, or no more."""
        if self.directory is not None:
            return self.chosen()
        try:
            return self._open(_place(record.url), record.url)
        except UsageError:
            return None

    def holds(self, record: MissRecord) -> bool:
        """Whether the miss is one of the cache that `--dir` names, if it names one."""
        return self.directory is None or _place(record.url) == _place(self.directory)

    def _open(self, place: str, url: str | None) -> Known | None:
        from ejcache.explaining import Known

        if place not in self._opened:
            self._opened[place] = None
            with contextlib.suppress(NotAStoreError):
                # Misses are remembered even where nothing could be stored.
                store = self._stack.enter_context(opened_place(url)).store
                if store is not None:
                    self._opened[place] = Known(
                        store, progress=lambda total: output.progress("reading", total, quiet=self._quiet)
                    )
        return self._opened[place]


def _place(url: str) -> str:
    """One spelling for all URLs of a place; of what is no URL, itself."""
    from ejcache.stores.opening import check_url, local_path

    try:
        return local_path(url) or check_url(url)
    except UsageError:
        return url


def _missed(what: str | None, caches: _Caches) -> list[MissRecord]:
    """The misses that are meant, the latest first: what is named in full goes before what begins so."""
    from ejcache.misses import read_misses

    records = [record for record in read_misses() if caches.holds(record)]
    if what is None:
        return records
    names = {what, f"jit_{what}"}
    of_key = (record for record in records if record.key == what)
    of_name = (record for record in records if record.name in names)
    begun = (record for record in records if record.key.startswith(what) or _begins_digest(record, what))
    return list(itertools.islice(itertools.chain(of_key, of_name, begun), 1))


def _stored(what: str | None, caches: _Caches) -> list[MissRecord]:
    """The newest entry that is meant, as the miss that it was on some host."""
    from ejcache.keys.key import listed_name
    from ejcache.misses import STORED, MissRecord

    known = caches.chosen() if what is not None else None
    if known is None or what is None:
        return []
    rows = [Row(info, describe_key(info.key), OURS) for info in known.entries]
    meant = match_rows(rows, what).rows or match_rows(rows, listed_name(what)).rows
    identity = next(filter(None, (known.identity(row.info.key) for row in meant)), None)
    if identity is None:
        return []
    return [
        MissRecord(
            time=identity.created,
            url=known.store.url,
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
    ]


def _begins_digest(record: MissRecord, what: str) -> bool:
    """Whether `what` is the beginning of the key's digest, as `ls` shows it."""
    return len(what) >= 6 and f"-{what.partition('-')[0]}" in record.key


def _explanation(record: MissRecord, caches: _Caches) -> Explanation:
    from ejcache.explaining import Explanation, explain

    known = caches.of(record)
    if known is None:
        return Explanation(f"{record.name} was compiled: there is no cache at {record.url} to compare with")
    return explain(record, known)


def _fields(record: MissRecord, explanation: Explanation) -> dict[str, Any]:
    return {
        "name": record.name,
        "key": record.key,
        "url": record.url,
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
    lines = [("when", when), ("then", kept), ("cache", record.url)]
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

"""`ejcache why`: the reason for a miss, and the differences from the nearest program of the last starts."""

from __future__ import annotations

import contextlib
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cache.reasons import Skip
from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.completion import keys_beginning
from ejcache.cli.options import Dir, Json, argument, flag, option
from ejcache.cli.selection import Identifiers, check_wanted, identify_key, match
from ejcache.errors import NotAStoreError, NotFoundError, StoreError, UsageError
from ejcache.history.causes import IN_SENTENCE, why_not_stored
from ejcache.history.host_log import programs_with
from ejcache.history.known_entries import KnownEntries
from ejcache.history.why import causes_of
from ejcache.journal.line import STORED
from ejcache.keys.key import is_key_behind_jax, listed_name
from ejcache.reuse.notes import changed_parts, latest_notes
from ejcache.stores.location import one_spelling
from ejcache.util.printable import printable
from ejcache.util.units import parse_age, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ejcache.history.causes import Cause
    from ejcache.journal.line import ProgramRecord, ReuseNote

_LINES: Final = 20
"""Lines of one explanation, unless --full is given."""


def why(
    what: Annotated[
        str | None,
        argument(
            "[KEY]",
            "The name of a function, a key, or the beginning of one.",
            autocompletion=keys_beginning,
        ),
    ] = None,
    directory: Dir = None,
    last: Annotated[int | None, option("--last", "N", "Explain the last N misses of this user on this host.")] = None,
    since: Annotated[
        str | None,
        option("--since", "AGE", "Explain the misses of this long ago or less, such as 2h or 7d."),
    ] = None,
    full: Annotated[
        bool,
        flag("--full", "Show everything, with the diff of the two programs; in a pager if it is long."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Say why programs were compiled and not loaded: what has changed since the last starts of the same script.

    A miss is a program that was compiled and not loaded. Without KEY, `why` explains the last miss of any cache; with
    --dir, the last miss of that cache. A miss is compared with earlier programs of the same function, if possible with
    those of the last five starts of the script in which the function was called. If this host has compiled no program
    that KEY names, the newest entry that KEY names is compared in the same way. If the cache cannot be reached, `why`
    knows only the programs in the records of this host. Of a function with more than 2,000 entries, only the newest
    2,000 are compared.

    `why` also shows what the option reuse_lowering of @ejit did with a function, and why. For that, KEY may also be a
    qualified name, such as train.step.
    """
    if last is not None and last < 1:
        raise UsageError(f"--last cannot be {last}: accepted is a number of misses, 1 or more")
    if what is not None:
        check_wanted(what)
    after = time.time() - parse_age(since, setting="--since") if since is not None else None
    with contextlib.ExitStack() as stack:
        caches = _Caches(stack, directory, quiet=as_json)
        explained = _answers(caches, what, last=last, after=after)
        notes = [each for each in latest_notes(what) if caches.hold(each.url) and each.time >= (after or 0.0)]
    if not explained and not notes:
        raise NotFoundError(_why_nothing(what, since))
    if as_json:
        fields = [_fields(record, why) for record, why in explained]
        output.print_json({"explanations": fields, "reuse": [each._asdict() for each in notes]})
        return 0
    lines: list[str] = []
    for record, why in explained:
        lines += [*_lines(record, why, full=full), ""]
    for each in notes:
        lines += [*_note_lines(each), ""]
    output.print_lines(lines[:-1], paged=full)
    return 0


def _why_nothing(what: str | None, since: str | None) -> str:
    """Say why there is nothing to explain."""
    if since is not None:
        of = f" of {what!r}" if what is not None else ""
        return f"no miss{of} was recorded on this host in the last {since}; without --since, earlier ones are explained"
    if what is None:
        return "no miss was recorded on this host"

    around = programs_with(what)
    if around:
        more = f" and {plural(len(around) - 1, 'other program')}" if len(around) > 1 else ""
        return (
            f"{what!r} was no program of its own: JAX has made it a part of {around[0]}{more}, because a jitted "
            f"function called it; `ejcache why {around[0]}` explains that"
        )
    return (
        f"no program of the name or key {what!r} was compiled on this host, nor is one stored; a function that was "
        "called by another jitted function only is a part of the program of that one"
    )


class _Caches:
    """The cache that `--dir` names, and those in which programs were missed. Each is opened and listed once."""

    def __init__(self, stack: contextlib.ExitStack, directory: str | None, *, quiet: bool) -> None:
        self.directory = directory
        self._stack = stack
        self._quiet = quiet
        self._opened: dict[str, KnownEntries | StoreError | None] = {}

    def chosen(self) -> KnownEntries | None:
        """Return the cache that `--dir`, or else the settings, name; None if no program has stored an entry there."""
        return self._open("", self.directory)

    def of(self, record: ProgramRecord) -> KnownEntries | StoreError | UsageError | None:
        """Return the cache of that miss, or the error for which it cannot be opened any more."""
        try:
            return self.chosen() if self.directory is not None else self._open(one_spelling(record.url), record.url)
        except (StoreError, UsageError) as exc:
            return exc

    def hold(self, url: str) -> bool:
        """True if that is the cache that `--dir` names; True without `--dir`."""
        return self.directory is None or one_spelling(url) == one_spelling(self.directory)

    def _open(self, location: str, url: str | None) -> KnownEntries | None:
        if location not in self._opened:
            try:
                store = self._stack.enter_context(open_cache(url)).store
            except StoreError as exc:
                self._opened[location] = exc  # not tried again for the next miss
            else:
                progress = partial(output.progress, "reading", quiet=self._quiet)
                self._opened[location] = None if store is None else KnownEntries(store, progress=progress)
        found = self._opened[location]
        if isinstance(found, StoreError):
            raise found
        return found


def _answers(
    caches: _Caches, what: str | None, *, last: int | None, after: float | None
) -> Sequence[tuple[ProgramRecord, Cause]]:
    """Return the misses that these options name, explained; without one, the entries or functions of that name."""

    def is_within(url: str, moment: float) -> bool:
        return (after is None or moment >= after) and caches.hold(url)

    return causes_of(
        what,
        is_within,
        caches.of,
        most=last or (1 if after is None else None),
        named=lambda records, name: match(records, name, _identify_miss)[0],
        stored=lambda name: _newest_entry(name, caches) if after is None else [],
    )


def _identify_miss(record: ProgramRecord) -> Identifiers:
    return Identifiers(record.key, frozenset({record.name}), identify_key(record.key).digests if record.key else ())


def _newest_entry(what: str, caches: _Caches) -> list[ProgramRecord]:
    """Return the newest entry that `what` names, in the form of the miss after which some host stored it."""
    known = None
    with contextlib.suppress(NotAStoreError):
        known = caches.chosen()
    if known is None:
        return []

    def matching(wanted: str) -> list[str]:
        return match((info.key for info in known.entries() if not is_key_behind_jax(info.key)), wanted, identify_key)[0]

    found = matching(what) or matching(listed_name(what))
    return list(itertools.islice(filter(None, map(known.program, found)), 1))


def _note_lines(note: ReuseNote) -> list[str]:
    """Make the lines about one function that asks for reuse."""
    sentence = output.wrapped_lines(f"{note.function} was {note.words}.")
    rows = [("when", output.ago(note.time, now=time.time())), ("cache", note.url)]
    rows[:0] = [("changed", part) for part in (changed_parts(note) if note.did == "recorded" else ())]
    return [*(output.styled(line, "bold") for line in sentence), *output.pair_lines(rows)]


def _fields(record: ProgramRecord, why: Cause) -> dict[str, Any]:
    """Return a function that was not missed has the fields of a miss, too, without a reason and an outcome."""
    texts = ("key", "url", "time", "caller", "reason", "outcome")
    fields = {"name": record.name, **{text: getattr(record, text) for text in texts}}
    return {**fields, "compile_seconds": record.compile_seconds, **why.to_dict(), "diff": why.diff}


def _lines(record: ProgramRecord, why: Cause, *, full: bool) -> list[str]:
    """Make the lines about one miss, at most 20 unless `full`."""
    sentence = output.wrapped_lines(f"{why.text}.")
    rows = _rows(record, why, full=full)
    lines = [*(output.styled(line, "bold") for line in sentence), *output.pair_lines(rows)]
    if full:
        return [*lines, "", *map(_colour, why.diff.splitlines())] if why.diff else lines
    more = "  (ejcache why --full shows the keys, and the diff of the two programs)" if why.diff else ""
    if len(lines) + bool(more) > _LINES:
        lines, more = lines[: _LINES - 1], "  \N{HORIZONTAL ELLIPSIS} (ejcache why --full shows all)"
    return [*lines, *([more] if more else [])]


def _rows(record: ProgramRecord, why: Cause, *, full: bool) -> list[tuple[str, str]]:
    now = time.time()
    rows = [("also", difference.sentence) for difference in why.differences[IN_SENTENCE:]]
    rows += [("", line) for difference in why.differences for line in difference.more]
    if not full:
        rows = rows[:8]
    if why.what_to_do:
        rows.append(("advice", why.what_to_do))
    if why.note:
        rows.append(("note", why.note))
    if record.caller:
        rows.append(("called", record.caller))
    return rows + _miss_rows(record, why, now, full=full)


def _miss_rows(record: ProgramRecord, why: Cause, now: float, *, full: bool) -> list[tuple[str, str]]:
    kept = "stored" if record.outcome == STORED else f"not stored: {why_not_stored(record.outcome)}"
    took = f" in {output.seconds(record.compile_seconds)} s" if record.compile_seconds else ""
    then = output.ago(record.time, now=now)
    refused = record.outcome == Skip.FORBIDDEN
    rows = [("refused", f"{then}, by ejcache.forbid_compile") if refused else ("compiled", f"{then}{took}, {kept}")]
    if not full:
        return rows
    rows.append(("cache", record.url))
    if record.key:
        rows.append(("key", record.key))
    nearest = why.nearest
    if nearest is not None and nearest.key != record.key:
        rows.append(("nearest", f"{nearest.key} ({output.ago(nearest.time, now=now)})"))
    return rows


def _colour(line: str) -> str:
    line = printable(line)
    return output.styled(line, "green" if line.startswith("+") else "red" if line.startswith("-") else "")

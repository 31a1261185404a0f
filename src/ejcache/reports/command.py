"""Runs `ejcache report`."""

from __future__ import annotations

import json
import shlex
import time
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.commands.advise import findings as findings_of
from ejcache.cli.listing import list_entries
from ejcache.cli.options import Dir, Json, age, flag, option
from ejcache.cli.tuned.listing import report_rows
from ejcache.errors import NotAStoreError, NotFoundError, StoreError, UsageError
from ejcache.history.advise import set_smaller_apart
from ejcache.history.host_log import lost_before
from ejcache.history.known_texts import BUDGET, Texts
from ejcache.history.nearest_program import Earlier
from ejcache.journal.start_records import read_starts
from ejcache.reports.build import build
from ejcache.reports.compare_starts import choose_records, is_slower, print_comparison, sum_up
from ejcache.reports.html import html_page
from ejcache.reports.model import DiskUse
from ejcache.reports.sections import print_report
from ejcache.reports.trace import trace
from ejcache.stores.base import UNLIMITED
from ejcache.stores.location import one_spelling
from ejcache.stores.shared.store import SharedStore
from ejcache.util.files import write_atomically
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ejcache.cli.listing import ListedEntry
    from ejcache.journal.line import ProgramRecord
    from ejcache.journal.start_records import StartRecord

_DAY: Final = 86_400.0
_MOST_STARTS: Final = 500
"""Records of other processes that are read from shared storage."""


def report(
    directory: Dir = None,
    since: Annotated[
        str | None, option("--since", "AGE", "Show only what was compiled or loaded this long ago or less, such as 7d.")
    ] = None,
    html: Annotated[str | None, option("--html", "FILE", "Write the page as one HTML file.")] = None,
    show: Annotated[bool, flag("--open", "Open the HTML file in a browser.")] = False,
    trace_file: Annotated[
        str | None, option("--trace", "FILE", "Write a trace of all starts, for https://ui.perfetto.dev.")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        option("--compare", "A B", "Compare two sets of starts: record files, jax=0.12, program=train.py, or 2d..1d."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show where the time of starts went, what still compiles and why, and what to do about it.

    The report comes from the records that each process leaves on its host, and from those that other hosts have left
    with a shared cache. With --dir, only programs of that cache count.

    --compare A B compares the average start of two sets of starts. It exits with 1 if B compiles over a tenth and over
    0.1 s longer than A, or over a tenth more programs.
    """
    rows, others, limit = _cache(directory)
    starts = read_starts(others)
    records = _records(directory, since, starts)
    if compare is not None:
        return _compare(compare, records, as_json=as_json)
    if not records:
        raise NotFoundError("no start was recorded, or none of that time and cache")
    earlier = Earlier(starts, Texts(budget=BUDGET), lost_before=lost_before(starts))
    findings, smaller = set_smaller_apart(findings_of(records, earlier=earlier))
    is_page = html is not None or show
    found = build(
        records,
        disk=_disk(rows),
        tuned=report_rows(directory),
        findings=findings,
        smaller_findings=smaller,
        limits=_limits(records, *limit),
        earlier=earlier,
        with_diffs=is_page,
    )
    if trace_file is not None:
        _write(trace_file, json.dumps(trace(records)))
    if is_page:
        page = html or "ejcache-report.html"
        _write(page, html_page(found))
        if show:
            webbrowser.open(Path(page).absolute().as_uri())
    if as_json:
        output.print_json(found.to_dict())
    elif trace_file is None and not is_page:
        print_report(found)
    return 0


def _compare(names: tuple[str, str], records: Sequence[StartRecord], *, as_json: bool) -> int:
    before, after = (sum_up(side, choose_records(side, records, now=time.time())) for side in names)
    slower = is_slower(before, after)
    if as_json:
        output.print_json({"slower": slower, "before": asdict(before), "after": asdict(after)})
    else:
        print_comparison(before, after)
    return int(slower)


def _write(path: str, text: str) -> None:
    try:
        write_atomically(path, text.encode(), mode=0o644)
    except FileNotFoundError as exc:
        raise NotFoundError(f"{path} cannot be written: its directory does not exist") from exc
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc
    output.warn(f"{path} is written")


def _cache(directory: str | None) -> tuple[list[ListedEntry], list[bytes], tuple[str, int]]:
    """Return the entries of the cache, the start records that hosts have left with it, its URL and its limit in bytes.

    There are none, and there is no limit, if it cannot be read.
    """
    rows: list[ListedEntry] = []
    others: list[bytes] = []
    limit = "", UNLIMITED
    try:
        with open_cache(directory, may_be_empty=True) as target:
            limit = target.url, target.max_size
            rows += list_entries(target)
            if isinstance(target.store, SharedStore):
                others += target.store.journal.records(most=_MOST_STARTS)
    except NotAStoreError as exc:
        log.debug("ejcache: %s", exc)  # nothing is stored, or not any more
    except (StoreError, UsageError) as exc:
        output.warn(f"the cache cannot be read, so this host's records are shown: {exc}")
    return rows, others, limit


def _limits(records: Iterable[StartRecord], url: str, limit: int) -> dict[str, int]:
    """Return the limit of a cache by each URL that the records have for it."""
    if limit == UNLIMITED:
        return {}
    urls = {program.url for record in records for program in record.programs}
    return {each: limit for each in urls if one_spelling(each) == one_spelling(url)}


def _records(directory: str | None, since: str | None, starts: Iterable[StartRecord]) -> list[StartRecord]:
    """Return the records of one cache and from some time on, if that is asked for."""
    after = None if since is None else time.time() - (age(since, option="--since") or 0.0)
    wanted = None if directory is None else one_spelling(directory)
    places: dict[str, bool] = {}

    def is_wanted(program: ProgramRecord) -> bool:
        if program.url not in places:
            places[program.url] = wanted is None or one_spelling(program.url) == wanted
        return places[program.url] and (after is None or program.time >= after)

    found = (each._replace(programs=tuple(filter(is_wanted, each.programs))) for each in starts)
    return [record for record in found if record.programs]


def _disk(rows: Sequence[ListedEntry]) -> list[DiskUse]:
    """List what fills the cache, with the commands that free it."""
    newest = max(rows, key=lambda row: row.info.created, default=None)
    unused = time.time() - 30 * _DAY
    by_name: dict[str, list[ListedEntry]] = {}
    for row in rows:
        by_name.setdefault(row.parts.name, []).append(row)
    uses = [
        _use("all entries", "ejcache prune --all", rows),
        _use(
            "compiled with other versions than the newest",
            "ejcache prune --old-versions",
            [row for row in rows if newest is not None and row.parts.environment != newest.parts.environment],
        ),
        _use(
            "not used for 30 days",
            "ejcache prune --unused-for 30d",
            [row for row in rows if max(row.info.created, row.info.last_used) < unused],
        ),
    ]
    named = [_use(f"of {name}", f"ejcache prune --name {shlex.quote(name)}", those) for name, those in by_name.items()]
    uses += sorted(named, key=lambda use: -use.total_size)[:5]
    return [use for use in uses if use.total_entries]


def _use(what: str, command: str, rows: Sequence[ListedEntry]) -> DiskUse:
    return DiskUse(what, len(rows), sum(row.info.size for row in rows), command)

"""Reports at exit what the caches of this process did: one line for a person, or JSON for a machine.

`jax_integration` calls `include` for each cache that an activation opens; a process that enabled none prints nothing.
`ejcache run` reports for all processes together (`report_run`), and tells them not to report themselves.

Where the report goes (`EJCACHE_REPORT`, `ejcache run --report`): `off`, `line` (also `1`) for a line on stderr, `json`
for JSON on stderr, or the path of a JSON file, in which `{pid}` stands for the process. The file is replaced
atomically.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final, Protocol

from ejcache._version import __version__
from ejcache.cache.overruled import describe_overruled
from ejcache.cache.reasons import Miss
from ejcache.cache.report_destination import absolute_destination, is_off, line_without_a_cache
from ejcache.cache.stats import Stats
from ejcache.journal import comparison_results
from ejcache.journal.comparison_results import comparison_fields, comparison_line
from ejcache.journal.run_log import announce_overruled, announce_process
from ejcache.settings.environment import environment_variable
from ejcache.settings.resolve import settings_in_use
from ejcache.settings.table import FLAGS, REPORT_JSON, REPORT_LINE, Origin
from ejcache.util.files import write_atomically
from ejcache.util.lifecycle import ExitPhase, at_exit
from ejcache.util.log import log
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ejcache.journal.comparison_results import ProgramDifference
    from ejcache.journal.run_log import RunTotal
    from ejcache.util.tally import Tally

_SCHEMA: Final = 1
"""The version of the fields of a report. A field that is removed, or changes its meaning, makes it 2."""
_WORTH_A_HINT: Final = 0.5
"""Seconds of compiling below a floor from which the report says how to store it."""


class ReportedCache(Protocol):
    """A cache, as far as a report goes."""

    url: str

    @property
    def tally(self) -> Tally:
        """The counters of this process."""

    def count_tiers(self) -> None:
        """Count what the tiers of its store have counted."""


class _ReportedProcess:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.destination = "off"
        self.caches: list[ReportedCache] = []
        self.used: list[ReportedCache] = []
        self.disabled_reason = ""


_reported: _ReportedProcess | None = None
_places: Final[list[str]] = []


def include(cache: ReportedCache, *, destination: str | None, disabled_reason: str = "") -> None:
    """Count `cache` in the report of this process.

    Args:
        cache: kept until exit, because a program may open several caches one after the other.
        destination: where the report goes; the latest call counts.
        disabled_reason: why nothing is cached, if so; printed in place of a URL unless another cache was used.

    A forked child prints no report of its own.
    """
    global _reported
    if _reported is None:
        _reported = _ReportedProcess(os.getpid())
        at_exit(ExitPhase.REPORT, _report)
    _reported.destination = absolute_destination(destination) or "off"
    if disabled_reason:
        _reported.disabled_reason = disabled_reason
    else:
        _reported.used.append(cache)
    if cache not in _reported.caches:
        _reported.caches.append(cache)
        if environment_variable("EJCACHE_RUN_COUNTS"):
            cache.tally.listener = announce_process(lambda: cache.url, disabled_reason)


def name_place(place: str) -> None:
    """Let the line at exit name one more directory, which this process uses in place of one that is refused."""
    if place not in _places:
        _places.append(place)


def report_run(total: RunTotal, destination: str, *, status: int = 0) -> None:
    """Write the report of all processes of an `ejcache run`, which has one field more: the number of processes.

    Args:
        total: what the processes have counted.
        destination: where the report goes.
        status: the exit status of the program. One that failed has not shown that it does without the cache.
    """
    if is_off(destination):
        return
    places, count, stats = list(total.urls), len(total.processes), Stats.of(total.amounts)
    line = line_without_a_cache(status=status)
    if count:
        line = report_line(stats, places or [f"nothing is cached: {total.disabled_reason}"], processes=count)
    fields = _fields(stats, places, total.disabled_reason, total.overruled) | {"processes": count}
    _write(destination, *_with_comparison(_with_overruled(line, total.overruled), fields, stats, total.differences))


def _with_overruled(line: str, overruled: Iterable[str]) -> str:
    return "\n".join([line, *(f"ejcache: {sentence}" for sentence in overruled)])


def _overruled() -> list[str]:
    """Say which options of this process had no effect, because the program calls `jax.config.update`."""
    settings = settings_in_use()
    if all(settings[name].origin is not Origin.CALL for name in FLAGS):
        return []

    sentence = describe_overruled(settings)
    return [sentence] if sentence else []


def _fields(stats: Stats, urls: list[str], disabled_reason: str, overruled: Iterable[str]) -> dict[str, object]:
    """Return stable snake_case fields: the counters, as `Stats.to_dict` has them, and the process."""
    return {
        "schema": _SCHEMA,
        "version": __version__,
        "pid": os.getpid(),
        "urls": urls,
        "disabled_reason": "" if urls else disabled_reason,
        "overruled": list(overruled),
        **stats.to_dict(),
    }


def report_line(stats: Stats, places: Iterable[str], *, processes: int = 1) -> str:
    """Return the report as one line for a person: the seconds first, because many small hits may save little."""
    parts = [
        plural(stats.hits, "hit"),
        plural(stats.misses, "miss", "misses") + _reasons(stats.misses_by_reason, unless=frozenset({Miss.ABSENT})),
        f"{stats.stores:,} stored{_of_them_here(stats)}",
        *_unsent(stats),
    ]
    if stats.skipped:
        parts.append(f"{sum(stats.skipped.values()):,} not stored" + _reasons(stats.skipped))
    if stats.errors:
        parts.append(plural(stats.errors, "error"))
    if not_traced := int(stats.amounts.get("not_traced", 0)):
        parts.append(f"{plural(not_traced, 'function')} not traced")
    within = "" if processes == 1 else f" in {processes} processes"
    line = f"ejcache: saved {stats.saved_of_total}{within}: {', '.join(parts)} ({', '.join(places)})"
    left_out = min(float(stats.amounts.get("left_out_seconds", 0.0)), stats.compile_seconds)  # of threads at once
    if left_out >= _WORTH_A_HINT:
        line += (
            f"\nejcache: programs that compile quickly took {left_out:.1f} s in all; "
            "min_compile_seconds=0 stores them, too"
        )
    return line


def _of_them_here(stats: Stats) -> str:
    """Say how many of the entries that a shared cache has stored are on this host only."""
    here = int(stats.amounts.get("kept_here", 0))
    return f", {here:,} of them on this host only" if here else ""


def _unsent(stats: Stats) -> list[str]:
    """Say what a shared cache has not got of what was to be sent there."""
    shared = stats.tiers.get("shared", {})
    words = {"refused": "refused", "spooled": "left to the next start", "uploads_lost": "lost"}
    return [f"{plural(shared[name], 'upload')} {said}" for name, said in words.items() if name in shared]


def _report() -> None:
    reported = _reported
    # A child that was forked runs its parent's exit handlers too.
    if reported is None or reported.pid != os.getpid():
        return
    stats = _total(reported.caches)  # even without a report: this adds what an `ejcache run` counts
    is_wanted, is_of_run = not is_off(reported.destination), environment_variable("EJCACHE_RUN_COUNTS")
    overruled = _overruled() if is_wanted or is_of_run else []
    if overruled and is_of_run:
        announce_overruled(overruled[0])
    if is_wanted:
        urls = list(dict.fromkeys(cache.url for cache in reported.used))
        line = report_line(stats, [*(urls or [f"nothing is cached: {reported.disabled_reason}"]), *_places])
        fields = _fields(stats, urls, reported.disabled_reason, overruled)
        line = _with_overruled(line, overruled)
        _write(reported.destination, *_with_comparison(line, fields, stats, comparison_results.here))


def _with_comparison(
    line: str, fields: dict[str, object], stats: Stats, found: Sequence[ProgramDifference]
) -> tuple[str, dict[str, object]]:
    """Add what `--compare` has found; nothing without it."""
    summary = comparison_line(stats.amounts)
    if not summary:
        return line, fields
    return f"{line}\n{summary}", fields | {"comparison": comparison_fields(stats.amounts, found)}


def _write(destination: str, line: str, fields: Mapping[str, object]) -> None:
    try:
        if destination.lower() in REPORT_LINE:
            print(line, file=sys.stderr)  # noqa: T201 (that is what it is for)
        elif destination.lower() in REPORT_JSON:
            print(json.dumps(fields), file=sys.stderr)  # noqa: T201
        else:
            path = destination.replace("{pid}", str(os.getpid()))
            write_atomically(path, f"{json.dumps(fields, indent=2)}\n".encode(), mode=0o600)
    except (OSError, ValueError) as exc:
        # stderr may be closed by now (ValueError), or the path is not writable; the exit status must not change.
        why = getattr(exc, "strerror", None) or exc  # `str(exc)` would name the temporary file
        log.warning("the report could not be written to %s: %s", destination, why)


def _total(caches: Iterable[ReportedCache]) -> Stats:
    amounts: dict[str, float] = {}
    for cache in caches:
        cache.count_tiers()
        for name, amount in cache.tally.totals().items():
            amounts[name] = amounts.get(name, 0) + amount
    return Stats.of(amounts)


def _reasons(by_reason: Mapping[str, int], *, unless: frozenset[str] = frozenset()) -> str:
    if set(by_reason) <= unless:
        return ""
    return f" ({', '.join(f'{amount:,} {reason}' for reason, amount in by_reason.items())})"

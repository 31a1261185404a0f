"""The report at exit: one line for a person, or JSON for a machine, of what the caches of this process did.

`jaxside` calls `include` for each cache that an activation opens; nothing is printed by a process that enabled none.

Where the report goes (`EJCACHE_REPORT`, `ejcache run --report`): `off`, `line` (also `1`) for a line on stderr, `json`
for JSON on stderr, or the path of a JSON file, in which `{pid}` stands for the process. The file is replaced
atomically.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ejcache._version import __version__
from ejcache.statistics import Miss, Stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Reported", "absolute_destination", "include", "report_line"]

log = logging.getLogger("ejcache")

_OFF: Final = frozenset({"", "0", "off", "false", "no", "none"})
_LINE: Final = frozenset({"1", "line", "on", "true", "yes"})
_JSON: Final = frozenset({"json"})


class Reported(Protocol):
    """A cache, as far as a report goes."""

    url: str

    def stats(self) -> Stats:
        """What this process counted on it."""


@dataclass(slots=True)
class _Session:
    pid: int
    destination: str = "off"
    caches: list[Reported] = field(default_factory=list)
    urls: dict[str, None] = field(default_factory=dict)
    disabled_reason: str = ""


_session: _Session | None = None
_lost: Final[set[str]] = set()
"""Destinations that led nowhere, and of which that has been said."""


def include(cache: Reported, *, destination: str | None, disabled_reason: str = "") -> None:
    """Count `cache` in the report of this process.

    Args:
        cache: kept until exit, because a program may open several one after the other.
        destination: where the report goes; the latest call's word counts.
        disabled_reason: why nothing is cached, if so; said in place of a URL unless another cache was in use.

    A forked child reports nothing of its own: its parent does.
    """
    global _session
    if _session is None:
        _session = _Session(os.getpid())
        atexit.register(_report)
    _session.destination = absolute_destination(destination) or "off"
    if disabled_reason:
        _session.disabled_reason = disabled_reason
    else:
        _session.urls[cache.url] = None
    if cache not in _session.caches:
        _session.caches.append(cache)


def absolute_destination(destination: str | None) -> str | None:
    """`destination`, and if it is a path, wherever the program will go meanwhile; None if that is nowhere."""
    if destination is None or destination.lower() in _OFF | _LINE | _JSON:
        return destination
    try:
        # os.path's leaves a user that there is not as it is, where pathlib's raises.
        return str(Path(os.path.expanduser(destination)).absolute())  # noqa: PTH111
    except OSError as exc:
        # The working directory is deleted. Each cache that is opened asks again.
        level = logging.DEBUG if destination in _lost else logging.WARNING
        log.log(level, "EJCACHE_REPORT cannot be %r, and nothing is reported: %s", destination, exc)
        _lost.add(destination)
        return None


def _fields(session: _Session) -> dict[str, object]:
    """Stable snake_case fields: the sum over the caches, as `Stats.to_dict` has it, and whose it is."""
    return {
        "version": __version__,
        "pid": os.getpid(),
        "urls": list(session.urls),
        "disabled_reason": "" if session.urls else session.disabled_reason,
        **_total(session.caches).to_dict(),
    }


def report_line(stats: Stats, places: Iterable[str]) -> str:
    """The report as one line for a person."""
    parts = [
        _count(stats.hits, "hit", "hits"),
        _count(stats.misses, "miss", "misses") + _reasons(stats.misses_by_reason, unless=frozenset({Miss.ABSENT})),
        f"{stats.stores} stored",
    ]
    if stats.skipped:
        parts.append(f"{sum(stats.skipped.values())} not stored" + _reasons(stats.skipped))
    if stats.errors:
        parts.append(_count(stats.errors, "error", "errors"))
    parts.append(f"{stats.seconds_saved:.1f} s saved")
    return f"ejcache: {', '.join(parts)} ({', '.join(places)})"


def _report() -> None:
    session = _session
    # A child that was forked runs its parent's exit handlers too.
    if session is None or session.pid != os.getpid() or session.destination.lower() in _OFF:
        return
    fields = _fields(session)
    destination = session.destination
    try:
        if destination.lower() in _LINE:
            places = list(session.urls) or [f"nothing is cached: {session.disabled_reason}"]
            print(report_line(_total(session.caches), places), file=sys.stderr)  # noqa: T201 (that is what it is for)
        elif destination.lower() in _JSON:
            print(json.dumps(fields), file=sys.stderr)  # noqa: T201
        else:
            _write(Path(destination.replace("{pid}", str(os.getpid()))), json.dumps(fields, indent=2) + "\n")
    except (OSError, ValueError) as exc:
        # stderr may be closed by now (ValueError), a path may be nonsense; neither may change the exit status.
        log.warning("the report of this process could not be written to %s: %s", destination, exc)


def _total(caches: Iterable[Reported]) -> Stats:
    amounts: dict[str, float] = {}
    for cache in caches:
        for name, amount in cache.stats().amounts.items():
            amounts[name] = amounts.get(name, 0) + amount
    return Stats.of(amounts)


def _write(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _reasons(by_reason: Mapping[str, int], *, unless: frozenset[str] = frozenset()) -> str:
    if set(by_reason) <= unless:
        return ""
    return f" ({', '.join(f'{amount} {reason}' for reason, amount in by_reason.items())})"

"""Computes what a report shows from start records and from what is on disk.

A start is what one command started: the ranks of one program that began within a minute, or its processes of which each
began while another one still compiled or loaded.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ejcache.history.causes import NEW, OF_TEXTS, Cause, cause
from ejcache.history.findings import SmallerFindings
from ejcache.history.known_texts import Texts
from ejcache.history.nearest_program import Earlier
from ejcache.history.recorded_program import is_of_jax
from ejcache.journal.line import HIT
from ejcache.journal.start_records import beginning_of, in_starts
from ejcache.reports.model import CauseGroup, Function, ProcessRow, Report, Start, Timeline, hosts_in_words
from ejcache.reports.sums import Sums, sums_of_processes
from ejcache.util.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ejcache.history.findings import Advice
    from ejcache.journal.line import ProgramRecord
    from ejcache.journal.start_records import Process, StartRecord
    from ejcache.reports.model import DiskUse

_NOTHING: Final[Mapping[str, int]] = {}
_NO_FINDINGS: Final = SmallerFindings()
_BARS: Final = 1500
"""Programs that the timeline of the last start shows, and ten times as many as the earlier ones; the shorter ones are
left out."""
_TIMELINES: Final = 12
_OPERATIONS: Final = "operations of JAX, one at a time"
_COMPARED: Final = 64
"""Misses whose texts are compared with those of earlier programs, the costliest functions first."""
_LARGEST_DIFF: Final = 300_000
"""Characters of a text whose lines are compared; to align larger ones takes seconds."""


def build(
    records: Iterable[StartRecord],
    *,
    disk: Sequence[DiskUse] = (),
    tuned: Sequence[Sequence[str]] = (),
    findings: Sequence[Advice] = (),
    smaller_findings: SmallerFindings = _NO_FINDINGS,
    limits: Mapping[str, int] = _NOTHING,
    earlier: Earlier | None = None,
    with_diffs: bool = False,
) -> Report:
    """Return the report of these records, of any processes of any hosts.

    Args:
        records: of processes.
        disk: as in `Report`, like `tuned` and `findings`.
        tuned: as there.
        findings: as there.
        smaller_findings: as there.
        limits: bytes that caches may hold, by their URLs.
        earlier: all misses that are known, also those of earlier times, with their texts; by default those of the
            records, without texts.
        with_diffs: compare the lines of texts, too.
    """
    found = [record for record in records if record.programs]
    programs = sorted((each for record in found for each in record.programs), key=lambda each: each.time)
    if earlier is None:
        earlier = Earlier(found, Texts.none())
    causes = _causes(programs, earlier, diff_up_to=_LARGEST_DIFF if with_diffs else 0)
    explained = [(program, causes.get(id(program))) for program in programs]
    operations = {program.name for program, _ in explained if is_of_jax(program)}

    def shown(name: str) -> str:
        return _OPERATIONS if name in operations else name

    starts = sorted(in_starts(found), key=lambda members: -members[0].process.began)
    grouped = _grouped(explained, shown)
    return Report(
        sums=sums_of_processes(record.programs for record in found),
        causes=grouped,
        functions=_functions(explained, shown),
        starts=_numbered(starts, causes, limits),
        days=_by_day(found),
        timelines=[
            _timeline(len(starts) - n, each, shown, most=_BARS if not n else _BARS // 10)
            for n, each in enumerate(starts[:_TIMELINES])
        ],
        trouble=dict(sum((Counter(record.trouble) for record in found), Counter[str]()).most_common()),
        dropped=sum(record.dropped for record in found),
        disk=disk,
        tuned=tuned,
        findings=findings,
        smaller_findings=smaller_findings,
        compiled_in=_compiled_in(starts, grouped),
    )


def _by_day(records: Iterable[StartRecord]) -> dict[str, Sums]:
    """Return the sums of each day, the latest first."""
    days: dict[str, list[list[ProgramRecord]]] = {}
    for record in records:
        of_process: dict[str, list[ProgramRecord]] = {}
        for program in record.programs:
            of_process.setdefault(time.strftime("%Y-%m-%d", time.localtime(program.time)), []).append(program)
        for day, programs in of_process.items():
            days.setdefault(day, []).append(programs)
    return {day: sums_of_processes(each) for day, each in sorted(days.items(), reverse=True)}


def _causes(programs: Sequence[ProgramRecord], earlier: Earlier, *, diff_up_to: float) -> dict[int, Cause]:
    """Return the cause of each miss, by its identity. The texts of the costliest are compared."""
    misses = [each for each in programs if each.outcome != HIT]
    roughly = earlier.without_texts()
    found = {id(each): cause(each, roughly) for each in misses}
    cost: dict[str, float] = {}
    last: dict[str, ProgramRecord] = {}
    for each in misses:
        cost[each.name] = cost.get(each.name, 0.0) + each.compile_seconds
        last[each.name] = each
    # A table shows the last one of each function.
    ranked = sorted(misses, key=lambda each: (last[each.name] is not each, -cost[each.name], -each.compile_seconds))
    compared = {}
    for each in ranked:
        why = found[id(each)]
        # A setting may have changed, and with it the program.
        kinds = {why.kind, *(one.kind for one in why.differences)}
        before = [] if OF_TEXTS.isdisjoint(kinds) else earlier.first(each)
        if why.kind == NEW:
            before += earlier.of_file(each)
        if before:
            compared[id(each)] = (each, before)
        if len(compared) == _COMPARED:
            break
    with earlier.texts.loaded(one for each, before in compared.values() for one in (each, *before)):
        return found | {same: cause(each, earlier, diff_up_to=diff_up_to) for same, (each, _) in compared.items()}


def _grouped(explained: Iterable[tuple[ProgramRecord, Cause | None]], shown: Callable[[str], str]) -> list[CauseGroup]:
    """Return the causes by kind, the costliest first; `shown` returns the name under which a program is shown."""
    found: dict[str, CauseGroup] = {}
    for program, why in explained:
        if why is None:
            continue
        name = shown(program.name)
        group = found.setdefault(why.kind, CauseGroup(why.kind))
        group.misses += 1
        group.seconds += program.compile_seconds
        took = group.seconds_by_function
        took[name] = took.get(name, 0.0) + program.compile_seconds
        group.causes[name] = why
    return sorted(found.values(), key=lambda group: (-group.seconds, -group.misses))


def _functions(explained: Iterable[tuple[ProgramRecord, Cause | None]], shown: Callable[[str], str]) -> list[Function]:
    """Return the functions of these programs, the costliest first; `shown` returns the name of a program's function."""
    functions: dict[str, Function] = {}
    callers: dict[str, Counter[str]] = {}
    for program, why in explained:
        name = shown(program.name)
        function = functions.setdefault(name, Function(name))
        function.sums.add(program)
        function.cause = why or function.cause
        callers.setdefault(name, Counter())[program.caller] += 1
    for name, counted in callers.items():
        functions[name].source = counted.most_common(1)[0][0]
    return sorted(functions.values(), key=lambda each: -each.sums.cost)


def _compiled_in(starts: Sequence[Sequence[StartRecord]], groups: Iterable[CauseGroup]) -> dict[str, str]:
    """Return in words the last start that compiled each program that causes compare; the latest start is first."""
    causes = [each for group in groups for each in group.causes.values()]
    keys = {key for each in causes for key in (each.key, each.nearest.key if each.nearest else "")}
    found: dict[str, str] = {}
    for n, members in enumerate(starts):
        for record in members:
            commit = record.process.versions.get("commit", "")
            words = f"start {len(starts) - n} on {record.process.host}" + (f", commit {commit}" if commit else "")
            for program in record.programs:
                if program.key in keys and program.outcome != HIT:
                    found.setdefault(program.key, words)
    return found


def _process(process: Process) -> dict[str, Any]:
    """Return the fields of a process in a report, where `settings` are all settings and their meaning."""
    fields = process._asdict()
    fields["changed_settings"] = fields.pop("settings")
    return fields


def _name(process: Process) -> str:
    return f"{_role(process)} on {process.host}"


def _role(process: Process) -> str:
    return f"rank {process.rank}" if process.ranks > 1 else f"pid {process.pid}"


def _numbered(
    starts: Sequence[Sequence[StartRecord]], causes: Mapping[int, Cause], limits: Mapping[str, int]
) -> list[Start]:
    """Return the starts, of which the latest of each program says whether a cache is too small for it."""
    found = [_start(len(starts) - n, members, causes) for n, members in enumerate(starts)]
    for start in {start.program: start for start in reversed(found)}.values():
        start.warnings += _too_small(start, limits)
    return found


def _start(number: int, members: Sequence[StartRecord], causes: Mapping[int, Cause]) -> Start:
    began = min(record.process.began for record in members)
    rows = [
        ProcessRow(
            _role(each.process),
            _name(each.process),
            _process(each.process),
            sums_of_processes([each.programs]),
            each.trouble,
        )
        for each in members
    ]
    warnings = [*_other_surroundings(rows), *_other_programs(members, causes)]
    sizes = {(each.url, each.key): each.size for record in members for each in record.programs if each.size}
    working_sets: Counter[str] = Counter()
    for (url, _), size in sizes.items():
        working_sets[url] += size
    return Start(number, members[0].process.program, began, rows, list(dict.fromkeys(warnings)), dict(working_sets))


def _too_small(start: Start, limits: Mapping[str, int]) -> Iterable[str]:
    """Say that a cache cannot hold what one start uses."""
    for url, size in start.working_sets.items():
        limit = limits.get(url, -1)
        if 0 <= limit < size:
            by_cost = any(row.process["changed_settings"].get("evict") == "cost" for row in start.processes)
            or_else = "" if by_cost else ", or set evict=cost, which keeps what takes longest to compile for its size"
            yield (
                f"the working set of {start.program} is {format_size(size)}, the limit {format_size(limit)}: one start "
                f"evicts what the next one needs; raise max_size of {url}{or_else}"
            )


def _other_surroundings(rows: Sequence[ProcessRow]) -> Iterable[str]:
    first = rows[0]
    for row in rows[1:]:
        for what in ("versions", "changed_settings"):
            mine, its = first.process[what], row.process[what]
            names = sorted(name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name))
            if names:
                shown = ", ".join(f"{name} {its.get(name, 'unset')} (not {mine.get(name, 'unset')})" for name in names)
                yield f"{row.name} has other {what.removeprefix('changed_')} than {first.name}: {shown}"


def _other_programs(members: Sequence[StartRecord], causes: Mapping[int, Cause]) -> Iterable[str]:
    """Describe the programs that one process compiled and another one loaded, or compiled differently."""
    loaded: dict[str, str] = {}
    compiled: dict[str, list[tuple[str, ProgramRecord]]] = {}
    for record in members:
        for program in record.programs:
            if program.outcome == HIT:
                loaded.setdefault(program.name, _name(record.process))
            else:
                compiled.setdefault(program.name, []).append((_name(record.process), program))
    groups: dict[tuple[str, str], list[str]] = {}
    for name, those in compiled.items():
        leader, its = those[0]
        for who, program in those:
            differ = _changed_components(its, program) if program.key and who != leader else []
            if name in loaded and loaded[name] != who:
                groups.setdefault((f"{who} compiled", f"others loaded: {causes[id(program)].reason}"), []).append(name)
            elif differ:
                words = f"{leader} has otherwise: the keys differ in {', '.join(differ)}"
                groups.setdefault((f"{who} compiled", words), []).append(name)
    for (does, why), repeated in groups.items():
        names = list(dict.fromkeys(repeated))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"{does} {', '.join(names[:3])}{more}, which {why}"


def _timeline(number: int, members: Sequence[StartRecord], shown: Callable[[str], str], *, most: int) -> Timeline:
    """Make the timeline of a start from the programs that took longest; `shown` returns the name of a function."""
    began = min(record.process.began for record in members)
    every = [(_name(record.process), program) for record in members for program in record.programs]
    kept = sorted(every, key=lambda each: -sum(each[1].seconds.values()))[:most]
    lanes: dict[str, list[ProgramRecord]] = {}
    for who, program in sorted(kept, key=lambda each: (each[0], beginning_of(each[1]))):
        lanes.setdefault(f"{who}, {program.thread or 'thread'}", []).append(program)
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
    title = f"{members[0].process.program}, {moment}, {hosts_in_words(record.process.host for record in members)}"
    functions: dict[str, Function] = {}
    for _, program in every:
        name = shown(program.name)
        functions.setdefault(name, Function(name)).sums.add(program)
    ranked = sorted(functions.values(), key=lambda each: -each.sums.cost)
    sums = sums_of_processes(record.programs for record in members)
    return Timeline(number, title, sums, ranked, began, lanes, len(every) - len(kept))


def _changed_components(before: ProgramRecord, after: ProgramRecord) -> list[str]:
    """Return the names of the components of two keys that differ."""
    names = before.components.keys() | after.components.keys()
    return sorted(name for name in names if before.components.get(name) != after.components.get(name))

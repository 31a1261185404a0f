"""A report: start records, and what is on disk, made into what the pages show. Pure functions; the pages only draw it.

A start is what one command started: the ranks of one program that began within a minute, or its processes of which each
began while another one still compiled or loaded.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.advice.evidence import is_of_jax
from ejcache.advice.findings import SmallerFindings
from ejcache.misses.definitions import definition_of
from ejcache.reports.causes import Cause, Causes, changed_components, group_misses
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ejcache.advice.findings import Advice
    from ejcache.journal.line import Process, ProgramRecord, StartRecord
    from ejcache.reports.causes import Pair

_NOTHING: Final[Mapping[str, int]] = {}
_NO_FINDINGS: Final = SmallerFindings()
_TOGETHER: Final = 60.0
"""Seconds within which the ranks of one start begin."""
_BARS: Final = 1500
"""Programs that the timeline of the last start shows, and ten times as many as the earlier ones; the shorter ones are
left out."""
_TIMELINES: Final = 12
_OPERATIONS: Final = "operations of JAX, one at a time"


@dataclass(slots=True)
class Sums:
    """What some programs came to, in seconds; `hits`, `misses` and `preloaded` are numbers of programs.

    Attributes:
        hits: were loaded.
        misses: were compiled.
        preloaded: were loaded before the program asked.
        compile_seconds: compiling of the misses.
        seconds_saved: compiling that hits saved, less getting them.
        waited: for other processes and ranks.
        lost: to storage that failed.
        net: `seconds_saved`, less waited, lost, and what the keys took.
        cost: all phases.
        phases: each phase.
    """

    hits: int = 0
    misses: int = 0
    preloaded: int = 0
    compile_seconds: float = 0.0
    seconds_saved: float = 0.0
    waited: float = 0.0
    lost: float = 0.0
    net: float = 0.0
    cost: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, program: ProgramRecord) -> None:
        """Count one more program."""
        waited, lost = program.seconds.get("waited", 0.0), program.seconds.get("lost", 0.0)
        saved, is_hit = program.saved, program.is_hit
        self.hits += is_hit
        self.misses += not is_hit
        self.preloaded += program.preloaded
        self.compile_seconds += 0.0 if is_hit else program.compile_seconds
        self.seconds_saved += saved
        self.waited += waited
        self.lost += lost
        self.net += saved - waited - lost - program.seconds.get("keyed", 0.0)
        self.cost += sum(program.seconds.values())
        for phase, seconds in program.seconds.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + seconds


@dataclass(slots=True)
class Function:
    """All programs of one name.

    Attributes:
        name: of the programs.
        source: the line that called it most.
        cause: why it was compiled last.
        pair: the keys of the program that was compiled last, and before it of the one that it is compared with.
        sums: of its programs.
    """

    name: str
    source: str = ""
    cause: str = ""
    pair: Pair | None = None
    sums: Sums = field(default_factory=Sums)


@dataclass(slots=True)
class ProcessRow:
    """One process of a start: `role` is `rank 2`, or `pid 71` of a program without ranks; `name` adds the host."""

    role: str
    name: str
    process: Mapping[str, Any]
    sums: Sums
    trouble: Mapping[str, int]


@dataclass(slots=True)
class Start:
    """The processes of one start.

    Attributes:
        number: the first of all is number 1.
        program: its name.
        began: seconds since the epoch.
        processes: by rank and host.
        warnings: how they differ, and that the cache is too small for them, in sentences.
        working_sets: by the URL of a cache, the bytes of the entries that the start used or made.
    """

    number: int
    program: str
    began: float
    processes: list[ProcessRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    working_sets: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Bar:
    """A program in a lane of a timeline; `at` is in seconds from the beginning of the start."""

    at: float
    name: str
    outcome: str
    was_preloaded: bool
    phases: Mapping[str, float]


@dataclass(slots=True)
class Timeline:
    """One start.

    Attributes:
        number: of the start.
        title: its program, moment and host.
        sums: of all its programs.
        functions: the sums by function, the costliest first.
        lanes: its programs by process and thread.
        left_out: how many shorter programs the lanes leave out.
    """

    number: int
    title: str
    sums: Sums
    functions: list[Function]
    lanes: dict[str, list[Bar]]
    left_out: int

    @property
    def length(self) -> float:
        """Seconds until the last program was ready."""
        return max((bar.at + sum(bar.phases.values()) for bars in self.lanes.values() for bar in bars), default=0.0)


@dataclass(slots=True)
class DiskUse:
    """Some entries of a cache, their bytes, and the command that removes them; empty for none."""

    what: str
    total_entries: int
    total_size: int
    command: str = ""


@dataclass(slots=True)
class Report:
    """What a page shows. Every list has the costliest first, but for starts and days, which have the latest first.

    Attributes:
        sums: of all programs.
        causes: why programs were compiled.
        functions: by their cost.
        starts: each with its processes.
        days: the sums of each day.
        timelines: of the last starts, the latest first.
        trouble: how often what failed.
        dropped: how many programs are in no record.
        disk: what fills the cache.
        tuned: rows about tuned operations, the heading first.
        findings: what to change in the programs, what saves most first.
        smaller_findings: what those that are not among `findings` save together.
        compiled_in: by the key of a program of `Cause.pairs`, the start that compiled it: `start 2 on host b`.
    """

    sums: Sums
    causes: list[Cause]
    functions: list[Function]
    starts: list[Start]
    days: dict[str, Sums]
    timelines: list[Timeline]
    trouble: dict[str, int]
    dropped: int
    disk: Sequence[DiskUse] = ()
    tuned: Sequence[Sequence[str]] = ()
    findings: Sequence[Advice] = ()
    smaller_findings: SmallerFindings = _NO_FINDINGS
    compiled_in: Mapping[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Name what was started last, where and with what: pairs of a name and a text."""
        if not self.starts:
            return []
        start = self.starts[0]
        processes = [row.process for row in start.processes]
        versions = {name: text for each in processes for name, text in each["versions"].items()}
        hosts = _hosts(str(each["host"]) for each in processes)
        known = [("program", start.program), ("commit", versions.pop("commit", "")), ("host", hosts)]
        known.append(("device", versions.pop("platform", "")))
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start.began))
        return [("last start", str(start.number)), *known, ("began", began), *sorted(versions.items())]

    @property
    def processes(self) -> list[ProcessRow]:
        """Those of all starts."""
        return [row for start in self.starts for row in start.processes]


def build(
    records: Iterable[StartRecord],
    *,
    disk: Sequence[DiskUse] = (),
    tuned: Sequence[Sequence[str]] = (),
    findings: Sequence[Advice] = (),
    smaller_findings: SmallerFindings = _NO_FINDINGS,
    limits: Mapping[str, int] = _NOTHING,
) -> Report:
    """Return the report of these records, of any processes of any hosts.

    Args:
        records: of processes.
        disk: as in `Report`, like `tuned` and `findings`.
        tuned: as there.
        findings: as there.
        smaller_findings: as there.
        limits: bytes that caches may hold, by their URLs.
    """
    found = [record for record in records if record.programs]
    causes = Causes()
    explained = [
        (program, causes.of(program))
        for program in sorted((each for record in found for each in record.programs), key=lambda each: each.time)
    ]
    days: dict[str, Sums] = {}
    operations = {program.name for program, _ in explained if is_of_jax(definition_of(program.details))}

    def shown(name: str) -> str:
        return _OPERATIONS if name in operations else name

    for program, _ in explained:
        days.setdefault(time.strftime("%Y-%m-%d", time.localtime(program.time)), Sums()).add(program)
    labels = {id(program): cause.label for program, cause in explained}
    starts = sorted(_together(found), key=lambda members: -members[0].process.began)
    grouped = group_misses((each for each in explained if not each[0].is_hit), shown)
    return Report(
        sums=_sums(program for program, _ in explained),
        causes=grouped,
        functions=_functions(explained, shown),
        starts=_numbered(starts, labels, limits),
        days=dict(sorted(days.items(), reverse=True)),
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
        compiled_in=_compiled_in(starts, {key for cause in grouped for pair in cause.pairs.values() for key in pair}),
    )


def _functions(explained: Iterable[tuple[ProgramRecord, Cause]], shown: Callable[[str], str]) -> list[Function]:
    """Return the functions of these programs, the costliest first; `shown` returns the name of a program's function."""
    functions: dict[str, Function] = {}
    callers: dict[str, Counter[str]] = {}
    for program, cause in explained:
        name = shown(program.name)
        function = functions.setdefault(name, Function(name))
        function.sums.add(program)
        if cause.label:
            function.cause, function.pair = cause.label, cause.pairs.get(name)
        callers.setdefault(name, Counter())[program.caller] += 1
    for name, counted in callers.items():
        functions[name].source = counted.most_common(1)[0][0]
    return sorted(functions.values(), key=lambda each: -each.sums.cost)


def _compiled_in(starts: Sequence[Sequence[StartRecord]], keys: Collection[str]) -> dict[str, str]:
    """Return the last start that compiled each of these programs, in words; `starts` have the latest first."""
    found: dict[str, str] = {}
    for n, members in enumerate(starts):
        for record in members:
            commit = record.process.versions.get("commit", "")
            words = f"start {len(starts) - n} on {record.process.host}" + (f", commit {commit}" if commit else "")
            for program in record.programs:
                if program.key in keys and not program.is_hit:
                    found.setdefault(program.key, words)
    return found


def _hosts(hosts: Iterable[str]) -> str:
    """Return the first of these hosts, and how many more there are."""
    first, *others = dict.fromkeys(hosts)
    return f"{first} and {plural(len(others), 'more host')}" if others else first


def _sums(programs: Iterable[ProgramRecord]) -> Sums:
    sums = Sums()
    for program in programs:
        sums.add(program)
    return sums


def _together(records: Sequence[StartRecord]) -> list[list[StartRecord]]:
    """Return the records of each start, by rank and host."""
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
    starts: Sequence[Sequence[StartRecord]], labels: Mapping[int, str], limits: Mapping[str, int]
) -> list[Start]:
    """Return the starts, of which the latest of each program says whether a cache is too small for it."""
    found = [_start(len(starts) - n, members, labels) for n, members in enumerate(starts)]
    for start in {start.program: start for start in reversed(found)}.values():
        start.warnings += _too_small(start, limits)
    return found


def _start(number: int, members: Sequence[StartRecord], labels: Mapping[int, str]) -> Start:
    began = min(record.process.began for record in members)
    rows = [
        ProcessRow(_role(each.process), _name(each.process), _process(each.process), _sums(each.programs), each.trouble)
        for each in members
    ]
    warnings = [*_other_surroundings(rows), *_other_programs(members, labels)]
    sizes = {(each.url, each.key): each.size for record in members for each in record.programs if each.size}
    working_sets: Counter[str] = Counter()
    for (url, _), size in sizes.items():
        working_sets[url] += size
    return Start(number, members[0].process.program, began, rows, list(dict.fromkeys(warnings)), dict(working_sets))


def _too_small(start: Start, limits: Mapping[str, int]) -> Iterable[str]:
    """That a cache cannot hold what one start uses."""
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


def _other_programs(members: Sequence[StartRecord], labels: Mapping[int, str]) -> Iterable[str]:
    """Describe the programs that one process compiled and another one loaded, or compiled differently."""
    loaded: dict[str, str] = {}
    compiled: dict[str, list[tuple[str, ProgramRecord]]] = {}
    for record in members:
        for program in record.programs:
            if program.is_hit:
                loaded.setdefault(program.name, _name(record.process))
            else:
                compiled.setdefault(program.name, []).append((_name(record.process), program))
    groups: dict[tuple[str, str], list[str]] = {}
    for name, those in compiled.items():
        leader, its = those[0]
        for who, program in those:
            differ = changed_components(its, program) if program.key and who != leader else []
            if name in loaded and loaded[name] != who:
                groups.setdefault((f"{who} compiled", f"others loaded: {labels[id(program)]}"), []).append(name)
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
    bars = [(_name(record.process), program) for record in members for program in record.programs]
    kept = sorted(bars, key=lambda bar: -sum(bar[1].seconds.values()))[:most]
    lanes: dict[str, list[Bar]] = {}
    for who, each in sorted(kept, key=lambda bar: (bar[0], bar[1].began)):
        lane = lanes.setdefault(f"{who}, {each.thread or 'thread'}", [])
        lane.append(Bar(max(0.0, each.began - began), each.name, each.outcome, each.preloaded, each.seconds))
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
    title = f"{members[0].process.program}, {moment}, {_hosts(record.process.host for record in members)}"
    functions: dict[str, Function] = {}
    for _, program in bars:
        name = shown(program.name)
        functions.setdefault(name, Function(name)).sums.add(program)
    ranked = sorted(functions.values(), key=lambda each: -each.sums.cost)
    return Timeline(number, title, _sums(program for _, program in bars), ranked, lanes, len(bars) - len(kept))

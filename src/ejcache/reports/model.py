"""Makes of start records, and of what is on disk, what the pages of a report show. Pure functions.

A start is what one command started: the ranks of one program that began within a minute, or its processes of which each
began while another one still compiled or loaded.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.compile_time import CompileTime
from ejcache.history.causes import NEW, OF_TEXTS, OUTCOMES, Cause, cause, title_of
from ejcache.history.findings import SmallerFindings, document
from ejcache.history.known_texts import Texts
from ejcache.history.nearest_program import Earlier
from ejcache.history.recorded_program import is_of_jax
from ejcache.journal.line import HIT, saved_seconds, seconds_to_get
from ejcache.journal.start_records import beginning_of, in_starts
from ejcache.util.units import format_size, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ejcache.history.findings import Advice
    from ejcache.journal.line import ProgramRecord
    from ejcache.journal.start_records import Process, StartRecord

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


@dataclass(slots=True)
class Sums:
    """What some programs came to, in seconds; `hits`, `misses` and `preloaded` are numbers of programs.

    Of programs of several threads, `compile_seconds`, `seconds_saved` and `net` are less than the sum over the programs
    if `add_process` has counted them.

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
        saved, is_hit = saved_seconds(program), program.outcome == HIT
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

    def add_process(self, programs: Sequence[ProgramRecord]) -> None:
        """Count programs of one process, whose threads may have compiled and loaded them at the same time."""
        sums = _sums(programs)
        compiled, saved = _over_threads(programs)
        self.compile_seconds += compiled - sums.compile_seconds
        self.seconds_saved += saved - sums.seconds_saved
        self.net += saved - sums.seconds_saved
        for program in programs:
            self.add(program)


@dataclass(slots=True)
class Function:
    """All programs of one name.

    Attributes:
        name: of the programs.
        source: the line that called it most.
        cause: why it was compiled last; None if it never was.
        sums: of its programs.
    """

    name: str
    source: str = ""
    cause: Cause | None = None
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
class CauseGroup:
    """The misses of one kind.

    Attributes:
        kind: of their causes.
        misses: how many compilations.
        seconds: what they took.
        seconds_by_function: what they took, by name of the program.
        causes: by name, the cause of the last one.
    """

    kind: str
    misses: int = 0
    seconds: float = 0.0
    seconds_by_function: dict[str, float] = field(default_factory=dict)
    causes: dict[str, Cause] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The heading of its kind."""
        return title_of(self.kind)

    @property
    def is_change(self) -> bool:
        """True if something has changed, rather than something become of an entry."""
        return self.kind not in OUTCOMES

    @property
    def ranked(self) -> list[str]:
        """Its functions, the one that took the most seconds first."""
        return sorted(self.seconds_by_function, key=lambda name: -self.seconds_by_function[name])

    @property
    def first(self) -> Cause:
        """The cause of the function that took the most seconds."""
        return self.causes[self.ranked[0]]

    def to_dict(self) -> dict[str, Any]:
        """Return stable snake_case fields, for machines."""
        functions = [
            {"name": name, "seconds": round(self.seconds_by_function[name], 6), **self.causes[name].to_dict()}
            for name in self.ranked
        ]
        return {
            "kind": self.kind,
            "title": self.title,
            "misses": self.misses,
            "seconds": round(self.seconds, 6),
            "functions": functions,
        }


@dataclass(slots=True)
class Timeline:
    """One start.

    Attributes:
        number: of the start.
        title: its program, moment and host.
        sums: of all its programs.
        functions: the sums by function, the costliest first.
        began: seconds since the epoch.
        lanes: its programs by process and thread.
        left_out: how many shorter programs the lanes leave out.
    """

    number: int
    title: str
    sums: Sums
    functions: list[Function]
    began: float
    lanes: dict[str, list[ProgramRecord]]
    left_out: int

    @property
    def length(self) -> float:
        """Seconds until the last program was ready; 0.0 if the clock was set back meanwhile, or nothing is shown."""
        ends = (each.time for programs in self.lanes.values() for each in programs)
        return max((each - self.began for each in ends if each > self.began), default=0.0)


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
        compiled_in: by the key of a program that a cause compares, the start that compiled it: `start 2 on host b`.
    """

    sums: Sums
    causes: list[CauseGroup]
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

    def to_dict(self) -> dict[str, Any]:
        """Return stable snake_case fields, for machines."""
        timelines = [
            {
                "number": each.number,
                "title": each.title,
                "sums": asdict(each.sums),
                "functions": [{"name": one.name, "sums": asdict(one.sums)} for one in each.functions],
                "lanes": {
                    lane: [
                        {
                            "at": max(0.0, beginning_of(one) - each.began),
                            "name": one.name,
                            "outcome": one.outcome,
                            "was_preloaded": one.preloaded,
                            "phases": dict(one.seconds),
                        }
                        for one in programs
                    ]
                    for lane, programs in each.lanes.items()
                },
                "left_out": each.left_out,
            }
            for each in self.timelines
        ]
        functions = [
            {
                "name": each.name,
                "source": each.source,
                "cause": each.cause.to_dict() if each.cause is not None else None,
                "sums": asdict(each.sums),
            }
            for each in self.functions
        ]
        return {
            "sums": asdict(self.sums),
            "causes": [each.to_dict() for each in self.causes],
            "functions": functions,
            "starts": [asdict(each) for each in self.starts],
            "days": {day: asdict(sums) for day, sums in self.days.items()},
            "timelines": timelines,
            "trouble": self.trouble,
            "dropped": self.dropped,
            "disk": [asdict(each) for each in self.disk],
            "tuned": self.tuned,
            **document(self.findings, self.smaller_findings),
            "compiled_in": dict(self.compiled_in),
        }

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
        sums=_sums_of_processes(record.programs for record in found),
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
    return {day: _sums_of_processes(each) for day, each in sorted(days.items(), reverse=True)}


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


def _hosts(hosts: Iterable[str]) -> str:
    """Return the first of these hosts, and how many more there are."""
    first, *others = dict.fromkeys(hosts)
    return f"{first} and {plural(len(others), 'more host')}" if others else first


def _sums(programs: Iterable[ProgramRecord]) -> Sums:
    sums = Sums()
    for program in programs:
        sums.add(program)
    return sums


def _sums_of_processes(processes: Iterable[Sequence[ProgramRecord]]) -> Sums:
    sums = Sums()
    for programs in processes:
        sums.add_process(programs)
    return sums


def _over_threads(programs: Iterable[ProgramRecord]) -> tuple[float, float]:
    """Return for how long a process compiled, and how much shorter hits made it, as it has counted that itself."""
    threads: dict[str, int] = {}
    now, thread = 0.0, 0
    compile_time = CompileTime(
        clock=lambda: now, thread=lambda: thread, age=lambda: 0.0
    )  # records tell no thread's age
    compiled = saved = 0.0
    for program in sorted(programs, key=lambda each: each.time):
        now, thread = program.time, threads.setdefault(program.thread, len(threads))
        if program.outcome == HIT:
            saved += compile_time.hit(
                program.compile_seconds, seconds_to_get(program), since=sum(program.seconds.values())
            )
        elif program.compile_seconds:
            more, new = compile_time.miss(program.compile_seconds)
            saved, compiled = saved + more, compiled + new
    return compiled, saved


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
            _sums_of_processes([each.programs]),
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
            differ = changed_components(its, program) if program.key and who != leader else []
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
    title = f"{members[0].process.program}, {moment}, {_hosts(record.process.host for record in members)}"
    functions: dict[str, Function] = {}
    for _, program in every:
        name = shown(program.name)
        functions.setdefault(name, Function(name)).sums.add(program)
    ranked = sorted(functions.values(), key=lambda each: -each.sums.cost)
    sums = _sums_of_processes(record.programs for record in members)
    return Timeline(number, title, sums, ranked, began, lanes, len(every) - len(kept))


def changed_components(before: ProgramRecord, after: ProgramRecord) -> list[str]:
    """Return the names of the components of two keys that differ."""
    names = before.components.keys() | after.components.keys()
    return sorted(name for name in names if before.components.get(name) != after.components.get(name))

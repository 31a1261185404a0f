"""Holds what a report shows."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ejcache.history.causes import OUTCOMES, title_of
from ejcache.history.findings import SmallerFindings, document
from ejcache.journal.start_records import beginning_of
from ejcache.reports.sums import Sums
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ejcache.history.causes import Cause
    from ejcache.history.findings import Advice
    from ejcache.journal.line import ProgramRecord

_NO_FINDINGS: Final = SmallerFindings()


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
        hosts = hosts_in_words(str(each["host"]) for each in processes)
        known = [("program", start.program), ("commit", versions.pop("commit", "")), ("host", hosts)]
        known.append(("device", versions.pop("platform", "")))
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start.began))
        return [("last start", str(start.number)), *known, ("began", began), *sorted(versions.items())]

    @property
    def processes(self) -> list[ProcessRow]:
        """Those of all starts."""
        return [row for start in self.starts for row in start.processes]


def hosts_in_words(hosts: Iterable[str]) -> str:
    """Return the first of these hosts, and how many more there are."""
    first, *others = dict.fromkeys(hosts)
    return f"{first} and {plural(len(others), 'more host')}" if others else first

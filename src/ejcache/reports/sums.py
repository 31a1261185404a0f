"""Adds up what programs came to: hits, misses, and the seconds that they took and saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ejcache.cache.compile_time import CompileTime
from ejcache.journal.line import HIT, saved_seconds, seconds_to_get

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ejcache.journal.line import ProgramRecord


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


def _sums(programs: Iterable[ProgramRecord]) -> Sums:
    sums = Sums()
    for program in programs:
        sums.add(program)
    return sums


def sums_of_processes(processes: Iterable[Sequence[ProgramRecord]]) -> Sums:
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

"""Compares the cache with XLA: each hit is compiled, too, and its first calls are made with both executables.

In the first calls of a program (`compare_calls`) the loaded and the fresh executable run with copies of the same
arguments, and their results are compared bit by bit. The program goes on with the results of the loaded one. Where they
differ, both run several times more, and the program is compiled again, before anybody is blamed:

* one executable gives different results for the same arguments: the program differs from call to call;
* fresh executables differ from each other as much: XLA is not deterministic;
* fresh ones agree, and the loaded one differs from them: the cache is at fault.

"As much" is a largest difference of at least a tenth: noise of the last bits does not excuse a wrong program, and a
wrong program is not looked for in the noise.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import numpy as np

from ejcache.jax_integration.seam import comparing
from ejcache.jax_integration.seam.comparing import NotComparedError
from ejcache.journal import comparison_results
from ejcache.journal.comparison_results import COMPARED, LEFT_OUT, Fault, ProgramDifference
from ejcache.journal.run_log import append_difference
from ejcache.util.locks import ForkLock
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ejcache.cache.reading import CacheReader
    from ejcache.jax_integration.compilation import Compilation, LoadedExecutable
    from ejcache.jax_integration.seam.comparing import ProgramRun
    from ejcache.jax_integration.seam.patch import CacheAnswer, JaxCall

_AS_MUCH: Final = 0.1
"""A difference that is this part of another one is as large."""
_REPEATED: Final = 5
"""How often both executables run again before one is blamed."""
_COPIES: Final = 3
"""How many times the inputs and results of a call are in memory at once, at most."""


class _Distance(NamedTuple):
    """How far two lists of results are from each other, by the output that differs most.

    Attributes:
        output: its position.
        differing: how many of its elements differ in a bit.
        elements: how many it has.
        largest: the largest difference; infinite if one of two numbers is NaN, or they are no numbers.
    """

    output: int
    differing: int
    elements: int
    largest: float


_NONE: Final = _Distance(0, 0, 0, 0.0)


class _Compared:
    """A program that was loaded, while its calls are compared."""

    def __init__(self, compilation: Compilation, found: LoadedExecutable, call: JaxCall, fresh: Any) -> None:
        self.name = compilation.name
        self.key = found.key
        self.cache: CacheReader = compilation.cache
        self.loaded = found.executable
        self.fresh = fresh
        self.compile_again: Callable[[], Any] = call.run
        self.left = compilation.settings.compare_calls
        self.differs = False


class Comparisons:
    """The comparisons of this process. Safe for threads."""

    def __init__(self) -> None:
        self._programs: dict[
            int, _Compared
        ] = {}  # an executable that is compared is kept, so that its address is its own
        self._lock = ForkLock()
        self._here = threading.local()
        self._said: set[str] = set()

    def run_hit(self, compilation: Compilation, found: LoadedExecutable, call: JaxCall, answer: CacheAnswer) -> Any:
        """Compile a program that was loaded, too, and return the executable that JAX goes on with: the loaded one."""
        reason = _why_not(compilation, call)
        if reason:
            leave_out(compilation.cache, reason)
            return call.run(answer.of(found))
        fresh = call.run()
        result = call.run(answer.of(found))
        with self._lock:
            self._programs[id(found.executable)] = _Compared(compilation, found, call, fresh)
        comparing.watch(self._run, is_watched=self._is_watched)
        compilation.cache.tally.add(**{f"{COMPARED}programs": 1})
        return result

    def note_word(self, cache: CacheReader, name: str, key: str) -> None:
        """Say that a trace gave another module than the one that is stored for a word."""
        self._say(cache, ProgramDifference(program=name, key=key, fault=Fault.WORD))

    def _is_watched(self, executable: Any) -> bool:
        return id(executable) in self._programs and not getattr(self._here, "busy", False)

    def _run(self, run: ProgramRun) -> Any:
        program = self._programs.get(id(run.executable))
        if program is None:
            return run.run()
        try:
            inputs = self._inputs(program, run)
        except Exception as exc:
            self._leave_out(program, exc)
            return run.run()
        results = run.run()
        self._here.busy = True
        try:
            self._compare(program, run, inputs, results)
        except Exception as exc:
            # The program has its results; that the comparison failed, as for want of memory, is said and left.
            self._leave_out(program, exc)
        finally:
            self._here.busy = False
        return results

    def _leave_out(self, program: _Compared, why: Exception) -> None:
        """Compare a program no longer, and count why."""
        self._end(program)
        failed = f"the comparison failed ({type(why).__name__})"
        leave_out(program.cache, why.reason if isinstance(why, NotComparedError) else failed)

    def _inputs(self, program: _Compared, run: ProgramRun) -> list[Any]:
        reason = run.why_not()
        if reason:
            raise NotComparedError(reason)
        _check_memory(run.bytes_of_inputs(), program.loaded)
        return run.copy_inputs()

    def _compare(self, program: _Compared, run: ProgramRun, inputs: Sequence[Any], results: Any) -> None:
        _check_memory(comparing.bytes_of(results), program.loaded)
        mine = comparing.results_on_host(results)
        fresh = run.run_with(program.fresh, inputs)
        program.cache.tally.add(**{f"{COMPARED}calls": 1})
        difference = _distance(mine, fresh)
        if difference.differing:
            self._end(program)
            self._judge(program, run, inputs, mine, fresh, difference)
            return
        program.left -= 1
        if program.left <= 0:
            self._end(program)
            program.cache.tally.add(**{f"{COMPARED}equal": 1})

    def _judge(
        self, program: _Compared, run: ProgramRun, inputs: Sequence[Any], mine: Any, fresh: Any, difference: _Distance
    ) -> None:
        others = [run.run_with(program.compile_again(), inputs) for _ in range(2)]
        among_fresh = max((_distance(fresh, each) for each in others), key=_size)
        nearest = min((_distance(mine, each) for each in (fresh, *others)), key=_size)
        repeated = [
            _distance(before, run.run_with(executable, inputs))
            for executable, before in ((program.loaded, mine), (program.fresh, fresh))
            for _ in range(_REPEATED)
        ]
        from_call_to_call = max(repeated, key=_size)
        if _is_as_large(from_call_to_call, nearest):
            fault = Fault.CALLS
        elif _is_as_large(among_fresh, nearest):
            fault = Fault.XLA
        else:
            fault = Fault.CACHE
        self._say(
            program.cache,
            ProgramDifference(
                program=program.name,
                key=program.key,
                fault=fault,
                output=difference.output,
                differing=difference.differing,
                elements=difference.elements,
                largest=_finite(difference.largest),
                fresh=_finite(among_fresh.largest),
            ),
        )

    def _end(self, program: _Compared) -> None:
        with self._lock:
            self._programs.pop(id(program.loaded), None)

    def _say(self, cache: CacheReader, found: ProgramDifference) -> None:
        with self._lock:
            if found.key in self._said:  # the program was loaded again, for another function
                return
            self._said.add(found.key)
        cache.tally.add(**{f"{COMPARED}{found.fault}": 1})
        comparison_results.here.append(found)
        append_difference(found)
        with contextlib.suppress(OSError, ValueError):  # stderr is closed
            print(f"ejcache: {found.sentence()}", file=sys.stderr)  # noqa: T201 (that is what it is for)


comparisons: Final = Comparisons()


def leave_out(cache: CacheReader, reason: str) -> None:
    """Count a program that is not compared, and why."""
    cache.tally.add(**{f"{LEFT_OUT}{reason}": 1})


def _why_not(compilation: Compilation, call: JaxCall) -> str:
    """Say why a program is not compared, as the end of a sentence; empty if it can be."""
    problems = comparing.mismatches()
    if problems:
        warn_once("compare", "ejcache: --compare does not know this JAX: %s", "; ".join(problems))
        return "this JAX runs programs in another way"
    if call.callbacks:
        return "it calls back into Python"
    if compilation.is_multi_process or jax.process_count() > 1:
        return "the job has several processes"
    return "its devices are elsewhere" if compilation.devices_absent else ""


# -- how far results are from each other -----------------------------------------------------------------------------


def _distance(one: Sequence[np.ndarray[Any, Any]], other: Sequence[np.ndarray[Any, Any]]) -> _Distance:
    """Return how far two lists of results are from each other."""
    found = _NONE
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        differing = _differing(a, b)
        if differing:
            each = _Distance(number, differing, max(a.size, 1), _largest(a, b))
            found = max(found, each, key=_size)
    return found


def _size(distance: _Distance) -> tuple[float, float]:
    return distance.largest, distance.differing / max(distance.elements, 1)


def _is_as_large(one: _Distance, other: _Distance) -> bool:
    if not one.differing:
        return False
    if math.isinf(other.largest) or not other.largest:
        return math.isinf(one.largest) or one.differing >= _AS_MUCH * other.differing
    return one.largest >= _AS_MUCH * other.largest


def _differing(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> int:
    """Count the elements that differ in a bit."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return max(one.size, other.size, 1)
    size = one.dtype.itemsize
    a, b = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, size) for each in (one, other))
    return int((a != b).any(axis=1).sum())


def _largest(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two numbers; infinite if one of two is NaN, and where they are no numbers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    wide = np.complex128 if np.issubdtype(one.dtype, np.complexfloating) else np.float64
    try:
        a, b = one.astype(wide), other.astype(wide)
    except (TypeError, ValueError):
        return math.inf
    is_nan = np.isnan(a)
    if (is_nan != np.isnan(b)).any():
        return math.inf
    with np.errstate(all="ignore"):
        differences = np.abs(np.where((a == b) | is_nan, 0, a - b))
    return float(differences.max(initial=0.0))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


# -- memory ----------------------------------------------------------------------------------------------------------

_MEMORY: Final = Path("/proc/meminfo")
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))


def _check_memory(size: int, executable: Any) -> None:
    """Refuse a call whose inputs or results have more bytes than can be copied."""
    wanted = _COPIES * size
    free = [_free_memory(), *map(_free_of_device, executable.local_devices())]
    if any(each is not None and wanted > each for each in free):
        raise NotComparedError("its inputs or results are too large for the memory that is free")


def _free_memory() -> int | None:
    """Return how many bytes this process can still have; None if nobody says it."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _MEMORY.read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        limit, used = (int(path.read_text()) for path in _LIMITS)
        found.append(limit - used)
    return min(found, default=None)


def _free_of_device(device: Any) -> int | None:
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats or "bytes_in_use" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats["bytes_in_use"])

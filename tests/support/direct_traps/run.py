"""Leads traps through their starts, some at once, each start in a child of a server, which has its own hash seed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from helpers import ROOT, SUPPORT, variables_to_clear

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from direct_traps.trap import Trap

__all__ = ["STALE", "WAYS", "Result", "Server", "run_traps", "summary"]

WAYS: Final = ("path", "installed", "live")
"""How the project lies there: as files, installed by `pip install .`, or in no file (a notebook)."""
STALE: Final = "STALE"


@dataclass(frozen=True)
class Result:
    """What became of one trap.

    Attributes:
        changed: missed, refused, plain, right (a hit whose program is the changed one's), STALE or FAILED.
        unchanged: hit, refused, plain, miss, or STALE (a hit with another result); empty if it was not tried.
        sentence: why the changed one, or else the unchanged one, did not hit.
        problems: what is not as the trap expects it.
    """

    name: str
    group: str
    apart: str
    changed: str
    unchanged: str
    sentence: str
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Server:
    """One process of `server.py`."""

    def __init__(self, history: str, options: Sequence[str], libraries: str, home: Path) -> None:
        env = {name: value for name, value in os.environ.items() if name not in variables_to_clear(os.environ)}
        # A forked child has none of its parent's threads; OpenBLAS would make some while NumPy is imported.
        env |= {
            "PYTHONHASHSEED": "random", "JAX_PLATFORMS": "cpu", "HOME": str(home), "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT / "src")]), "EJCACHE_DIRECT_CHECK_ONE_IN": "0",
            "EJCACHE_DIRECT_FLOOR": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, *options, "-m", "direct_traps.server", history, *libraries.split()]
        with (home / "servers.log").open("a") as log:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        started = self._read()
        if started.get("threads") != 1:
            raise RuntimeError(f"the server cannot fork: {started}")

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Servers:
    """The servers of one worker: two, with hash seeds of their own, and others where a trap needs them."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._made: dict[tuple[str, ...], Server] = {}

    def start(
        self, trap: Trap, way: str, home: Path, version: int, seed: str, *, plain: bool = False
    ) -> dict[str, Any]:
        options = trap.options if version == 2 else ()
        key = (seed, *options, trap.needs)
        if key not in self._made:
            self._made[key] = Server("plain" if seed == "first" else "other", options, trap.needs, self._home)
        version_ = trap.version(version)
        request = {**version_, "program": {**version_["program"], "way": way}, "home": str(home), "plain": plain}
        return self._made[key].start(request)

    def close(self) -> None:
        for server in self._made.values():
            server.close()


def run_traps(traps: Sequence[Trap], *, way: str = "path", jobs: int = 2, quick: bool = False) -> Iterator[Result]:
    """What became of each trap, in their order; those whose library is absent are left out.

    With `quick`, nothing is said of an unchanged third start.
    """
    here = [each for each in traps if _is_here(each.needs)]
    # In memory where that can be: hundreds of caches are made and removed.
    home = Path(tempfile.mkdtemp(prefix="direct-traps-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    free: SimpleQueue[_Servers] = SimpleQueue()
    made = [_Servers(home) for _ in range(min(jobs, len(here)))]

    def one(trap: Trap) -> Result:
        servers = free.get()
        try:
            directory = Path(tempfile.mkdtemp(dir=home))
            return _lead(trap, servers, way, directory, quick=quick)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            free.put(servers)

    for servers in made:
        free.put(servers)
    try:
        with ThreadPoolExecutor(len(made)) as pool:
            yield from pool.map(one, here)
    finally:
        for servers in made:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                servers.close()
        shutil.rmtree(home, ignore_errors=True)


def _is_here(needed: str) -> bool:
    return not needed or shutil.which(needed) is not None or find_spec(needed) is not None


def _lead(trap: Trap, servers: _Servers, way: str, home: Path, *, quick: bool) -> Result:
    """Record, prove, and start both versions again; what refuses or is plain at first is not started again.

    Quickly, the changed version is started after the first record: if it misses, no proof of the record would be its.
    """
    if quick and not trap.apart:
        found = _lead_quickly(trap, servers, way, home / "quick")
        if found is not None:
            return found

    def start(version: int, seed: str, *, plain: bool = False) -> dict[str, Any]:
        return servers.start(trap, way, home, version, seed, plain=plain)

    def result(changed: str, unchanged: str, sentence: str, *problems: str) -> Result:
        return Result(trap.name, trap.group, trap.apart, changed, unchanged, sentence, problems)

    first = start(1, "first")
    second = start(1, "second")
    answers = {"record": first, "prove": second}
    unchanged, why = _verdict(first)
    if unchanged in {"missed", "unproven"} or trap.apart:
        unchanged = ""
        if not quick:
            answers["hit"] = third = start(1, "first")
            unchanged, why = _verdict(third)
            may_differ = third.get("warned") or not (trap.apart or trap.flags.isdisjoint({"miss", "varies"}))
            if third.get("results") != first.get("results") and not may_differ:
                unchanged = STALE
            elif unchanged == "hit" and third.get("traced") and "traced" not in trap.flags:
                return result("FAILED", "hit", "", "direct mode says that it hit, and JAX has traced the function")
    answers["changed"] = fourth = start(2, "second")
    changed, why_changed = _verdict(fourth)
    problems = [f"{name}: {answer['failed']}" for name, answer in answers.items() if "failed" in answer]
    if problems:
        return result("FAILED", unchanged, "", *problems)
    if not _traced(fourth, expected="traced" in trap.flags):
        plain = [start(number, "second", plain=True) for number in (1, 2)]
        changed = _judged(trap, fourth, plain)
        if changed == STALE and not trap.apart:
            problems.append(f"stale: {fourth['results']} for {plain[1]['results']}")
    unchanged = {"missed": "miss", "unproven": "miss"}.get(unchanged, unchanged)
    if unchanged == "miss" and trap.expected == "refused" and "its executable is not in the cache" in why:
        unchanged = "refused"  # JAX 0.10 shows host callbacks only to the cache, which stores no program that has them
    if unchanged == STALE and not trap.apart:
        problems.append(f"an unchanged start had another result: {answers['hit']['results']} for {first['results']}")
    elif unchanged and unchanged != trap.expected and not trap.apart:
        problems.append(f"unchanged: expected {trap.expected}, was {unchanged}: {why} (before: {_verdict(second)})")
    return result(changed, unchanged, why_changed or why, *problems)


def _lead_quickly(trap: Trap, servers: _Servers, way: str, home: Path) -> Result | None:
    home.mkdir()
    answers = [servers.start(trap, way, home, 1, "first"), servers.start(trap, way, home, 2, "second")]
    changed, why = _verdict(answers[1])
    if any("failed" in each for each in answers) or changed not in {"missed", "refused", "plain"}:
        return None
    return Result(trap.name, trap.group, "", changed, "", why)


def _judged(trap: Trap, answer: dict[str, Any], plain: list[dict[str, Any]]) -> str:
    """Whether a hit of the changed version is right: its results are those of plain JAX, whose program is the same."""
    same = plain[0]["results"] == plain[1]["results"]
    same_program = plain[0]["module"] == plain[1]["module"] or ("same" in trap.flags and same)
    right = answer["warned"] or (answer["results"] == plain[1]["results"] and answer["output"] == plain[1]["output"])
    return "right" if right and same_program and "varies" not in trap.flags else STALE


def _traced(answer: dict[str, Any], *, expected: bool) -> bool:
    return (bool(answer["traced"]) and not expected) or _verdict(answer)[0] != "hit"


def _verdict(answer: dict[str, Any]) -> tuple[str, str]:
    """What direct mode made of the first call that it did not serve, or of the first one."""
    verdicts = [(verdict, sentence) for _, verdict, sentence in answer.get("verdicts", ())]
    if not verdicts:
        return "plain", "direct mode saw no call"
    # A function that is called by another one while that is traced is plain.
    verdicts = [each for each in verdicts if each[0] != "plain"] or verdicts
    return next((each for each in verdicts if each[0] != "hit"), verdicts[0])


def summary(results: Sequence[Result]) -> list[str]:
    """The sums, one a line."""

    def words(values: Sequence[str]) -> str:
        return ", ".join(f"{name} {count}" for name, count in Counter(values).most_common() if name)

    compared = [each for each in results if not each.apart]
    return [
        f"{len(results)} traps, {len(compared)} compared; stale of those: {sum(e.changed == STALE for e in compared)}",
        f"compared, changed: {words([each.changed for each in compared])}",
        f"compared, unchanged: {words([each.unchanged for each in compared])}",
        f"not compared, changed: {words([each.changed for each in results if each.apart])}",
        f"not as expected: {sum(bool(each.problems) for each in results)}",
    ]

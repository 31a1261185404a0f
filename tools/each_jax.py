"""One JAX of each minor version since 0.4.38, and the newest pre-release: does ejcache serve its starts?

    python tools/each_jax.py --seconds 400

For each version, in an environment of its own that is kept in `.venv-jax/`: six small programs with JAX's own cache and
no floor, twice; then with ejcache, twice, with a damaged entry, with a cache that is too small, and twice with a bucket
on loopback. The values must be equal, the hits at least JAX's own, and nothing may be warned of that the programs
without ejcache are not warned of. Then come the cases of `tests/programs/every_jax.py`: callbacks, forbidden
compilations, `warm`, a tuned operation, `--compare`, serialised executables, events, errors, `why`, processes that
start together, and two ranks, which also share what the first one compiles. Last come the pairs of
`tests/keys/key_pairs.toml`: one program must have one key, and two programs must have two.

What does not fit into the time is left out. The versions take turns by the date, and the last lines say which ran.
Exits with 1 if a version fails, and with 0 where no environment can be made.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast

from interpreters import interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
OLDEST: Final = (0, 4, 38)
BUILDING: Final = 240.0
"""Seconds after which an environment that is not ready is given up."""
FULL_BYTES: Final = 20_000
"""Less than the entries of the six programs."""
PROGRAMS: Final = ROOT / "tests" / "programs" / "six_programs.py"


class Version(NamedTuple):
    """A version of JAX, and the Python that it is run with."""

    jax: str
    python: str


class FailedError(Exception):
    """A version does not do what it must."""


def pythons() -> list[str]:
    """Find the interpreters that there are, this one first."""
    return [sys.executable, *(found for name in ("3.12", "3.13", "3.14") if (found := interpreter(name)))]


def released(python: str, *, pre: bool) -> list[str]:
    """List the versions of JAX that the index has for this interpreter; none if it cannot be asked."""
    command = [python, "-m", "pip", "index", "versions", "jax", *(["--pre"] if pre else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = re.search(r"Available versions: (.*)", done.stdout)
    return found[1].split(", ") if found else []


def ordered(version: str) -> tuple[int, ...]:
    """Order releases by their numbers; before a release come its candidates, and before those the nightlies."""
    found = re.match(r"([\d.]*\d)\.?([a-z]*)(\d*)", version)
    if found is None:
        return ()
    numbers, kind, rest = found.groups()
    parts = tuple(int(part) for part in numbers.split("."))
    return (*parts, *([0] * (4 - len(parts))), {"": 2, "dev": 0}.get(kind, 1), int(rest or 0))


def is_pre(version: str) -> bool:
    """True if it is no release."""
    return re.fullmatch(r"[\d.]+", version) is None


def chosen(found: dict[str, str]) -> list[Version]:
    """The newest release of each minor version, and the newest pre-release if it is newer than every release.

    Args:
        found: versions, and the first interpreter that has each.
    """
    newest: dict[tuple[int, ...], str] = {}
    for version in sorted((each for each in found if not is_pre(each)), key=ordered):
        if ordered(version)[:3] >= OLDEST:
            newest[ordered(version)[:2]] = version
    releases = list(newest.values())
    before = [each for each in found if is_pre(each) and (not releases or ordered(each) > ordered(releases[-1]))]
    return [Version(each, found[each]) for each in (*releases, *sorted(before, key=ordered)[-1:])]


def in_turns(versions: list[Version], day: int) -> list[Version]:
    """Begin with another version each day: the newest is always the first, because it is what users get."""
    if len(versions) < 2:
        return versions
    *others, last = versions
    turn = day % len(others)
    return [last, *others[turn:], *others[:turn]]


def environment(version: Version, place: Path, *, seconds: float) -> Path | None:
    """Return the Python of the environment of this version, which is made if there is none; None if it cannot be."""
    directory = place / version.jax
    python, ready = directory / "bin" / "python", directory / "ready"
    if ready.exists():
        return python
    shutil.rmtree(directory, ignore_errors=True)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    packages = [f"jax=={version.jax}", *(each for each in needed if not each.startswith("jax"))]
    if version.jax.startswith("0.5."):
        packages.append("absl-py")  # which Pallas of this JAX imports, and JAX does not require
    end = time.monotonic() + min(seconds, BUILDING)
    for command in (
        [version.python, "-m", "venv", str(directory)],
        [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *packages],
    ):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=max(1.0, end - time.monotonic())
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            return None
    ready.touch()
    return python


# -- the starts of one version -------------------------------------------------------------------------------------


class Start(NamedTuple):
    """What one start of the six programs said.

    Attributes:
        values: of the programs.
        hits: as JAX counted them.
        counted: by ejcache; empty without it.
        warnings: lines on stderr.
        seconds: of processor time.
    """

    values: list[float]
    hits: int
    counted: dict[str, Any]
    warnings: list[str]
    seconds: float


_STAMP: Final = re.compile(r"^([A-Z])\d{4} [\d:.]+ +\d+ ")
"""The time and the process of a line of XLA's log."""


def bare_environment(**variables: str) -> dict[str, str]:
    """The environment of a process that has ejcache as it is here, and none of the person's settings."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return found | {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        **variables,
    }


def start(python: Path, mode: str, place: str, **variables: str) -> Start:
    """Start the six programs: `jax` with JAX's own cache, `ours` with ejcache."""
    command = [str(python), str(PROGRAMS), mode, place]
    env = bare_environment(**variables)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    lines = [_STAMP.sub(r"\1 ", line) for line in said]
    if done.returncode or not done.stdout.startswith("{"):
        raise FailedError(f"{mode}: exit status {done.returncode}: {' | '.join(lines[-5:])}")
    found = json.loads(done.stdout)
    return Start(found["values"], found["hits"], found["counted"], lines, found["seconds"])


def require(holds: bool, what: str) -> None:
    if not holds:
        raise FailedError(what)


_DAMAGE: Final = """
import sys, ejcache
from ejcache.keys.key import is_side_key
with ejcache.open_store(sys.argv[1]) as store:
    for number, info in enumerate([each for each in store.entries() if not is_side_key(each.key)]):
        data = bytearray(store.peek(info.key))
        data[len(data) // 2] ^= 0xFF
        store.replace(info.key, bytes(data) if number % 2 else bytes(data[: len(data) // 2]))
    print(number + 1)
"""


def damage(python: Path, place: str) -> int:
    """Change a byte in the middle of every second executable, and truncate the others; how many there are."""
    env = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ.get("PATH", ""), "HOME": place}
    done = subprocess.run(
        [python, "-c", _DAMAGE, place], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    require(done.returncode == 0, f"the entries could not be damaged: {done.stderr[-300:]}")
    return int(done.stdout)


@contextlib.contextmanager
def bucket_server(python: Path) -> Iterator[str]:
    """A bucket on loopback, by a process of this environment; yields the address."""
    command = [str(python), str(ROOT / "tools" / "gcs_server"), "--print-url", "--watch-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def check(python: Path, server: str) -> str:
    """Start the programs in every way; what was measured, in a line.

    Raises:
        FailedError: something is not as it must be.
    """
    with tempfile.TemporaryDirectory(prefix="each-jax-") as scratch:
        own = [start(python, "jax", f"{scratch}/jax") for _ in range(2)]
        usual = {*own[0].warnings, *own[1].warnings}
        began = f"JAX's own {own[1].hits} hits"

        def same(name: str, found: Start, *, said: bool = False) -> Start:
            require(found.values == own[0].values, f"{name}: {found.values} are not {own[0].values}")
            more = [] if said else [line for line in found.warnings if line not in usual]
            require(not more, f"{name}: warns of {more}")
            return found

        quiet = {"HOME": f"{scratch}/home"}
        cold = same("cold", start(python, "ours", f"{scratch}/c", **quiet))
        warm = same("warm", start(python, "ours", f"{scratch}/c", **quiet))
        require(cold.counted["kept"] == "ours", f"the entries are kept {cold.counted['kept']}")
        require(warm.hits >= own[1].hits > 0, f"warm: {warm.hits} hits, {began}")
        require(warm.counted["misses"] == 0, f"warm: {warm.counted['misses']} misses")

        damaged = damage(python, f"{scratch}/c")
        healed = same("damaged", start(python, "ours", f"{scratch}/c", **quiet), said=True)
        require(healed.counted["corrupt"] == damaged, f"damaged: {healed.counted['corrupt']} of {damaged} were found")
        after = same("healed", start(python, "ours", f"{scratch}/c", **quiet))
        require(after.counted["misses"] == 0, f"healed: {after.counted['misses']} misses")

        full = same("full", start(python, "ours", f"{scratch}/f", EJCACHE_MAX_SIZE=str(FULL_BYTES), **quiet), said=True)
        require(0 < full.counted["bytes"] <= FULL_BYTES, f"full: {full.counted['bytes']} bytes")

        url = f"gs://bucket/{python.parent.parent.name}"
        far = {"STORAGE_EMULATOR_HOST": server, "EJCACHE_MIN_COMPILE_SECONDS": "0"}
        first = same("bucket", start(python, "ours", url, HOME=f"{scratch}/one", **far))
        second = same("bucket, another host", start(python, "ours", url, HOME=f"{scratch}/two", **far))
        require(second.hits >= own[1].hits, f"bucket: {second.hits} hits, {began}")
        said = f"{warm.hits} hits of {first.counted['misses']}, {began}; {damaged} damaged; {own[1].seconds:.1f} s of"
        said += f" processor with JAX's own, {warm.seconds:.1f} s with ejcache"
        said += f"; {check_cases(python, scratch)} cases"
        return f"{said}; {check_keys(python)}"


# -- what depends on the version -----------------------------------------------------------------------------------


CASES: Final = ROOT / "tests" / "programs" / "every_jax.py"
_CALLBACKS_SINCE: Final = (0, 11)


def begin(python: Path, home: str, case: str, place: str, *words: str) -> subprocess.Popen[str]:
    """Begin a case in a process of its own."""
    command = [str(python), str(CASES), case, place, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=bare_environment(HOME=home), stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def said_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a case, and return what it said."""
    out, err = process.communicate(timeout=240)
    last = out.splitlines()[-1] if out.strip() else ""
    if process.returncode or not last.startswith("{"):
        why = " | ".join(line for line in err.splitlines()[-5:])
        raise FailedError(f"{process.args!r}: exit status {process.returncode}: {why}")
    found: dict[str, Any] = json.loads(last)
    return found


def check_cases(python: Path, scratch: str) -> int:
    """Try what depends on the version; how many cases there are.

    Raises:
        FailedError: one of them is not as it must be.
    """
    asked = subprocess.run(
        [python, "-c", "import jax; print(jax.__version__)"], capture_output=True, text=True, check=True
    )
    version = ordered(asked.stdout.strip())
    home = f"{scratch}/home"

    def one(case: str, *words: str) -> dict[str, Any]:
        return said_by(begin(python, home, case, f"{scratch}/{case}", *words))

    cases: list[tuple[str, Any, Any]] = []

    def equal(what: str, found: Any, wanted: Any) -> None:
        cases.append((what, found, wanted))

    before, after = one("callbacks", "10"), one("callbacks", "20")
    equal("callbacks", (before["values"], after["values"], after["seen"]), ([21.0, 4.0], [41.0, 4.0], [20.0]))
    if version >= _CALLBACKS_SINCE:
        equal("programs with callbacks hit", after["misses"], 0)
    equal("custom_partitioning", one("partitioned")["value"], one("partitioned")["value"])
    one("forbidden", "before")
    found = one("forbidden", "after")
    equal("forbid_compile", (found["hits"] > 0, "would be compiled" in found["refused"]), (True, True))
    equal("warm", one("warmed", "before")["outcome"], "compiled")
    equal("warm, and then", one("warmed", "after")["misses"], 0)
    before, after = one("tuned"), one("tuned")
    equal("a tuned operation", (before["values"], before["measured"], after["measured"]), (after["values"], 2, 1))
    before, after = one("compared", "before"), one("compared", "after")
    programs, calls, wrong = (after["compared"][name] for name in ("programs", "calls", "cache"))
    equal("--compare", (after["value"], calls >= programs == after["hits"], wrong), (before["value"], True, 0))
    before, after, last = one("serialised", "before"), one("serialised", "after"), one("serialised", "last")
    equal("serialize_executable", (after["value"], last["value"], after["hits"]), (before["value"], before["value"], 1))
    for start_of in ("a miss", "a hit"):
        own = said_by(begin(python, home, "listened", f"{scratch}/own", "jax"))
        ours = one("listened", "ours")
        equal(
            f"events of {start_of}",
            *([each[n] for n in ("value", "events", "durations", "lines", "changed")] for each in (ours, own)),
        )
        equal(f"time of {start_of}", ours["retrieval"] > 0, start_of == "a hit")
    equal("an error of XLA", one("failing", "ours"), one("failing", "jax"))
    one("edited", "1")
    equal("why", [text.partition(" changed: ")[2].partition(",")[0] for text in one("edited", "2")["why"]], ["1 -> 2"])
    several = [begin(python, home, "together", f"{scratch}/together") for _ in range(3)]
    for each in several:
        cast("IO[str]", each.stdout).readline()  # until it has all that it needs
    together = [said_by(each) for each in several]
    equal(
        "processes at once",
        sum(each["hits"] + each["misses"] for each in together) / 3,
        together[0]["hits"] + together[0]["misses"],
    )
    equal(
        "each program compiled once",
        sum(each["misses"] for each in together),
        together[0]["hits"] + together[0]["misses"],
    )
    for how in ("load", "share"):
        for start_of in ("first", "second"):
            port = str(20_000 + (os.getpid() * 7 + len(cases) * 131) % 20_000)
            pod = [begin(python, home, "ranks", f"{scratch}/{how}", str(rank), port, how) for rank in range(2)]
            ranks = [said_by(each) for each in pod]
            equal(f"{how}: values of the {start_of} start", [each["value"] for each in ranks], [18.0, 18.0])
            if start_of == "second":
                equal(f"{how}: both ranks hit", [each["misses"] for each in ranks], [0, 0])
    failed = [f"{what}: {found} is not {wanted}" for what, found, wanted in cases if found != wanted]
    require(not failed, "; ".join(failed))
    return len(cases)


def check_keys(python: Path) -> str:
    """Make the keys of all pairs of compilations; how many there are, and which this JAX cannot be asked for.

    Raises:
        FailedError: two programs have one key, or one program has two.
    """
    command = [str(python), str(ROOT / "tools" / "key_table.py"), "--count"]
    done = subprocess.run(command, env=bare_environment(), capture_output=True, text=True, check=False, timeout=300)
    require(done.returncode == 0, f"keys: {' | '.join(done.stderr.splitlines()[-5:])}")
    found = json.loads(done.stdout.splitlines()[-1])
    require(not found["wrong"], f"keys: wrong of {found['wrong']}")
    said = f"{found['same']} pairs with one key, {found['different']} with two"
    left_out = [f"{title} ({because})" for title, because in found["left_out"].items()]
    return f"{said}, not of this JAX: {', '.join(left_out)}" if left_out else said


class Run:
    """The versions of one run, two at a time.

    Args:
        queue: versions, in the order in which they begin.
        place: where the environments are kept.
        seconds: no version begins that would not end within so many.
    """

    def __init__(self, queue: list[Version], place: Path, seconds: float) -> None:
        self._place = place
        self._began = time.monotonic()
        self._seconds = seconds
        self._longest = 0.0
        self.has_failed = False
        with ThreadPoolExecutor(2) as pool:
            self.summary = list(pool.map(self._run, queue))

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def _run(self, version: Version) -> str:
        began = self.spent
        left = self._seconds - began
        if left < self._longest:
            return f"JAX {version.jax}: left out, because {began:.0f} s had passed"
        python = environment(version, self._place, seconds=left)
        if python is None:
            return f"JAX {version.jax}: left out, because its environment could not be made in time"
        if self.spent > self._seconds:
            return f"JAX {version.jax}: left out, because its environment was ready after {self.spent:.0f} s"
        began = self.spent
        try:
            with bucket_server(python) as server:
                said = f"passed in {{}}: {check(python, server)}"
        except (FailedError, subprocess.TimeoutExpired) as exc:
            self.has_failed = True
            said = f"FAILED in {{}}: {exc}"
        took = self.spent - began
        self._longest = max(self._longest, took)
        line = f"JAX {version.jax}: {said.replace('{}', f'{took:.0f} s', 1)}"
        print(line, flush=True)
        return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=400.0, help="what would not end within so many is left out")
    parser.add_argument("--place", type=Path, default=ROOT / ".venv-jax", help="where the environments are kept")
    parser.add_argument("--day", type=int, default=dt.datetime.now(tz=dt.UTC).toordinal())
    parser.add_argument("--only", action="append", default=[], help="a version; may be given again")
    arguments = parser.parse_args()
    found: dict[str, str] = {}
    for python in pythons():
        for release in [*released(python, pre=False), *released(python, pre=True)]:
            found.setdefault(release, python)
    versions = chosen(found)
    if arguments.only:
        versions = [each for each in versions if each.jax in arguments.only]
    run = Run(in_turns(versions, arguments.day), arguments.place, arguments.seconds)
    print(f"=== {len(versions)} versions of JAX, {run.spent:.0f} s")
    print("\n".join(run.summary or ["JAX of other versions: left out, because the index cannot be asked"]))
    return 1 if run.has_failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Kill processes at random moments while they put and get under a tight limit in one local store, then look at it.

    python tools/kill_storm.py --kills 200 --processes 4 --dir /tmp/storm [--json]

Every value is an entry that names its own key and carries its checksum, so that a torn, mixed-up or foreign read is
seen by its reader. After the storm the store is opened once, without a repair, and must be within its limit on
disk (every allocated block counts), free of anything that `check` objects to, and still the same store: its counters
have not been lost. Exit status 0 when all of that holds, 1 when not, 2 for a wrong argument.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from ejcache.entry import Header, decode, encode
from ejcache.errors import EntryError, SettingError
from ejcache.stores.local.quarantine import quarantine_bytes
from ejcache.stores.local.store import LocalStore
from ejcache.util.units import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

__all__ = ["Outcome", "disk_usage", "storm"]

_SIZES: Final = (0, 100, 3_000, 9_000, 40_000, 130_000, 400_000)
"""Values that take no block, one, and several, and some that evict a good part of the store."""
_KEYS: Final = 80
_COUNTER: Final = "storm.counted"
_AFTER: Final = "after the storm"
"""An entry that is put at the end, and is gone when another storm comes to the same store."""
_PATIENCE: Final = 60.0
"""Seconds that an operation waits for other processes: on a busy machine they may not run for long."""
_STUCK_SECONDS: Final = 120.0
"""An operation that takes longer hangs."""

# One row of numbers per process, in memory that all share and that outlives each of them. A kill between two writes
# leaves each number whole.
_OPERATIONS, _READS, _HITS, _STORES, _BAD, _OVER, _ERRORS, _COUNTED, _BEGAN, _WIDTH = range(10)


def _overhead(entries: int, limit: int) -> int:
    """Return at most how many bytes more than the limit a store may take, whatever died in it."""
    return 3 * 2**20 + 5 * 2**10 * entries + quarantine_bytes(limit)


@dataclass
class Outcome:
    """What a storm did, and what it left."""

    kills: int = 0
    processes: int = 0
    limit: int = 0
    seconds: float = 0.0
    operations: int = 0
    reads: int = 0
    hits: int = 0
    stores: int = 0
    bad_reads: int = 0
    over_limit: int = 0
    exceptions: int = 0
    stuck: int = 0
    deaths: int = 0
    entries: int = 0
    size: int = 0
    disk_usage: int = 0
    disk_usage_closed: int = 0
    allowed: int = 0
    counted: int = 0
    counters_say: int = 0
    open_seconds: float = 0.0
    objections: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What must not be, one sentence each; empty when all is well."""
        found = [
            f"{count} {what}"
            for count, what in (
                (self.bad_reads, "reads gave bytes that are not the entry"),
                (self.over_limit, "looks at the size found more than the limit"),
                (self.exceptions, "operations raised"),
                (self.stuck, "operations did not end in time"),
            )
            if count
        ]
        if not self.hits or not self.stores:
            found.append(f"nothing was tested: {self.hits} hits, {self.stores} stores")
        if self.size > self.limit:
            found.append(f"{self.size} bytes of entries are over the limit of {self.limit}")
        if self.disk_usage > self.allowed:
            found.append(f"{self.disk_usage} bytes on disk are over the {self.allowed} that are declared")
        if self.disk_usage_closed > self.allowed:
            found.append(f"{self.disk_usage_closed} bytes on disk, closed, are over the {self.allowed} declared")
        # A killed process may have counted what it did not live to note; nothing that was noted may be gone.
        if not self.counted <= self.counters_say <= self.counted + self.deaths:
            found.append(f"the counter says {self.counters_say} after {self.counted} counts")
        return found + [f"check: {objection}" for objection in self.objections]


def disk_usage(directory: Path) -> int:
    """Bytes of all blocks allocated below `directory`, itself included."""
    total = os.lstat(directory).st_blocks
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            total += (Path(root) / name).lstat().st_blocks
    return total * 512


def _value(key: str, rng: random.Random) -> bytes:
    return encode(Header(key=key), rng.randbytes(rng.choice(_SIZES)) + key.encode(), level=0)


def _right(key: str, data: bytes) -> bool:
    try:
        return decode(data, key=key).raw.endswith(key.encode())
    except EntryError:
        return False


class _Worker:
    """One process's endless row of operations."""

    def __init__(self, directory: Path, limit: int, row: memoryview[float], log: int, rng: random.Random) -> None:
        self._directory = directory
        self._limit = limit
        self._row = row
        self._log = log
        self._rng = rng
        self._store: LocalStore | None = None

    def run(self, parent: int) -> None:
        while os.getppid() == parent:
            self._row[_BEGAN] = time.monotonic()
            try:
                self._operate()
            except Exception:
                self._row[_ERRORS] += 1
                os.write(self._log, (traceback.format_exc() + "\0").encode())
            self._row[_BEGAN] = 0.0
            self._row[_OPERATIONS] += 1

    def _operate(self) -> None:
        rng, row = self._rng, self._row
        if self._store is None or rng.random() < 0.01:
            if self._store is not None:
                self._store.close()
            self._store = LocalStore(self._directory, max_size=self._limit, timeout=_PATIENCE)
        store = self._store
        key = f"key-{rng.randrange(_KEYS)}"
        dice = rng.random()
        if dice < 0.45:
            row[_READS] += 1
            data = store.get(key)
            row[_HITS] += data is not None
            self._look(key, data)
        elif dice < 0.82:
            row[_STORES] += store.put(key, _value(key, rng))
        elif dice < 0.88:
            store.replace(key, _value(key, rng))
        elif dice < 0.91:
            store.delete(key)
        elif dice < 0.93:
            data = store.peek(key)
            self._look(key, data)
            if data is not None:
                store.quarantine(key, data)
        elif dice < 0.96:
            row[_OVER] += store.size() > self._limit
        elif dice < 0.97:
            for info in store.entries():
                if rng.random() < 0.1:
                    self._look(info.key, store.peek(info.key))
        else:
            store.add_counters({_COUNTER: 1})
            row[_COUNTED] += 1

    def _look(self, key: str, data: bytes | None) -> None:
        if data is not None and not _right(key, data):
            self._row[_BAD] += 1
            os.write(self._log, f"bad read of {key}: {len(data)} bytes beginning {data[:80]!r}\0".encode())


class _Storm:
    def __init__(self, directory: Path, *, processes: int, limit: int, seed: int) -> None:
        self._directory = directory
        self._limit = limit
        self._rng = random.Random(seed)
        self._board = memoryview(mmap.mmap(-1, processes * _WIDTH * 8)).cast("d")
        self._rows = [self._board[n * _WIDTH : (n + 1) * _WIDTH] for n in range(processes)]
        self._pids = [0] * processes
        self._log, name = tempfile.mkstemp(prefix="kill-storm-")
        Path(name).unlink()
        os.set_inheritable(self._log, True)
        self.stuck = 0
        self.kills = 0
        self.deaths = 0

    def run(self, kills: int, progress: Callable[[int], None]) -> None:
        for slot in range(len(self._pids)):
            self._start(slot)
        try:
            while self.kills < kills:
                count = min(self._rng.choice((1, 1, 1, 1, 2, len(self._pids))), kills - self.kills)
                victims = self._rng.sample(range(len(self._pids)), min(count, len(self._pids)))
                self._let_them_work(victims, self._rng.uniform(0.0, 0.12))
                self._kill(victims)
                for slot in victims:
                    self._start(slot)
                self.kills += len(victims)
                progress(self.kills)
            # On a slow machine the kills may be over before anything was read and stored.
            latest = time.monotonic() + _STUCK_SECONDS
            self._wait_until(lambda: self.is_tested() or time.monotonic() > latest)
        finally:
            self._kill(range(len(self._pids)))

    def is_tested(self) -> bool:
        """Whether any process has stored an entry, and any has read one."""
        return self.sum(_HITS) > 0 and self.sum(_STORES) > 0

    def _kill(self, slots: Iterable[int]) -> None:
        pids = [self._pids[slot] for slot in slots]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
            self.deaths += 1

    def _start(self, slot: int) -> None:
        row = self._rows[slot]
        row[_BEGAN] = 0.0
        seed = self._rng.getrandbits(64)
        parent = os.getpid()
        # A fork costs milliseconds where a fresh interpreter costs a tenth of a second, in which no kill would hit
        # anything. This process has no store open meanwhile, so there is nothing of it to inherit.
        pid = os.fork()
        if pid == 0:
            self._work(row, random.Random(seed), parent)
        self._pids[slot] = pid

    def _work(self, row: memoryview[float], rng: random.Random, parent: int) -> NoReturn:
        try:
            _Worker(self._directory, self._limit, row, self._log, rng).run(parent)
        finally:
            os._exit(1)

    def _let_them_work(self, victims: list[int], seconds: float) -> None:
        """Wait for `seconds`, and until each victim is at work."""
        until = time.monotonic() + seconds
        self._wait_until(lambda: time.monotonic() >= until and all(self._rows[slot][_BEGAN] for slot in victims))

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached()`; meanwhile, replace processes that hang."""
        while not reached():
            now = time.monotonic()
            for slot, row in enumerate(self._rows):
                if 0.0 < row[_BEGAN] < now - _STUCK_SECONDS:
                    self.stuck += 1
                    self._kill([slot])
                    self._start(slot)
            time.sleep(0.002)

    def sum(self, column: int) -> int:
        return int(sum(row[column] for row in self._rows))

    def traces(self) -> list[str]:
        text = os.pread(self._log, 200_000, 0).decode(errors="replace")
        return [trace for trace in text.split("\0") if trace]


def storm(
    directory: Path,
    *,
    kills: int = 200,
    processes: int = 4,
    limit: int = 2_000_000,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Run a storm in `directory` and look at what it left."""
    directory.mkdir(parents=True, exist_ok=True)
    with LocalStore(directory, max_size=limit) as store:
        # A store that was made under a larger limit comes within this one at its first write; until then, a look at
        # its size finds more.
        key = "before-the-storm"
        store.replace(key, _value(key, random.Random(seed)))
        before = store.counters()
        orders = sorted(directory.glob("v1/local/order-*"))
    started = time.monotonic()
    weather = _Storm(directory, processes=processes, limit=limit, seed=seed)
    weather.run(kills, progress)
    outcome = Outcome(
        kills=weather.kills,
        processes=processes,
        limit=limit,
        seconds=round(time.monotonic() - started, 3),
        operations=weather.sum(_OPERATIONS),
        reads=weather.sum(_READS),
        hits=weather.sum(_HITS),
        stores=weather.sum(_STORES),
        bad_reads=weather.sum(_BAD),
        over_limit=weather.sum(_OVER),
        exceptions=weather.sum(_ERRORS),
        stuck=weather.stuck,
        deaths=weather.deaths,
        counted=weather.sum(_COUNTED),
        traces=weather.traces(),
    )
    if sorted(directory.glob("v1/local/order-*")) != orders:
        outcome.objections.append("an order was made anew that nobody had damaged")
    _look_at_what_is_left(directory, before, outcome)
    return outcome


def _look_at_what_is_left(directory: Path, before: dict[str, float], outcome: Outcome) -> None:
    started = time.monotonic()
    with LocalStore(directory, max_size=outcome.limit) as store:
        infos = list(store.entries())
        outcome.open_seconds = round(time.monotonic() - started, 3)
        outcome.entries = len(infos)
        outcome.size = store.size()
        outcome.disk_usage = disk_usage(directory)
        outcome.allowed = outcome.limit + _overhead(len(infos), outcome.limit)
        counters = {name: int(amount - before.get(name, 0)) for name, amount in store.counters().items()}
        outcome.counters_say = counters.get(_COUNTER, 0)
        outcome.objections = [str(objection) for objection in store.check()]
        for info in infos:
            data = store.peek(info.key)
            if data is None or len(data) != info.size or not _right(info.key, data):
                outcome.objections.append(f"{info} cannot be read back")
        if sum(info.size for info in infos) != outcome.size:
            outcome.objections.append("the listed sizes do not add up to size()")
        if not (store.put(_AFTER, b"fine") and store.delete(_AFTER)):
            outcome.objections.append("a new entry could not be put and deleted")
    outcome.disk_usage_closed = disk_usage(directory)


def _print(outcome: Outcome) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{outcome.kills} kills of {outcome.processes} processes in {outcome.seconds:.1f} s")
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("bar")
    for name, count, bar in (
        ("operations", outcome.operations, ""),
        ("reads, hits, stores", f"{outcome.reads}, {outcome.hits}, {outcome.stores}", ""),
        ("bad reads", outcome.bad_reads, "0"),
        (f"operations over {_STUCK_SECONDS:.0f} s", outcome.stuck, "0"),
        ("exceptions", outcome.exceptions, "0"),
        ("sizes seen over the limit", outcome.over_limit, "0"),
        ("bytes of entries", format_size(outcome.size), f"≤ {format_size(outcome.limit)}"),
        ("bytes on disk, open", format_size(outcome.disk_usage), f"≤ {format_size(outcome.allowed)}"),
        ("bytes on disk, closed", format_size(outcome.disk_usage_closed), f"≤ {format_size(outcome.allowed)}"),
        ("counter", outcome.counters_say, f"≥ {outcome.counted}"),
        ("objections of check", len(outcome.objections), "0"),
        ("seconds to open", f"{outcome.open_seconds:.3f}", ""),
    ):
        table.add_row(name, str(count), bar)
    Console().print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="how often a process is killed")
    parser.add_argument("--processes", type=int, default=4, help="how many work at once")
    parser.add_argument("--dir", type=Path, help="where the store is; a temporary directory unless given")
    parser.add_argument("--limit", default="2MB", help="the store's max_size, at least 1MB")
    parser.add_argument("--seed", type=int, default=0, help="of the order of events, as far as it can be had")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    options = parser.parse_args(arguments)
    try:
        limit = parse_size(options.limit, setting="--limit")
    except SettingError as exc:
        parser.error(str(exc))
    if options.kills < 0 or options.processes < 1 or limit < 1_000_000:
        parser.error("--kills is 0 or more, --processes 1 or more, --limit 1MB or more")
    place: AbstractContextManager[str | Path] = (
        tempfile.TemporaryDirectory(prefix="kill-storm-") if options.dir is None else nullcontext(options.dir)
    )
    with place as directory:
        outcome = _with_bar(Path(directory), limit, options)
    problems = outcome.problems()
    if options.json:
        print(json.dumps({**asdict(outcome), "problems": problems}, indent=1))
    else:
        _print(outcome)
    for text in (*outcome.traces[:5], *problems):
        print(text, file=sys.stderr)
    return 1 if problems else 0


def _with_bar(directory: Path, limit: int, options: argparse.Namespace) -> Outcome:
    def run(progress: Callable[[int], None] = lambda _: None) -> Outcome:
        return storm(
            directory,
            kills=options.kills,
            processes=options.processes,
            limit=limit,
            seed=options.seed,
            progress=progress,
        )

    if not sys.stderr.isatty():
        return run()
    from rich.console import Console
    from rich.progress import Progress

    # No refreshing thread: this process forks, and a child must not inherit what such a thread holds.
    with Progress(console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("killing", total=options.kills)

        def advance(done: int) -> None:
            bar.update(task, completed=done, refresh=True)

        return run(advance)


if __name__ == "__main__":
    raise SystemExit(main())

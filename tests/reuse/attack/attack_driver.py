"""Start whole programs that reuse their lowering, change one thing, and start them again.

A program is a function that writes a project into a `Place` and names changes of it. It is started three times
unchanged: the first start records, the second proves, the third must trace nothing. Then each change is made on a fresh
copy of all that lay there after the third start, the store too, and the program is started once more. What that start
must do was written from `docs/reuse.md`, before anybody looked:

`must`     the change matters and is not on the page's closed list: the start computes what plain tracing computes
`twin`     the change must not matter: the start still traces nothing
`listed`   the change is on the list, under that number: it may be stale

A start that traced what the change concerns is right by itself. Of one that did not, a start with plain tracing is the
judge, so that no program has to say what it computes.

    python tests/reuse/attack/attack_driver.py [PROGRAM…]      runs them and prints a line for each change
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

PRELUDE = '''\
import os, re, sys, json
from pathlib import Path
import numpy as np
import jax, jax.numpy as jnp
import ejcache

def traced(name):
    print("TRACED", name, file=sys.stderr, flush=True)

def num(path):
    """The first number in a file, -1 if there is none."""
    try:
        with open(path, "rb") as file:
            return int((re.findall(rb"[0-9]+", file.read()) or [b"-1"])[0])
    except OSError:
        return -1

def show(*results):
    leaves, tree = jax.tree.flatten(results)
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            raw = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            where = sorted(d.id for d in leaf.sharding.device_set)
            kind = leaf.dtype, getattr(leaf, "weak_type", None), leaf.shape
            print("RESULT", *kind, np.asarray(raw).tolist(), where, leaf.committed)
        else:
            print("RESULT", repr(leaf))
    print("RESULT", tree)
'''
"""What every program begins with: a note of each trace on standard error, and results with their types."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One change of a program, and what the page says of it."""

    verdict: str
    name: str
    make: Callable[[Place], Any]
    traced: str = ""
    """The function that has to be traced anew; empty for all of them."""
    several: bool = False
    """Whether it can be made together with others: of a twin all, and of calls every second one, so that the functions
    between show that they are still reused."""
    warm: bool = False
    """Start the program once more, unchanged, where the change is made: digests of its files are remembered then."""


@dataclasses.dataclass
class Place:
    """Where a program lies and how it is started. Paths are relative to `root`."""

    root: Path
    python: str = sys.executable
    switches: list[str] = dataclasses.field(default_factory=list)
    main: list[str] = dataclasses.field(default_factory=lambda: ["main.py"])
    argv: list[str | bytes] = dataclasses.field(default_factory=list)
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    cwd: str = "proj"
    stdin: str | None = None
    changes: list[Change] = dataclasses.field(default_factory=list)
    reuses: bool = True
    """Whether the third start has to reuse: some programs are of a kind that is traced as usual."""

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, content: str | bytes = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def program(self, text: str, name: str = "proj/main.py") -> Path:
        return self.write(name, PRELUDE + text)

    def replace(self, name: str, old: str, new: str) -> None:
        text = self.path(name).read_text()
        assert old in text, f"{old!r} is not in {name}"
        self.path(name).write_text(text.replace(old, new))

    def link(self, name: str, target: str | Path) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def must(
        self, name: str, make: Callable[[Place], Any], *, traced: str = "", warm: bool = False, several: bool = False
    ) -> None:
        self.changes.append(Change("must", name, make, traced, several, warm))

    def twin(self, name: str, make: Callable[[Place], Any], *, several: bool = True) -> None:
        self.changes.append(Change("twin", name, make, "", several))

    def listed(self, number: int, name: str, make: Callable[[Place], Any]) -> None:
        self.changes.append(Change(f"listed {number}", name, make))


@dataclasses.dataclass(frozen=True)
class Start:
    """What one start printed, and which functions it traced."""

    results: tuple[str, ...]
    traced: tuple[str, ...]
    status: int
    said: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the start after a change ended."""

    program: str
    change: str
    verdict: str
    what: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what:22} {self.verdict:10} {self.program}: {self.change}  | {self.detail}"


BAD = frozenset({"STALE", "lost", "no difference", "never reuses", "broken"})
"""Outcomes that fail a test: a stale program, a twin that traced, and a program that shows nothing."""


def start(place: Place, *, plain: bool = False) -> Start:
    """Start the program once."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place.root / "home"),
        "JAX_PLATFORMS": "cpu",
        "EJCACHE_REUSE_FLOOR": "0",
        "EJCACHE_REUSE_CHECK_ONE_IN": "1" if plain else "0",
        "JAX_COMPILATION_CACHE_DIR": str(place.root / ("plain" if plain else "store")),
        **place.env,
    }
    done = subprocess.run(
        [place.python, *place.switches, *place.main, *place.argv],
        env={k: v for k, v in environment.items() if v is not None},
        cwd=place.root / place.cwd,
        input=place.stdin,
        stdin=subprocess.DEVNULL if place.stdin is None else None,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=300,
        check=False,
    )
    results = tuple(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    traced = tuple(re.findall(r"^TRACED (\S+)", done.stderr, re.MULTILINE))
    return Start(results, traced, done.returncode, done.stdout[-1500:] + done.stderr[-3000:])


def fresh(path: Path) -> Path:
    """An empty directory there."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


def restored(saved: Path, root: Path) -> None:
    if root.exists():
        shutil.rmtree(root)
    shutil.copytree(saved, root, symlinks=True)


def settle() -> None:
    """Let a change be older than the process that comes next by more than the page's ten milliseconds."""
    time.sleep(0.03)


def attack(build: Callable[[Place], None], directory: Path, only: str = "") -> Iterator[Outcome]:
    """Run one program and all of its changes."""
    program = build.__name__
    place = Place(fresh(directory / program))
    build(place)
    settle()
    starts = [start(place) for _ in range(3)]
    if any(each.status or not each.results for each in starts):
        bad = next(each for each in starts if each.status or not each.results)
        yield Outcome(program, "-", "base", "broken", bad.said)
        return
    if any(each.results != starts[0].results for each in starts):
        yield Outcome(program, "unchanged", "must", "STALE", differing(starts[2], starts[0]))
        return
    if place.reuses and starts[2].traced:
        yield Outcome(program, "-", "base", "never reuses", starts[2].said)
        return
    saved = directory / f"{program}.saved"
    if place.changes:
        if saved.exists():
            shutil.rmtree(saved)
        shutil.copytree(place.root, saved, symlinks=True)
    else:
        yield Outcome(
            program, "unchanged", "must", "right", f"{len(starts[2].traced)} of {len(starts[0].traced)} traced"
        )
    done = yield from several_at_once(program, place, saved, starts[0], starts[2])
    for change in place.changes:
        if change in done or (only and only not in change.name):
            continue
        restored(saved, place.root)
        now = copied(place)
        if change.warm:
            settle()
            time.sleep(2.2)
            before = start(now)
            if before.traced and place.reuses:
                yield Outcome(program, change.name, change.verdict, "broken", "the copy traced: " + before.said)
                continue
        change.make(now)
        settle()
        yield judged(program, change, now, starts[0], start(now))
    for left in (place.root, saved):
        shutil.rmtree(left, ignore_errors=True)


def differing(one: Start, other: Start) -> str:
    """Show the results of `one` that `other` does not have."""
    pairs = [f"{a} for {b}" for a, b in itertools.zip_longest(one.results, other.results) if a != b]
    return "; ".join(pairs)[:400]


def copied(place: Place) -> Place:
    return dataclasses.replace(
        place, argv=list(place.argv), env=dict(place.env), main=list(place.main), switches=list(place.switches)
    )


def several_at_once(
    program: str, place: Place, saved: Path, first: Start, third: Start
) -> Generator[Outcome, None, list[Change]]:
    """Make changes together that can be told apart. Return those of which no other start is needed."""
    done: list[Change] = []
    twins = [c for c in place.changes if c.several and c.verdict == "twin"]
    calls = [c for c in place.changes if c.several and c.verdict == "must"]
    for changes in (twins, calls[::2], calls[1::2]):
        if len(changes) < 2:
            continue
        restored(saved, place.root)
        now = copied(place)
        for change in changes:
            change.make(now)
        settle()
        after = start(now)
        if changes is twins:
            if not after.traced and after.results == first.results:
                done += twins
                yield from (Outcome(program, c.name, c.verdict, "reused") for c in twins)
            continue
        for change in changes:
            if change.traced in after.traced and not after.status:
                done.append(change)
                yield Outcome(program, change.name, change.verdict, "missed rightly")
        for name in sorted(set(after.traced) - set(third.traced) - {c.traced for c in changes}):
            yield Outcome(program, name, "twin", "lost", "a function was traced beside those whose calls changed")
        if after.status:
            yield Outcome(program, "-", "base", "broken", after.said)
    return done


def judged(program: str, change: Change, place: Place, first: Start, after: Start) -> Outcome:
    """Say what the start after a change means."""

    def outcome(what: str, detail: str = "") -> Outcome:
        return Outcome(program, change.name, change.verdict, what, detail)

    whole = set(after.traced) >= set(first.traced) or (change.traced and change.traced in after.traced)
    if change.verdict == "twin":
        if after.status or after.results != first.results:
            return outcome("broken", after.said)
        return outcome("lost", after.said[-1200:]) if after.traced else outcome("reused")
    if whole or after.status:
        if change.verdict == "must" and after.results == first.results and not after.status:
            return outcome("no difference", "traced, and the result is the same")
        return outcome("missed rightly", "" if not after.status else after.said.strip()[-150:])
    plain = start(place, plain=True)
    if (plain.results, plain.status) == (after.results, after.status):
        is_same = plain.results == first.results and change.verdict == "must"
        return outcome("no difference" if is_same else "right", f"traced {after.traced}")
    return outcome("STALE" if change.verdict == "must" else "stale as listed", differing(after, plain))


def programs() -> dict[str, Callable[[Place], None]]:
    """Every program, by name."""
    import attack_asked_twice
    import attack_calls
    import attack_files
    import attack_found
    import attack_inputs
    import attack_layouts
    import attack_packages
    import attack_scripts
    import attack_twins
    import attack_unplanned

    found = {}
    for module in (
        *(attack_inputs, attack_files, attack_calls, attack_packages, attack_scripts),
        *(attack_asked_twice, attack_twins, attack_found, attack_unplanned, attack_layouts),
    ):
        for name, each in vars(module).items():
            if callable(each) and getattr(each, "__module__", "") == module.__name__ and not name.startswith("_"):
                assert name not in found, name
                found[name] = each
    return found


def main(names: list[str]) -> None:
    found = programs()
    names, only = [n for n in names if not n.startswith("+")], "".join(n[1:] for n in names if n.startswith("+"))
    directory = Path(os.environ.get("ATTACK_DIR", "/dev/shm/ej-attack"))
    counts: Counter[tuple[str, str]] = Counter()
    for name in names or found:
        for outcome in attack(found[name], directory, only):
            counts[outcome.verdict.split()[0], outcome.what] += 1
            print(outcome, flush=True)
    for (verdict, what), count in sorted(counts.items()):
        print(f"{count:5} {verdict}: {what}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

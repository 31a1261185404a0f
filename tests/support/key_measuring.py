"""Pairs of compilations, and the keys that ejcache and JAX give them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
from forking import Forked
from helpers import ROOT, run_program, variables_to_clear

sys.path.insert(0, str(ROOT / "tools"))
from pod import run_pod

if TYPE_CHECKING:
    from collections.abc import Iterable

PROBE = Path(__file__).resolve().parent / "key_probe.py"
DEVICES = "--xla_force_host_platform_device_count=8"


@dataclass(frozen=True)
class Case:
    """A program, and how JAX is asked to compile it. `{tmp}` in a text is the scratch directory of the measurement."""

    program: str = "step"
    arguments: tuple[tuple[str, Any], ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    place: str = "{tmp}/checkout"
    changes: tuple[str, ...] = ()
    compiler_options: tuple[tuple[str, Any], ...] = ()
    how: Literal["lower", "call", "ejit"] = "lower"


@dataclass(frozen=True)
class Process:
    """The process that it happens in.

    Attributes:
        env: variables; None removes one.
        flags: `XLA_FLAGS`, behind the eight devices that every process has.
        argv, cwd, python: of the process; one with a `python` of its own is started anew, all others are forks of one
            that has imported JAX.
        config: flags of JAX's, set by a call.
        settings, url: of `ejcache.enable`.
        history: what was lowered before.
        assigned: module, name, and what it becomes: None, or a function that gives a text.
        files, path: files that lie there with that content; directories in front of `sys.path`.
        jaxlib: a directory with a copy of jaxlib; with one library changed if it is called `patched`.
        platform: what the back end calls itself.
        rank: the place in a pod of two processes with two devices each; None for no pod.
    """

    env: tuple[tuple[str, str | None], ...] = ()
    flags: str = ""
    argv: tuple[str, ...] = ("train.py",)
    cwd: str = ""
    python: tuple[str, ...] = ()
    config: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    url: str = "{tmp}/cache"
    history: tuple[Case, ...] = ()
    assigned: tuple[tuple[str, str, str | None], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    jaxlib: str = ""
    platform: str = ""
    rank: int | None = None


@dataclass(frozen=True)
class Side:
    case: Case = Case()
    process: Process = Process()


@dataclass(frozen=True)
class Pair:
    """Two compilations that are the same or are not.

    Attributes:
        known: why two compilations of one program have two keys all the same: nobody has shown that they may share.
        since: the first minor version of JAX that can be asked for both; empty if each can.
        because: why no older one can.
    """

    title: str
    same: bool
    one: Side
    other: Side
    known: str = ""
    since: str = ""
    because: str = ""


@dataclass(frozen=True)
class Measured:
    """What became of a pair."""

    pair: Pair
    ours: bool
    theirs: bool
    apart: tuple[str, ...] = field(default=())
    """The components that differ."""
    untouched: bool = True


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return None if value == "(none)" else value


def _sorted(table: Any) -> Any:
    return tuple(sorted((name, _frozen(value)) for name, value in table.items()))


def _read_case(table: dict[str, Any]) -> Case:
    fields = {name: _frozen(value) for name, value in table.items() if name in Case.__dataclass_fields__}
    if "compiler_options" in table:
        fields["compiler_options"] = tuple(
            table["compiler_options"].items()
        )  # their order is what some pairs are about
    return Case(arguments=_sorted({name: value for name, value in table.items() if name not in fields}), **fields)


def _process(table: dict[str, Any]) -> Process:
    fields = {name: _frozen(value) for name, value in table.items() if not isinstance(value, dict)}
    fields |= {name: _sorted(value) for name, value in table.items() if name in ("env", "config", "settings")}
    if "files" in table:
        fields["files"] = tuple(table["files"].items())
    if "history" in table:
        fields["history"] = tuple(map(_read_case, table["history"]))
    if "assigned" in table:
        named = [(*name.rpartition(".")[::2], value) for name, value in table["assigned"].items()]
        fields["assigned"] = _frozen([list(each) for each in named])
    return Process(**fields)


def side(program: str = "step", /, *, process: dict[str, Any] | None = None, **case: Any) -> Side:
    """Make a side: keywords that are no fields of a case are arguments of the program's maker."""
    return Side(_read_case({"program": program, **case}), _process(process or {}))


def _side(table: dict[str, Any]) -> Side:
    return side(table.get("program", "step"), **{name: value for name, value in table.items() if name != "program"})


def read_pairs() -> list[Pair]:
    """Read the pairs of tests/keys/key_pairs.toml."""
    tables = tomllib.loads((ROOT / "tests" / "keys" / "key_pairs.toml").read_text())
    return [
        Pair(
            row["title"],
            same=kind == "same",
            one=_side(row["one"]),
            other=_side(row["other"]),
            **{name: row[name] for name in ("known", "since", "because") if name in row},
        )
        for kind in ("same", "different")
        for row in tables[kind]
    ]


def make_keys(sides: Iterable[Side]) -> dict[tuple[Process, Case], dict[str, Any]]:
    """Make the keys of all sides, each process once."""
    groups: dict[Process, list[Case]] = {}
    for one in sides:
        cases = groups.setdefault(one.process, [])
        if one.case not in cases:
            cases.append(one.case)
    with tempfile.TemporaryDirectory(prefix="keys-") as scratch:
        return _run(groups, Path(scratch))


def can_be_asked(pair: Pair) -> bool:
    """True if the installed JAX can be asked for both sides of a pair."""
    return jax.__version_info__ >= tuple(int(part) for part in pair.since.split(".") if part)


def sides(pairs: Iterable[Pair]) -> list[Side]:
    """List the sides of pairs; those that this JAX cannot be asked for are left out."""
    return [one for pair in filter(can_be_asked, pairs) for one in (pair.one, pair.other)]


def measure(pairs: list[Pair]) -> list[Measured]:
    """Make the keys of all sides, and compare them."""
    return compare(pairs, make_keys(sides(pairs)))


def compare(pairs: list[Pair], found: dict[tuple[Process, Case], dict[str, Any]]) -> list[Measured]:
    """Compare the keys of the sides of pairs."""
    pairs = list(filter(can_be_asked, pairs))
    measured = []
    for pair in pairs:
        one, other = (found[one.process, one.case] for one in (pair.one, pair.other))
        apart = sorted(
            name
            for name in {*one["components"], *other["components"]}
            if one["components"].get(name) != other["components"].get(name)
        )
        # What a key's text says besides its components.
        texts = [keys["ours"].split("-")[:3] for keys in (one, other)]
        apart += [
            name for name, *values in zip(("name", "platform", "variant"), *texts, strict=True) if len({*values}) > 1
        ]
        measured.append(
            Measured(
                pair,
                ours=one["ours"] == other["ours"],
                theirs=one["theirs"] == other["theirs"],
                apart=tuple(apart),
                untouched=one["untouched"] and other["untouched"],
            )
        )
    return measured


def _run(groups: dict[Process, list[Case]], scratch: Path) -> dict[tuple[Process, Case], dict[str, Any]]:
    found = _Found()
    # A process that starts anew, and a pod, wait for much that takes no processor.
    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(_run_forked, groups, scratch, found),
            pool.submit(_run_pods, groups, scratch, found),
            *(pool.submit(_run_alone, process, groups, scratch, found) for process in groups if process.python),
        ]
    for job in jobs:
        job.result()
    assert not found.failures, "\n\n".join(found.failures)
    return found.keys


def _run_forked(groups: dict[Process, list[Case]], scratch: Path, found: _Found) -> None:
    forked = {process: cases for process, cases in groups.items() if not process.python and process.rank is None}
    lines = [json.dumps(_order(process, cases, scratch)) for process, cases in forked.items()]
    answers = _communicate([], "SERVER", "\n".join([*lines, ""]), scratch)
    for (process, cases), answer in zip(forked.items(), answers, strict=True):
        found.add(process, cases, answer)


def _run_alone(process: Process, groups: dict[Process, list[Case]], scratch: Path, found: _Found) -> None:
    order = _order(process, groups[process], scratch)
    [answer] = _communicate(list(process.python), "ALONE", json.dumps(order), scratch, env=order["process"]["env"])
    found.add(process, groups[process], answer)


def _run_pods(groups: dict[Process, list[Case]], scratch: Path, found: _Found) -> None:
    ranks = {process: cases for process, cases in groups.items() if process.rank is not None}
    for bare in {replace(process, rank=0) for process in ranks}:
        pod = [replace(bare, rank=rank) for rank in (0, 1)]
        # Both have to take part in whatever one does.
        cases = list(dict.fromkeys(case for process in pod for case in ranks.get(process, ())))
        orders = json.dumps([_order(process, cases, scratch) for process in pod])
        ended = run_pod(PROBE, processes=2, devices=2, env=lambda rank, orders=orders: {"KEY_ORDERS": orders})
        for process, rank in zip(pod, ended, strict=True):
            assert rank.returncode == 0, rank.stderr
            [line] = [line for line in rank.stdout.splitlines() if line.startswith("KEYS ")]
            found.add(process, cases, json.loads(line.removeprefix("KEYS ")))


class _Found:
    """What the processes answered."""

    def __init__(self) -> None:
        self.keys: dict[tuple[Process, Case], dict[str, Any]] = {}
        self.failures: list[str] = []

    def add(self, process: Process, cases: list[Case], answer: list[dict[str, Any]] | str) -> None:
        if isinstance(answer, str):
            self.failures.append(f"{process}\n{answer}")
        else:
            self.keys.update({(process, case): keys for case, keys in zip(cases, answer, strict=True)})


def _order(process: Process, cases: list[Case], scratch: Path) -> dict[str, Any]:
    described = asdict(process)
    for name in ("config", "settings"):
        described[name] = dict(described[name])
    described["history"] = [_case(case) for case in process.history]
    described["env"] = dict(described["env"])
    if process.rank is None:
        described["env"].setdefault("XLA_FLAGS", f"{DEVICES} {process.flags}".strip())
    text = json.dumps({"process": described, "cases": [_case(case) for case in cases]})
    order: dict[str, Any] = json.loads(text.replace("{tmp}", str(scratch)))
    if process.cwd:
        Path(order["process"]["cwd"]).mkdir(parents=True, exist_ok=True)
    return order


def _case(case: Case) -> dict[str, Any]:
    described = asdict(case)
    for name in ("arguments", "compiler_options"):
        described[name] = dict(described[name])
    return described


def _communicate(
    python: list[str], mode: str, orders: str, scratch: Path, env: dict[str, str | None] | None = None
) -> list[Any]:
    environment: dict[str, str | None] = dict.fromkeys(variables_to_clear(os.environ))
    environment |= {"JAX_PLATFORMS": "cpu", "HOME": str(scratch / "home")}
    environment |= {name: value for name, value in (env or {}).items() if value is not None}
    command = [sys.executable, *python, PROBE, mode]
    start = Forked if mode == "SERVER" else subprocess.Popen
    done = run_program(command, env=environment, input=orders, timeout=280, start=start)
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]

"""Soak of direct mode: what it would have done with other projects' programs and test suites, and whether rightly.

    python tools/direct_soak.py --corpus DIRECTORY [--fetch] [--suite NAME …]
    python tools/direct_soak.py --pytest "tests -k conv"     (in the current directory)
    python tools/direct_soak.py --program "train.py --epochs 1"

Each suite is started several times, in processes with hash seeds of their own, on one cache. Every `jax.jit` of the
suite and of the libraries that it uses is `@ejit` under `EJCACHE_DIRECT=explain`: direct mode says what it would have
done, everything is traced, and the key of what was traced is compared with that of the record. At the last start of
unchanged code

* *checked* is what would have been a hit, and would have been right,
* *wrong* would have been another program: an error of direct mode; exit status 1,
* *missed* and *unproven* is what unchanged code lost,
* *refused* is what direct mode says it cannot describe, and *plain* what it leaves to `jax.jit` on purpose.

The suites are in `direct_soak.toml`. Their projects are cloned into DIRECTORY by `--fetch`, or put there by other
means; nothing of them is kept here. The first start of a suite ends after `--seconds`; later starts run the same tests.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SUITES = HERE / "direct_soak.toml"
CLEARED = ("EJCACHE", "EASYDEL_", "EJKERNEL_", "JAX_", "XLA_", "PYTHONHASHSEED", "XDG_")
SETTINGS = {
    "EJCACHE_DIRECT": "explain",
    "EJCACHE_DIRECT_CHECK_ONE_IN": "0",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "jax",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
VERDICTS = ("checked", "wrong", "unproven", "missed", "refused", "plain")
MARGIN = 3.0
"""A later start may take so many times the seconds of the first one, which compiles; then it is killed."""

Said = tuple[str, str, str, str]
"""Test, function, verdict, sentence."""


@dataclass(frozen=True)
class Suite:
    """What is started: `pytest` or `program` with arguments, in a directory."""

    name: str
    directory: Path
    pytest: list[str] = field(default_factory=list)
    program: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What direct mode said of a suite.

    Attributes:
        tests: how many the last start ran.
        starts: the verdicts of each start, counted.
        functions: the functions of the last start by the worst verdict that one of their calls got.
        reasons: of the last start, by verdict: the kinds of sentences, and how often.
        examples: one sentence of each kind, with its function and test.
        wrong: the sentences of all starts that found an error of direct mode.
        problem: how a start failed; empty if none did.
    """

    suite: str
    tests: int = 0
    starts: list[dict[str, int]] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def last(self) -> dict[str, int]:
        """The verdicts of the last start."""
        return self.starts[-1] if self.starts else {}

    @property
    def hits(self) -> float:
        """The share of the last start's calls that would have hit, of those that are not plain; in percent."""
        asked = sum(self.last.values()) - self.last.get("plain", 0)
        return 100 * self.last.get("checked", 0) / asked if asked else float("nan")


def main() -> int:
    options = _options()
    suites = _suites(options)
    if options.list:
        print("\n".join(suite.name for suite in suites))
        return 0
    reports = []
    for suite in suites:
        print(f"{suite.name} …", file=sys.stderr, flush=True)
        report = soak(suite, starts=options.starts, seconds=options.seconds)
        reports.append(report)
        if not options.json:
            print(as_text(report, top=options.top), flush=True)
    if options.json:
        print(json.dumps([asdict(report) | {"hits": report.hits} for report in reports], indent=1))
    elif len(reports) > 1:
        print(as_table(reports))
    return int(any(report.wrong for report in reports))


def soak(suite: Suite, *, starts: int, seconds: float) -> Report:
    """Start the suite several times on a new cache, and report what direct mode said."""
    report = Report(suite.name)
    with tempfile.TemporaryDirectory(prefix="ejcache-soak-") as home:
        tests: list[str] | None = None
        said: list[Said] = []
        for number in range(starts):
            said, ran, problem = _start(suite, Path(home), number, seconds=seconds, tests=tests)
            report.problem = report.problem or problem
            counted = collections.Counter(verdict for _, _, verdict, _ in said)
            report.starts.append({verdict: counted[verdict] for verdict in VERDICTS if counted[verdict]})
            report.wrong += [
                f"start {number + 1}, {test}: {function}: {sentence}"
                for test, function, verdict, sentence in said
                if verdict == "wrong"
            ]
            tests = ran if suite.pytest and tests is None else tests
            report.tests = len(ran)
    _tell_last(report, said)
    return report


def _start(
    suite: Suite, home: Path, number: int, *, seconds: float, tests: list[str] | None
) -> tuple[list[Said], list[str], str]:
    """One process: what direct mode said in it, the tests that it ran, and how it failed."""
    results, plan = home / f"results-{number}.jsonl", home / f"plan-{number}.json"
    plan.write_text(
        json.dumps(
            {
                "cache": str(home / "cache"),
                "results": str(results),
                "pytest": suite.pytest,
                "program": suite.program,
                "seconds": seconds,
                "tests": tests,
            }
        ),
        encoding="utf-8",
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(CLEARED)}
    environment |= SETTINGS | {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    problem = ""
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "direct_soak_child.py"), str(plan)],
            cwd=suite.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60 + MARGIN * seconds,
            check=False,
        )
        # pytest ends with 1 if tests fail, and with 2 if it is stopped; what matters here is what direct mode said.
        if done.returncode not in {0, 1, 2}:
            problem = f"start {number + 1} ended with {done.returncode}: {(done.stdout + done.stderr)[-600:].strip()}"
        elif number == 0 or done.returncode:
            told = [
                line for line in done.stdout.splitlines() if " in " in line and ("passed" in line or "failed" in line)
            ]
            print(f"  start {number + 1}: {told[-1].strip('= ') if told else done.stderr[-300:]}", file=sys.stderr)
    except subprocess.TimeoutExpired:
        problem = f"start {number + 1} was ended after {60 + MARGIN * seconds:.0f} s"
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    read = [json.loads(line) for line in lines]
    said = [(line["test"], *each) for line in read for each in line["said"]]
    return said, [line["test"] for line in read], problem


def _tell_last(report: Report, said: list[Said]) -> None:
    worst: dict[str, str] = {}
    order = ("plain", "checked", "refused", "unproven", "missed", "wrong")
    reasons: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for test, function, verdict, sentence in said:
        if order.index(verdict) >= order.index(worst.get(function, "plain")):
            worst[function] = verdict
        kind = kind_of(sentence)
        reasons[verdict][kind] += 1
        report.examples.setdefault(f"{verdict}: {kind}", f"{function}: {sentence} [{test}]")
    report.functions = dict(collections.Counter(worst.values()))
    report.reasons = {verdict: dict(counted.most_common()) for verdict, counted in reasons.items()}


_KINDS = (
    # A path is "f → g → cfg.log is a …": what is at its end is the kind.
    (re.compile(r"^.* (is an? .*)$", re.DOTALL), r"\1"),
    (re.compile(r"^.*?((?:ran while tracing|ran, and nothing that was read leads to it).*)$", re.DOTALL), r"\1"),
    (re.compile(r"^.*?((?:calls|uses|opens|writes|reads) .*)$", re.DOTALL), r"\1"),
    (re.compile(r"^(tracing changed what it reads): .*$", re.DOTALL), r"\1"),
    (re.compile(r"^.* (is not what it was).*$", re.DOTALL), r"a name that a library reads \1"),
    (re.compile(r"^.* (changed)$", re.DOTALL), r"something \1"),
)


def kind_of(sentence: str) -> str:
    """A sentence without the names and paths of one function."""
    for pattern, kept in _KINDS:
        if pattern.match(sentence):
            sentence = pattern.sub(kept, sentence)
            break
    return re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{12,}\b|\d+", "N", sentence)[:160]


def as_text(report: Report, *, top: int) -> str:
    """The report of one suite for a terminal."""
    lines = [f"\n{report.suite}: {report.tests} tests, {sum(report.functions.values())} functions"]
    lines += [f"  start {number + 1}: {_counted(counts)}" for number, counts in enumerate(report.starts)]
    lines.append(f"  would have hit at the last start: {report.hits:.0f} % of the calls that are not plain")
    lines.append(f"  functions by their worst call: {_counted(report.functions)}")
    for verdict in ("missed", "unproven", "refused", "plain"):
        for kind, count in list(report.reasons.get(verdict, {}).items())[:top]:
            lines.append(f"  {count:5} {verdict}: {kind}")
            lines.append(f"        such as {report.examples[f'{verdict}: {kind}'][:600]}")
    lines += [f"  WRONG: {text}" for text in report.wrong]
    if report.problem:
        lines.append(f"  {report.problem}")
    return "\n".join(lines)


def as_table(reports: list[Report]) -> str:
    """All suites side by side, as Markdown: the calls of the last start."""
    rows = ["| suite | tests | functions | " + " | ".join(VERDICTS) + " | hit, % | wrong, all starts |"]
    rows.append("|---" * (len(VERDICTS) + 5) + "|")
    for report in reports:
        counts = " | ".join(str(report.last.get(verdict, 0)) for verdict in VERDICTS)
        functions = sum(report.functions.values())
        rows.append(
            f"| {report.suite} | {report.tests} | {functions} | {counts} | {report.hits:.0f} | {len(report.wrong)} |"
        )
    return "\n".join(rows)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts.get(verdict)) or "nothing said"


def _suites(options: argparse.Namespace) -> list[Suite]:
    if options.pytest:
        return [Suite("pytest", Path.cwd(), pytest=shlex.split(options.pytest))]
    if options.program:
        return [Suite("program", Path.cwd(), program=shlex.split(options.program))]
    described: dict[str, dict[str, Any]] = tomllib.loads(SUITES.read_text(encoding="utf-8"))
    found = []
    for name, suite in described.items():
        if options.suite and name not in options.suite:
            continue
        directory = options.corpus / suite["checkout"]
        if options.fetch and not directory.exists():
            _fetch(suite, directory)
        if directory.is_dir() or options.list:
            found.append(Suite(name, directory, pytest=suite.get("pytest", []), program=suite.get("program", [])))
        else:
            print(f"{name}: {directory} is not there", file=sys.stderr)
    return found


def _fetch(suite: dict[str, Any], directory: Path) -> None:
    """Clone the project of a suite; without the packages' `__init__`, so that tests import what is installed."""
    clone = ["git", "clone", "-q", "--depth", "1", "--branch", suite["revision"], suite["repository"], str(directory)]
    subprocess.run(clone, check=True)
    for name in suite.get("without", ()):
        for path in directory.glob(name):
            path.unlink()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("corpus"), help="directory of the projects' checkouts")
    parser.add_argument("--fetch", action="store_true", help="clone the projects that are not there")
    parser.add_argument("--suite", action="append", help="this suite alone; may be given again")
    parser.add_argument("--list", action="store_true", help="name the suites")
    parser.add_argument("--pytest", help="arguments of pytest, instead of the suites")
    parser.add_argument("--program", help="a script and its arguments, instead of the suites")
    parser.add_argument("--starts", type=int, default=3, help="processes of each suite")
    parser.add_argument("--seconds", type=float, default=120.0, help="the first start of a suite begins no test later")
    parser.add_argument("--top", type=int, default=8, help="how many reasons of each verdict are shown")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

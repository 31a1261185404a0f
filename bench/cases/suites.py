"""What CI loses around real suites: commands, requests, and what compiles although an earlier run has stored it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.context import ROOT, child_environment
from bench.outcome import at_most
from bench.registry import SkipCase, case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.context import Context
    from bench.outcome import Outcome

_PARTS: Final = (1, 2, 3)
_SHARE: Final = 3
"""One file of so many is run."""
_EQUINOX: Final = "https://github.com/patrick-kidger/equinox"
_TITLE: Final = "three jobs of a matrix run a third of {}'s tests, and keep the cache in one file"
_OPTIONS: Final = "-q --continue-on-collection-errors"


@case("ci-suites-optax", title=_TITLE.format("Optax"), order=95, when_named=True)
def optax(context: Context, outcome: Outcome) -> None:
    """The tests are in the package."""
    found = find_spec("optax")
    if found is None or found.origin is None:
        raise SkipCase("Optax is not installed")
    _run(context, outcome, sorted(Path(found.origin).parent.rglob("*_test.py")), beside=())


@case("ci-suites-equinox", title=_TITLE.format("Equinox"), order=96, when_named=True)
def equinox(context: Context, outcome: Outcome) -> None:
    """The tests are in the repository alone."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        tag = f"v{version('equinox')}"
    except PackageNotFoundError as exc:
        raise SkipCase("Equinox is not installed") from exc
    with context.directory() as place:
        context.say("fetching the tests")
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, _EQUINOX, str(place / "clone")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SkipCase(f"the tests cannot be fetched from {_EQUINOX}")
        tests = place / "clone" / "tests"
        beside = [tests / name for name in ("__init__.py", "conftest.py", "helpers.py")]
        _run(context, outcome, sorted(tests.glob("test_*.py")), beside=beside)


def _run(context: Context, outcome: Outcome, files: Sequence[Path], *, beside: Sequence[Path]) -> None:
    """Run the jobs of a matrix twice, the second time with the file that the first ones have left."""
    import yaml

    sys.path.insert(0, str(ROOT / "tools"))
    from ci_jobs import Job, Service, run_job

    workflow = yaml.safe_load((ROOT / "examples" / "github_tests.yml").read_text())
    chosen = files[::_SHARE][: context.pick(len(files), len(_PARTS))]
    with context.directory() as home:
        service = Service(home)
        variables = child_environment(home) | {"PYTHONPATH": ""}

        def machine(name: str, part: int) -> Path:
            workspace = home / f"{name}{part}"
            place = workspace / "tests" / f"part{part}"
            place.mkdir(parents=True)
            (workspace / "requirements.lock").write_text("jax")
            for file in beside:
                shutil.copy(file, place)
            for file in chosen[part - 1 :: len(_PARTS)]:
                shutil.copy(file, place / (file.name if beside else f"{file.parent.name}{file.name}"))
            return workspace

        def job(name: str, workspace: Path, run: str, part: int | None = None, jobs: Any = workflow) -> Job:
            context.say(f"run {run}: {name} {part or ''}")
            return run_job(
                service,
                jobs,
                name,
                workspace,
                run_id=run,
                part=part,
                options=_OPTIONS,
                env=variables,
                may_fail="pytest",
            )

        cold = [job("tests", machine("cold", part), "1", part) for part in _PARTS]
        job("merge", _empty(home / "merge"), "1")
        merged = len(service.requests["merge"])
        service.end_run()
        places = [machine("warm", part) for part in _PARTS]
        warm = [job("tests", place, "2", part) for part, place in zip(_PARTS, places, strict=True)]
        asked = max(len(service.requests[f"tests{part}"]) for part in _PARTS)
        alone = {"jobs": {"tests": {"steps": [_tests_of(workflow)]}}}
        cached = [job("tests", place, "3", part, alone) for part, place in zip(_PARTS, places, strict=True)]
    whole, suites = _seconds(warm), _seconds(cached)
    in_suites = sum(seconds for each in warm for command, seconds in each.seconds.items() if _is_suite(command))
    outcome.ratio("requests of a job of the second run, at most", asked, at_most(2), unit="")
    outcome.ratio("requests of the job that merges", merged, at_most(len(_PARTS) + 1), unit="")
    outcome.ratio("second run ÷ its suites with all in the cache: CPU", whole / suites, at_most(1.1))
    outcome.ratio("its suites alone ÷ these: CPU", in_suites / suites)
    outcome.ratio("first run ÷ these: CPU", _seconds(cold) / suites)
    missed = ", ".join(str(_misses(each)) for each in warm)
    outcome.note(
        f"{len(chosen)} of {len(files)} files. CPU s: first run {_seconds(cold):.0f}, second {whole:.1f}, of which "
        f"commands {whole - in_suites:.1f}; with all in the cache {suites:.1f}. Misses of the jobs of the second run: "
        f"{missed}. Jobs in which tests fail: {sum(bool(each.failed) for each in cached)}."
    )


def _empty(place: Path) -> Path:
    place.mkdir()
    (place / "requirements.lock").write_text("jax")
    return place


def _tests_of(workflow: Any) -> Any:
    """The step that runs the tests."""
    return next(step for step in workflow["jobs"]["tests"]["steps"] if _is_suite(step.get("run", "")))


def _is_suite(command: str) -> bool:
    return command.startswith("pytest")


def _seconds(jobs: Sequence[Any]) -> float:
    return sum(sum(each.seconds.values()) for each in jobs)


def _misses(job: Any) -> int:
    found = re.search(r"ejcache: saved .*? ([\d,]+) miss", job.printed)
    return int(found[1].replace(",", "")) if found else -1

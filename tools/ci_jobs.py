"""Runs the jobs of workflows here, step by step, against cache services that behave as those of GitHub and others.

A name in GitHub's service is never changed, unless an artifact may be overwritten, the newest one that begins as asked
is found, a minute takes 200 uploads, and 10 GB are kept. Artifacts belong to a run. An action that the service does not
know ends the job.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Job", "Service", "run_buildkite_steps", "run_gitlab_job", "run_job"]

_MOST_BYTES: Final = 10 << 30
_UPLOADS_A_MINUTE: Final = 200
_ARTIFACT: Final = "artifact/"
_WITHOUT: Final = "-p no:cacheprovider -p no:hypothesispytest -p no:jaxtyping"
"""What pytest does without: plug-ins that import libraries which the tests of a job do not use, and a directory."""
_NOTHING_TO_DO: Final = ("actions/checkout", "actions/setup-python")


class Service:
    """Keeps files by name.

    Attributes:
        saved: the files, the newest last.
        requests: what each job has asked for.
    """

    def __init__(self, place: Path) -> None:
        self.saved: dict[str, Path] = {}
        self.requests: dict[str, list[str]] = {}
        self._place = place
        self._count = 0
        self._uploads: list[float] = []

    def do(self, job: str, action: str, inputs: Mapping[str, str], workspace: Path) -> None:
        """Carry out a step of a job that uses an action."""
        if action in _NOTHING_TO_DO:
            return
        asked = self.requests.setdefault(job, [])
        if action == "actions/cache/restore":
            asked.append("restore")
            names = [name for name in self.saved if name.startswith(inputs["restore-keys"])]
            if names:
                shutil.copy(self.saved[names[-1]], workspace / inputs["path"])
        elif action in ("actions/cache/save", "actions/upload-artifact"):
            asked.append("upload")
            name = inputs.get("key") or f"{_ARTIFACT}{inputs['name']}"
            if inputs.get("overwrite", "").lower() == "true":
                self.saved.pop(name, None)
            self._save(name, workspace / inputs["path"])
        elif action == "actions/download-artifact":
            pattern = _ARTIFACT + inputs["pattern"].rstrip("*")
            for name in [name for name in self.saved if name.startswith(pattern)]:
                asked.append("download")
                folder = workspace / inputs["path"] / name.removeprefix(_ARTIFACT)
                folder.mkdir(parents=True)
                shutil.copy(self.saved[name], folder / "cache.tar")
        else:
            raise ValueError(f"the service does not know {action}")

    def _save(self, name: str, file: Path) -> None:
        if name in self.saved:
            raise ValueError(f"{name} is there already, and a name is never changed")
        now = time.monotonic()
        self._uploads = [moment for moment in self._uploads if now - moment < 60]
        if len(self._uploads) >= _UPLOADS_A_MINUTE:
            raise ValueError("more uploads than the service takes in a minute")
        if file.stat().st_size + sum(each.stat().st_size for each in self.saved.values()) > _MOST_BYTES:
            raise ValueError("more than the service keeps")
        self._uploads.append(now)
        self._count += 1
        self.saved[name] = Path(shutil.copy(file, self._place / str(self._count)))

    def end_run(self) -> None:
        """Forget the artifacts, which belong to a run, and what was asked for."""
        self.saved = {name: path for name, path in self.saved.items() if not name.startswith(_ARTIFACT)}
        self.requests.clear()


@dataclass(slots=True)
class Job:
    """What a job has done.

    Attributes:
        printed: by its commands.
        seconds: of processor time, by command.
        failed: commands whose exit status was not 0 although it may be (`may_fail`).
    """

    printed: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def run_job(
    service: Service,
    workflow: Mapping[str, Any],
    job: str,
    workspace: Path,
    *,
    run_id: str,
    attempt: int = 1,
    event: str = "push",
    part: int | None = None,
    needed: Sequence[Job] = (),
    options: str = "",
    env: Mapping[str, str] | None = None,
    may_fail: str = "",
) -> Job:
    """Run the steps of a job on a machine whose checkout is `workspace`, and which has no cache but there.

    Args:
        service: keeps the files.
        workflow: as it was read from YAML.
        job: its name.
        workspace: the checkout.
        run_id: of the run.
        attempt: of the run.
        event: that has started the run.
        part: of the matrix.
        needed: jobs that came before.
        options: of pytest, which runs without workers of its own.
        env: more variables.
        may_fail: a command that begins so may end with 1, as that of tests which fail; the job then goes on with the
            steps that run after a failure.

    Raises:
        RuntimeError: a command failed.
    """
    files = {name: workspace / f".{name.lower()}" for name in ("GITHUB_ENV", "GITHUB_OUTPUT")}
    names = {"github.run_id": run_id, "github.run_attempt": str(attempt), "github.event_name": event}
    names |= {"matrix.part": str(part), "runner.arch": "X64"}
    # In GitHub's own form it is a digest.
    names |= {f"hashFiles('{path.name}')": f"{path.stat().st_size}" for path in workspace.glob("*.lock")}
    variables = _variables(workspace, env) | {name: str(path) for name, path in files.items()}
    done = Job()

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ ([\w.()']+) \}\}", lambda found: names[found[1]], text)

    chosen = workflow["jobs"][job]
    if not _holds(chosen.get("if", ""), names, failed=any(each.failed for each in needed)):
        return done
    for step in chosen["steps"]:
        if not _holds(step.get("if", ""), names, failed=bool(done.failed)):
            continue
        if "uses" in step:
            inputs = {name: filled(str(value)) for name, value in step.get("with", {}).items()}
            service.do(f"{job}{part or ''}", step["uses"].partition("@")[0], inputs, workspace)
        elif not step["run"].startswith("pip "):
            _run(filled(step["run"]), workspace, variables, done, options=options, may_fail=may_fail)
            for name, path in files.items():
                prefix = "env." if name == "GITHUB_ENV" else f"steps.{step.get('id')}.outputs."
                for line in path.read_text().splitlines() if path.exists() else ():
                    key, _, value = line.partition("=")
                    names[prefix + key] = value
                path.unlink(missing_ok=True)
    return done


def _holds(condition: str, names: Mapping[str, str], *, failed: bool) -> bool:
    """True if a step or a job with this condition runs: without a word about failures, only if nothing has failed."""
    parts = re.sub(r"^\$\{\{ (.*) \}\}$", r"\1", condition).split(" && ") if condition else []
    statuses = {"success()": not failed, "failure()": failed, "!cancelled()": True, "always()": True}
    if not statuses.keys() & set(parts):
        parts.append("success()")

    def true(part: str) -> bool:
        if part in statuses:
            return statuses[part]
        found = re.fullmatch(r"([\w.]+)(?: == '(\w+)')?", part)
        if found is None:
            raise ValueError(f"the condition {part} is not understood")
        value = names.get(found[1], "")
        return bool(value) if found[2] is None else value == found[2]

    return all(map(true, parts))


def run_gitlab_job(kept: Path, job: Mapping[str, Any], workspace: Path, *, may_fail: str = "") -> Job:
    """Run a job as GitLab does: its script, what comes after the script in any case, and then its cache is kept.

    Args:
        kept: where the service keeps the files of its cache.
        job: as it was read from YAML.
        workspace: the checkout.
        may_fail: as for `run_job`.

    Raises:
        RuntimeError: a command failed.
    """
    cache, done = job["cache"], Job()
    _copy(kept, workspace, cache["paths"])
    for command in job["script"]:
        if not command.startswith("pip ") and not done.failed:
            _run(command, workspace, _variables(workspace), done, may_fail=may_fail)
    for command in job.get("after_script", ()):
        _run(command, workspace, _variables(workspace), done, may_fail=may_fail)
    if cache.get("when", "on_success") in ("always", "on_failure" if done.failed else "on_success"):
        _copy(workspace, kept, cache["paths"])
    return done


_AGENT: Final = """#!/bin/sh
case "$2" in
upload) cp "$3" "$ARTIFACTS" ;;
download) cp "$ARTIFACTS/$3" "$4" ;;
*) exit 2 ;;
esac
"""


def run_buildkite_steps(volume: Path, steps: Sequence[Mapping[str, Any]], place: Path, checkout: Path) -> list[Job]:
    """Run the steps of a build as Buildkite does, each on a machine of its own with its own copy of the volume.

    A step that fails loses what it has written into its copy. Steps after a `wait` run if nothing has failed, or if
    the wait says so.

    Args:
        volume: the directory that the service mounts, and keeps.
        steps: as they were read from YAML.
        place: for the machines and the artifacts.
        checkout: what each machine begins with.
    """
    (programs := place / "programs").mkdir(parents=True)
    (artifacts := place / "artifacts").mkdir()
    (programs / "buildkite-agent").write_text(_AGENT)
    (programs / "buildkite-agent").chmod(0o755)
    jobs: list[Job] = []
    for number, step in enumerate(steps):
        if "wait" in step:
            if any(job.failed for job in jobs) and not step.get("continue_on_failure"):
                break
            continue
        workspace = Path(shutil.copytree(checkout, place / str(number)))
        (path,) = step["cache"]["paths"]
        shutil.copytree(volume, workspace / path)
        variables = _variables(workspace, {"ARTIFACTS": str(artifacts)})
        variables["PATH"] = f"{programs}:{variables['PATH']}"
        commands = step.get("commands") or [step["command"]]
        text = "\n".join(command for command in commands if not command.startswith("pip ")).replace("$$", "$")
        jobs.append(Job())
        _run(text, workspace, variables, jobs[-1], may_fail=text)
        if not jobs[-1].failed:
            shutil.rmtree(volume)
            shutil.copytree(workspace / path, volume)
    return jobs


def _copy(source: Path, target: Path, names: Sequence[str]) -> None:
    for name in names:
        if (source / name).exists():
            shutil.copy(source / name, target / name)


def _variables(workspace: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a machine, whose caches are in its checkout."""
    variables = {**os.environ, **(more or {})}
    variables |= {"XDG_CACHE_HOME": str(workspace / ".cache"), "XDG_STATE_HOME": str(workspace / ".state")}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    return variables


def _run(
    command: str, workspace: Path, variables: Mapping[str, str], done: Job, *, options: str = "", may_fail: str = ""
) -> None:
    """Run a command, or several lines of them, and note what came of it."""
    text = command.replace("pytest -n auto", f"pytest {_WITHOUT} {options}")
    began = _processor_seconds()
    ended = subprocess.run(
        ["bash", "-e", "-c", text], cwd=workspace, env=variables, capture_output=True, text=True, check=False
    )
    done.seconds[text.splitlines()[0]] = _processor_seconds() - began
    done.printed += ended.stdout + ended.stderr
    if ended.returncode == 1 and may_fail and command.startswith(may_fail):
        done.failed.append(command)
    elif ended.returncode != 0:
        raise RuntimeError(f"{command} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

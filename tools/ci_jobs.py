"""Runs the jobs of a workflow for GitHub's runners here, step by step, against a cache service that behaves as theirs.

A name in the service is never changed, the newest one that begins as asked is found, a minute takes 200 uploads, and
10 GB are kept. Artifacts belong to a run. An action that the service does not know ends the job.
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
    from collections.abc import Mapping

__all__ = ["Job", "Service", "run_job"]

_MOST_BYTES: Final = 10 << 30
_UPLOADS_A_MINUTE: Final = 200
_ARTIFACT: Final = "artifact/"
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
            self._save(inputs.get("key") or f"{_ARTIFACT}{inputs['name']}", workspace / inputs["path"])
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
    part: int | None = None,
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
        part: of the matrix.
        options: of pytest, which runs without workers of its own.
        env: more variables.
        may_fail: a command that begins so may end with 1, as that of tests which fail.

    Raises:
        RuntimeError: a command failed.
    """
    files = {name: workspace / f".{name.lower()}" for name in ("GITHUB_ENV", "GITHUB_OUTPUT")}
    names = {"github.run_id": run_id, "matrix.part": str(part)}
    variables = {**os.environ, **(env or {}), **{name: str(path) for name, path in files.items()}}
    variables |= {"XDG_CACHE_HOME": str(workspace / ".cache"), "XDG_STATE_HOME": str(workspace / ".state")}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    done = Job()

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: names[found[1]], text)

    for step in workflow["jobs"][job]["steps"]:
        if "if" in step and not names.get(step["if"]):
            continue
        if "uses" in step:
            inputs = {name: filled(str(value)) for name, value in step.get("with", {}).items()}
            service.do(f"{job}{part or ''}", step["uses"].partition("@")[0], inputs, workspace)
        elif not step["run"].startswith("pip "):
            command = filled(step["run"]).replace("pytest -n auto", f"pytest -p no:cacheprovider {options}")
            began = _processor_seconds()
            ended = subprocess.run(
                ["bash", "-e", "-c", command], cwd=workspace, env=variables, capture_output=True, text=True, check=False
            )
            done.seconds[command.splitlines()[0]] = _processor_seconds() - began
            done.printed += ended.stdout
            if ended.returncode == 1 and may_fail and command.startswith(may_fail):
                done.failed.append(command)
            elif ended.returncode != 0:
                raise RuntimeError(f"{command} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")
            for name, path in files.items():
                prefix = "env." if name == "GITHUB_ENV" else f"steps.{step.get('id')}.outputs."
                for line in path.read_text().splitlines() if path.exists() else ():
                    key, _, value = line.partition("=")
                    names[prefix + key] = value
                path.unlink(missing_ok=True)
    return done


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

"""The workflow for GitHub's runners, run step by step against a cache service that behaves as theirs does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli_helpers import ejcache
from helpers import ROOT

WORKFLOW = yaml.safe_load((ROOT / "examples" / "github_tests.yml").read_text())
PART = """
import jax

def test_common():
    assert jax.jit(lambda x: x * 2.5)(2.0) == 5

def test_own():
    assert jax.jit(lambda x: x + NUMBER)(1.0) == NUMBER + 1
"""


class Service:
    """Keeps files by name: a name is never changed, and the newest one that begins so is found.

    Attributes:
        requests: what each job has asked for.
    """

    def __init__(self, place):
        self.place = place
        self.saved: dict[str, Path] = {}
        self.requests: dict[str, list[str]] = {}

    def do(self, job, step, inputs, workspace):
        action = step["uses"].partition("@")[0]
        if action in ("actions/checkout", "actions/setup-python"):
            return
        asked = self.requests.setdefault(job, [])
        if action == "actions/cache/restore":
            asked.append("restore")
            names = [name for name in self.saved if name.startswith(inputs["restore-keys"])]
            if names:
                shutil.copy(self.saved[names[-1]], workspace / inputs["path"])
        elif action in ("actions/cache/save", "actions/upload-artifact"):
            asked.append("upload")
            name = inputs.get("key") or f"artifact/{inputs['name']}"
            assert name not in self.saved
            assert (workspace / inputs["path"]).stat().st_size < 10 << 30
            self.saved[name] = shutil.copy(workspace / inputs["path"], self.place / str(len(self.saved)))
        else:
            assert action == "actions/download-artifact"
            for name in [name for name in self.saved if name.startswith("artifact/cache-")]:
                asked.append("download")
                (workspace / inputs["path"] / name.partition("/")[2]).mkdir(parents=True)
                shutil.copy(self.saved[name], workspace / inputs["path"] / name.partition("/")[2] / "cache.tar")

    def end_run(self):
        """Artifacts belong to a run."""
        self.saved = {name: path for name, path in self.saved.items() if not name.startswith("artifact/")}


def run_job(service, job, workspace, *, run_id, part=None, options=""):
    """Run the steps of a job on a fresh machine; returns what its commands have printed."""
    workspace.mkdir()
    (workspace / "requirements.lock").write_text("jax")
    for number in (1, 2):
        (workspace / "tests" / f"part{number}").mkdir(parents=True)
        text = PART.replace("NUMBER", str(number))
        (workspace / "tests" / f"part{number}" / f"test_part{number}.py").write_text(text)
    files = {name: workspace / f".{name.lower()}" for name in ("GITHUB_ENV", "GITHUB_OUTPUT")}
    names = {"github.run_id": run_id, "matrix.part": str(part)}
    env = {**os.environ, **{name: str(path) for name, path in files.items()}}
    env |= {"XDG_CACHE_HOME": str(workspace / ".cache"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def filled(text):
        return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: names[found[1]], text)

    printed = ""
    for step in WORKFLOW["jobs"][job]["steps"]:
        if "if" in step and not names.get(step["if"]):
            continue
        if "uses" in step:
            inputs = {name: filled(str(value)) for name, value in step.get("with", {}).items()}
            service.do(f"{job}{part or ''}", step, inputs, workspace)
        elif not step["run"].startswith("pip "):
            # The workers of pytest-xdist have tests of their own.
            command = filled(step["run"]).replace("pytest -n auto", f"pytest -p no:cacheprovider {options}")
            done = subprocess.run(
                ["bash", "-e", "-c", command], cwd=workspace, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            printed += done.stdout
            for name, path in files.items():
                prefix = "env." if name == "GITHUB_ENV" else f"steps.{step.get('id')}.outputs."
                for line in path.read_text().splitlines() if path.exists() else ():
                    key, _, value = line.partition("=")
                    names[prefix + key] = value
                path.unlink(missing_ok=True)
    return printed


@pytest.mark.timeout(600)
def test_jobs_of_a_matrix_share_one_cache(tmp_path):
    """Each job asks twice at most, the merge once for each part and once more; the next run compiles nothing."""
    service = Service(tmp_path)
    for part in (1, 2):
        run_job(service, "tests", tmp_path / f"cold{part}", run_id="1", part=part)
    run_job(service, "merge", tmp_path / "merge", run_id="1")
    assert service.requests == {
        "tests1": ["restore", "upload"],
        "tests2": ["restore", "upload"],
        "merge": ["download", "download", "upload"],
    }
    service.end_run()
    service.requests.clear()
    for part in (1, 2):
        run_job(service, "tests", tmp_path / f"warm{part}", run_id="2", part=part, options="--ejcache-fail-on-compile")
    run_job(service, "merge", tmp_path / "nothing", run_id="2")
    assert service.requests == {"tests1": ["restore"], "tests2": ["restore"], "merge": []}


ON_A_CPU = """
import sys
import ejcache.keys.toolchain as environment
if sys.argv[2]:
    environment.cpu_features = lambda: sys.argv[2]
import jax, ejcache
cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
jax.jit(lambda x: x * 3.5 + 1)(2.0)
print(cache.stats().hits, cache.stats().misses)
"""


def test_entries_of_another_cpu_stay_and_are_not_loaded(run_python, tmp_path):
    """What a machine with other features stored comes with the file, is no hit here, and goes out with it again."""
    file, here = tmp_path / "cache.tar", tmp_path / "here"
    run_python(ON_A_CPU, str(tmp_path / "there"), "x86_64 another CPU: avx512f amx_int8")
    assert ejcache("push", file, "--dir", tmp_path / "there").status == 0
    assert ejcache("pull", file, "--dir", here, "--json").json["copied_entries"] == 1
    assert run_python(ON_A_CPU, str(here), "").stdout == "0 1\n"
    assert run_python(ON_A_CPU, str(here), "").stdout == "1 0\n"
    assert ejcache("push", file, "--dir", here, "--if-changed", "--json").json["copied_entries"] == 2

"""The workflow for GitHub's runners, run step by step against a cache service that behaves as theirs does."""

from __future__ import annotations

import sys

import pytest
import yaml
from cli_helpers import ejcache
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from ci_jobs import Service, run_job

WORKFLOW = yaml.safe_load((ROOT / "examples" / "github_tests.yml").read_text())
PART = """
import jax

def test_common():
    assert jax.jit(lambda x: x * 2.5)(2.0) == 5

def test_own():
    assert jax.jit(lambda x: x + NUMBER)(1.0) == NUMBER + 1
"""


def run(service, job, workspace, *, run_id, part=None, options=""):
    """Run a job on a fresh machine."""
    workspace.mkdir()
    (workspace / "requirements.lock").write_text("jax")
    for number in (1, 2):
        (workspace / "tests" / f"part{number}").mkdir(parents=True)
        text = PART.replace("NUMBER", str(number))
        (workspace / "tests" / f"part{number}" / f"test_part{number}.py").write_text(text)
    return run_job(service, WORKFLOW, job, workspace, run_id=run_id, part=part, options=options)


@pytest.mark.timeout(600)
def test_jobs_of_a_matrix_share_one_cache(tmp_path):
    """Each job asks twice at most, the merge once for each part and once more; the next run compiles nothing.

    A damaged file ends no job, and is replaced by what the tests compile.
    """
    service = Service(tmp_path)
    for part in (1, 2):
        run(service, "tests", tmp_path / f"cold{part}", run_id="1", part=part)
    run(service, "merge", tmp_path / "merge", run_id="1")
    assert service.requests == {
        "tests1": ["restore", "upload"],
        "tests2": ["restore", "upload"],
        "merge": ["download", "download", "upload"],
    }
    service.end_run()
    for part in (1, 2):
        run(service, "tests", tmp_path / f"warm{part}", run_id="2", part=part, options="--ejcache-fail-on-compile")
    run(service, "merge", tmp_path / "nothing", run_id="2")
    assert service.requests == {"tests1": ["restore"], "tests2": ["restore"], "merge": []}
    service.end_run()
    (kept,) = service.saved.values()
    kept.write_bytes(kept.read_bytes()[:-2000])
    run(service, "tests", tmp_path / "damaged", run_id="3", part=1)
    assert service.requests == {"tests1": ["restore", "upload"]}
    part = service.saved["artifact/cache-1"]
    part.write_bytes(part.read_bytes()[:-2000])
    run(service, "merge", tmp_path / "mended", run_id="3")
    assert service.requests["merge"] == ["download", "upload"]


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

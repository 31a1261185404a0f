"""The workflows for CI, run step by step against cache services that behave as those that they are for."""

from __future__ import annotations

import re

import pytest
import yaml
from ci_jobs import Service, run_buildkite_steps, run_gitlab_job, run_job
from cli_helpers import ejcache
from helpers import ROOT
from other_host import pretend_other_host

EXAMPLES = ROOT / "examples"
WORKFLOW = yaml.safe_load((EXAMPLES / "github_tests.yml").read_text())
PART = """
import jax

def test_common():
    assert jax.jit(lambda x: x * 2.5)(2.0) == 5

def test_own():
    assert jax.jit(lambda x: x + NUMBER)(1.0) == NUMBER + 1
"""


FAILING = """
import jax

def test_that_fails():
    assert jax.jit(lambda x: x * 7.5)(2.0) == 0
"""
PASSING = FAILING.replace("== 0", "== 15").replace("fails", "fails_no_more")
WARM = "--ejcache-fail-on-compile"


def run(service, job, workspace, *, run_id, more="", **options):
    """Run a job on a fresh machine, with `more` in the first file of tests."""
    workspace.mkdir()
    (workspace / "requirements.lock").write_text("jax")
    for number in (1, 2):
        (workspace / "tests" / f"part{number}").mkdir(parents=True)
        text = PART.replace("NUMBER", str(number)) + (more if number == 1 else "")
        (workspace / "tests" / f"part{number}" / f"test_part{number}.py").write_text(text)
    return run_job(service, WORKFLOW, job, workspace, run_id=run_id, **options)


@pytest.mark.soak
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
        run(service, "tests", tmp_path / f"warm{part}", run_id="2", part=part, options=WARM)
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


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_what_compiled_before_a_test_failed_is_kept(tmp_path):
    """The job that fails uploads its part, the merge takes it, and the next run compiles nothing.

    The same holds if the failed jobs are run again, which is the same run to the service.
    """
    service = Service(tmp_path)
    failed = run(service, "tests", tmp_path / "fails", run_id="1", part=1, more=FAILING, may_fail="pytest")
    assert len(failed.failed) == 1
    run(service, "merge", tmp_path / "merge", run_id="1", needed=[failed])
    assert service.requests == {"tests1": ["restore", "upload"], "merge": ["download", "upload"]}
    more = PASSING + "\ndef test_one_more():\n    assert jax.jit(lambda x: x * 8.5)(2.0) == 17\n"
    run(service, "tests", tmp_path / "again", run_id="1", attempt=2, part=1, more=more)
    run(service, "merge", tmp_path / "merge_again", run_id="1", attempt=2)
    service.end_run()
    run(service, "tests", tmp_path / "warm", run_id="2", part=1, more=more, options=WARM)
    assert service.requests == {"tests1": ["restore"]}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_children")
def test_a_pull_request_reads_and_uploads_nothing(tmp_path):
    """So does one of a fork, which has no right to write: its tests begin warm, and its new programs stay with it."""
    service = Service(tmp_path)
    run(service, "tests", tmp_path / "main", run_id="1", part=1)
    run(service, "merge", tmp_path / "merge", run_id="1")
    service.end_run()
    asked = run(service, "tests", tmp_path / "request", run_id="2", part=1, more=PASSING, event="pull_request")
    run(service, "merge", tmp_path / "none", run_id="2", needed=[asked], event="pull_request")
    assert service.requests == {"tests1": ["restore"]}
    assert re.search(r"[1-9] hits?, [1-9]", asked.printed)


def checkout(place, text):
    place.mkdir()
    (place / "requirements.lock").write_text("jax")
    (place / "test_part.py").write_text(text)
    return place


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_gitlab_keeps_what_compiled_before_a_test_failed(tmp_path):
    """The next pipeline compiles nothing, and its job is as red as its tests."""
    job = yaml.safe_load((EXAMPLES / "gitlab_ci.yml").read_text())["tests"]
    (kept := tmp_path / "kept").mkdir()
    jobs = [
        run_gitlab_job(kept, job, checkout(tmp_path / name, PART.replace("NUMBER", "1") + FAILING), may_fail="pytest")
        for name in ("cold", "warm")
    ]
    assert [len(each.failed) for each in jobs] == [1, 1]
    assert [" 0 misses" in each.printed for each in jobs] == [False, True]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_buildkite_keeps_what_compiled_before_a_test_failed(tmp_path):
    """The volume forgets what the failed step has written, and the step after it puts the file there."""
    steps = yaml.safe_load((EXAMPLES / "buildkite.yml").read_text())["steps"]
    (volume := tmp_path / "volume").mkdir()
    place = checkout(tmp_path / "checkout", PART.replace("NUMBER", "1") + FAILING)
    cold, warm = (run_buildkite_steps(volume, steps, tmp_path / name, place) for name in ("cold", "warm"))
    assert [[len(step.failed) for step in build] for build in (cold, warm)] == [[1, 0], [1, 0]]
    assert [" 0 misses" in each.printed for each in (cold[0], warm[0])] == [False, True]
    assert not (tmp_path / "warm" / "artifacts" / "cache.tar").exists()


def test_no_name_of_an_archive_is_of_a_machine_that_may_be_another_one():
    """The job that merges has its own CPU; and GitLab's variable of the architecture has a slash, as no key may."""
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    keys = {step["with"]["key"] for step in steps if "key" in step.get("with", {})}
    assert len(keys) == 1
    assert "env." not in keys.pop()
    gitlab = yaml.safe_load((EXAMPLES / "gitlab_ci.yml").read_text())["tests"]["cache"]["key"]
    assert "$" not in gitlab["prefix"]


PROGRAM = """
import sys
import jax, ejcache
cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
jax.jit(lambda x: x * 3.5 + 1)(2.0)
print(cache.stats().hits, cache.stats().misses)
"""


def test_entries_of_another_cpu_stay_and_are_not_loaded(run_forked, tmp_path):
    """What a machine with other features stored comes with the file, is no hit here, and goes out with it again."""
    file, here = tmp_path / "cache.tar", tmp_path / "here"
    pretend_other_host(tmp_path / "elsewhere")
    run_forked(PROGRAM, str(tmp_path / "there"), env={"PYTHONPATH": str(tmp_path / "elsewhere")})
    assert ejcache("push", file, "--dir", tmp_path / "there").status == 0
    assert ejcache("pull", file, "--dir", here, "--json").json["copied_entries"] == 1
    assert run_forked(PROGRAM, str(here)).stdout == "0 1\n"
    assert run_forked(PROGRAM, str(here)).stdout == "1 0\n"
    assert ejcache("push", file, "--dir", here, "--if-changed", "--json").json["copied_entries"] == 2

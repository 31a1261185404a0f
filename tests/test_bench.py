"""The benchmarks run, and what they print can be read by a program and written down for people."""

from __future__ import annotations

import json
import re

import pytest
from helpers import ROOT

from bench.__main__ import DATA, PAGE, README, main
from bench.context import child_environment
from bench.measure import paired_ratio
from bench.outcome import Ratio, at_least, surely_at_least
from bench.results import page, with_numbers, write_results

MACHINE = {"cpu", "cores", "python", "jax", "filesystem", "etils"}


@pytest.fixture
def printed(capsys):
    """What `python -m bench` prints with these arguments."""

    def printed(*arguments):
        assert main(arguments) == 0
        return capsys.readouterr().out

    return printed


@pytest.mark.soak
def test_put_as_json(run_forked):
    """A quick run of one case prints one JSON document: the machine, times of every contestant, and ratios."""
    code = "import runpy, sys; sys.argv[0] = 'bench'; runpy.run_module('bench', run_name='__main__')"
    done = run_forked(code, "--quick", "--only", "put", "--json", env={"PYTHONPATH": str(ROOT)})
    document = json.loads(done.stdout)
    assert document["quick"] is True
    assert document["machine"].keys() >= MACHINE
    (case,) = document["cases"]
    assert (case["name"], case["failed"], case["skipped"]) == ("put", None, None)
    assert {line["contestant"] for line in case["lines"]} >= {"ejcache", "JAX"}
    assert all(0 < line["median"] <= line["p95"] <= line["worst"] and line["unit"] == "s" for line in case["lines"])
    assert case["ratios"]
    assert all(ratio["value"] > 0 and ratio.keys() >= {"what", "unit", "bar", "met"} for ratio in case["ratios"])


def test_finding_the_cases_imports_no_contestant(run_python):
    """Naming the cases costs no import of JAX or a store, and no two cases have one name."""
    done = run_python(
        """
        import sys
        from bench.registry import all_cases
        names = [case.name for case in all_cases()]
        assert len(set(names)) == len(names)
        assert {"put", "get", "mixed", "call", "first_step", "import", "key"} <= {*names}
        assert not {"jax", "ejcache.stores.local.store", "ejkernel"} & {*sys.modules}
        print("fine")
        """,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "fine\n"


def test_a_name_means_all_cases_that_begin_with_it(printed):
    """`start` means every case of starting; they take minutes, and do not run unless they are named."""
    named = printed("--list", "start")
    assert {"start-4", "start-tiny", "start-real"} <= {line.split()[0] for line in named.splitlines()}
    assert "put" not in {line.split()[0] for line in named.splitlines()}
    assert {"hit-tiny", "hit-mean", "hit-run"} <= {line.split()[0] for line in printed("--list", "hit").splitlines()}
    (only,) = printed("--list", "--only", "start-real").splitlines()
    assert only.startswith("start-real ")


def test_programs_start_without_the_settings_of_the_user(monkeypatch, tmp_path):
    """Neither `EJCACHE=1`, which would give ejcache to its peers, nor a configuration file reaches a program."""
    for name in ("EJCACHE", "EJCACHE_PRELOAD", "JAX_COMPILATION_CACHE_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "1")
    given = child_environment(tmp_path)
    assert not {"EJCACHE", "EJCACHE_PRELOAD", "JAX_COMPILATION_CACHE_DIR", "XDG_CONFIG_HOME"} & given.keys()
    assert (given["HOME"], given["XDG_CACHE_HOME"]) == (str(tmp_path), str(tmp_path / ".cache"))


def test_a_start_is_split_into_phases(run_forked, tmp_path):
    """A process says how long its phases took and what it hit, and computes the same with every cache."""
    found = {}
    code = "import runpy, sys; runpy.run_module('bench.programs.start_up', run_name='__main__')"
    for who, hits in (("none", 0), ("ejcache", 0), ("ejcache", 3), ("JAX", 0)):
        floors = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
        environment = {"PYTHONPATH": str(ROOT), **floors}
        done = run_forked(code, "tiny", "3", who, str(tmp_path / who), "0", env=environment)
        found[who, hits] = answer = json.loads(done.stdout.splitlines()[-1])
        assert answer["counts"].get("hits", 0) == hits
        parts = {"import", "enable", "backend", "trace", "lower", "run"} | ({"fetch", "load"} if hits else {"compile"})
        assert parts <= {name for name, seconds in answer["phases"].items() if seconds > 0}, answer["phases"]
    assert len({answer["digest"] for answer in found.values()}) == 1


def test_phases_do_not_depend_on_the_time_of_day(run_forked):
    """A clock that is set forward during a trace does not make the trace longer than the program."""
    done = run_forked(
        """
        import time
        import jax
        from bench.phases import Phases

        set_forward = []
        time_of_day = time.time
        time.time = lambda: time_of_day() + sum(set_forward)
        phases = Phases()
        phases.listen()

        @jax.jit
        def step(x):
            set_forward.append(60.0)
            return x + 1

        start = time.perf_counter()
        step.trace(1.0)
        assert 0 < phases.main["trace"] < time.perf_counter() - start
        print("fine")
        """,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "fine\n"


def test_full_collections_belong_to_the_innermost_phase(run_forked):
    """One in a read within a call is the read's; outside of all phases, it is that of a part of the program."""
    done = run_forked(
        """
        import gc
        import time
        from types import SimpleNamespace
        from bench.phases import Phases

        gc.disable()
        phases, work = Phases(), SimpleNamespace()
        phases.listen()
        work.read = gc.collect
        work.call = lambda: work.read()
        phases.watch(work, "read", "fetch")
        phases.watch(work, "call", "run")
        gc.collect()
        imported = time.perf_counter()
        work.call()
        done = time.perf_counter()
        gc.collect(0)
        gc.collect()
        print(phases.collections_by([("import", imported), ("own work", done)]))
        """,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "{'import': 1, 'fetch': 1, 'exit': 1}\n"


def test_the_processor_time_of_a_function_inside_another_counts_once(run_forked):
    """What a function takes is without what it calls, so that the parts add up to no more than the whole."""
    done = run_forked(
        """
        import time
        from types import SimpleNamespace
        from bench.phases import Phases

        def spin(seconds):
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass

        phases, work = Phases(), SimpleNamespace()
        work.inner = lambda: spin(0.05)
        work.outer = lambda: (work.inner(), work.inner(), spin(0.01))
        phases.watch(work, "inner", "inner")
        phases.watch(work, "outer", "outer")
        start = time.thread_time()
        work.outer()
        whole = time.thread_time() - start
        assert phases.processor["inner"] >= 0.1
        assert 0.01 <= phases.processor["outer"] <= whole - phases.processor["inner"]
        print("fine")
        """,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "fine\n"


def test_a_bar_for_the_interval():
    """A bar that chance must not meet wants the whole interval, and another one the value."""
    met = [
        Ratio("a", 1.1, bar, interval=interval).met
        for bar in (at_least(1.0), surely_at_least(1.0))
        for interval in ((1.01, 1.2), (0.99, 1.2))
    ]
    assert met == [True, True, True, False]


def test_ratios_have_intervals():
    """The ratio is the median over rounds, the geometric mean over programs; its interval holds it."""
    twice, (low, high) = paired_ratio([(2.0, 1.0)] * 7)
    assert (round(twice, 6), round(low, 6), round(high, 6)) == (2.0, 2.0, 2.0)
    mean, (low, high) = paired_ratio([(2.0, 1.0), (2.2, 1.0), (1.8, 1.0)], [(1.0, 2.0), (1.1, 2.0), (0.9, 2.0)])
    assert abs(mean - 1) < 1e-9
    assert 0.9 <= low < 1 < high <= 1.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0", "--only", "reuse-12"], ["--rounds"]),
        (["--only", "nonsense"], ["nonsense", "first_step"]),
    ],
)
def test_usage_errors(capsys, arguments, words):
    """Nothing can be said of no rounds; an unknown case is answered with the names of those that there are."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert (ended.value.code, [word for word in words if word not in said]) == (2, [])


def test_results_keep_what_other_runs_measured(tmp_path):
    """What this run measured is replaced, what it did not stays, what is no case any more goes, in the given order."""

    def case(title):
        rows = [["a", "1", "", ""], ["b", "2", "", ""]]
        tables = [{"headings": ["comparison", "value", "bar", "met"], "rows": rows}]
        return {"title": title, "when": "", "seconds": 1, "machine": "", "tables": tables, "notes": ["n", "m"]}

    path = tmp_path / "results.json"
    write_results(path, {"b": case("old b"), "gone": case("gone")}, order=["b", "gone"])
    data = write_results(path, {"a": case("new a")}, order=["a", "b"])
    assert data == write_results(path, {}, order=["a", "b"]) == {"a": case("new a"), "b": case("old b")}


def test_every_claim_stands_on_a_measurement():
    """The page is what `results.json` gives, and each claim of README and docs is in it with a number."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    text = page(data)
    assert text == PAGE.read_text(encoding="utf-8"), "run python -m bench --page"
    assert "not measured" not in text
    readme = README.read_text(encoding="utf-8")
    assert readme == with_numbers(readme, data), "run python -m bench --page"
    assert readme.count(" times as ") >= 3


def test_results_name_no_machine():
    """The results have no path of the machine that they were measured on."""
    for name in ("RESULTS.md", "results.json"):
        text = (ROOT / "bench" / name).read_text(encoding="utf-8")
        assert "whole process" in text
        assert not re.findall(r"(?<![\w.])/(?:tmp|home|work|var|root|usr|opt|Users)/\S*", text)

"""`EJCACHE` in the environment enables the cache in every process that uses JAX, however the process was made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from capabilities import require
from forking import Forked, ForkedBeforeEjcache, ForkedWithChildren, forked_commands

import ejcache

WORK = """
import os
import jax, numpy as np
{before}

def work(number):
    assert int(jax.jit(lambda: np.int32(42))()) == 42
    import ejcache
    cache = ejcache.active()
    if cache is not None:
        cache.flush()
    return None if cache is None else (cache.url, cache.stats().hits, cache.stats().misses)

if __name__ == "__main__":
    print(work(0))
"""

WAYS = {
    "the process itself": "print(work(0))",
    "a program of its own": """
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "from program import work; print(work(0))"],
                             check=True, capture_output=True, text=True).stdout.strip())
    """,
    # An interpreter, also where the script's own process is a forked one.
    "spawn": f"""
        multiprocessing.set_executable({sys.executable!r})
        print(multiprocessing.get_context('spawn').Pool(1).map(work, [0])[0])
    """,
    "forkserver": "print(multiprocessing.get_context('forkserver').Pool(1).map(work, [0])[0])",
    "fork before JAX has a backend": "print(multiprocessing.get_context('fork').Pool(1).map(work, [0])[0])",
    "os.fork": """
        read, write = os.pipe()
        if not os.fork():
            os.write(write, repr(work(0)).encode())
            os._exit(0)
        os.wait()
        print(os.read(read, 10_000).decode())
    """,
    "process pool executor": """
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            print(pool.submit(work, 0).result())
    """,
    "python -m": """
        import subprocess, sys
        done = subprocess.run([sys.executable, "-m", "program"], check=True, capture_output=True, text=True)
        print(done.stdout.strip())
    """,
}


@pytest.fixture
def write_way(tmp_path):
    """Write `WORK`, and a script that runs it in a process made in this way; returns the script."""

    def write(way: str, *, before: str = ""):
        (tmp_path / "program.py").write_text(textwrap.dedent(WORK).format(before=before))
        script = tmp_path / "script.py"
        body = textwrap.indent(textwrap.dedent(WAYS[way]).strip(), "    ")
        script.write_text(
            "import concurrent.futures, multiprocessing, os\nfrom program import work\n\n"
            f'if __name__ == "__main__":\n{body}\n'
        )
        return script

    return write


@pytest.fixture
def run_way(write_way, run_python):
    """Run `WORK` in a process made in this way, and return what its last line says."""

    def run(way: str, *, env: dict[str, str | None], before: str = "", start=subprocess.Popen) -> str:
        environment = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **env}
        return run_python(write_way(way, before=before), env=environment, start=start).stdout.strip().splitlines()[-1]

    return run


@pytest.fixture
def ejcache_run(run_python, tmp_path):
    """`ejcache run` of a program, with a cache in the test's directory; returns how it ended, and its JSON report."""

    def run(*program, **options):
        report = tmp_path / "report.json"
        code = "import sys; from ejcache.cli.main import main; sys.exit(main())"
        done = run_python(
            code, "run", "--dir", str(tmp_path / "cache"), "--min-compile-seconds", "0", "--report", str(report),
            *map(str, program), **options,
        )  # fmt: skip
        return done, json.loads(report.read_text())

    return run


SHORT = ("spawn",)


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way in SHORT else pytest.mark.soak) for way in WAYS])
def test_every_process_hits(way, run_way, write_way, ejcache_run, tmp_path):
    """With a directory in EJCACHE a process stores at its first start; under `ejcache run` it hits, and is counted."""
    directory = str(tmp_path / "cache")
    start = Forked if way in SHORT else subprocess.Popen
    first = run_way("the process itself" if way in SHORT else way, env={"EJCACHE": directory}, start=start)
    assert first.startswith(f"('{directory}', 0,"), first
    done, report = ejcache_run(write_way(way), start=ForkedWithChildren if way in SHORT else start)
    url, hits, misses = eval(done.stdout.strip().splitlines()[-1])
    assert (url, hits > 0, misses) == (directory, True, 0)
    assert {name: report[name] for name in ("hits", "misses", "processes", "urls")} == {
        "hits": hits, "misses": 0, "processes": 1, "urls": [directory],
    }  # fmt: skip


def test_one_stands_for_the_default_directory(run_way, clean_environment):
    """`EJCACHE=1` enables the cache where it would be otherwise."""
    said = run_way("the process itself", env={"EJCACHE": "1"}, start=Forked)
    assert said.startswith(f"('{clean_environment / '.cache' / 'ejcache'}'"), said


@pytest.mark.parametrize("value", [None, pytest.param("off", marks=pytest.mark.soak)])
def test_unset_or_false_enables_nothing(value, run_way):
    """Nothing of the package is imported by a process that does not ask for it."""
    before = "jax.devices()\nimport sys\nassert 'ejcache_jax_plugin' in sys.modules and 'ejcache' not in sys.modules"
    assert run_way("the process itself", env={"EJCACHE": value}, before=before, start=ForkedBeforeEjcache) == "None"


def test_false_keeps_ejit_from_enabling_the_cache(run_way):
    """`EJCACHE=0` wins over the decorator."""
    before = "import ejcache\nejcache.ejit(lambda x: x)(np.ones(1))"
    assert run_way("the process itself", env={"EJCACHE": "0"}, before=before, start=Forked) == "None"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("import ejcache; ejcache.enable('{there}')", "('{there}', "),
        ("jax.config.update('jax_compilation_cache_dir', '{there}')", "('{there}', "),
        ("import ejcache; ejcache.disable()", "None"),
        ("import ejcache; ejcache.enable(); ejcache.disable()", "None"),
        ("jax.config.update('jax_enable_compilation_cache', False)", "None"),
    ],
)
def test_what_the_program_does_goes_first(before, said, run_way, tmp_path):
    """Calls in the program count more than EJCACHE, whether they enable another cache or none."""
    there = str(tmp_path / "there")
    env = {"EJCACHE": str(tmp_path / "here")}
    found = run_way("the process itself", env=env, before=before.format(there=there), start=Forked)
    assert found.startswith(said.format(there=there)), found


@pytest.mark.parametrize("value", ["nonsense://bucket/x", "none"])
def test_a_value_that_names_no_cache_does_not_stop_the_program(value, run_forked, tmp_path):
    """The program runs without a cache, and one line says why."""
    done = run_forked("import jax, numpy as np\nprint(jax.jit(lambda x: x + 1)(np.ones(())))", env={"EJCACHE": value})
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert done.stdout.strip() == "2.0"
    assert "EJCACHE" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_module_that_jax_imports_is_found():
    """The installed package names it in JAX's group of entry points."""
    from importlib.metadata import entry_points

    assert [point.value for point in entry_points(group="jax_plugins") if point.name == "ejcache"] == [
        "ejcache_jax_plugin"
    ], f"{ejcache.__file__}, {sys.path}"


def test_without_the_entry_point(run_way, tmp_path):
    """JAX finds the module where ejcache is on the path, but not installed."""
    before = (
        "import importlib.metadata\nfind = importlib.metadata.entry_points\n"
        "importlib.metadata.entry_points = lambda **by: () if by == {'group': 'jax_plugins'} else find(**by)"
    )
    said = run_way("the process itself", env={"EJCACHE": str(tmp_path / "cache")}, before=before, start=Forked)
    assert said.startswith(f"('{tmp_path / 'cache'}'"), said


LAUNCHER = """
import subprocess, sys
ranks = [subprocess.Popen(["python", "rank.py", str(rank)], stdout=subprocess.PIPE) for rank in range(2)]
for rank in ranks:
    print(rank.communicate()[0].decode().strip())
sys.exit(sum(rank.returncode for rank in ranks) % 256)
"""
RANK = """
import os, sys
import jax, numpy as np
import ejcache
rank = int(sys.argv[1])
jax.jit(lambda x: x + rank)(np.ones(64)).block_until_ready()
stats = ejcache.active().stats()
print(stats.hits, stats.misses, stats.stores, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        pytest.param("", 0, marks=pytest.mark.soak),
        pytest.param("os._exit(0)", 0, marks=pytest.mark.soak),
        ("os.kill(os.getpid(), 9)", 256 - 18),
    ],
)
@pytest.mark.one_jax
def test_every_process_is_counted_once(end, status, ejcache_run, tmp_path):
    """The report of `ejcache run` is the sum over the ranks that a launcher starts, however they end."""
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    (tmp_path / "rank.py").write_text(RANK.format(end=end))
    forked_commands(tmp_path)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for _ in range(2):
        done, report = ejcache_run("launcher.py", check=False, start=ForkedWithChildren, env=env)
        assert done.returncode == status, done
        counted = [[int(number) for number in line.split()] for line in done.stdout.splitlines()]
        total = [sum(column) for column in zip(*counted, strict=True)]
        assert [report["hits"], report["misses"], report["stores"], report["processes"]] == [*total, 2]
    assert report["misses"] == 0
    assert report["seconds_saved"] > 0


@pytest.mark.soak
@pytest.mark.one_jax
def test_a_run_within_a_run(ejcache_run, tmp_path):
    """The inner one reports on its own processes, and the outer one on all."""
    (tmp_path / "rank.py").write_text(RANK.format(end=""))
    (tmp_path / "outer.py").write_text(
        "import runpy, subprocess, sys\nsys.argv[1:] = ['1']\n"
        "runpy.run_path('rank.py')\n"
        "subprocess.run([sys.executable, '-m', 'ejcache', 'run', '--json', 'rank.py', '2'], check=True)\n"
    )
    done, outer = ejcache_run("outer.py")
    inner = json.loads(done.stderr)
    assert (inner["processes"], outer["processes"]) == (1, 2)
    assert 0 < inner["misses"] < outer["misses"]


TESTS = """
import jax, jax.numpy as jnp, pytest
@pytest.mark.parametrize("number", range(4))
def test_it(number):
    assert jax.jit(lambda x: jnp.cos(x) @ x + number)(jnp.ones(8)) > number
"""


@pytest.mark.soak
def test_pytest_with_several_processes(ejcache_run, tmp_path):
    """`ejcache run -m pytest -n 2`: the workers cache, although the process that starts them does not import JAX."""
    require("xdist")
    (tmp_path / "test_it.py").write_text(TESTS)
    for _ in range(2):
        done, report = ejcache_run("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "test_it.py")
        assert "4 passed" in done.stdout
        assert 1 <= report["processes"] <= 2
    assert report["hits"] >= 4
    assert report["misses"] == 0


@pytest.mark.soak
def test_joblib(ejcache_run, write_way, tmp_path):
    """Workers of joblib cache."""
    require("joblib")
    script = write_way("the process itself")
    script.write_text(
        "import joblib\nfrom program import work\n"
        "print(joblib.Parallel(n_jobs=2)(joblib.delayed(work)(number) for number in range(4)))\n"
    )
    for _ in range(2):
        done, report = ejcache_run(script)
        assert 1 <= report["processes"] <= 2
    assert (report["hits"] > 0, report["misses"]) == (True, 0)
    assert str(tmp_path / "cache") in done.stdout


@pytest.mark.soak
def test_jupyter(ejcache_run, write_way):
    """The kernel of a notebook caches."""
    require("notebooks")
    script = write_way("the process itself")
    script.write_text(
        "import nbclient, nbformat\n"
        "book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('from program import work; work(0)')])\n"
        "print(nbclient.NotebookClient(book, kernel_name='python3', startup_timeout=240).execute().cells[0].outputs)\n"
    )
    for _ in range(2):
        _, report = ejcache_run(script)
        assert report["processes"] == 1
    assert (report["hits"] > 0, report["misses"]) == (True, 0)

# ruff: noqa: E501 (a way is read best in one line)
"""Ways in which a program is started: nine whose inputs are known, and five that stay plain and say so once."""

from __future__ import annotations

import json
import os
import sys

import pytest
from helpers import run_program

WORK = """
import json, os
import ejcache

def run():
    import numpy as np
    ejcache.enable(os.environ["CACHE_AT"], min_compile_seconds=0)
    traced = []
    for scale in (2, 3):
        @ejcache.ejit(name=f"step {scale}", reuse_lowering=True)
        def step(x):
            traced.append(scale)
            return x * scale
        assert step(np.ones(4, np.float32))[0] == scale
    print(json.dumps({"traced": len(traced)}), flush=True)
"""
MAIN = "import work\nif __name__ == '__main__':\n    work.run()\n"
INDEX = {"INSTALLER": "pip\n"}
WHEEL = {**INDEX, "direct_url.json": '{"url": "file:///mine.whl", "archive_info": {}}'}
EDITABLE = {**INDEX, "direct_url.json": '{"url": "file:///project", "dir_info": {"editable": true}}'}
PYTHON = sys.executable


@pytest.fixture
def start(tmp_path):
    """Start a command once, and return what it printed and what it said."""

    def run(files, *command, cwd="project", stdin=None, bare=False, **environment):
        for name, text in {"project/work.py": WORK, "project/train.py": MAIN, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(text)
        (tmp_path / cwd).mkdir(exist_ok=True)
        run_program([PYTHON, "-c", "pass"])  # what was just written is older than what starts now
        env = {
            "CACHE_AT": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "home"), "EJCACHE_REUSE_FLOOR": "0",
            "EJCACHE_REUSE_CHECK_ONE_IN": "0", "PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu",
            **{name: value.replace("TMP", str(tmp_path)) for name, value in environment.items()},
        }  # fmt: skip
        if bare:
            kept = {"HOME": os.environ.get("HOME", "/"), "PATH": "/usr/bin:/bin"}
            env = {**dict.fromkeys(os.environ), **kept, **env}
        words = [word.replace("TMP", str(tmp_path)) for word in command]
        done = run_program(words, cwd=tmp_path / cwd, env=env, input=stdin)
        (printed,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(printed)["traced"], done.stderr

    return run


def installed(record, provenance, commands=""):
    """The files of a distribution `mine` in a directory of the search path."""
    about = {"RECORD": f"{record},,\n", **provenance, **({"entry_points.txt": commands} if commands else {})}
    return {f"site/mine-1.0.dist-info/{name}": text for name, text in about.items()}


SITE = {"PYTHONPATH": "TMP/site"}
PACKAGE = {
    "site/mine/__init__.py": "",
    "site/mine/__main__.py": MAIN.replace("work", "mine.work"),
    "site/mine/work.py": WORK,
}
COMMAND = "[console_scripts]\nmytrain = mine.work:run\n"
SCRIPT = "import sys\nfrom mine.work import run\nsys.exit(run())\n"
LAUNCHER = """
import os, subprocess, sys
env = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(os.getpid()), "TORCHELASTIC_RUN_ID": str(os.getpid())}
sys.exit(subprocess.run([sys.executable, "-u", *sys.argv[1:]], env=env).returncode)
"""
KNOWN = {
    "file": ({}, [PYTHON, "train.py"], {}),
    "module": ({}, [PYTHON, "-m", "train"], {}),
    "another directory": ({}, [PYTHON, "TMP/project/train.py"], {"cwd": "elsewhere"}),
    "ejcache run": ({}, [PYTHON, "-m", "ejcache", "run", "train.py"], {}),
    "a launcher": ({"launch.py": LAUNCHER}, [PYTHON, "TMP/launch.py", "train.py"], {}),
    "cron": ({}, [PYTHON, "train.py"], {"bare": True}),
    "a wheel": ({**PACKAGE, **installed("mine/__init__.py", WHEEL)}, [PYTHON, "-m", "mine"], SITE),
    "an editable install": (
        installed("_editable.py", EDITABLE), [PYTHON, "-m", "train"], {"PYTHONPATH": "TMP/site:TMP/project", "cwd": "elsewhere"},
    ),
    "a command of the project": (
        {**PACKAGE, **installed("mine/__init__.py", WHEEL, COMMAND), "bin/mytrain": SCRIPT}, [PYTHON, "TMP/bin/mytrain"], SITE,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[] if way == "module" else [pytest.mark.soak]) for way in KNOWN]
)
def test_a_third_start_traces_nothing(start, way):
    """The first one records, the second one proves."""
    files, command, how = KNOWN[way]
    said = [start(files, *command, **how) for _ in range(3)]
    assert [traced for traced, _ in said] == [2, 2, 0], said[-1]


CHILD = "import multiprocessing, work\nif __name__ == '__main__':\n    context = multiprocessing.get_context({kind!r})\n    child = context.Process(target=work.run)\n    child.start()\n    child.join()\n"
FORK = "import os, ejcache, work\nchild = os.fork()\nif not child:\n    work.run()\n    os._exit(0)\nos.waitpid(child, 0)\n"
LATE_FORK = "import os\nchild = os.fork()\nif not child:\n    import work\n    work.run()\n    os._exit(0)\nos.waitpid(child, 0)\n"
SERVER = {**PACKAGE, **installed("mine/__init__.py", INDEX, COMMAND), "bin/mytrain": "import work\nwork.run()\n"}
WORKER = {
    "site/mine/__init__.py": "",
    "site/mine/worker.py": "import work\nwork.run()\n",
    **installed("mine/__init__.py", INDEX),
}
BOTH = {"PYTHONPATH": "TMP/site:TMP/project"}
PLAIN = {
    "a notebook": ({}, [PYTHON, "-"], {"stdin": "import work\nwork.run()\n"}, "console, a notebook"),
    "a console that goes on": ({}, [PYTHON, "-i", "train.py"], {}, "console, a notebook"),
    "pytest": (
        {"project/test_it.py": "def test_it():\n    import work\n    work.run()\n"},
        [PYTHON, "-m", "pytest", "-qsp", "no:cacheprovider", "-p", "no:logging", "--no-header", "--no-summary", "test_it.py"], {}, "belongs to pytest",
    ),
    "spawn": ({"project/spawn.py": CHILD.format(kind="spawn")}, [PYTHON, "spawn.py"], {}, "multiprocessing"),
    "fork": ({"project/fork.py": FORK}, [PYTHON, "fork.py"], {}, "was forked"),
    "a fork that imports": ({"project/fork.py": LATE_FORK}, [PYTHON, "fork.py"], {}, "was forked"),
    "a worker of a library": (WORKER, [PYTHON, "TMP/site/mine/worker.py"], BOTH, "belongs to mine"),
    "a command of a library": (SERVER, [PYTHON, "TMP/bin/mytrain"], BOTH, "belongs to mine"),
    "a program of Python's": ({}, [PYTHON, "-m", "timeit", "-n1", "-r1", "import work; work.run()"], {}, "Python's library"),
}  # fmt: skip


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way == "fork" else [pytest.mark.soak]) for way in PLAIN])
def test_unknown_inputs_stay_plain(start, way):
    """One warning of the process says why, for all its functions."""
    files, command, how, why = PLAIN[way]
    traced, said = start(files, *command, **how)
    assert traced == 2
    lines = [line for line in said.splitlines() if "traces as usual" in line]
    assert [why in line for line in lines] == [True], said

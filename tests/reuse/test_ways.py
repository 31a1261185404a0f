# ruff: noqa: E501 (a way is read best in one line)
"""Ways in which a program is started: nine whose inputs are known, and five that stay plain and say so once."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import venv

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
PYTHON = sys.executable
PACKAGE = {
    "source/pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "mine"
version = "1.0"
scripts = {mytrain = "mine.work:run"}
[tool.hatch.build]
dev-mode-dirs = ["."]
""",
    "source/mine/__init__.py": "",
    "source/mine/__main__.py": MAIN.replace("work", "mine.work"),
    "source/mine/work.py": WORK,
    "source/mine/worker.py": "from mine.work import run\nrun()\n",
}
INSTALLED = "TMP/env/bin/python"
COMMAND = "TMP/env/bin/mytrain"


@pytest.fixture
def start(tmp_path):
    """Start a command once, and return what it printed and what it said."""

    def run(files, *command, cwd="project", stdin=None, bare=False, install=None, **environment):
        for name, text in {"project/work.py": WORK, "project/train.py": MAIN, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(text)
        (tmp_path / cwd).mkdir(exist_ok=True)
        if install is not None and not (tmp_path / "env").exists():
            install_package(tmp_path, install)
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


def install_package(place, how):
    """Make an environment above this one, and install the package: as a wheel from a file, editable, or from an index."""
    pytest.importorskip("hatchling")
    pytest.importorskip("pip")
    venv.create(place / "env", symlinks=True)
    (library,) = place.glob("env/lib/*/site-packages")
    beneath = sysconfig.get_path("purelib")
    (library / "beneath.pth").write_text(f"import site; site.addsitedir({beneath!r})\n")
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--python", str(place / "env/bin/python")]
    options = ["--no-index", "--no-deps", "--no-build-isolation"]
    run_program([*pip, "wheel", *options, "--wheel-dir", place / "index", place / "source"])
    (wheel,) = place.glob("index/*.whl")
    what = {
        "a wheel": [wheel], "editable": ["--editable", place / "source"], "from an index": ["--find-links", wheel.parent, "mine"],
    }[how]  # fmt: skip
    run_program([*pip, "install", *options, *what])
    files = place.glob("env/lib/*/site-packages/mine*/**/*")
    assert (how == "editable") is not any(each.name == "work.py" for each in files)


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
    "a wheel": (PACKAGE, [INSTALLED, "-m", "mine"], {"install": "a wheel"}),
    "an editable install": (PACKAGE, [INSTALLED, "-m", "mine"], {"install": "editable", "cwd": "elsewhere"}),
    "a command of the project": (PACKAGE, [COMMAND], {"install": "a wheel"}),
    "a command of an editable install": (PACKAGE, [COMMAND], {"install": "editable"}),
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
BOOK = """
import sys
import nbclient, nbformat
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import work; work.run()")])
for output in nbclient.NotebookClient(book, kernel_name="python3", timeout=240, startup_timeout=240).execute().cells[0].outputs:
    getattr(sys, output.name).write(output.text)
"""
RUNNER = "import runpy, sys\ndel sys.argv[0]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
FROM_INDEX = {"install": "from an index"}
PLAIN = {
    "a notebook": ({"project/book.py": BOOK}, [PYTHON, "book.py"], {}, "console, a notebook"),
    "standard input": ({}, [PYTHON, "-"], {"stdin": "import work\nwork.run()\n"}, "console, a notebook"),
    "a console that goes on": ({}, [PYTHON, "-i", "train.py"], {}, "console, a notebook"),
    "pytest": (
        {"project/test_it.py": "def test_it():\n    import work\n    work.run()\n"},
        [PYTHON, "-m", "pytest", "-qsp", "no:cacheprovider", "-p", "no:logging", "--no-header", "--no-summary", "test_it.py"], {}, "belongs to pytest",
    ),
    "spawn": ({"project/spawn.py": CHILD.format(kind="spawn")}, [PYTHON, "spawn.py"], {}, "multiprocessing"),
    "fork": ({"project/fork.py": FORK}, [PYTHON, "fork.py"], {}, "was forked"),
    "a fork that imports": ({"project/fork.py": LATE_FORK}, [PYTHON, "fork.py"], {}, "was forked"),
    "a worker of a library": (PACKAGE, [INSTALLED, "-m", "mine.worker"], FROM_INDEX, "belongs to mine"),
    "a command of a library": (PACKAGE, [COMMAND], FROM_INDEX, "belongs to mine"),
    "a program that a library's starts": ({**PACKAGE, "source/mine/runner.py": RUNNER}, [INSTALLED, "-m", "mine.runner", "train.py"], FROM_INDEX, "its command belongs to mine"),
    "a debugger": ({}, [PYTHON, "-m", "pdb", "-c", "continue", "-c", "quit", "train.py"], {}, "its command belongs to Python's library"),
    "a program of Python's": ({}, [PYTHON, "-m", "timeit", "-n1", "-r1", "import work; work.run()"], {}, "Python's library"),
}  # fmt: skip


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way == "fork" else [pytest.mark.soak]) for way in PLAIN])
def test_unknown_inputs_stay_plain(start, way):
    """One warning of the process says why, for all its functions."""
    files, command, how, why = PLAIN[way]
    if way == "a notebook":
        pytest.importorskip("nbclient")
        pytest.importorskip("ipykernel")
    traced, said = start(files, *command, **how)
    assert traced == 2
    lines = [line for line in said.splitlines() if "traces as usual" in line]
    assert [why in line for line in lines] == [True], said

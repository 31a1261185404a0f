"""A person who looks at a directory of others imports nothing from it: no command and no process of ours does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import run_program

from ejcache.cli.main import COMMANDS

CONSOLE = Path(sys.executable).with_name("ejcache")

HOSTILE = (
    *("jax", "json", "typing", "numpy", "rich", "typer", "ejcache_jax_plugin", "diskcache", "fsspec", "subprocess"),
    *("tempfile", "zstandard"),
)

KERNEL = """
import ejcache, jax.numpy as jnp, numpy as np

@ejcache.autotuned(configs=[{"n": 1}, {"n": 2}], name="hostile", version="1")
def op(x, *, n):
    return x * 2

def step(x):
    return x * 3

if __name__ == "__main__":
    print(op(jnp.ones(4))[0])
"""

LINES = {
    "run": ["run", "-c", "import sys; print(sys.path[0] or 'cwd')"],
    "warm": ["warm", "{script}:step", "--shapes", "f32[4]", "--dir", "."],
    "stats": ["stats", "--dir", "."],
    "ls": ["ls", "--dir", "."],
    "why": ["why", "--dir", "."],
    "prune": ["prune", "--max-size", "1GB", "--dir", "."],
    "report": ["report"],
    "advise": ["advise", "{script}"],
    "verify": ["verify", "--dir", "."],
    "recall": ["recall", "--all", "--yes", "--dir", "."],
    "config": ["config"],
    "push": ["push", "other", "--dir", "."],
    "pull": ["pull", "other", "--dir", "."],
    "key": ["key", "--dir", "."],
    "doctor": ["doctor", "--dir", "."],
    "target": ["target", "diff", "tpu:v5e:2x2", "--dir", "."],
    "bench": ["bench", "--rounds", "1", "{script}"],
    "tuned": ["tuned", "tune", "--dir", ".", "{script}"],
}
"""A command line of each command, and for groups of the one that starts processes."""


@pytest.fixture
def hostile(tmp_path):
    """A directory in which many modules of others' names lie; each leaves a file when it is imported."""
    place = tmp_path / "shared"
    place.mkdir()
    for name in HOSTILE:
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'IMPORTED')!r}, 'a').write({name + ' '!r})\n")
    yield place
    imported = tmp_path / "IMPORTED"
    assert not imported.exists(), imported.read_text()


@pytest.fixture
def script(tmp_path):
    """A script with an operation, in a directory of its own."""
    path = tmp_path / "mine" / "kernels.py"
    path.parent.mkdir()
    path.write_text(KERNEL)
    return path


def started(command, hostile, script, **options):
    arguments = [each.format(script=script) for each in command]
    return run_program([CONSOLE, *arguments], cwd=hostile, check=False, **options)


def test_every_command_has_a_line():
    """A new command is tried as well."""
    assert set(LINES) == set(COMMANDS)


LONG = {"advise", "bench", "target", "tuned"}
STARTING = {"warm"}
"""Those whose processes take a second."""
LOOKING = sorted(set(LINES) - LONG - STARTING - {"run"})

IN_ONE_PROCESS = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        assert not {"", ".", os.getcwd()} & {*sys.path}, f"{name} is looked for in the working directory"

sys.meta_path.insert(0, Watch())
from ejcache.cli.main import main
print([main(line) for line in eval(sys.argv[1])])
"""
"""Commands one after the other in one process, whose path is that of a command: without the working directory."""

ASKED = "print('0.0', 'ours', 'JAX is as expected', sep=chr(10))\nraise SystemExit\n"
"""JAX for the process of `doctor`, which needs a second for the real one; what lies beside it comes before it."""


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=[pytest.mark.soak] * (each in LONG)) for each in sorted(LONG | STARTING)]
)
def test_a_command_imports_nothing_from_the_working_directory(hostile, script, command):
    """Nor does a process that it starts; the directory of a script that the user names is on the path."""
    done = started(LINES[command], hostile, script)
    assert "Traceback" not in done.stderr
    assert done.returncode in ((0,) if command in ("tuned", "bench", "warm") else (0, 1)), done


def test_commands_that_look_import_nothing_from_the_working_directory(hostile, script):
    """Nor does the process that `doctor` asks for JAX."""
    script.write_text(IN_ONE_PROCESS)
    asked = script.with_name("asked")
    asked.mkdir()
    (asked / "jax.py").write_text(ASKED)
    lines = repr([LINES[each] for each in LOOKING])
    done = run_program([sys.executable, script, lines], cwd=hostile, env={"PYTHONPATH": str(asked)})
    assert "Traceback" not in done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1])) <= {0, 1}, done
    assert "JAX is as expected" in done.stdout


def test_a_module_in_the_working_directory_has_to_be_named_by_its_file(hostile, script):
    """`python -m ejcache`, too, has nothing of the working directory on its path, and the error says what to do."""
    (hostile / "own.py").write_text("def step(x): return x\n")
    for command in ([CONSOLE], [sys.executable, "-m", "ejcache"]):
        if command[0] != CONSOLE:
            for name in HOSTILE:  # what Python reads before any line of ours is not ours to keep from it
                (hostile / f"{name}.py").unlink()
            (hostile / "colorsys.py").write_text("raise SystemExit(7)\n")
        done = run_program([*command, "warm", "own:step", "--shapes", "f32[4]", "--dir", "."], cwd=hostile, check=False)
        assert done.returncode == 1
        assert "own.py:step" in done.stderr
    assert not (hostile / "__pycache__").exists()


def test_a_recorded_type_that_imports_a_module_is_not_made(hostile, script, tmp_path, run_forked):
    """Only types of modules that --module names, or that the operation annotates, are made from a recording."""
    lazy = script.with_name("lazies.py")
    lazy.write_text(
        "import dataclasses, importlib\n"
        "@dataclasses.dataclass\n"
        "class LazyModule:\n"
        "    module_name: str\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(importlib.import_module(self.module_name), name)\n"
        "    @property\n"
        "    def shape(self):\n"
        "        return importlib.import_module(self.module_name).shape\n"
    )
    (script.with_name("named.py")).write_text("import lazies\n" + KERNEL)
    call = {
        "ejcache": "autotune call",
        "schema": 1,
        "operation": "hostile",
        "kwargs": {},
        "how": {"kind": "autotuned", "object": "named:op"},
        "args": [{"object": "lazies:LazyModule", "fields": {"module_name": "wicked"}}],
    }
    document = hostile / "autotune-recorded" / "hostile" / "call.json"
    document.parent.mkdir(parents=True)
    document.write_text(json.dumps(call))
    for place in (hostile, script.parent):
        (place / "wicked.py").write_text(f"open({str(tmp_path / 'IMPORTED')!r}, 'a').write('wicked ')\n")
    script.write_text(IN_ONE_PROCESS)
    line = ["tuned", "tune", "--dir", ".", "--module", "named", "--json"]
    done = run_forked(script, repr([line]), cwd=hostile, env={"PYTHONPATH": str(script.parent)})
    said = json.loads(done.stdout.rpartition("[")[0])
    assert said["failures"] == 1
    assert "--module" in said["tuned_calls"][0]["problem"]


@pytest.mark.soak
def test_types_that_the_operation_annotates_are_made(script):
    """A dataclass of another module, also as a field of another one."""
    script.with_name("shapes.py").write_text(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Tile:\n    size: int\n"
        "@dataclasses.dataclass(frozen=True)\nclass Block:\n    tile: Tile\n"
    )
    script.write_text(
        "import shapes\n"
        + KERNEL.replace("def op(x, *, n)", "def op(x, block: 'shapes.Block', *, n)").replace(
            "op(jnp.ones(4))", "op(jnp.ones(4), shapes.Block(shapes.Tile(2)))"
        )
    )
    place = script.with_name("store")
    run_program([sys.executable, script], env={"EJCACHE_AUTOTUNE_RECORD": str(place)})
    done = run_program([CONSOLE, "tuned", "tune", "--dir", place, "--module", script, "--json"], check=False)
    assert json.loads(done.stdout)["tuned"] == 1, done

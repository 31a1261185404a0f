"""What the command imports before it does anything, and what it says where JAX is broken."""

from __future__ import annotations

import json
import os
import sys

import pytest
from cli_helpers import fill
from helpers import run_program

PROGRAM = """
import contextlib, io, json, os, sys
from ejcache.cli.main import main
for arguments, variables in json.loads(sys.argv[1]):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(arguments)
    print(json.dumps(sorted(sys.modules)), flush=True)
    os._exit(0)
"""
NOT_NEEDED = {"jax", "jaxlib", "numpy", "sqlite3", "zstandard", "diskcache", "fsspec"}
COMPLETING = {"_EJCACHE_COMPLETE": "complete_bash", "COMP_WORDS": "ejcache pr", "COMP_CWORD": "1"}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The modules that each command imports; those of ours by their whole names."""
    cache = tmp_path_factory.mktemp("imports") / "cache"
    fill(cache, "jit_f")
    asked = {"help": (["--help"], {}), "a typing error": (["nonsense"], {}), "completion": ([], COMPLETING)}
    asked["ls"] = (["ls", "--dir", str(cache)], {})
    done = run_program([sys.executable, "-c", PROGRAM, json.dumps(list(asked.values()))])
    names = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        which: {name if name.startswith("ejcache.") else name.partition(".")[0] for name in each}
        for which, each in zip(asked, names, strict=True)
    }


@pytest.mark.parametrize("which", ["help", "a typing error", "completion"])
def test_no_command_is_imported_before_it_is_called(imported, which):
    """Help, a typing error and completion import neither JAX nor any storage."""
    assert NOT_NEEDED & imported[which] == set()


def test_a_command_imports_what_it_needs(imported):
    """Its own module and the storage in use; neither JAX, nor the modules of other commands."""
    assert imported["ls"] & {"jax", "jaxlib", "numpy", "fsspec", "gcsfs"} == set()
    rooms = ("ejcache.cli.commands.", "ejcache.cli.tuned.", "ejcache.cli.programs.")
    assert [name for name in imported["ls"] if name.startswith(rooms)] == ["ejcache.cli.commands.ls"]


@pytest.fixture
def broken_jax(tmp_path):
    """The environment of a process whose JAX is installed and cannot be imported."""
    (tmp_path / "broken" / "jax").mkdir(parents=True)
    (tmp_path / "broken" / "jax" / "__init__.py").write_text("raise ImportError('libcuda.so.1: no such file')\n")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "broken"), os.environ.get("PYTHONPATH", "")])}


def test_a_broken_jax_is_said_to_be_broken(tmp_path, broken_jax):
    """A command that needs JAX says that JAX cannot be imported, and why; the others work as they do with one."""
    fill(tmp_path / "cache", "jit_train")
    (tmp_path / "own.py").write_text("def step(x): return x\n")

    def said(*arguments):
        command = [sys.executable, "-m", "ejcache", *arguments, "--dir", str(tmp_path / "cache")]
        return run_program(command, env=broken_jax, cwd=tmp_path, check=False)

    warmed = said("warm", "own.py:step", "--shapes", "f32[1]")
    assert (warmed.returncode, "JAX cannot be imported, ImportError: libcuda.so.1" in warmed.stderr) == (1, True)
    assert said("ls").returncode == 0

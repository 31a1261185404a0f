"""Options of `ejcache run` that had no effect, because the program sets the same flags of JAX itself."""

from __future__ import annotations

import json
import os
import sys
import textwrap

from forking import ForkedWithChildren
from helpers import run_program

LIBRARY = """
import jax

print("the library was imported")
jax.config.update("jax_compilation_cache_dir", {theirs!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 60.0)
"""
PROGRAM = """
import lib
import jax, numpy as np

jax.jit(lambda x: x + 1)(np.float32(1))
"""


def run(tmp_path, library, *options):
    theirs = str(tmp_path / "theirs")
    (tmp_path / "lib.py").write_text(textwrap.dedent(library).format(theirs=theirs))
    (tmp_path / "p.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "ejcache", "run", "--dir", str(tmp_path / "ours"), *options, "p.py"]
    return run_program(command, cwd=tmp_path, start=ForkedWithChildren)


def test_a_library_that_sets_flags_of_jax_is_named(tmp_path):
    """One line more says which options had no effect, which lines of which file set the flags, and what to do."""
    done = run(tmp_path, LIBRARY, "--min-compile-seconds", "0")
    ours, theirs, lib = (str(tmp_path / name) for name in ("ours", "theirs", "lib.py"))
    assert done.stdout == "the library was imported\n"
    report, said = done.stderr.splitlines()
    assert f"({theirs})" in report
    assert said == (
        f"ejcache: EJCACHE={ours} (--dir) and EJCACHE_MIN_COMPILE_SECONDS=0.0 (--min-compile-seconds) had no effect: "
        f"{lib}:5 sets jax_compilation_cache_dir to {theirs}, and "
        f"{lib}:6 sets jax_persistent_cache_min_compile_time_secs to 60.0. "
        f"Remove those calls, or call ejcache.enable(dir={ours!r}, min_compile_seconds=0.0) afterwards"
    )


def test_the_program_itself_is_named(tmp_path):
    """A script that sets the flag is named by its line, although Python has forgotten its file when it has ended."""
    call = f"jax.config.update('jax_compilation_cache_dir', {str(tmp_path / 'theirs')!r})"
    (tmp_path / "own.py").write_text(f"import jax, numpy as np\n{call}\njax.jit(lambda x: x + 1)(np.float32(1))\n")
    command = [sys.executable, "-m", "ejcache", "run", "--dir", str(tmp_path / "ours"), "own.py"]
    done = run_program(command, cwd=tmp_path)
    assert f"had no effect: {tmp_path / 'own.py'}:2 sets jax_compilation_cache_dir to" in done.stderr


def test_the_fields_of_a_report_have_it(tmp_path):
    """JSON has the sentence; a line that only reads the flag is not named, and one in a table of flags is."""
    library = """
    import jax

    before = getattr(jax.config, "jax_compilation_cache_dir")
    for flag, value in {{
        "jax_compilation_cache_dir": {theirs!r},
    }}.items():
        jax.config.update(flag, value)
    """
    done = run(tmp_path, library, "--json")
    (sentence,) = json.loads(done.stderr)["overruled"]
    assert f"had no effect: {tmp_path / 'lib.py'}:6 sets jax_compilation_cache_dir to" in sentence


def test_who_sets_the_same_value_overrules_nothing(tmp_path):
    """A library that names the directory of the option, or other flags than those of the options, is not named."""
    library = f"""
    import jax

    jax.config.update("jax_compilation_cache_dir", {str(tmp_path / "ours") + os.sep!r})
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 1)
    """
    done = run(tmp_path, library)
    assert len(done.stderr.splitlines()) == 1

"""The cache directory that ejkernel sets for itself is not the program's word."""

from __future__ import annotations

import sys

import pytest
from capabilities import needs

LIBRARY = """
import os
from pathlib import Path
import jax

COMPILE_FUNC_DIR = os.getenv("COMPILE_FUNC_DIR", Path.home() / ".cache" / "ejkernel-cache" / "ejit_compiled_functions")

def ejit(function):
    from jax.experimental.compilation_cache import compilation_cache
    compilation_cache.set_cache_dir(str(COMPILE_FUNC_DIR))
    jax.config.update("jax_compilation_cache_dir", str(COMPILE_FUNC_DIR))
    return jax.jit(function)
"""
"""What ejkernel does with JAX's cache at each decoration."""

CHECK = """
f = ejit(lambda: 2.0)
f()
import ejcache
print(ejcache.active().url)
"""
SAID = "ejkernel has set the cache directory"


@pytest.fixture
def ejkernel(tmp_path):
    """A directory to put on the path, with an ejkernel that does nothing but set the directory."""
    package = tmp_path / "path" / "ejkernel" / "callib"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "_ejit.py").write_text(LIBRARY)
    return package.parents[1]


SET_FLAG = "jax.config.update('jax_compilation_cache_dir', 'called')"
BLOCK = "with ejcache.enable('block'):\n    ejit(abs)\n    assert ejcache.active().url.endswith('/block')"
PROGRAMS = {
    "EJCACHE=1": ("from ejkernel.callib._ejit import ejit", "home/.cache/ejcache"),
    "EJCACHE names a directory": ("from ejkernel.callib._ejit import ejit", "given"),
    "enable after ejkernel": (
        "from ejkernel.callib._ejit import ejit\nejit(abs)\nimport ejcache; ejcache.enable('called')",
        "called",
    ),
    "enable without a directory after ejkernel": (
        "from ejkernel.callib._ejit import ejit\nejit(abs)\nimport ejcache; ejcache.enable()",
        "home/.cache/ejcache",
    ),
    "enable before ejkernel": (
        "import ejcache; ejcache.enable('called')\nfrom ejkernel.callib._ejit import ejit",
        "called",
    ),
    "the flag after activation": (
        f"import ejcache, jax; ejcache.enable()\n{SET_FLAG}\nfrom ejkernel.callib._ejit import ejit",
        "called",
    ),
    "the flag after ejkernel": (
        f"from ejkernel.callib._ejit import ejit\nejit(abs)\nimport jax\n{SET_FLAG}\nejit = jax.jit",
        "called",
    ),
    "a block": (
        f"import ejcache\nfrom ejkernel.callib._ejit import ejit\nejcache.enable('called')\n{BLOCK}",
        "called",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_directory_of_ejkernel_does_not_count(name, ejkernel, run_forked, tmp_path):
    """The cache is where the program, EJCACHE or the default says, before and after decorations; it is said once."""
    program, directory = PROGRAMS[name]
    variable = str(tmp_path / "given") if directory == "given" else "1"
    done = run_forked(program + CHECK, env={"PYTHONPATH": str(ejkernel), "EJCACHE": variable})
    assert str(tmp_path / done.stdout.strip()) == str(tmp_path / directory)
    assert done.stderr.count(SAID) == (0 if name == "the flag after ejkernel" else 1)


def test_a_directory_that_the_environment_gives_to_ejkernel(ejkernel, run_forked, tmp_path):
    """`COMPILE_FUNC_DIR` is a setting of ours, too, so nothing differs and nothing is said."""
    env = {"PYTHONPATH": str(ejkernel), "EJCACHE": "1", "COMPILE_FUNC_DIR": str(tmp_path / "compiled")}
    done = run_forked("from ejkernel.callib._ejit import ejit" + CHECK, env=env)
    assert done.stdout.strip() == str(tmp_path / "compiled")
    assert SAID not in done.stderr


@pytest.mark.soak
def test_run_overrules_ejkernel(ejkernel, run_forked, tmp_path):
    """`ejcache run --dir` keeps its directory."""
    (tmp_path / "script.py").write_text("from ejkernel.callib._ejit import ejit" + CHECK)
    run = "import sys; from ejcache.cli.main import main; sys.exit(main(['run', '--dir', 'given', 'script.py']))"
    done = run_forked(run, env={"PYTHONPATH": str(ejkernel)})
    assert done.stdout.strip() == str(tmp_path / "given")
    assert done.stderr.count(SAID) == 1


@pytest.mark.soak
@needs("ejkernel")
def test_the_real_ejkernel(run_forked, tmp_path):
    """A decorator of ejkernel itself, decorating before and after activation."""
    program = (
        "import jax\nfrom ejkernel.callib._ejit import ejit\n@ejit\ndef f(x): return x + 1\nf(1.0)\n"
        f"assert 'ejkernel' in jax.config.jax_compilation_cache_dir{CHECK}"
    )
    done = run_forked(program, env={"EJCACHE": str(tmp_path / "given")}, timeout=300)
    assert done.stdout.strip().splitlines()[-1] == str(tmp_path / "given"), sys.path
    assert done.stderr.count(SAID) == 1

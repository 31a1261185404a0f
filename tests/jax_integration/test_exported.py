"""What `jax.export` has serialized is compiled ahead, and is a hit when a program calls it.

JAX 0.10.2 wrote the files in `data/exported`, of ten programs.
"""

from __future__ import annotations

import pytest
from capabilities import require
from cli_helpers import ejcache
from helpers import ROOT

from ejcache import enable, warm
from ejcache.errors import UsageError
from ejcache.jax_integration.warm_start import read_exported

FILES = ROOT / "tests" / "data" / "exported"

CALLS = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
import ejcache

cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
exported = [jax.export.deserialize(bytearray(path.read_bytes())) for path in sorted(Path(sys.argv[2]).glob("*.bin"))]
if sys.argv[3] == "warm":
    print([ejcache.warm(each).outcome for each in exported])
else:
    counts = []
    for each in exported:
        args, kwargs = jax.tree.unflatten(each.in_tree, [jnp.zeros(aval.shape, aval.dtype) for aval in each.in_avals])
        before = cache.stats()
        jax.block_until_ready(jax.jit(each.call)(*args, **kwargs))
        counts.append((cache.stats().hits - before.hits, cache.stats().misses - before.misses))
    print(counts)
"""


@pytest.mark.soak
def test_ten_programs_of_an_earlier_jax(run_forked, tmp_path):
    """Each is compiled once by `warm`, and loaded by the process that calls it."""
    require("flatbuffers")
    said = run_forked(CALLS, str(tmp_path / "cache"), str(FILES), "warm").stdout
    assert said == f"{['compiled'] * 10}\n"
    said = run_forked(CALLS, str(tmp_path / "cache"), str(FILES), "call").stdout
    assert said == f"{[(1, 0)] * 10}\n"


@pytest.mark.usefixtures("forked_children")
def test_the_command(tmp_path):
    """`ejcache warm FILE.bin` compiles it once; a file that holds none is bad usage."""
    require("flatbuffers")
    options = ("--dir", tmp_path / "cache", "--min-compile-seconds", "0", "--json")
    said = ejcache("warm", FILES / "matmul.bin", *options).json
    assert [(program["outcome"], program["program"]) for program in said["programs"]] == [("compiled", "jit_call")]
    enable(tmp_path / "cache", min_compile_seconds=0)
    assert warm(read_exported(str(FILES / "matmul.bin"))).outcome == "hit"
    (tmp_path / "no.bin").write_bytes(b"no")
    said = ejcache("warm", tmp_path / "no.bin", *options)
    assert (said.status, "no.bin" in said.err) == (2, True)


def test_a_file_that_cannot_be_read_is_told_from_one_of_another_kind(tmp_path):
    """A name with a typing error is not said to hold no function."""
    (tmp_path / "text.bin").write_bytes(b"hello")
    with pytest.raises(UsageError, match=r"none\.bin cannot be read: No such file or directory"):
        read_exported(str(tmp_path / "none.bin"))
    with pytest.raises(UsageError, match=r"text\.bin holds no function that jax\.export of this JAX reads"):
        read_exported(str(tmp_path / "text.bin"))

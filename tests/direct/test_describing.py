"""The describer: another content has another digest, or none; the same content has the same in each process."""

from __future__ import annotations

import functools
import re
import sys
import types

import jax
import pytest
from direct_traps.trap import PROGRAM, all_traps
from helpers import python_command, run_program

pytest.importorskip("ejcache.direct")
from ejcache.direct.describing.walk import difference, walk
from ejcache.direct.files.owners import Owners
from ejcache.jax_integration.seam.direct.refusal import RefusedError

GROUPS = {"classes", "code", "constants", "forms", "held_objects", "records", "values"}
APART = re.compile(r"builtins|config\.update|sys\.modules|current_thread|flags\.|gin\.|getframe|set_mesh|compile\(")
"""What a program changes of the process that runs it, or asks of its frames."""
TRAPS = {
    each.name: each
    for each in all_traps()
    if each.group in GROUPS
    and not (each.env or each.args or each.needs or each.options or each.flags & {"same", "varies", "seed", "traced"})
    and (each.version(1)["call"] == each.version(2)["call"])
    and len(each.files) == 1
    and not APART.search(each.files[PROGRAM])
}


def described(text, value=2):
    """The walk over `f` of a program; None if it is refused."""
    module = types.ModuleType("trapped")
    offered = types.ModuleType("under_test")
    offered.V = value
    offered.ejit = lambda fun=None, **options: functools.partial(offered.ejit, **options) if fun is None else fun
    sys.modules["under_test"], sys.modules["trapped"] = offered, module
    try:
        exec(compile(text, "<trapped>", "exec", dont_inherit=True), vars(module))
        return walk({"f": module.f}, owners=Owners(["trapped"]))
    except RefusedError:
        return None
    finally:
        del sys.modules["under_test"], sys.modules["trapped"]


@pytest.mark.parametrize("name", TRAPS)
def test_another_content_has_another_digest(name):
    """Both versions of a trap differ, unless one has no digest, and the tokens name where; loaded again, none does."""
    one, again, two = (
        described(TRAPS[name].version(number)["program"]["files"][PROGRAM], number + 1) for number in (1, 1, 2)
    )
    assert (one is None) == (again is None)
    if one is not None:
        assert one.digest() == again.digest(), difference(one.tokens, again.tokens)
    if one is not None and two is not None:
        assert one.digest() != two.digest() or one.constants != two.constants


def test_digests_are_the_same_in_each_process():
    """Of everything above, with two hash seeds."""
    code = "import test_describing as t\nprint({n: t.digest_of(n) for n in t.TRAPS})"
    said = {run_program(python_command(code), env={"PYTHONHASHSEED": seed, "PYTHONPATH": PATH}).stdout for seed in "12"}
    assert len(said) == 1


PATH = ":".join([str(__import__("pathlib").Path(__file__).parent), *filter(None, sys.path)])


def digest_of(name):
    """Of the first version; empty if it has none, or depends on the hash seed and says so."""
    found = described(TRAPS[name].version(1)["program"]["files"][PROGRAM])
    return "" if found is None or found.hash_order else found.digest()


def test_a_path_is_left_out():
    """`ignore` takes what differs out of the digest."""
    text = "import types\nc = types.SimpleNamespace(k=%d, j=1)\ndef f(x): return x * c.k + c.j\n"
    modules = []
    for value in (2, 3):
        modules.append(types.ModuleType("trapped"))
        exec(compile(text % value, "<trapped>", "exec"), vars(modules[-1]))
    walks = [
        [walk({"f": each.f}, owners=Owners(["trapped"]), ignored=ignored).digest() for each in modules]
        for ignored in ((), ("f.c.k",))
    ]
    assert walks[0][0] != walks[0][1]
    assert walks[1][0] == walks[1][1]


def test_jax_is_not_changed():
    """The walk makes no trace and no array."""
    before = len(jax.live_arrays())
    described("import jax.numpy as jnp\ndef f(x): return jnp.tanh(x)\n")
    assert len(jax.live_arrays()) == before

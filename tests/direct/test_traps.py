"""Direct mode is not stale: small programs change in ways that a question could overlook."""

from __future__ import annotations

import pytest
from direct_traps.run import STALE, WAYS, run_traps
from direct_traps.trap import APART, all_traps

pytest.importorskip("ejcache.direct")

LEAST = {"arguments": 43, "jax_state": 29, "patches": 19, "pytrees": 11, "transforms": 41, "classes": 27, "code": 34}
LEAST |= {"constants": 35, "forms": 20, "records": 11, "reflection": 39, "values": 33, "chance": 16, "effects": 30}
LEAST |= {"environment": 23, "libraries": 36, "process": 29, "state_of_libraries": 34, "third_party": 22}
LEAST |= {"held_objects": 68, "held_state": 100}
"""How many traps each file has at least: none gets lost."""

SHORT = (
    "own body",
    "helper in the module",
    "custom_vjp rule",
    "global dict mutated",
    "private slots",
    "static that is always equal",
    "aux that is always equal",
    "getattr with a computed name",
    "os.environ in the trace",
    "os.environb",
    "counter in a global",
    "x64",
    "library: table",
    "Annotated metadata of a parameter",
    "state of a package installed from a directory",
    "JSON read in the trace",
    "installed package, file that only its trace imports",
    "class by pickle",
    "another program's output",
    "time.time",
    "callback",
    "scan body shared with a later function, value changed in between",
)


def test_the_short_set_is_as_expected():
    """No trap is stale, each unchanged program hits at its third start or is marked, and each change is noticed.

    Each kind of the closed list has a trap that hits with an old result, as the documentation says.
    """
    traps = {each.name: each for each in all_traps()}
    shown = {each.apart: each for each in reversed(all_traps()) if each.apart and each.group == "held_state"}
    chosen = [*(traps[name] for name in SHORT), *shown.values()]
    results = list(run_traps(chosen, way="installed", jobs=1))  # each job has two servers of its own
    assert {each.name: each.problems for each in results if each.problems} == {}
    stale = {each.apart for each in results if STALE in {each.changed, each.unchanged}}
    # What `__getstate__` leaves out is noticed in the trap for it, where the attribute is named by code.
    assert stale == set(APART) - {"getstate"}


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_every_trap_is_as_expected(way):
    """The same for all traps, wherever the project lies."""
    results = run_traps([each for each in all_traps() if not each.apart], way=way, quick=way != "path")
    assert {each.name: each.problems for each in results if each.problems} == {}


def test_no_trap_is_lost():
    """Each file has as many traps as it had, each with two versions."""
    counted: dict[str, int] = dict.fromkeys(LEAST, 0)
    for each in all_traps():
        counted[each.group] = counted.get(each.group, 0) + 1
        one, two = each.version(1), each.version(2)
        assert one != two or each.options or each.flags & {"seed", "varies", "same"}, each.name
    assert all(counted[group] >= least for group, least in LEAST.items()), counted

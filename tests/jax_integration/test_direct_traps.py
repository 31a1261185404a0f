"""Direct mode is never stale: small programs change in ways that a fingerprint could overlook."""

from __future__ import annotations

import sys

import pytest
from direct_traps.report import judge
from direct_traps.run import run_traps
from direct_traps.trap import all_traps

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="direct mode needs Python 3.12")

SHORT = (
    "own body",
    "1 for True",
    "helper in the module",
    "decorator with wraps",
    "custom_vjp rule",
    "closure array (NumPy)",
    "global dict mutated",
    "private slots",
    "static that is always equal",
    "inherited method",
    "pytree argument, other aux",
    "aux that is always equal",
    "getattr with a computed name",
    "f.__globals__",
    "os.environ in the trace",
    "open in the trace",
    "time.time",
    "contextvar",
    "order of a global set",
    "counter in a global",
    "callback",
    "patched lowering rule",
    "x64",
    "library: function that ran",
    "library: table",
    "library: config object set at run time",
    "list of switch branches",
    "NumPy for JAX argument",
    "primitive's rule by a partial",
    "pytree registration",
    "string by identity",
    "globals by a computed name",
    "value kept by a library object",
    "os.environb",
    "integer digits limit",
    "warnings turned into errors",
    "library: getattr with a computed name",
    "library: getattr on its module",
    "library: getattr with a name made at run time",
    "library: getattr on its module with a name made at run time",
    "library: attrgetter",
    "library: memo filled before",
    "library: memo filled before in one version",
    "library: memo of limited size filled before",
    "library: used by a jitted function that two share",
    "library: traced for another kind of argument",
    "inner jit traced before, value changed",
    "inner jit traced with another value",
    "vmapped function traced with another value",
    "scan body traced with another value",
    "lowered first, with another value",
)


def stale(traps):
    """What is not as it must be, by case."""
    found = {}
    for trap, answers in run_traps(traps, mode="direct"):
        result = judge(trap, answers, mode="direct")
        if result.problems:
            found[trap.name] = result.problems
    return found


def test_the_short_set_is_as_expected():
    """No case is stale, each unchanged program hits at its third start or says why not, and each change is noticed."""
    traps = {each.name: each for each in all_traps()}
    assert stale([traps[name] for name in SHORT]) == {}


@pytest.mark.soak
def test_every_case_is_as_expected():
    """The same for all cases."""
    assert stale(all_traps()) == {}


def test_there_are_as_many_cases_as_promised():
    """At least 255 cases, each with two versions that are written down in one text."""
    traps = all_traps()
    assert len(traps) >= 255
    for each in traps:
        differs = each.version(1) != each.version(2)
        assert differs or each.by_seed or each.options or not each.repeats or each.changed == "right", each.name

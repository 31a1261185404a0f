"""The walk: what another digest must show, what must not change one, and what has none."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
from helpers import run_program

from ejcache.direct.describing.walk import difference, walk
from ejcache.jax_integration.seam.direct.refusal import RefusedError

sys.path.insert(0, str(Path(__file__).parent))
from programs import CHANGES, REFUSALS, load, versions

CLOSURES = """
def make():
    n, seen = 1, []
    def inner(x):
        nonlocal n
        n = 2.5
        if x: seen.append(x)
    return inner
"""
ONE_PROCESS_FOR_ALL = """
import json, sys
sys.path.insert(0, sys.argv[1])
from programs import CHANGES, load, versions
from ejcache.direct.describing.walk import walk
print(json.dumps({name: walk({"f": load(versions(source)[0]).f}).digest for name, source in CHANGES.items()}))
"""


@pytest.mark.parametrize("name", CHANGES)
def test_digest_shows(name):
    """A change of what the function reads gives another digest, and the tokens name where it is."""
    one, other = (walk({"f": load(each).f}) for each in versions(CHANGES[name]))
    assert one.digest != other.digest
    assert difference(one.tokens, other.tokens) is not None


def test_a_library_may_change_what_its_functions_close_over():
    """That changes the digest, and not the digest of the user's part; what the closure leads to is the user's part."""
    names: dict[str, object] = {}
    exec(compile(CLOSURES, textwrap.__file__, "exec"), names)
    inner = names["make"]()

    def f(x):
        return inner(x)

    before = walk({"f": f})
    f(0)
    changed = walk({"f": f})
    assert (before.digest == changed.digest, before.user_digest == changed.user_digest) == (False, True)
    f(1)
    assert walk({"f": f}).user_digest != changed.user_digest
    user_names: dict[str, object] = {}
    exec(compile(CLOSURES, "program.py", "exec"), user_names)
    inner = user_names["make"]()
    before = walk({"f": f})
    f(0)
    assert walk({"f": f}).user_digest != before.user_digest


def test_addresses_that_keras_notes_are_not_read():
    """A function or class that Keras exports has its own address as an attribute, which differs between processes."""

    class Layer:
        pass

    def f(x):
        return x, Layer

    digests = []
    for address in (140, 141):
        f._api_export_symbol_id = Layer._api_export_symbol_id = address
        digests.append(walk({"f": f}).digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name", CHANGES)
def test_digest_is_repeatable(name):
    """Two runs of one program give one digest, and a walk changes nothing that it reads."""
    source, _ = versions(CHANGES[name])
    module = load(source)
    first = walk({"f": module.f})
    assert walk({"f": module.f}).digest == first.digest
    again = walk({"f": load(source).f})
    assert difference(first.tokens, again.tokens) is None
    assert again.digest == first.digest


def test_digests_are_equal_in_other_processes():
    """Neither addresses nor the hash seed enter a digest."""
    answers = []
    for seed in ("1", "2"):
        program = [sys.executable, "-c", ONE_PROCESS_FOR_ALL, str(Path(__file__).parent)]
        answers.append(json.loads(run_program(program, env={"PYTHONHASHSEED": seed}).stdout))
    different = [name for name in CHANGES if answers[0][name] != answers[1][name]]
    assert different == []


@pytest.mark.parametrize(("source", "reason"), REFUSALS.items(), ids=REFUSALS.values())
def test_refusal_names_the_path(source, reason):
    """What cannot be described by its content is refused, with the way that leads to it."""
    with pytest.raises(RefusedError) as caught:
        walk({"f": load(source).f})
    assert caught.value.reason == reason


def test_no_code_of_the_user_runs():
    """Objects that fail when they are compared, hashed, shown, read or asked for their class are walked."""
    module = load(UNTOUCHABLE)
    walk({"f": module.f})
    assert module.RAN == []


def test_code_objects_are_reached_by_identity():
    """The walk answers for the function's code object and those inside it, and not for an equal one."""
    source = "def g(x): return x\ndef f(x):\n def h(y): return g(y)\n return h(x)"
    module, twin = load(source), load(source)
    codes = walk({"f": module.f}).codes
    inside = next(each for each in module.f.__code__.co_consts if hasattr(each, "co_code"))
    assert all(code in codes for code in (module.f.__code__, module.g.__code__, inside))
    assert module.f.__code__ == twin.f.__code__
    assert twin.f.__code__ not in codes


def test_difference_names_the_path():
    """A difference is the nearest path whose content differs; without one there is none."""
    one, other = (
        walk({"f": load(f"class C: pass\ncfg = C()\ncfg.K = {k}\ndef f(x): return cfg.K").f}).tokens for k in (2, 3)
    )
    assert difference(one, other) == "f → cfg.K changed"
    assert difference(one, one) is None


def test_cycles_end():
    """Objects that contain themselves are walked once."""
    module = load("class C: pass\nc = C()\nc.c = c\nl = [c]\nl.append(l)\ndef f(x): return f, c, l")
    assert walk({"f": module.f}).digest == walk({"f": module.f}).digest


def test_long_chains_are_walked():
    """A list of thousands of linked objects needs no deep recursion."""
    module = load("n = None\nfor i in range(20_000): n = [n]\ndef f(x): return n")
    assert walk({"f": module.f}).digest == walk({"f": module.f}).digest


def test_very_much_is_refused():
    """A walk ends: tuples that share tuples are not written out without end."""
    module = load("t = ()\nfor i in range(40): t = (t, t)\ndef f(x): return t")
    with pytest.raises(RefusedError, match="leads to more than"):
        walk({"f": module.f})


SEEDED = {
    "def f(x): return {a for a in x}": True,
    "def f(x): return list({'a', x})": True,
    "def f(x): return list(set(x))": True,
    "def f(x): return hash(x)": True,
    "def f(x):\n for a in {'a', 'b'}: print(a)": True,
    "def f(x, y): return list(x.keys() & y)": True,
    "def f(x, y):\n k = x.keys()\n return list(k - y)": True,
    "def f(x): return sorted(set(x), key=len)": True,
    "def g(a, b): return a & b\ndef f(x, y): return g(x.keys(), y.keys())": True,
    "def g(x): return x.keys()\ndef f(x, y): return [a for a in g(x) - g(y)]": True,
    "def f(x): return x.__hash__()": True,
    "def f(x, y): return sorted(zip(x.keys(), y.values()))[0] - 1": False,
    "def f(x): return ','.join(x.keys()) and x - 1": False,
    "def f(x): return x in {'a', 'b'}": False,
    "def f(x): return sorted(set(x))": False,
    "def f(x): return len(set(x))": False,
    "def f(x): return isinstance(x, set)": False,
    "def f(x): return isinstance(x, (list, set))": False,
    "def f(x): return [a - 1 for a in x.keys()]": False,
    "def f(x): return sorted(x.keys())[0] & 1": False,
    "class C:\n def __hash__(self): return hash(1)\nc = C()\ndef f(x): return c": False,
}


@pytest.mark.parametrize(("source", "depends"), SEEDED.items(), ids=SEEDED)
def test_hash_seed_counts_where_sets_are_made(source, depends):
    """The hash seed is part of the digest exactly where the order of a set may decide something."""
    assert ("the hash seed" in walk({"f": load(source).f}).tokens) == depends


UNTOUCHABLE = """
import weakref
RAN = []
def ran(*a, **k):
    RAN.append(a)
    raise SystemError("the user's code ran")
class M(type):
    __eq__ = __hash__ = __getattribute__ = __instancecheck__ = __subclasscheck__ = __call__ = __repr__ = ran
def make(k):
    def f(x): return k
    return f
class Lies:
    __eq__ = __hash__ = __repr__ = __str__ = __getattr__ = __bool__ = __len__ = __iter__ = ran
    __reduce__ = __reduce_ex__ = __getstate__ = __format__ = __dir__ = __call__ = ran
    __class__ = __dict__ = property(ran)
    p = property(ran)
    def __getattribute__(self, name): ran(name)
class ListLies(list):
    __iter__ = __len__ = __getitem__ = __eq__ = ran
class DictLies(dict):
    __iter__ = __len__ = __getitem__ = items = keys = values = __eq__ = __contains__ = ran
class TupleLies(tuple):
    __iter__ = __len__ = __getitem__ = __eq__ = __hash__ = ran
class IntLies(int):
    __index__ = __int__ = __eq__ = __hash__ = __repr__ = __str__ = __bool__ = ran
class StrLies(str):
    __eq__ = __hash__ = __repr__ = __str__ = __len__ = encode = ran
class FloatLies(float):
    __float__ = __eq__ = __hash__ = __repr__ = ran
class SetLies(set):
    __iter__ = __len__ = __contains__ = ran
class Slots:
    __slots__ = ("a", "__weakref__")
    __getattribute__ = __eq__ = __hash__ = ran
Meta = M.__new__(M, "Meta", (), {"k": 1})
lies = object.__new__(Lies)
slots = object.__new__(Slots)
Slots.a.__set__(slots, 1)
things = [lies, slots, ListLies([1]), DictLies(a=1), tuple.__new__(TupleLies, (1,)), int.__new__(IntLies, 3)]
things += [str.__new__(StrLies, "a"), float.__new__(FloatLies, 1.0), SetLies({1}), (lies, slots), {"a": lies}]
things += [make(lies), Meta, object.__new__(Meta)]
RAN.clear()
def f(x): return things
"""
"""A program whose objects run code of its own for every question that one can ask of them."""

# ruff: noqa: E501  # the lines of edits and patches
"""Guards hold for the same program in another process, and break when the library or what it reads has changed."""

import copy
import json
import random
import re

import pytest
from helpers import python_command, run_program

from ejcache.errors import EntryCorruptError
from ejcache.fingerprint import coverage
from ejcache.fingerprint.guards import Guards, ModuleGuards, check_guards
from ejcache.fingerprint.guards_format import decode_guards, encode_guards

pytestmark = pytest.mark.skipif(not coverage.available(), reason="Python before 3.12 cannot report what runs")

LIBRARY = """
import dataclasses, enum, functools, collections, math
from fakelib import consts, kinds, registry, sub
from fakelib.deep import inner as deep_inner

K = 3
PAIR = (1, 2.0)
NAMES = ["a", "b"]
T = {"k": 3, "f": len, "nested": {"deep": 1}}
HOOKS = []
FLAGS = {}
TABLE_OF_LISTS = {"k": [1, 2]}


class Mode(enum.Enum):
    A = 1
    B = 2


MODE = Mode.A


class Config:
    limit = 5

    def __init__(self):
        self.k = 3
        self.unread = 1

    def get(self):
        return self.k + self.limit

    @functools.cached_property
    def memo(self):
        return self.k * 2


c = Config()


slotted = kinds.Slotted()
Rule = collections.namedtuple("Rule", ["fn", "on"])


@dataclasses.dataclass(frozen=True)
class Entry:
    fn: object
    k: int = 1


def rule(x):
    return x + 1


def entry_rule(x):
    return x + 2


RULES = {Config: Rule(rule, True), "entry": Entry(entry_rule, 2)}
UNUSED = {"entry": rule}


def default(x, by=2, *, plus=1):
    return x * by + plus


def make(n):
    def closed(x):
        return x + n

    return closed


closed = make(4)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


@decorated
def wrapped(x):
    return x - 1


part = functools.partial(default, by=3)


class Base:
    def act(self, x):
        return self.inner(x)

    def inner(self, x):
        return x

    @property
    def size(self):
        return 2

    @staticmethod
    def still(x):
        return x

    @classmethod
    def made(cls, x):
        return x

    def __private(self, x):
        return x

    def private(self, x):
        return self.__private(x)


class Derived(Base):
    pass


derived = Derived()


def lazily(x):
    from fakelib import later

    return later.more(x)


def computed(name):
    return getattr(consts, name, 7)


def run(x):
    x = default(closed(wrapped(x))) + K + PAIR[0] + len(NAMES) + T["k"] + T["nested"]["deep"] + consts.C
    x += c.get() + c.memo + slotted.k + slotted.fn(1) + kinds.SQUARE(2) + part(1) + (MODE is Mode.A)
    x += RULES[Config].fn(1) + RULES["entry"].fn(2) + sum(hook(1) for hook in HOOKS) + FLAGS.get("x", 0)
    x += derived.act(1) + derived.size + derived.still(1) + derived.made(1) + derived.private(1)
    x += lazily(1) + computed("D") + computed("E") + math.floor(1.5) + deep_inner(1) + sub.below(1)
    x += sum(TABLE_OF_LISTS["k"]) + registry.apply("double", 1) + abs(-1)
    return x
"""

FILES = {
    "__init__.py": "",
    "code.py": LIBRARY,
    "consts.py": "C = 3\nD = 4\nNOT_READ = 5\n",
    "registry.py": (
        "RULES = {}\n"
        "def register(name, function):\n    RULES[name] = function\n"
        "def apply(name, x):\n    return RULES[name](x)\n"
        "register('double', lambda x: 2 * x)\n"
        "register('unused', lambda x: 3 * x)\n"
    ),
    "kinds.py": (
        "class Slotted:\n"
        "    __slots__ = ('k', 'fn')\n"
        "    def __init__(self):\n        self.k = 1\n        self.fn = lambda x: x + 1\n"
        "SQUARE = lambda x: x * x\n"
    ),
    "sub.py": "NOT_READ = 1\ndef below(x):\n    def nested(y):\n        return y + 1\n    return nested(x)\n",
    "later.py": "M = 2\nfrom fakelib.registry import register\nregister('later', lambda x: x)\n"
    "def more(x):\n    return x * M\n",
    "deep/__init__.py": "def inner(x):\n    return x + 6\n",
    "other.py": "from fakelib import registry\nregistry.register('other', lambda x: 5)\n",
}

RECORD = """
import json, sys
sys.path.insert(0, sys.argv[1])
from fakelib import code
from ejcache.fingerprint.coverage import Coverage
from ejcache.fingerprint.guards import make_guards
from ejcache.fingerprint.guards_format import encode_guards
with Coverage() as found:
    code.run(1)
assert found.refusal is None, found.refusal
json.dump(encode_guards(make_guards(found.library.values())), open(sys.argv[2], "w"))
"""

CHECK = """
import json, sys
sys.path.insert(0, sys.argv[1])
{before}
from fakelib import code, consts, registry, sub
from ejcache.fingerprint.guards import check_guards
from ejcache.fingerprint.guards_format import decode_guards
guards = decode_guards(json.load(open(sys.argv[2])))
def said(name):
    print(name, "|", check_guards(guards))
said("unchanged")
{after}
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The directory of packages, and the guards of `code.run`."""
    home = tmp_path_factory.mktemp("recorded")
    packages = home / "site-packages"
    write_library(packages, FILES)
    program = home / "record.py"
    program.write_text(RECORD)
    run_program(python_command(program, str(packages), str(home / "guards.json")), env={"PYTHONHASHSEED": "1"})
    return packages, home / "guards.json"


def write_library(packages, files):
    for name, text in files.items():
        path = packages / "fakelib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def check(home, packages, guards, *, before="", after="", seed="2"):
    program = home / "check.py"
    program.write_text(CHECK.format(before=before, after=after))
    done = run_program(python_command(program, str(packages), str(guards)), env={"PYTHONHASHSEED": seed})
    return dict(line.split(" | ", 1) for line in done.stdout.splitlines())


def test_the_same_library_holds_in_other_processes(recorded, tmp_path):
    """Another hash seed, other imports before, and parts of the library that are not imported yet change nothing."""
    packages, guards = recorded
    assert check(tmp_path, packages, guards) == {"unchanged": "None"}
    before = "import fakelib.other, fakelib.later, decimal, fractions, fakelib.code as c; c.run(2)"
    assert check(tmp_path, packages, guards, before=before, seed="3") == {"unchanged": "None"}


EDITS = {
    "function": ("code.py", "return x * by + plus", "return x * by - plus", "default"),
    "constant": ("code.py", "\nK = 3", "\nK = 4", "code.K"),
    "type of a constant": ("code.py", "\nK = 3", "\nK = 3.0", "code.K"),
    "tuple": ("code.py", "(1, 2.0)", "(1, 2)", "code.PAIR"),
    "list": ("code.py", '["a", "b"]', '["a", "c"]', "code.NAMES"),
    "table": ("code.py", '{"k": 3,', '{"k": 4,', "code.T"),
    "nested table": ("code.py", '{"deep": 1}', '{"deep": 2}', "code.T"),
    "list in a table": ("code.py", '{"k": [1, 2]}', '{"k": [1, 3]}', "code.TABLE_OF_LISTS"),
    "enum": ("code.py", "MODE = Mode.A", "MODE = Mode.B", "code.MODE"),
    "class attribute": ("code.py", "limit = 5", "limit = 6", "code.Config"),
    "instance attribute": ("code.py", "self.k = 3", "self.k = 4", "code.c "),
    "default": ("code.py", "by=2, *", "by=4, *", "default"),
    "keyword default": ("code.py", "plus=1", "plus=2", "default"),
    "closure": ("code.py", "make(4)", "make(5)", "code.closed"),
    "decorated function": ("code.py", "return x - 1", "return x - 2", "wrapped"),
    "decorator": ("code.py", "return function(*arguments)", "return -function(*arguments)", "code."),
    "partial": ("code.py", "by=3)", "by=5)", "code.part"),
    "lambda": ("kinds.py", "SQUARE = lambda x: x * x", "SQUARE = lambda x: x + x", "kinds.SQUARE"),
    "function in a slot": ("kinds.py", "lambda x: x + 1", "lambda x: x + 2", "code.slotted"),
    "function in a named tuple": (
        "code.py",
        "def rule(x):\n    return x + 1",
        "def rule(x):\n    return x",
        "code.RULES",
    ),
    "value in a dataclass": ("code.py", "Entry(entry_rule, 2)", "Entry(entry_rule, 3)", "code.RULES"),
    "inherited method": (
        "code.py",
        "    def inner(self, x):\n        return x",
        "    def inner(self, x):\n        return -x",
        "inner",
    ),
    "override": (
        "code.py",
        "class Derived(Base):\n    pass",
        "class Derived(Base):\n    def inner(self, x): return 2",
        "code.",
    ),
    "property": ("code.py", "return 2\n\n    @static", "return 3\n\n    @static", "Base.size"),
    "private method": (
        "code.py",
        "__private(self, x):\n        return x",
        "__private(self, x):\n        return -x",
        "private",
    ),
    "constant of a module": ("consts.py", "C = 3", "C = 4", "consts.C"),
    "computed name": ("consts.py", "D = 4", "D = 5", "consts.D"),
    "new computed name": ("consts.py", "D = 4", "D = 4\nE = 1", "the namespace of fakelib.consts"),
    "registered lambda": ("registry.py", "lambda x: 2 * x", "lambda x: x * 2", "registry"),
    "nested function": ("sub.py", "return y + 1", "return y + 2", "sub.below"),
    "part that is imported lazily": ("later.py", "return x * M", "return x + M", "source of fakelib.later"),
    "constant of such a part": ("later.py", "M = 2", "M = 3", "source of fakelib.later"),
    "package": ("deep/__init__.py", "x + 6", "x + 7", "inner"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_library_breaks_its_guards(recorded, tmp_path, name):
    """A library that was changed in place, whatever in it, is noticed, and the sentence names the place."""
    file, old, new, said = EDITS[name]
    assert FILES[file].count(old) == 1
    write_library(tmp_path / "site-packages", {**FILES, file: FILES[file].replace(old, new)})
    found = check(tmp_path, tmp_path / "site-packages", recorded[1])["unchanged"]
    assert found != "None"
    assert said in found


PATCHES = {
    "constant": "code.K = 4",
    "function": "code.default = lambda x, **k: 0",
    "function by one that wraps it": "import functools; code.default = functools.wraps(code.default)(lambda *a, **k: 0)",
    "code": "code.default.__code__ = (lambda x, by=2, *, plus=1: x).__code__",
    "defaults": "code.default.__defaults__ = (5,)",
    "keyword defaults": "code.default.__kwdefaults__ = {'plus': 5}",
    "cell": "code.closed.__closure__[0].cell_contents = 9",
    "table": "code.T['k'] = 4",
    "table, type": "code.T['k'] = True",
    "function in a table": "code.T['f'] = lambda x: 1",
    "nested table": "code.T['nested']['deep'] = 5",
    "entry removed": "del code.T['k']",
    "new entry": "code.FLAGS['x'] = 1",
    "new entry by a user": "code.FLAGS['x'] = lambda: 1",
    "new entry of a library": "code.FLAGS['x'] = code.default",
    "hook": "code.HOOKS.append(lambda x: x)",
    "flag": "code.c.k = 5",
    "flag that hides the class's": "code.c.limit = 9",
    "flag of the class": "code.Config.limit = 9",
    "slot": "code.slotted.k = 3",
    "function in a slot": "code.slotted.fn = lambda x: 0",
    "named tuple in a table": "code.RULES[code.Config] = code.Rule(lambda x: 0, True)",
    "dataclass in a table": "code.RULES['entry'] = code.Entry(lambda x: 0, 2)",
    "dataclass in a table, in place": "object.__setattr__(code.RULES['entry'], 'fn', lambda x: 0)",
    "registered": "registry.register('double', lambda x: 0)",
    "registered anew": "registry.register('triple', lambda x: 0)",
    "method": "code.Base.inner = lambda self, x: 0",
    "method by one that wraps it": "import functools\ncode.Base.inner = functools.wraps(code.Base.inner)(lambda s, x: 0)",
    "override": "code.Derived.inner = lambda self, x: 0",
    "property": "code.Base.size = property(lambda self: 7)",
    "static method": "code.Base.still = staticmethod(lambda x: 0)",
    "enum": "code.MODE = code.Mode.B",
    "attribute of a module": "consts.C = 9",
    "computed name": "consts.D = 9",
    "new computed name": "consts.E = 9",
    "module": "import types; code.consts = types.SimpleNamespace(C=3)",
    "class of an object": "code.c.__class__ = type('Other', (code.Config,), {})",
    "function of the standard library": "import math; math.floor = lambda x: 0",
    "builtin": "import builtins; builtins.abs = lambda x: 0",
    "builtin hidden": "code.abs = lambda x: 0",
}

IN_ORDER = """
import os
for name, patch in json.loads({patches!r}).items():
    child = os.fork()
    if not child:
        try:
            exec(patch)
            said(name)
        except BaseException as error:
            print(name, "|", repr(error))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def patched(recorded, tmp_path_factory):
    """Name of a patch → what is said after it, in a process of its own."""
    packages, guards = recorded
    home = tmp_path_factory.mktemp("patched")
    after = "sys.stdout.flush()\n" + IN_ORDER.format(patches=json.dumps(PATCHES))
    return check(home, packages, guards, after=after)


@pytest.mark.parametrize("name", PATCHES)
def test_a_patched_library_breaks_its_guards(patched, name):
    """What a program changes in a library at run time is noticed."""
    assert patched["unchanged"] == "None"
    assert patched[name].endswith("is not what it was")


HARMLESS = {
    "attribute that no library code mentions": "code.c.unread = 9",
    "name that nobody reads": "sub.NOT_READ = 9",
    "new name": "code.NEW = 9",
    "memo": "code.c.memo",
    "the whole library ran": "code.run(3)",
    "entry of a part that is imported now": "import fakelib.other",
    "table that nobody reads": "code.UNUSED['entry'] = lambda x: x",
}


def test_what_the_library_does_not_read_breaks_nothing(recorded, tmp_path):
    """Names, attributes and tables that the code that ran does not mention may change, and memos may be filled."""
    packages, guards = recorded
    after = "sys.stdout.flush()\n" + IN_ORDER.format(patches=json.dumps(HARMLESS))
    found = check(tmp_path, packages, guards, after=after)
    assert found == dict.fromkeys(["unchanged", *HARMLESS], "None")


def test_a_file_that_changed_after_its_import_refuses(tmp_path):
    """Guards by the source of a module are not made of a source that is not what runs."""
    write_library(tmp_path / "site-packages", FILES)
    program = tmp_path / "record.py"
    registry = tmp_path / "site-packages" / "fakelib" / "registry.py"
    text = "from ejcache.fingerprint.coverage import Coverage\n"
    edit = f"import pathlib\npathlib.Path({str(registry)!r}).write_text({FILES['registry.py'].replace('2 * x', '9 * x')!r})\n"
    program.write_text(RECORD.replace(text, edit + text))
    done = run_program(
        python_command(program, str(tmp_path / "site-packages"), str(tmp_path / "guards.json")), check=False
    )
    assert "<lambda> of fakelib.registry has neither a name nor an unchanged source" in done.stderr


JAX = """
import json, os, sys
{before}
import jax, jax.numpy as jnp
from ejcache.fingerprint.coverage import Coverage
from ejcache.fingerprint.guards import check_guards, current_values, make_guards
from ejcache.fingerprint.guards_format import decode_guards, encode_guards
jax.devices()
def loss(w, x):
    return jnp.sum(jnp.tanh(jnp.einsum("ij,jk->ik", x, w)) ** 2) + jax.nn.relu(jnp.linalg.norm(w)) + x.sum()
def step(w, x):
    l, g = jax.value_and_grad(loss)(w, x)
    return jax.lax.fori_loop(0, 3, lambda i, w: w - 0.1 * g, w), l
arguments = jnp.ones((4, 4)), jnp.ones((2, 4))
def record():
    with Coverage() as found:
        jax.jit(step).lower(*arguments)
    assert found.refusal is None, found.refusal
    return make_guards(found.library.values())
"""

JAX_PATCHES = {
    "jnp.tanh": "import jax._src.numpy.ufuncs as u; u.tanh = jnp.tanh = lambda x: x",
    "relu's insides": "import jax._src.nn.functions as n; n.jnp = type(sys)('jnp')",
    "lax alias": "import jax._src.lax.lax as l; l.tanh = l.sin",
    "code": "f = jax._src.lax.lax.tanh; f = getattr(f, '__wrapped__', f); f.__code__ = (lambda x, accuracy=None: x).__code__",
    "ShapedArray": "import jax._src.core as c; c.ShapedArray.sum = staticmethod(lambda *a, **k: 0)",
    "ufunc of NumPy": "import numpy as np; np.multiply = np.ndim = np.shape = lambda *a, **k: 0",
    "lowering rule": (
        "from jax._src.interpreters import mlir; from jax._src.lax import lax\n"
        "mlir.register_lowering(lax.tanh_p, lambda ctx, x, **k: [x])"
    ),
    "lowering rule of a platform": (
        "from jax._src.interpreters import mlir; from jax._src.lax import lax\n"
        "mlir.register_lowering(lax.tanh_p, lambda ctx, x, **k: [x], platform='cpu')"
    ),
    "jvp rule": "from jax._src.interpreters import ad; from jax._src.lax import lax; ad.defjvp(lax.tanh_p, lambda g, x, **k: g)",
    "implementation of a primitive": "from jax._src.lax import lax; lax.tanh_p.def_abstract_eval(lambda x, **k: x)",
    "builtin": "import builtins; builtins.max = lambda *a: 0",
    "builtin that guards need": "import builtins; builtins.isinstance = lambda *a: True",
}


NOTICED = re.compile("is not what it was$|^what libraries read cannot be compared")


def test_a_trace_of_jax(tmp_path):
    """What JAX reads in a trace is the same in a process with another hash seed and other imports, and patches show."""
    (tmp_path / "record.py").write_text(
        JAX.format(before="") + "json.dump(encode_guards(record()), open(sys.argv[1], 'w'))\n"
    )
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "1"}
    guards = tmp_path / "guards.json"
    run_program(python_command(tmp_path / "record.py", str(guards)), env=environment)
    assert guards.stat().st_size < 200_000
    before = "import jax.experimental.pallas, jax.scipy.special, concurrent.futures"
    (tmp_path / "check.py").write_text(
        JAX.format(before=before)
        + "jnp.linalg.norm(jnp.ones((3, 3)))\n"
        + "guards = decode_guards(json.load(open(sys.argv[1])))\n"
        + "def said(name):\n    print(name, '|', check_guards(guards))\n"
        + "said('before')\nrecord()\nsaid('after')\nsys.stdout.flush()\n"
        + IN_ORDER.format(patches=json.dumps(JAX_PATCHES))
    )
    done = run_program(python_command(tmp_path / "check.py", str(guards)), env={**environment, "PYTHONHASHSEED": "2"})
    found = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    assert found.pop("before") == "None"
    assert found.pop("after") == "None"
    assert found.keys() == JAX_PATCHES.keys()
    assert {name: text for name, text in found.items() if not NOTICED.search(text)} == {}


def some_guards():
    return Guards({"gone": ModuleGuards(b"source", by_source=True, values={"K": b"abcdef"}, tables={})})


def test_a_variant_matches_whole_or_not_at_all():
    """A state is known if it is a variant, as a whole; parts of two variants are another state."""
    first, second = {("m", "a"): b"1", ("m", "b"): b"2"}, {("m", "a"): b"3"}
    guards = some_guards().with_variant(first).with_variant(second).with_variant(first)
    assert len(guards.variants) == 2
    assert [guards.match({}), guards.match(first), guards.match(second)] == [0, 1, 2]
    assert guards.match({("m", "a"): b"3", ("m", "b"): b"2"}) == "m.a is not what it was"
    assert guards.match({("m", "b"): b"2"}) == "m.b is not what it was"


def test_there_are_at_most_four_variants():
    """The fifth state is not added."""
    guards = some_guards()
    for number in range(6):
        guards = guards.with_variant({("m", "a"): bytes([number])})
    assert len(guards.variants) == 4
    assert isinstance(guards.match({("m", "a"): b"\5"}), str)


def test_a_module_that_is_gone_is_a_difference():
    """A module that cannot be found any more breaks its guards."""
    assert check_guards(some_guards()) == "the source of gone is not what it was"


def test_the_format_keeps_everything(recorded):
    """What is written is read back as the same guards, variants included."""
    guards = decode_guards(json.loads(recorded[1].read_text()))
    guards = guards.with_variant({("m", "a.b|00"): b"123456", ("m", ""): b"u"})
    assert decode_guards(json.loads(json.dumps(encode_guards(guards)))) == guards
    assert guards.modules["fakelib.registry"].by_source
    assert any(each.tables for each in guards.modules.values())


def damaged(document, chooser):
    """The document with one value somewhere in it replaced, removed or renamed."""
    document = copy.deepcopy(document)
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return document
        key = chooser.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and chooser.random() < 0.8:
            place = place[key]
            continue
        if chooser.random() < 0.2:
            del place[key]
        else:
            place[key] = chooser.choice([None, 7, "", "A", "====", [], {}, {"a": 1}, "x x", True, 1.5])
        return document


def test_damaged_guards_are_corrupt_and_nothing_else(recorded):
    """A document that was changed decodes, or is corrupt; no other error leaves the decoder."""
    document = json.loads(recorded[1].read_text())
    document["variants"] = [{"m": {"a": "AAAA"}}]
    corrupt = 0
    for seed in range(400):
        try:
            decode_guards(damaged(document, random.Random(seed)))
        except EntryCorruptError:
            corrupt += 1
    assert corrupt > 200
    for other in (
        None,
        [],
        "text",
        {},
        {**document, "format": document["format"] + 1},
        {**document, "variants": [{}] * 5},
    ):
        with pytest.raises(EntryCorruptError):
            decode_guards(other)

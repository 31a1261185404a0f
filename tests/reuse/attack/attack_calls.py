# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs in which a number outside of the project (on the list by itself) changes what the page compares of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attack_driver import Place


def _modes(p: Place, text: str, modes: dict[str, str], *, listed: dict[int, list[str]] | None = None) -> None:
    """A program that reads `mode` from outside, and one change for each mode; the value names what must be traced anew."""
    p.write("out/mode.txt", "base")
    p.program(
        """
class Modes(set):
    def __eq__(self, name): return name in self
    __hash__ = None
mode = Modes(open("../out/mode.txt").read().split("\\n"))
"""
        + text
    )
    for mode, name in modes.items():
        p.must(mode, _add(mode), traced=name, several=len(set(modes.values())) > 1)
    for number, names in (listed or {}).items():
        for mode in names:
            p.listed(number, mode, _add(mode))


def _add(mode: str):
    return lambda q: q.write("out/mode.txt", q.path("out/mode.txt").read_text() + "\n" + mode)


def settings_of_jax(p: Place) -> None:
    """JAX's settings and contexts, set from outside."""
    _modes(
        p,
        """
import contextlib
settings = {
    "x64": ("jax_enable_x64", True), "precision": ("jax_default_matmul_precision", "highest"),
    "promotion": ("jax_numpy_dtype_promotion", "strict"), "rank": ("jax_numpy_rank_promotion", "raise"),
    "prng": ("jax_default_prng_impl", "rbg"), "partitionable": ("jax_threefry_partitionable", False),
    "softmax": ("jax_softmax_custom_jvp", False),
    "seed offset": ("jax_random_seed_offset", 7), "custom prng": ("jax_enable_custom_prng", True),
}
for name in mode & set(settings):
    jax.config.update(*settings[name])
contexts = {
    "x64 context": lambda: jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(),
    "precision context": lambda: jax.default_matmul_precision("float32"),
    "rank context": lambda: jax.numpy_rank_promotion("raise"),
    "promotion context": lambda: jax.numpy_dtype_promotion("strict"),
    "prng context": lambda: jax.default_prng_impl("rbg"),
    "partitionable context": lambda: jax.threefry_partitionable(False),
    "no tracing": lambda: jax.no_tracing() if hasattr(jax, "no_tracing") else jax.numpy_rank_promotion("raise"),
    "disable jit": lambda: jax.disable_jit(),
}
@ejcache.ejit(reuse_lowering=True)
def step(x, k):
    traced("step")
    a = x @ x.T
    b = jax.nn.softmax(x) + jnp.ones((3,)) * np.float64(2)
    c = jax.random.normal(jax.random.key(0), (2,)) + jax.random.uniform(jax.random.wrap_key_data(k), (2,))
    d = jax.random.PRNGKey(3)
    e = jnp.asarray(jax.config.jax_default_matmul_precision == "highest") + len(str(jax.config.jax_default_matmul_precision))
    return a, b, c, d, e, jnp.arange(3), jnp.float32(1) + jnp.int32(1), jnp.zeros(2, float).dtype == jnp.float64
with contexts.get(next(iter(mode & set(contexts)), ""), contextlib.nullcontext)():
    out = step(np.ones((3, 3), np.float32), np.zeros(4 if mode & {"prng", "prng context"} else 2, np.uint32))
    show(out)
""",
        dict.fromkeys(
            (
                *(
                    "x64",
                    "precision",
                    "promotion",
                    "rank",
                    "prng",
                    "partitionable",
                    "seed offset",
                    "custom prng",
                ),
                *("x64 context", "precision context", "rank context", "promotion context", "prng context"),
                *("partitionable context", "no tracing", "disable jit"),
            ),
            "step",
        ),
    )
    p.env["JAX_PLATFORMS"] = "cpu"


def arguments(p: Place) -> None:
    """Types, weak types and trees of arguments, one function each."""
    _modes(
        p,
        """
import collections, dataclasses, enum
class Point(collections.namedtuple("Point", "a b")): pass
class Point2(collections.namedtuple("Point", "b a")): pass
@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, leaf, aux): self.leaf, self.aux = leaf, aux
    def tree_flatten(self): return (self.leaf,), self.aux
    @classmethod
    def tree_unflatten(cls, aux, leaves): return cls(leaves[0], aux)
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Unit:
    value: jax.Array
    unit: str = dataclasses.field(metadata=dict(static=True), default="m")
    scale: float = dataclasses.field(metadata=dict(static=True), default=1.0)
one = jnp.float32(1)
key = lambda impl: jax.random.key(0, impl=impl)
A = {
    "weak": ({"base": one}, 1.0), "int": ({"base": one}, jnp.int32(1)), "numpy": (1.0, np.float32(1)), "bool": (1, True),
    "shape": (jnp.ones(3), jnp.ones((3, 1))), "rank 0": (jnp.ones(1), jnp.ones(())), "half": (one, jnp.bfloat16(1)),
    "none": ({"a": one, "b": one}, {"a": one, "b": None}), "list": ([one, one], (one, one)), "key name": ({"a": one}, {"b": one}),
    "integer key": ({1: one}, {2: one}), "ordered": ({"a": one, "b": one}, collections.OrderedDict(b=one, a=one)),
    "named tuple": (Point(one, one * 2), Point2(one, one * 2)), "tuple": ((one, one * 2), Point(one, one * 2)),
    "impl": (key("threefry2x32"), key("rbg")), "raw key": (key("threefry2x32"), jax.random.PRNGKey(0)),
    "empty": ([one, []], [one, ()]), "unit": (Unit(one), Unit(one, "km")), "scale": (Unit(one), Unit(one, "m", 2.0)),
    "aux number": (Node(one, 1), Node(one, 2)), "aux text": (Node(one, "a"), Node(one, "b")), "aux tuple": (Node(one, (1, ("a",))), Node(one, (1, ("b",)))),
    "aux type": (Node(one, int), Node(one, float)), "aux none": (Node(one, None), Node(one, 0)), "aux minus zero": (Node(one, 0.0), Node(one, -0.0)),
    "nested": ({"a": {"b": [one]}}, {"a": {"b": [one, one]}}), "unsigned": (jnp.uint8(1), jnp.int8(1)), "complex": (one, jnp.complex64(1)),
    "longer": ([one], [one, one]), "scalar type": (np.int32(1), 1), "default dict": (collections.defaultdict(int, a=one), {"a": one}),
    "defaultdict factory": (collections.defaultdict(int, a=one), collections.defaultdict(list, a=one)), "unicode key": ({"\\u00e9": one}, {"e\\u0301": one}),
    "float8": (jnp.float8_e4m3fn(1), jnp.float8_e5m2(1)), "partial": (jax.tree_util.Partial(jnp.sin, one), jax.tree_util.Partial(jnp.cos, one)),
}
A["weak"] = (one, 1.0)
def describe(t):
    text = repr(jax.tree.structure(t)) + "".join(str(a.aval) if hasattr(a, "aval") else str(type(a)) for a in jax.tree.leaves(t))
    for x in [t]:
        if isinstance(x, Node): text += repr(x.aux)
        if isinstance(x, Unit): text += x.unit + str(x.scale)
        if isinstance(x, collections.defaultdict): text += str(x.default_factory)
    return sum((i % 97 + 1) * c for i, c in enumerate(re.sub(" at 0x[0-9a-f]+", "", text).encode())) % 9973
for name, (base, changed) in A.items():
    def make(name):
        def f(t):
            traced(name.replace(" ", "_"))
            return describe(t) + 0 * jnp.sum(jnp.zeros(1))
        return f
    f = ejcache.ejit(make(name), reuse_lowering=True, name=name)
    show(f(changed if mode == name else base))
""",
        {
            n: n.replace(" ", "_")
            for n in (
                *(
                    "weak",
                    "int",
                    "numpy",
                    "bool",
                    "shape",
                    "rank 0",
                    "half",
                    "none",
                    "list",
                    "key name",
                    "integer key",
                    "ordered",
                ),
                *(
                    "named tuple",
                    "tuple",
                    "impl",
                    "raw key",
                    "empty",
                    "unit",
                    "scale",
                    "aux number",
                    "aux text",
                    "aux tuple",
                ),
                *("aux type", "aux none", "aux minus zero", "nested", "unsigned", "complex", "longer", "scalar type"),
                *("default dict", "defaultdict factory", "unicode key", "float8", "partial"),
            )
        },
    )
    p.replace("proj/main.py", '"int": ({"base": one}, jnp.int32(1))', '"int": (one, jnp.int32(1))')


def static_arguments(p: Place) -> None:
    """Static arguments by value where they are simple, by type and name otherwise."""
    _modes(
        p,
        """
import collections, dataclasses, enum, fractions, decimal, operator
class Color(enum.Enum):
    RED = 1
    BLUE = 2
Changing = enum.Enum("Changing", {"A": 5 if mode == "enum value" else 4})
class Level(enum.IntEnum):
    LOW = 1
class Bits(enum.Flag):
    A = 1
    B = 2
@dataclasses.dataclass(frozen=True)
class Config:
    a: int = 1
    b: object = "x"
    hidden: object = dataclasses.field(default=1, compare=False)
    shown: object = dataclasses.field(default=1, repr=False)
    def __hash__(self): return 7
@dataclasses.dataclass(frozen=True)
class Config2:
    a: int = 1
class Text(str): pass
C = collections.namedtuple("C", "a b")
nan = float("nan")
relu, gelu = jax.nn.relu, jax.nn.gelu
S = {
    "true": (1, True), "1.0": (1, 1.0), "minus zero": (0.0, -0.0), "text of a number": (1, "1"), "int enum": (1, Level.LOW),
    "enum": (Color.RED, Color.BLUE), "enum value": (Changing.A, Changing.A), "flag": (Bits.A, Bits.A | Bits.B), "enum class": (Level.LOW, Color.RED),
    "nested tuple": ((1, (2, ("a",))), (1, (2, ("b",)))), "tuple shape": (((1,), 2), (1, (2,))), "unicode": ("\\u00e9", "e\\u0301"),
    "bytes": ("a", b"a"), "big": (2**70, 2**70 + 1), "complex": (1 + 0j, 1 + 1j), "none": (None, 0), "infinity": (float("inf"), -float("inf")),
    "dataclass field": (Config(), Config(a=2)), "dataclass nested": (Config(b=(1, 2)), Config(b=(1, 3))), "not compared": (Config(), Config(hidden=2)),
    "not shown": (Config(), Config(shown=2)), "dataclass class": (Config2(), Config()), "in a tuple": ((Config(),), (Config(b="y"),)),
    "dtype class": (jnp.float32, jnp.bfloat16), "numpy dtype": (np.dtype("float32"), np.dtype("float64")), "numpy class": (np.float32, np.float16),
    "function": (relu, gelu), "builtin": (operator.add, operator.mul), "ufunc": (np.add, np.multiply), "jnp function": (jnp.sin, jnp.cos),
    "class": (int, float), "precision": (jax.lax.Precision.DEFAULT, jax.lax.Precision.HIGHEST), "named tuple": (C(1, 2), C(1, 3)),
    "small float": (0.1, 0.1 + 2**-55), "numpy scalar": (0.1, np.float32(0.1)), "numpy int": (1, np.int64(1)), "empty text": ("", " "),
    "zero byte": ("a", "a\\0"), "boolean in dataclass": (Config(b=1), Config(b=True)), "list of texts": (("a", "b"), ("ab",)), "ellipsis": (None, ...),
    "mixed tuple": ((1, "1"), ("1", 1)), "minus zero in a tuple": ((0.0,), (-0.0,)), "numpy integer width": (np.int32(1), np.int64(1)),
    "jnp ufunc": (jnp.add, jnp.multiply), "partial": (operator.attrgetter("a"), operator.itemgetter("a")), "text class": ("a", Text("a")),
    "fraction": (fractions.Fraction(1, 2), fractions.Fraction(1, 3)), "decimal": (decimal.Decimal("0.1"), decimal.Decimal("0.2")),
    "dtype in a dataclass": (Config(b=jnp.float32), Config(b=jnp.bfloat16)), "function in a dataclass": (Config(b=relu), Config(b=gelu)),
    "string dtype": (np.dtype("f4"), np.dtype(">f4")), "structured dtype": (np.dtype([("a", "f4")]), np.dtype([("b", "f4")])),
    "frozenset": (frozenset({1}), frozenset({2})), "range": (range(3), range(4)), "slice": (slice(0, 2), slice(0, 3)), "array spec": (jax.ShapeDtypeStruct((1,), "float32"), jax.ShapeDtypeStruct((2,), "float32")),
    "partition": (jax.P("x"), jax.P("y")), "path": (Path("a"), Path("b")),
}
def describe(s):
    text = repr(type(s)) + repr(s) + repr(getattr(s, "shown", "")) + repr(getattr(s, "__name__", "")) + repr(getattr(s, "value", ""))
    return sum((i % 97 + 1) * c for i, c in enumerate(re.sub(" at 0x[0-9a-f]+", "", text).encode())) % 9973
for name, (base, changed) in S.items():
    def make(name):
        def f(x, s):
            traced(name.replace(" ", "_"))
            return x + describe(s)
        return f
    f = ejcache.ejit(make(name), static_argnums=1, reuse_lowering=True, name=name)
    show(f(1.0, changed if mode == name else base))
""",
        {
            n: n.replace(" ", "_")
            for n in (
                *(
                    "true",
                    "1.0",
                    "minus zero",
                    "text of a number",
                    "int enum",
                    "enum",
                    "enum value",
                    "flag",
                    "enum class",
                ),
                *(
                    "nested tuple",
                    "tuple shape",
                    "unicode",
                    "bytes",
                    "big",
                    "complex",
                    "none",
                    "infinity",
                    "dataclass field",
                ),
                *(
                    "dataclass nested",
                    "not compared",
                    "not shown",
                    "dataclass class",
                    "in a tuple",
                    "dtype class",
                    "numpy dtype",
                ),
                *("numpy class", "function", "builtin", "ufunc", "jnp function", "class", "precision", "named tuple"),
                *(
                    "small float",
                    "numpy scalar",
                    "numpy int",
                    "empty text",
                    "zero byte",
                    "boolean in dataclass",
                    "list of texts",
                ),
                *(
                    "ellipsis",
                    "mixed tuple",
                    "minus zero in a tuple",
                    "numpy integer width",
                    "jnp ufunc",
                    "partial",
                    "text class",
                ),
                *("fraction", "decimal", "dtype in a dataclass", "function in a dataclass", "string dtype"),
            )
        },
        listed={1: ["structured dtype", "frozenset", "range", "slice", "array spec", "partition", "path"]},
    )


def placement(p: Place) -> None:
    """Devices, shardings, layouts, donation and other options of jit."""
    p.env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    _modes(
        p,
        """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
import contextlib
d = jax.devices()
x = jnp.arange(8.0).reshape(4, 2)
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
mesh2 = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
meshy = jax.make_mesh((4,), ("y",), axis_types=(jax.sharding.AxisType.Auto,))
explicit = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
rev = Mesh(np.array(d)[::-1], ("x",))
on = lambda m, *s: jax.device_put(x, NamedSharding(m, P(*s)))
null = contextlib.nullcontext
V = {  # name: (arguments, options, context), as it is at first and as it becomes
    "committed": ((x,), {}, null), "device 1": ((x,), {}, null), "sharded": ((on(mesh),), {}, null),
    "axis": ((on(mesh2, "x"),), {}, null), "mesh": ((on(mesh, "x"),), {}, null), "order": ((on(mesh, "x"),), {}, null),
    "donation": ((x + 0,), {}, null), "out": ((on(mesh, "x"),), {}, null), "in": ((x,), {}, null), "unused": ((x, x), {}, null),
    "explicit": ((on(mesh, "x"),), {}, null), "context mesh": ((x,), {}, lambda: jax.set_mesh(mesh)), "default device": ((x,), {}, null),
    "abstract": ((x,), {}, null), "compiler option": ((x,), {}, null), "by name": ((x,), {}, null), "numpy": ((x,), {}, null),
    "fewer devices": ((on(mesh, "x"),), {}, null), "context axis": ((x,), {}, lambda: jax.set_mesh(mesh)), "memory": ((x,), {}, null),
}
W = {
    "committed": ((jax.device_put(x, d[0]),), {}, null), "device 1": ((jax.device_put(x, d[1]),), {}, null), "sharded": ((on(mesh, "x"),), {}, null),
    "axis": ((on(mesh2, "y"),), {}, null), "mesh": ((on(mesh2, "x"),), {}, null), "order": ((on(rev, "x"),), {}, null),
    "donation": ((x + 0,), {"donate_argnums": 0}, null), "out": ((on(mesh, "x"),), {"out_shardings": NamedSharding(mesh, P())}, null),
    "in": ((x,), {"in_shardings": NamedSharding(mesh, P("x"))}, null), "unused": ((x, x), {"keep_unused": True}, null),
    "explicit": ((jax.device_put(x, NamedSharding(explicit, P("x"))),), {}, null), "context mesh": ((x,), {}, lambda: jax.set_mesh(meshy)),
    "default device": ((x,), {}, lambda: jax.default_device(d[2])), "abstract": ((x,), {}, lambda: jax.set_mesh(mesh)),
    "compiler option": ((x,), {"compiler_options": {"xla_cpu_enable_fast_math": True}}, null),
    "by name": ((x,), {}, null), "numpy": ((np.asarray(x),), {}, null),
    "fewer devices": ((jax.device_put(x, NamedSharding(jax.make_mesh((2,), ("x",), devices=d[:2], axis_types=(jax.sharding.AxisType.Auto,)), P("x"))),), {}, null),
    "context axis": ((x,), {}, lambda: jax.set_mesh(explicit)), "memory": ((jax.device_put(x, SingleDeviceSharding(d[0], memory_kind="unpinned_host")),), {}, null),
}
for name in V:
    args, options, context = (W if mode == name else V)[name]
    def make(name):
        def f(x, y=None):
            traced(name.replace(" ", "_"))
            mesh = jax.sharding.get_abstract_mesh()
            text = f"{mesh.shape_tuple} {getattr(jax.typeof(x), 'sharding', None)} {mode == name}"
            return x * 2 + len(text) + sum(text.encode()) % 97
        return f
    f = ejcache.ejit(make(name), reuse_lowering=True, name=name, **options)
    with context():
        out = f(x=args[0]) if mode == name == "by name" else f(*args)
    show(out)
    print("RESULT", out.sharding, [a.is_deleted() for a in args if isinstance(a, jax.Array)])
""",
        {
            n: n.replace(" ", "_")
            for n in (
                *(
                    "committed",
                    "device 1",
                    "sharded",
                    "axis",
                    "mesh",
                    "order",
                    "donation",
                    "out",
                    "in",
                    "unused",
                    "explicit",
                ),
                *("context mesh", "default device", "abstract", "compiler option", "by name", "fewer devices"),
                *("context axis", "memory"),
            )
        },
    )


def functions(p: Place) -> None:
    """Which function is asked for: module, qualified name, `name=`, class of a callable, and what a partial holds."""
    p.write(
        "proj/mod_a.py", "def step(x):\n    print('TRACED module', file=__import__('sys').stderr)\n    return x + 1\n"
    )
    p.write(
        "proj/mod_b.py", "def step(x):\n    print('TRACED module', file=__import__('sys').stderr)\n    return x + 2\n"
    )
    _modes(
        p,
        """
import functools, importlib
is_ = lambda name: mode == name
module = importlib.import_module("mod_b" if is_("module") else "mod_a")
show(ejcache.ejit(module.step, reuse_lowering=True)(1.0))
class One:
    def step(self, x): traced("class"); return x + 1
    def __call__(self, x): traced("callable"); return x + 1
class Two:
    def step(self, x): traced("class"); return x + 2
    def __call__(self, x): traced("callable"); return x + 2
show(ejcache.ejit((Two() if is_("class") else One()).step, reuse_lowering=True)(1.0))
show(ejcache.ejit(Two() if is_("callable") else One(), reuse_lowering=True)(1.0))
def f(x): traced("named"); return x + (2 if is_("named") else 1)
show(ejcache.ejit(f, reuse_lowering=True, name="f2" if is_("named") else "f1")(1.0))
def p1(x, k): traced("partial"); return x + k
def p2(x, k): traced("partial"); return x + 2 * k
show(ejcache.ejit(functools.partial(p2 if is_("partial") else p1, k=1), reuse_lowering=True)(1.0))
def outer_a():
    def inner(x): traced("qualname"); return x + 1
    return inner
def outer_b():
    def inner(x): traced("qualname"); return x + 2
    return inner
show(ejcache.ejit((outer_b if is_("qualname") else outer_a)(), reuse_lowering=True)(1.0))
def wrap(g):
    @functools.wraps(g)
    def h(x): return g(x)
    return h
def w1(x): traced("wrapped"); return x + 1
def w2(x): traced("wrapped"); return x + 2
show(ejcache.ejit(wrap(w2 if is_("wrapped") else w1), reuse_lowering=True)(1.0))
def g1(x): traced("grad"); return x * x
def g2(x): traced("grad"); return x * x * x
show(ejcache.ejit(jax.grad(g2 if is_("grad") else g1), reuse_lowering=True)(2.0))
show(ejcache.ejit((jax.vmap if is_("transformation") else jax.jit)(lambda x: (traced("transformation"), x.ndim + x)[1]), reuse_lowering=True, name="t")(jnp.ones(2)))
""",
        {n: n for n in ("module", "class", "callable", "named", "partial", "qualname", "wrapped", "grad")},
        listed={1: ["transformation"]},
    )


def declared(p: Place) -> None:
    """Declared values of every kind, from outside."""
    p.write("out/path.bin", "1")
    p.write("out/tree/a-b/x.npz", "1")
    p.write("out/tree/.hidden", "1")
    p.write("out/v1", "1")
    p.write("out/v2", "2")
    p.link("out/link", "v1")
    p.write("out/big.bin", b"1" + b" " * (17 << 20))
    _modes(
        p,
        """
import dataclasses, collections
P = collections.namedtuple("P", "a b"); Q = collections.namedtuple("Q", "a b")
pairs = {
    "number": (1, 2), "bool": (1, True), "float": (1, 1.0), "minus zero": (0.0, -0.0), "text": (1, "1"), "bytes": ("a", b"a"),
    "list": ([1, 2], [1, 3]), "list or tuple": ([1], (1,)), "nesting": ([[1], 2], [[1, 2]]), "empty": ([], {}), "none": (None, 0), "none text": (None, "None"),
    "dict value": ({"a": 1}, {"a": 2}), "dict key": ({"a": 1}, {"b": 1}), "integer key": ({1: 1}, {"1": 1}), "big": (2**64, 2**64 + 1), "complex": (1j, 2j),
    "array": (np.arange(4), np.array([0, 1, 2, 4])), "dtype": (np.zeros(2, np.int32), np.zeros(2, np.float32)), "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "array bool": (np.zeros(4, bool), np.zeros(4, np.int8)), "order": (np.array([[1, 2], [3, 4]]), np.array([[1, 3], [2, 4]])),
    "jax array": (jnp.arange(3), jnp.arange(1, 4)), "numpy scalar": (1, np.int64(1)), "scalar array": (np.float32(1), np.array(1, np.float32)), "nan": (float("nan"), float("inf")),
    "unicode": ("\\u00e9", "e\\u0301"), "deep": ({"a": [{"b": (1, 2)}]}, {"a": [{"b": (1, 3)}]}), "set": ({1, 2}, {1, 3}), "array minus zero": (np.zeros(1), -np.zeros(1)),
    "strided": (np.arange(8)[::2], np.arange(8)[:4]), "byte order": (np.array([1], "<i4"), np.array([1 << 24], ">i4")), "array in a list": ([np.zeros(1)], [np.ones(1)]),
    "dict order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}), "text array": (np.array(["a"]), np.array(["b"])), "object array": (np.array([1, None], object), np.array([2, None], object)),
    "small": (0.1, 0.1 + 2**-56), "tuple type": (P(1, 2), Q(1, 2)), "frozenset": (frozenset({1}), {1}),
}
def describe(v):
    text = (str(v.dtype) + str(v.shape) + repr(v.tolist())) if hasattr(v, "dtype") else repr(v)
    return sum((i % 97 + 1) * c for i, c in enumerate((str(type(v)) + text).encode())) % 9973
for name, (base, changed) in pairs.items():
    value = changed if mode == name else base
    def make(name, value):
        def f(x):
            traced(name.replace(" ", "_"))
            return x + describe(value)
        return f
    try:
        show(ejcache.ejit(make(name, value), reuse_lowering={"value": lambda value=value: value}, name=name)(1.0))
    except Exception as error:
        print(name, type(error), error); show(make(name, value)(1.0))
paths = {"path": "../out/path.bin", "directory": "../out/tree", "link": "../out/link", "missing": "../out/none", "large": "../out/big.bin"}
for name, path in paths.items():
    def make(name, path):
        def f(x):
            traced(name)
            return x + (sum((i % 97 + 1) * c for i, c in enumerate(repr(sorted((str(q), num(q)) for q in Path(path).rglob("*"))).encode())) % 9973 if os.path.isdir(path) else num(path))
        return f
    show(ejcache.ejit(make(name, path), reuse_lowering={"path": Path(path)}, name=name)(1.0))
key = "b" if mode == "declared name" else "a"
def keyed(x): traced("declared_name"); return x + ord(key)
show(ejcache.ejit(keyed, reuse_lowering={key: lambda: 1})(1.0))
""",
        {
            n: n.replace(" ", "_")
            for n in (
                *(
                    "number",
                    "bool",
                    "float",
                    "minus zero",
                    "text",
                    "bytes",
                    "list",
                    "list or tuple",
                    "nesting",
                    "empty",
                    "none",
                ),
                *(
                    "none text",
                    "dict value",
                    "dict key",
                    "integer key",
                    "big",
                    "complex",
                    "array",
                    "dtype",
                    "shape",
                    "array bool",
                ),
                *("order", "jax array", "numpy scalar", "nan", "unicode", "deep", "set", "array minus zero", "strided"),
                *(
                    "byte order",
                    "array in a list",
                    "text array",
                    "object array",
                    "small",
                    "declared name",
                    "scalar array",
                ),
                *("dict order", "tuple type", "frozenset"),
            )
        },
    )
    p.reuses = False
    from attack_inputs import _same_stat

    p.must("a declared path", lambda q: q.write("out/path.bin", "2"), traced="path")
    p.must("a declared path, same size and time", _same_stat("out/path.bin"), traced="path", warm=True)
    p.must("a declared link", lambda q: q.link("out/link", "v2"), traced="link")
    p.must("the target of a declared link", lambda q: q.write("out/v1", "3"), traced="link")
    p.must("a declared path comes", lambda q: q.write("out/none", "3"), traced="missing")
    p.must("a file in a declared directory", lambda q: q.write("out/tree/a-b/x.npz", "2"), traced="directory")
    p.must("a hidden file in a declared directory", lambda q: q.write("out/tree/.hidden", "2"), traced="directory")
    p.must("a file comes to a declared directory", lambda q: q.write("out/tree/new", "2"), traced="directory")
    p.must(
        "an empty directory comes to a declared directory",
        lambda q: q.path("out/tree/newdir").mkdir(),
        traced="directory",
    )
    p.must(
        "a file in a declared directory gets another name",
        lambda q: q.path("out/tree/.hidden").rename(q.path("out/tree/.other")),
        traced="directory",
    )
    p.must("a large declared file", lambda q: q.write("out/big.bin", b"2" + b" " * (17 << 20)), traced="large")
    p.must("a large declared file, same size and time", _same_stat("out/big.bin"), traced="large", warm=True)
    p.must(
        "a declared path becomes a directory",
        lambda q: (q.path("out/path.bin").unlink(), q.write("out/path.bin/x", "1")),
        traced="path",
    )

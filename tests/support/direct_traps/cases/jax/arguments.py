"""What the function is called with, and how it was jitted: statics, types, trees, transformations."""

from __future__ import annotations

from direct_traps.trap import trap

_STATIC = """
@partial(ejit, static_argnums=1)
def f(x, k):
    return x * k
"""

TRAPS = [
    trap("static number", _STATIC, call="f(jnp.arange(4.0), «2|3»)"),
    trap(
        "static by name",
        """
        @partial(ejit, static_argnames="k")
        def f(x, k):
            return x * k
        """,
        call="f(jnp.arange(4.0), k=«2|3»)",
    ),
    trap("static 2 for 2.0", _STATIC, call="f(jnp.arange(4), «2|2.0»)"),
    trap("static True for 1", _STATIC, call="f(jnp.arange(4) > 2, «True|1»)"),
    trap(
        "static string",
        """
        @partial(ejit, static_argnums=1)
        def f(x, k):
            return x * len(k)
        """,
        call="f(jnp.arange(4.0), '«a|ab»')",
    ),
    trap(
        "static tuple of mixed types",
        """
        @partial(ejit, static_argnums=1)
        def f(x, k):
            return x * k[1][0]
        """,
        call="f(jnp.arange(4), (1, («2|2.0»,)))",
    ),
    trap(
        "static dataclass",
        """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Conf:
            k: int
        @partial(ejit, static_argnums=1)
        def f(x, conf):
            return x * conf.k
        """,
        call="f(jnp.arange(4.0), Conf(«2|3»))",
    ),
    trap(
        "static that is always equal",
        """
        class Conf:
            def __init__(self, k):
                self.k = k
            def __eq__(self, other):
                return isinstance(other, Conf)
            def __hash__(self):
                return 1
        @partial(ejit, static_argnums=1)
        def f(x, conf):
            return x * conf.k
        """,
        call="f(jnp.arange(4.0), Conf(«2|3»))",
    ),
    trap(
        "static function",
        """
        def «|a(x):
            return x
        def »h(x):
            return x * «2|3»
        @partial(ejit, static_argnums=1)
        def f(x, g):
            return g(x)
        """,
        call="f(jnp.arange(4.0), h)",
    ),
    trap(
        "static enum",
        """
        import enum
        class E(enum.Enum):
            A = 2
            B = 3
        @partial(ejit, static_argnums=1)
        def f(x, e):
            return x * e.value
        """,
        call="f(jnp.arange(4.0), E.«A|B»)",
    ),
    trap(
        "static enum, other value",
        """
        import enum
        class E(enum.Enum):
            A = «2|3»
        @partial(ejit, static_argnums=1)
        def f(x, e):
            return x * e.value
        """,
        call="f(jnp.arange(4.0), E.A)",
    ),
    trap(
        "static that reads a global",
        """
        K = «2|3»
        class Conf:
            def get(self):
                return K
        conf = Conf()
        @partial(ejit, static_argnums=1)
        def f(x, conf):
            return x * conf.get()
        """,
        call="f(jnp.arange(4.0), conf)",
    ),
    trap(
        "static partial",
        """
        @partial(ejit, static_argnums=1)
        def f(x, g):
            return g(x)
        """,
        call="f(jnp.arange(4.0), partial(jnp.power, «2|3»))",
    ),
    trap("weak type", "f = ejit(lambda x: x * jnp.bfloat16(2))", call="f(«jnp.asarray(2.0)|jnp.float32(2.0)»)"),
    trap("dtype of an argument", "f = ejit(lambda x: x * 2)", call="f(jnp.arange(4, dtype=jnp.«int32|uint32»))"),
    trap("shape", "f = ejit(lambda x: x.sum())", call="f(jnp.arange(«4.0|5.0»))"),
    trap(
        "keys of a dict argument",
        """
        @ejit
        def f(d):
            return sum(v * len(k) for k, v in d.items())
        """,
        call="f({'«a|ab»': jnp.arange(4.0)})",
    ),
    trap(
        "None for an array",
        """
        @ejit
        def f(x, y):
            return x * 2 if y is None else x * 3
        """,
        call="f(jnp.arange(4.0), «jnp.arange(4.0)|None»)",
    ),
    trap(
        "order of keywords",
        """
        @ejit
        def f(**kw):
            return kw["a"] - kw["b"]
        """,
        call="f(«a=jnp.ones(3), b=jnp.zeros(3)|b=jnp.zeros(3), a=jnp.ones(3)»)",
        changed="right",
    ),
    trap(
        "order of keywords seen",
        """
        @ejit
        def f(x, **kw):
            for each in kw.values():
                x = x * 2 + each
            return x
        """,
        call="f(jnp.ones(3), «a=1, b=2|b=2, a=1»)",
        changed="right",
    ),
    trap(
        "keyword for position",
        """
        @ejit
        def f(x, k=1, *rest):
            return x * k + len(rest)
        """,
        call="f(«jnp.arange(4.0), 2|x=jnp.arange(4.0), k=2»)",
        changed="either",
    ),
    trap(
        "number of rest arguments",
        """
        @ejit
        def f(x, *rest):
            return x * len(rest)
        """,
        call="f(jnp.arange(4.0), 1«|, 1»)",
    ),
    trap(
        "tuple for list of arrays",
        """
        @ejit
        def f(xs):
            return xs[0] * (2 if isinstance(xs, tuple) else 3)
        """,
        call="f(«(jnp.arange(4.0),)|[jnp.arange(4.0)]»)",
    ),
    trap(
        "namedtuple argument, other name",
        """
        import collections
        A = collections.namedtuple("«A|B»", "x")
        @ejit
        def f(a):
            return a.x * len(type(a).__name__) * (2 if type(a).__name__ == "A" else 3)
        """,
        call="f(A(jnp.arange(4.0)))",
    ),
    trap(
        "method of a namedtuple argument",
        """
        import typing
        class A(typing.NamedTuple):
            x: jax.Array
            def run(self):
                return self.x * «2|3»
        @ejit
        def f(a):
            return a.run()
        """,
        call="f(A(jnp.arange(4.0)))",
    ),
    trap(
        "donation",
        "f = ejit(lambda x: x * 2«|, donate_argnums=0»)",
        changed="either",
    ),
    trap(
        "keep_unused",
        "f = ejit(lambda x, y: x * 2«|, keep_unused=True»)",
        call="f(jnp.arange(4.0), jnp.arange(3.0))",
        changed="either",
    ),
    trap(
        "committed to a device",
        """
        jax.config.update("jax_num_cpu_devices", 2)
        f = ejit(lambda x: x * 2)
        """,
        call="f(«jnp.arange(4.0)|jax.device_put(jnp.arange(4.0), jax.devices()[1])»)",
    ),
    trap(
        "default device",
        """
        jax.config.update("jax_num_cpu_devices", 2)
        f = ejit(lambda x: x * 2)
        «|jax.config.update("jax_default_device", jax.devices()[1])»
        """,
        call="f(np.arange(4.0, dtype=np.float32))",
        changed="either",
    ),
    trap(
        "compiler options",
        "f = ejit(lambda x: jnp.sin(x) * 2«|, compiler_options={'xla_cpu_enable_fast_math': True}»)",
        changed="either",
    ),
    trap(
        "out_shardings",
        """
        jax.config.update("jax_num_cpu_devices", 2)
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices()), "d")
        f = ejit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P(«"d"|None»)))
        """,
    ),
    trap(
        "sharding of an argument",
        """
        jax.config.update("jax_num_cpu_devices", 2)
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices()), "d")
        f = ejit(lambda x: x * 2)
        """,
        call="f(jax.device_put(jnp.arange(4.0), NamedSharding(mesh, P(«'d'|None»))))",
    ),
    trap(
        "NumPy for JAX argument",
        "f = ejit(lambda x: x * 2)",
        call="f(«np.arange(4.0, dtype=np.float32)|jnp.arange(4.0)»)",
        changed="right",
    ),
    trap(
        "Python scalar for array argument",
        "f = ejit(lambda x: x * jnp.bfloat16(2))",
        call="f(«2.0|jnp.float32(2.0)»)",
    ),
    trap("integer for float argument", "f = ejit(lambda x: x * 2)", call="f(«2|2.0»)"),
    trap("bool for integer argument", "f = ejit(lambda x: x + x)", call="f(«1|True»)"),
    trap(
        "random key argument, other implementation",
        "f = ejit(lambda k: jax.random.bits(k, (3,)))",
        call="f(jax.random.key(1, impl=«'threefry2x32'|'rbg'»))",
    ),
    trap(
        "under grad",
        """
        K = «2|3»
        @ejit
        def f(x):
            return (x * K).sum()
        """,
        call="jax.grad(f)(jnp.arange(4.0))",
        changed="plain",
        unchanged="plain",
        why="it is called while another function is traced",
    ),
    trap(
        "under vmap and jit",
        """
        K = «2|3»
        @ejit
        def f(x):
            return x * K
        """,
        call="jax.jit(jax.vmap(f))(jnp.arange(4.0))",
        changed="plain",
        unchanged="plain",
        why="it is called while another function is traced",
    ),
    trap(
        "direct in direct",
        """
        K = «2|3»
        @ejit
        def inner(x):
            return x * K
        @ejit
        def f(x):
            return inner(x) + 1
        """,
    ),
    trap(
        "eval_shape first",
        """
        K = 1
        @ejit
        def f(x):
            return x * K
        jax.eval_shape(f, jnp.arange(4.0))
        K = «2|3»
        """,
        changed="either",
        unchanged="plain",
        why="JAX keeps the trace that the program has asked for",
        traced_before=True,
    ),
    trap(
        "eval_shape first, with another value",
        """
        K = «1|2»
        @ejit
        def f(x):
            return x * K
        jax.eval_shape(f, jnp.arange(4.0))
        K = 2
        """,
        changed="either",
        unchanged="either",
        why="JAX keeps the trace that was made with another value",
        traced_before=True,
    ),
    trap(
        "lowered first, with another value",
        """
        K = «1|2»
        @ejit
        def f(x):
            return x * K
        f.lower(jnp.arange(4.0))
        K = 2
        """,
        changed="either",
        unchanged="either",
        why="JAX keeps the trace that was made with another value",
        traced_before=True,
    ),
]

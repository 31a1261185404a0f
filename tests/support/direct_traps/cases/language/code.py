"""The code that a trace runs: the function's own, and that of everything it calls."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "own body",
        """
        @ejit
        def f(x):
            return x * «2|3»
        """,
    ),
    trap(
        "constant in a tuple",
        """
        @ejit
        def f(x):
            a, b = (1, «2|3»)
            return x * a + b
        """,
    ),
    trap(
        "-0.0 for 0.0",
        """
        @ejit
        def f(x):
            return jnp.copysign(x, «0.0|-0.0»)
        """,
    ),
    trap(
        "1 for True",
        """
        @ejit
        def f(x):
            return x, jnp.asarray(«True|1»)
        """,
    ),
    trap(
        "helper in the module",
        """
        def h(x):
            return x * «2|3»
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "helper two calls away",
        """
        def deep(x):
            return x + «2|3»
        def h(x):
            return deep(x) * 2
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "imported module",
        """
        import lib
        @ejit
        def f(x):
            return lib.h(x)
        """,
        files={"lib.py": "def h(x):\n    return x * «2|3»\n"},
    ),
    trap(
        "name from a module",
        """
        from lib import h
        @ejit
        def f(x):
            return h(x)
        """,
        files={"lib.py": "def h(x):\n    return x * «2|3»\n"},
    ),
    trap(
        "module of a module",
        """
        import lib
        @ejit
        def f(x):
            return lib.inner.h(x)
        """,
        files={"lib.py": "import inner\n", "inner.py": "def h(x):\n    return x * «2|3»\n"},
    ),
    trap(
        "package relative import",
        """
        from pack.outer import g
        @ejit
        def f(x):
            return g(x)
        """,
        files={
            "pack/__init__.py": "",
            "pack/outer.py": "from .inner import h\ndef g(x):\n    return h(x) + 1\n",
            "pack/inner.py": "def h(x):\n    return x * «2|3»\n",
        },
    ),
    trap(
        "lambda",
        """
        h = lambda x: x * «2|3»
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap("jitted lambda", "f = ejit(lambda x: x * «2|3»)\n"),
    trap(
        "comprehension",
        """
        @ejit
        def f(x):
            return sum([x * i for i in range(«2|3»)])
        """,
    ),
    trap(
        "nested function",
        """
        @ejit
        def f(x):
            def h(y):
                return y * «2|3»
            return h(x)
        """,
    ),
    trap(
        "method",
        """
        class Model:
            def run(self, x):
                return x * «2|3»
        model = Model()
        @ejit
        def f(x):
            return model.run(x)
        """,
    ),
    trap(
        "callable object",
        """
        class Model:
            def __call__(self, x):
                return x * «2|3»
        f = ejit(Model())
        """,
    ),
    trap(
        "decorator",
        """
        def twice(fun):
            def inner(x):
                return fun(x) * «2|3»
            return inner
        @ejit
        @twice
        def f(x):
            return x + 1
        """,
    ),
    trap(
        "decorator with wraps",
        """
        import functools
        def twice(fun):
            @functools.wraps(fun)
            def inner(x):
                return fun(x) * «2|3»
            return inner
        @ejit
        @twice
        def f(x):
            return x + 1
        """,
    ),
    trap(
        "function under wraps",
        """
        import functools
        def same(fun):
            @functools.wraps(fun)
            def inner(*args):
                return fun(*args)
            return inner
        @ejit
        @same
        def f(x):
            return x + «2|3»
        """,
    ),
    trap(
        "code from exec",
        """
        exec("def h(x):\\n    return x * «2|3»\\n")
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "code from eval",
        """
        h = eval("lambda x: x * «2|3»")
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "partial",
        """
        def g(k, x):
            return x * k
        f = ejit(partial(g, «2|3»))
        """,
    ),
    trap(
        "partial in a helper",
        """
        def g(x, k):
            return x * k
        h = partial(g, k=«2|3»)
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "memoised helper",
        """
        import functools
        K = «2|3»
        @functools.lru_cache
        def h(n):
            return n * K
        @ejit
        def f(x):
            return x * h(2)
        """,
        changed="either",
        unchanged="refused",
        why="what a memo holds decides whether the code below it runs, and the trace itself fills the memo",
    ),
    trap(
        "memoised before tracing",
        """
        import functools
        K = «2|3»
        @functools.lru_cache
        def h(n):
            return n * K
        h(2)
        K = 7
        @ejit
        def f(x):
            return x * h(2)
        """,
        changed="refused",
        unchanged="refused",
        why="what a memo holds cannot be read",
    ),
    trap(
        "inner jit",
        """
        @jax.jit
        def h(x):
            return x * «2|3»
        @ejit
        def f(x):
            return h(x) + 1
        """,
    ),
    trap(
        "inner jit, other static",
        """
        def g(x, n):
            return x * n
        h = jax.jit(g, «static_argnums=1|»)
        @ejit
        def f(x):
            return h(x, 3)
        """,
    ),
    trap(
        "scan body",
        """
        def body(carry, x):
            return carry * «2|3» + x, carry
        @ejit
        def f(x):
            return lax.scan(body, 1.0, x)
        """,
    ),
    trap(
        "cond branch",
        """
        def yes(x):
            return x * «2|3»
        def no(x):
            return x
        @ejit
        def f(x):
            return lax.cond(x[1] > 0, yes, no, x)
        """,
    ),
    trap(
        "vmap axis",
        """
        h = jax.vmap(lambda row: row * jnp.arange(2.0), in_axes=«0|1», out_axes=«0|1»)
        @ejit
        def f(x):
            return h(x)
        """,
        call="f(jnp.arange(4.0).reshape(2, 2))",
    ),
    trap(
        "custom_jvp rule",
        """
        @jax.custom_jvp
        def h(x):
            return x * x
        @h.defjvp
        def rule(primals, tangents):
            return h(primals[0]), tangents[0] * «2|3»
        @ejit
        def f(x):
            return jax.grad(lambda y: h(y).sum())(x)
        """,
    ),
    trap(
        "custom_vjp rule",
        """
        @jax.custom_vjp
        def h(x):
            return x * x
        def forward(x):
            return h(x), x
        def backward(x, g):
            return (x * g * «2|3»,)
        h.defvjp(forward, backward)
        @ejit
        def f(x):
            return jax.grad(lambda y: h(y).sum())(x)
        """,
    ),
    trap(
        "remat policy",
        """
        policy = «jax.checkpoint_policies.nothing_saveable|jax.checkpoint_policies.everything_saveable»
        h = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum(), policy=policy)
        @ejit
        def f(x):
            return jax.grad(h)(x)
        """,
    ),
    trap(
        "generator function",
        """
        def steps():
            yield 1
            yield «2|3»
        @ejit
        def f(x):
            return sum(x * k for k in steps())
        """,
    ),
]

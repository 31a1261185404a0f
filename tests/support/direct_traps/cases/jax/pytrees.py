"""Classes that JAX takes apart: registrations, auxiliary data, static fields."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "pytree registration",
        """
        class P:
            def __init__(self, x):
                self.x = x
        jax.tree_util.register_pytree_node(P, lambda p: ((p.x * «2|3»,), None), lambda aux, kids: P(*kids))
        p = P(2.0)
        @ejit
        def f(x):
            return x * jax.tree_util.tree_leaves(p)[0]
        """,
    ),
    trap(
        "pytree argument, other flatten",
        """
        class P:
            def __init__(self, x, y):
                self.x, self.y = x, y
        jax.tree_util.register_pytree_node(
            P, lambda p: ((«p.x, p.y|p.y, p.x»), None), lambda aux, kids: P(*kids)
        )
        @ejit
        def f(p):
            return p.x - 2 * p.y
        """,
        call="f(P(jnp.arange(4.0), jnp.ones(4)))",
    ),
    trap(
        "pytree argument, other unflatten",
        """
        class P:
            def __init__(self, x, y):
                self.x, self.y = x, y
        jax.tree_util.register_pytree_node(
            P, lambda p: ((p.x, p.y), None), lambda aux, kids: P(*kids«|[::-1]»)
        )
        @ejit
        def f(p):
            return p.x - 2 * p.y
        """,
        call="f(P(jnp.arange(4.0), jnp.ones(4)))",
    ),
    trap(
        "pytree argument, other aux",
        """
        class P:
            def __init__(self, x, k):
                self.x, self.k = x, k
        jax.tree_util.register_pytree_node(P, lambda p: ((p.x,), p.k), lambda aux, kids: P(kids[0], aux))
        @ejit
        def f(p):
            return p.x * p.k
        """,
        call="f(P(jnp.arange(4.0), «2|3»))",
    ),
    trap(
        "pytree argument, method",
        """
        @jax.tree_util.register_pytree_node_class
        class P:
            def __init__(self, x):
                self.x = x
            def tree_flatten(self):
                return (self.x,), None
            @classmethod
            def tree_unflatten(cls, aux, kids):
                return cls(*kids)
            def run(self):
                return self.x * «2|3»
        @ejit
        def f(p):
            return p.run()
        """,
        call="f(P(jnp.arange(4.0)))",
    ),
    trap(
        "register_dataclass, meta field",
        """
        import dataclasses
        @partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["k"])
        @dataclasses.dataclass
        class P:
            x: jax.Array
            k: int
        @ejit
        def f(p):
            return p.x * p.k
        """,
        call="f(P(jnp.arange(4.0), «2|3»))",
    ),
    trap(
        "register_dataclass, fields swapped",
        """
        import dataclasses
        @partial(jax.tree_util.register_dataclass, data_fields=[«"x", "y"|"y", "x"»], meta_fields=[])
        @dataclasses.dataclass
        class P:
            x: jax.Array
            y: jax.Array
        @ejit
        def f(p):
            return jax.tree.map(lambda leaf: leaf * 2, p), p.x - p.y
        """,
        call="f(P(jnp.arange(4.0), jnp.ones(4)))",
    ),
    trap(
        "register_static",
        """
        import dataclasses
        @jax.tree_util.register_static
        @dataclasses.dataclass(frozen=True)
        class Conf:
            k: int
        @ejit
        def f(x, conf):
            return x * conf.k
        """,
        call="f(jnp.arange(4.0), Conf(«2|3»))",
    ),
    trap(
        "register_static that is always equal",
        """
        @jax.tree_util.register_static
        class Conf:
            def __init__(self, k):
                self.k = k
            def __eq__(self, other):
                return isinstance(other, Conf)
            def __hash__(self):
                return 1
        @ejit
        def f(x, conf):
            return x * conf.k
        """,
        call="f(jnp.arange(4.0), Conf(«2|3»))",
    ),
    trap(
        "aux that is always equal",
        """
        class Aux:
            def __init__(self, k):
                self.k = k
            def __eq__(self, other):
                return isinstance(other, Aux)
            def __hash__(self):
                return 1
        class P:
            def __init__(self, x, aux):
                self.x, self.aux = x, aux
        jax.tree_util.register_pytree_node(P, lambda p: ((p.x,), p.aux), lambda aux, kids: P(kids[0], aux))
        @ejit
        def f(p):
            return p.x * p.aux.k
        """,
        call="f(P(jnp.arange(4.0), Aux(«2|3»)))",
    ),
    trap(
        "pytree in the result",
        """
        class P:
            def __init__(self, x, k):
                self.x, self.k = x, k
            def __repr__(self):
                return f"P({self.x}, {self.k})"
        jax.tree_util.register_pytree_node(P, lambda p: ((p.x,), p.k), lambda aux, kids: P(kids[0], aux))
        @ejit
        def f(x):
            return P(x * 2, «2|3»)
        """,
        call="(lambda p: (p.x, p.k))(f(jnp.arange(4.0)))",
    ),
]

"""Transformations and control flow of JAX: what they keep of the functions and values that they are given."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "list of switch branches",
        """
        branches = [lambda x: x * 2, lambda x: x * 4]
        branches[1] = lambda x: x * «2|3»
        @ejit
        def f(x):
            return lax.switch(1, branches, x)
        """,
    ),
    trap(
        "jnp.where under a global flag",
        """
        STRICT = «True|False»
        @ejit
        def f(x):
            return jnp.where(x > 1, x, 0) if STRICT else jnp.where(x >= 1, x, 0)
        """,
    ),
    trap(
        "while loop's condition",
        """
        N = «2|3»
        def going(state):
            return state[0] < N
        @ejit
        def f(x):
            return lax.while_loop(going, lambda s: (s[0] + 1, s[1] * 2), (0, x))
        """,
    ),
    trap(
        "fori_loop bound in a config",
        """
        cfg = {"n": «2|3»}
        @ejit
        def f(x):
            return lax.fori_loop(0, cfg["n"], lambda i, y: y * 2, x)
        """,
    ),
    trap(
        "unroll of a scan",
        """
        UNROLL = «1|2»
        @ejit
        def f(x):
            return lax.scan(lambda c, y: (c + y, c), 0.0, x, unroll=UNROLL)
        """,
    ),
    trap(
        "policy of names",
        """
        from jax.ad_checkpoint import checkpoint_name
        policy = jax.checkpoint_policies.save_only_these_names("«a|b»")
        @partial(jax.checkpoint, policy=policy)
        def h(x):
            y = checkpoint_name(jnp.sin(x), "a")
            return jnp.sin(checkpoint_name(jnp.cos(y), "b")).sum()
        @ejit
        def f(x):
            return jax.grad(h)(x)
        """,
    ),
    trap(
        "policy of one's own",
        """
        saved = {«"sin"|"cos"»}
        def policy(prim, *args, **more):
            return prim.name in saved
        h = jax.checkpoint(lambda x: jnp.sin(jnp.cos(x)).sum(), policy=policy)
        @ejit
        def f(x):
            return jax.grad(h)(x)
        """,
        changed="either",
    ),
    trap(
        "nondiff argument of a custom_vjp",
        """
        @partial(jax.custom_vjp, nondiff_argnums=(0,))
        def h(k, x):
            return x * k
        h.defvjp(lambda k, x: (x * k, None), lambda k, _, g: (g * k * 2,))
        K = «2|3»
        @ejit
        def f(x):
            return jax.grad(lambda y: h(K, y).sum())(x)
        """,
    ),
    trap(
        "custom_vjp, rules replaced",
        """
        @jax.custom_vjp
        def h(x):
            return x * x
        h.defvjp(lambda x: (h(x), x), lambda x, g: (g * 2,))
        «|h.defvjp(lambda x: (h(x), x), lambda x, g: (g * 3,))»
        @ejit
        def f(x):
            return jax.grad(lambda y: h(y).sum())(x)
        """,
    ),
    trap(
        "custom_jvp by defjvps",
        """
        @jax.custom_jvp
        def h(x, y):
            return x * y
        h.defjvps(lambda dx, ans, x, y: dx * «2|3», None)
        @ejit
        def f(x):
            return jax.grad(lambda y: h(y, 1.0).sum())(x)
        """,
    ),
    trap(
        "custom_batching rule",
        """
        @jax.custom_batching.custom_vmap
        def h(x):
            return x
        @h.def_vmap
        def rule(size, batched, x):
            return x * «2|3», True
        @ejit
        def f(x):
            return jax.vmap(h)(x)
        """,
    ),
    trap(
        "custom_gradient",
        """
        @jax.custom_gradient
        def h(x):
            return x * x, lambda g: g * «2|3»
        @ejit
        def f(x):
            return jax.grad(lambda y: h(y).sum())(x)
        """,
    ),
    trap(
        "closure_convert",
        """
        K = jnp.arange(4.0) * «2|3»
        @ejit
        def f(x):
            g, consts = jax.closure_convert(lambda y: y * K + x, x)
            return g(x, *consts)
        """,
    ),
    trap(
        "size of an axis from a global",
        """
        SIZE = «2|3»
        @ejit
        def f(x):
            return jax.vmap(lambda: x.sum(), axis_size=SIZE)() if False else jax.vmap(
                lambda i: x * i)(jnp.arange(SIZE))
        """,
    ),
    trap(
        "name of a vmapped axis",
        """
        AXIS = "«i|j»"
        @ejit
        def f(x):
            def g(y):
                return lax.psum(y, "i") if AXIS == "i" else lax.pmax(y, "j")
            return jax.vmap(g, axis_name=AXIS)(x)
        """,
    ),
    trap(
        "grad of another argument",
        """
        g = jax.grad(lambda x, y: (x * y * y).sum(), argnums=«0|1»)
        @ejit
        def f(x):
            return g(x, x + 1)
        """,
    ),
    trap(
        "has_aux",
        """
        h = jax.value_and_grad(lambda x: (x.sum(), «2|3»), has_aux=True)
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "vectorize signature",
        """
        h = jnp.vectorize(lambda a, b: (a * b).sum(), signature="«(n),(n)->()|(),()->()»")
        @ejit
        def f(x):
            return h(x, x)
        """,
    ),
    trap(
        "jitted closure in a closure",
        """
        def make(k):
            return jax.jit(lambda x: x * k)
        h = jax.jit(make(«2|3»))
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "jit options of an inner function",
        """
        h = jax.jit(lambda x: x * 2, inline=«False|True»)
        @ejit
        def f(x):
            return h(x)
        """,
        changed="either",
    ),
    trap(
        "inner jit traced before, value changed",
        """
        K = 2
        @jax.jit
        def h(x):
            return x * K
        «|h(jnp.arange(4.0))»
        K = 3
        @ejit
        def f(x):
            return h(x)
        """,
        changed="either",
    ),
    trap(
        "inner jit traced with another value",
        """
        K = «1|2»
        @jax.jit
        def h(x):
            return x * K
        h(jnp.arange(4.0))
        K = 2
        @ejit
        def f(x):
            return h(x)
        """,
        changed="either",
        unchanged="either",
        why="JAX keeps the trace that was made with another value",
    ),
    trap(
        "vmapped function traced with another value",
        """
        K = «1|2»
        @jax.jit
        def h(x):
            return x * K
        @jax.jit
        def g(x):
            return jax.vmap(h)(x)
        g(jnp.arange(4.0))
        K = 2
        @ejit
        def f(x):
            return g(x) + 1
        """,
        changed="either",
        unchanged="either",
        why="JAX keeps the trace that was made with another value",
    ),
    trap(
        "scan body traced with another value",
        """
        K = «1|2»
        def body(c, x):
            return c * K + x, c
        lax.scan(body, 0.0, jnp.arange(4.0))
        K = 2
        @ejit
        def f(x):
            return lax.scan(body, 0.0, x)
        """,
        changed="either",
        unchanged="either",
        why="JAX keeps the trace that was made with another value",
    ),
    trap(
        "make_jaxpr before",
        """
        closed = jax.make_jaxpr(lambda x: x * «2|3»)(1.0)
        from jax.extend.core import jaxpr_as_fun
        @ejit
        def f(x):
            return jaxpr_as_fun(closed)(x[1])
        """,
        changed="either",
        unchanged="refused",
        why="a jaxpr is not described",
    ),
    trap(
        "ahead-of-time lowered function",
        """
        g = jax.jit(lambda x: x * «2|3»).lower(jnp.arange(4.0)).compile()
        Y = g(jnp.arange(4.0))
        @ejit
        def f(x):
            return x + Y
        """,
    ),
    trap(
        "exported function",
        """
        from jax import export
        g = export.deserialize(export.export(jax.jit(lambda x: x * «2|3»))(jnp.arange(4.0)).serialize())
        @ejit
        def f(x):
            return g.call(x)
        """,
        changed="either",
        unchanged="refused",
        why="an exported function is not described",
        needs="flatbuffers",
    ),
    trap(
        "pallas kernel's body",
        """
        from jax.experimental import pallas as pl
        def kernel(x, out):
            out[...] = x[...] * «2|3»
        @ejit
        def f(x):
            return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
        """,
        unchanged="either",
        why="its first trace imports a part of JAX that declares flags of absl",
    ),
    trap(
        "pallas index map",
        """
        from jax.experimental import pallas as pl
        SHIFT = «0|1»
        def kernel(x, out):
            out[...] = x[...] * 2
        @ejit
        def f(x):
            spec = pl.BlockSpec((2,), lambda i: ((i + SHIFT) % 2,))
            return pl.pallas_call(kernel, grid=(2,), in_specs=[spec], out_specs=pl.BlockSpec((2,), lambda i: (i,)),
                out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
        """,
        unchanged="either",
        why="its first trace imports a part of JAX that declares flags of absl",
    ),
    trap(
        "Ref made in the trace",
        """
        from jax.experimental import pallas as pl
        K = «2|3»
        @ejit
        def f(x):
            ref = jax.new_ref(x)
            ref[...] = x * K
            return ref[...]
        """,
    ),
    trap(
        "Ref in a closure",
        """
        ref = jax.new_ref(jnp.arange(4.0))
        @ejit
        def f(x):
            ref[...] = ref[...] * «2|3»
            return x + ref[...]
        """,
        changed="either",
        unchanged="refused",
        why="it writes to a reference",
    ),
    trap(
        "constant folded in the trace",
        """
        @ejit
        def f(x):
            with jax.ensure_compile_time_eval():
                k = jnp.arange(4.0) * «2|3»
            return x + k
        """,
    ),
    trap(
        "large array in the closure",
        """
        W = np.zeros((512, 512), np.float32)
        W[300, 300] = «2|3»
        @ejit
        def f(x):
            return x * W.sum()
        """,
        changed="either",
    ),
    trap(
        "NumPy array changed in place",
        """
        W = np.ones(4, np.float32)
        W[1] = «2|3»
        @ejit
        def f(x):
            return x * W
        """,
    ),
    trap(
        "array subclass",
        """
        class W(np.ndarray):
            k = «2|3»
        w = np.ones(4, np.float32).view(W)
        @ejit
        def f(x):
            return x * w.k
        """,
        changed="either",
        unchanged="refused",
        why="JAX treats a subclass of NumPy's arrays in ways of its own",
    ),
    trap(
        "__jax_array__",
        """
        class W:
            def __jax_array__(self):
                return jnp.ones(4) * «2|3»
        w = W()
        @ejit
        def f(x):
            return x * jnp.asarray(w)
        """,
    ),
    trap(
        "__array__",
        """
        class W:
            def __array__(self, dtype=None, copy=None):
                return np.ones(4, np.float32) * «2|3»
        w = W()
        @ejit
        def f(x):
            return x * np.asarray(w)
        """,
    ),
    trap(
        "tree_map over a config of functions",
        """
        cfg = {"a": jnp.«sin|cos», "b": jnp.tanh}
        @ejit
        def f(x):
            return jax.tree.map(lambda g: g(x), cfg)
        """,
    ),
    trap(
        "ShapeDtypeStruct in a global",
        """
        S = jax.ShapeDtypeStruct((«4|1»,), jnp.float32)
        @ejit
        def f(x):
            return x + jnp.zeros(S.shape, S.dtype) + S.shape[0]
        """,
    ),
    trap(
        "treedef in a global",
        """
        T = jax.tree.structure(«(1, 2)|[1, 2]»)
        @ejit
        def f(x):
            return jax.tree.unflatten(T, [x, x])
        """,
    ),
    trap(
        "key of another implementation in a dict",
        """
        keys = {"k": jax.random.key(1, impl=«"threefry2x32"|"rbg"»)}
        @ejit
        def f(x):
            return x + jax.random.uniform(keys["k"], x.shape)
        """,
    ),
]

"""Functions of JAX, NumPy and Python that a program replaces."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "patched helper",
        """
        import lib
        def other(x):
            return x * 3
        «|lib.h = other»
        @ejit
        def f(x):
            return lib.h(x)
        """,
        files={"lib.py": "def h(x):\n    return x * 2\n"},
    ),
    trap(
        "patched jnp.tanh",
        """
        «|jnp.tanh = jnp.sin»
        @ejit
        def f(x):
            return jnp.tanh(x)
        """,
    ),
    trap(
        "patched jax.nn.relu's insides",
        """
        «|jnp.maximum = lambda a, b: a * 3»
        @ejit
        def f(x):
            return jax.nn.relu(x - 1)
        """,
        changed="either",
    ),
    trap(
        "patched lax alias",
        """
        from jax._src.lax import lax as inner
        «|inner.tanh = inner.sin»
        @ejit
        def f(x):
            return jnp.tanh(x)
        """,
    ),
    trap(
        "patched __code__ of jnp.tanh",
        """
        def g(x, /):
            import jax
            return jax.lax.sin(x)
        «|jnp.tanh.__wrapped__.__code__ = g.__code__»
        @ejit
        def f(x):
            return jnp.tanh(x)
        """,
        changed="either",
    ),
    trap(
        "patched Array method",
        """
        from jax._src.core import ShapedArray
        «|ShapedArray.sum = staticmethod(lambda x, *rest, **more: x * 3)»
        @ejit
        def f(x):
            return x.sum()
        """,
        changed="either",
    ),
    trap(
        "patched operator of arrays",
        """
        from jax._src.core import ShapedArray
        old = ShapedArray._mul
        «|ShapedArray._mul = staticmethod(lambda x, y: old(x, 3))»
        @ejit
        def f(x):
            return x * 2
        """,
        changed="either",
    ),
    trap(
        "patched numpy ufunc",
        """
        «|np.add = np.multiply»
        @ejit
        def f(x):
            return x * int(np.add(2, 3))
        """,
    ),
    trap(
        "patched lowering rule",
        """
        from jax._src.interpreters import mlir
        from jax._src.lax import lax as inner
        «|mlir.register_lowering(inner.tanh_p, lambda ctx, x, **more: [mlir.hlo.sine(x)])»
        @ejit
        def f(x):
            return jnp.tanh(x)
        """,
        changed="either",
    ),
    trap(
        "patched lowering rule of a platform",
        """
        from jax._src.interpreters import mlir
        from jax._src.lax import lax as inner
        «|mlir.register_lowering(inner.tanh_p, lambda ctx, x, **more: [mlir.hlo.sine(x)], platform="cpu")»
        @ejit
        def f(x):
            return jnp.tanh(x)
        """,
        changed="either",
    ),
    trap(
        "patched jvp rule",
        """
        from jax._src.interpreters import ad
        from jax._src.lax import lax as inner
        old = ad.primitive_jvps[inner.sin_p]
        def rule(primals, tangents, **more):
            out, tangent = old(primals, tangents, **more)
            return out, tangent * «2.0|3.0»
        ad.primitive_jvps[inner.sin_p] = rule
        @ejit
        def f(x):
            return jax.grad(lambda y: jnp.sin(y).sum())(x)
        """,
    ),
    trap(
        "patched batching rule",
        """
        from jax._src.interpreters import batching
        from jax._src.lax import lax as inner
        def rule(args, dims, **more):
            return jnp.cos(args[0]) * «2.0|3.0», dims[0]
        batching.primitive_batchers[inner.sin_p] = rule
        @ejit
        def f(x):
            return jax.vmap(jnp.sin)(x)
        """,
        changed="either",
        unchanged="either",
        why="user code may be in a table of JAX, and the walk does not lead to it",
    ),
    trap(
        "patched builtin",
        """
        import builtins
        «|builtins.divmod = lambda a, b: (1, 3)»
        @ejit
        def f(x):
            return x * divmod(7, 5)[1]
        """,
        changed="either",
    ),
    trap(
        "primitive of one's own",
        """
        from jax.extend.core import Primitive
        from jax.interpreters import mlir
        p = Primitive("mine")
        p.def_abstract_eval(lambda x: x)
        mlir.register_lowering(p, mlir.lower_fun(lambda x: x * «2|3», multiple_results=False))
        @ejit
        def f(x):
            return p.bind(x)
        """,
        changed="either",
        unchanged="refused",
        why="user code is in a table of JAX, and the walk does not lead to it",
    ),
    trap(
        "primitive's rule by a partial",
        """
        from jax.extend.core import Primitive
        from jax.interpreters import mlir
        p = Primitive("mine")
        p.def_abstract_eval(lambda x: x)
        mlir.register_lowering(p, partial(mlir.lower_fun(jnp.«sin|cos», multiple_results=False)))
        @ejit
        def f(x):
            return p.bind(x)
        """,
        changed="either",
    ),
    trap(
        "class attribute of JAX",
        """
        «|jax.numpy.linalg.norm = lambda x: x.sum()»
        @ejit
        def f(x):
            return jnp.linalg.norm(x)
        """,
    ),
    trap(
        "patched method on an instance",
        """
        import types
        class Model:
            def run(self, x):
                return x * 2
        model = Model()
        «|model.run = types.MethodType(lambda self, x: x * 3, model)»
        @ejit
        def f(x):
            return model.run(x)
        """,
    ),
    trap(
        "patched with mock",
        """
        from unittest import mock
        import lib
        patch = mock.patch.object(lib, "K", «2|3»)
        patch.start()
        @ejit
        def f(x):
            return lib.h(x)
        """,
        files={"lib.py": "K = 1\ndef h(x):\n    return x * K\n"},
    ),
    trap(
        "table of jax.nn.initializers",
        """
        init = jax.nn.initializers.normal(«1.0|2.0»)
        @ejit
        def f(x):
            return x + init(jax.random.key(0), x.shape)
        """,
    ),
]

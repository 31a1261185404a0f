"""Installed code: what a library's functions do and read. It lies in `site-packages`."""

from __future__ import annotations

from direct_traps.trap import trap

_CALL = """
import fakelib
@ejit
def f(x):
    return fakelib.h(x)
"""


def _lib(text: str) -> dict[str, str]:
    return {"site-packages/fakelib.py": text}


def _memo(*, value: str = "«2|3»", decorator: str = "cache") -> dict[str, str]:
    """A library with a memo, whose function reads `value`."""
    return _lib(
        f"""
        import functools
        K = {value}
        @functools.{decorator}
        def k(n):
            return n * K
        def h(x):
            return x * k(2)
        """
    )


TRAPS = [
    trap(
        "library: function that ran", _CALL, files=_lib("def k(x):\n    return x * «2|3»\ndef h(x):\n    return k(x)\n")
    ),
    trap(
        "library: function that did not run",
        _CALL,
        files=_lib("def k(x):\n    return x * «2|3»\ndef h(x):\n    return x * 2\n"),
        changed="right",
    ),
    trap("library: constant", _CALL, files=_lib("K = «2|3»\ndef h(x):\n    return x * K\n")),
    trap("library: table", _CALL, files=_lib("T = {'k': «2|3»}\ndef h(x):\n    return x * T['k']\n")),
    trap(
        "library: nested table",
        _CALL,
        files=_lib("T = {'a': [{'k': «2|3»}]}\ndef h(x):\n    return x * T['a'][0]['k']\n"),
    ),
    trap("library: list", _CALL, files=_lib("T = [2«|, 3»]\ndef h(x):\n    return x * len(T)\n")),
    trap(
        "library: entry added to a table",
        _CALL,
        files=_lib("T = {'a': 2}\n«|T['b'] = 3»\ndef h(x):\n    return x * T.get('b', 2)\n"),
    ),
    trap(
        "library: length of a table",
        _CALL,
        files=_lib("T = {'a': 2}\n«|T['b'] = 3»\ndef h(x):\n    return x * len(T)\n"),
    ),
    trap(
        "library: flag set at run time",
        "import fakelib.c\nfakelib.c.k = «2|3»\n" + _CALL,
        files={
            "site-packages/fakelib/__init__.py": "from fakelib import c\ndef h(x):\n    return x * c.k\n",
            "site-packages/fakelib/c.py": "k = 1\n",
        },
    ),
    trap(
        "library: config object set at run time",
        "import fakelib\nfakelib.config.k = «2|3»\n" + _CALL,
        files=_lib(
            """
            class Config:
                def __init__(self):
                    self.k = 1
            config = Config()
            def h(x):
                return x * config.k
            """
        ),
    ),
    trap(
        "library: config with slots",
        "import fakelib\nfakelib.config.k = «2|3»\n" + _CALL,
        files=_lib(
            """
            class Config:
                __slots__ = ("k",)
            config = Config()
            config.k = 1
            def h(x):
                return x * config.k
            """
        ),
    ),
    trap(
        "library: class-level cache",
        "import fakelib\nfakelib.Cache.kept['k'] = «2|3»\n" + _CALL,
        files=_lib(
            """
            class Cache:
                kept = {}
                @classmethod
                def get(cls, name):
                    return cls.kept.get(name, 1)
            def h(x):
                return x * Cache.get("k")
            """
        ),
    ),
    trap(
        "library: class attribute",
        "import fakelib\nfakelib.Layer.k = «2|3»\n" + _CALL,
        files=_lib(
            """
            class Layer:
                k = 1
                def run(self, x):
                    return x * self.k
            def h(x):
                return Layer().run(x)
            """
        ),
    ),
    trap(
        "library: function of a user's subclass",
        """
        import fakelib
        class Mine(fakelib.Layer):
            def scale(self):
                return «2|3»
        mine = Mine()
        @ejit
        def f(x):
            return mine.run(x)
        """,
        files=_lib(
            """
            class Layer:
                def scale(self):
                    return 1
                def run(self, x):
                    return x * self.scale()
            """
        ),
    ),
    trap(
        "library: operator of a base class",
        """
        import fakelib
        class Mine(fakelib.Scale):
            pass
        mine = Mine()
        @ejit
        def f(x):
            return mine % x
        """,
        files=_lib("class Scale:\n    def __mod__(self, x):\n        return x * «2|3»\n"),
    ),
    trap(
        "library: registry filled by the user",
        "import fakelib\nfakelib.register('k', lambda x: x * «2|3»)\n" + _CALL,
        files=_lib(
            """
            registry = {}
            def register(name, fun):
                registry[name] = fun
            def h(x):
                return registry["k"](x)
            """
        ),
        changed="either",
        unchanged="refused",
        why="user code is in a table of a library, and the walk does not lead to it",
    ),
    trap(
        "library: value registered by the user",
        "import fakelib\nfakelib.registry['k'] = «2|3»\n" + _CALL,
        files=_lib("registry = {}\ndef h(x):\n    return x * registry['k']\n"),
    ),
    trap("library: default argument", _CALL, files=_lib("def h(x, k=«2|3»):\n    return x * k\n")),
    trap("library: keyword default", _CALL, files=_lib("def h(x, *, k=«2|3»):\n    return x * k\n")),
    trap(
        "library: mutable default",
        "import fakelib\nfakelib.h.__defaults__[0]['k'] = «2|3»\n" + _CALL,
        files=_lib("def h(x, k={}):\n    return x * k['k']\n"),
    ),
    trap(
        "library: closure",
        _CALL,
        files=_lib("def make(k):\n    def h(x):\n        return x * k\n    return h\nh = make(«2|3»)\n"),
    ),
    trap(
        "library: closure over a dictionary",
        _CALL,
        files=_lib("def make(k):\n    def h(x):\n        return x * k['a']\n    return h\nh = make({'a': «2|3»})\n"),
    ),
    trap(
        "library: method of an object",
        """
        import fakelib
        model = fakelib.Model()
        @ejit
        def f(x):
            return model.run(x)
        """,
        files=_lib("class Model:\n    def run(self, x):\n        return x * «2|3»\n"),
    ),
    trap(
        "library: attribute of an object",
        """
        import fakelib
        model = fakelib.Model(«2|3»)
        @ejit
        def f(x):
            return model.run(x)
        """,
        files=_lib(
            """
            class Model:
                def __init__(self, k):
                    self.k = k
                def run(self, x):
                    return x * self.k
            """
        ),
    ),
    trap(
        "library: partial in a library",
        _CALL,
        files=_lib("import functools\ndef g(k, x):\n    return x * k\nh = functools.partial(g, «2|3»)\n"),
    ),
    trap(
        "library: jitted function",
        _CALL,
        files=_lib("import jax\nK = «2|3»\n@jax.jit\ndef h(x):\n    return x * K\n"),
    ),
    trap(
        "library: decorated function",
        _CALL,
        files=_lib(
            """
            import functools
            def scaled(k):
                def wrap(fun):
                    @functools.wraps(fun)
                    def inner(x):
                        return fun(x) * k
                    return inner
                return wrap
            @scaled(«2|3»)
            def h(x):
                return x
            """
        ),
    ),
    trap(
        "library: memoised function",
        _CALL,
        files=_memo(),
    ),
    trap(
        "library: memo filled before",
        "import fakelib\nfakelib.k(2)\nfakelib.K = 7\n" + _CALL,
        files=_memo(),
    ),
    trap(
        "library: memo filled before in one version",
        "import fakelib\n«1|fakelib.k(2)»\nfakelib.K = 7\n" + _CALL,
        files=_memo(value="2"),
    ),
    trap(
        "library: memo of limited size filled before",
        "import fakelib\nfakelib.k(2)\nfakelib.K = 7\n" + _CALL,
        files=_memo(decorator="lru_cache(maxsize=8)"),
        changed="refused",
        unchanged="refused",
        why="such a memo does not show what it holds",
    ),
    trap(
        "library: memo in a dictionary",
        "import fakelib\nfakelib.k(2)\nfakelib.K = 7\n" + _CALL,
        files=_lib(
            """
            K = «2|3»
            memo = {}
            def k(n):
                if n not in memo:
                    memo[n] = n * K
                return memo[n]
            def h(x):
                return x * k(2)
            """
        ),
        changed="either",
        unchanged="either",
        why="whether a memo is part of what is read depends on what it held before",
    ),
    trap(
        "library: singledispatch of the user",
        "import fakelib\nclass A: pass\nfakelib.g.register(A, lambda a, x: x * «2|3»)\n"
        + _CALL.replace("h(x)", "g(A(), x)"),
        files=_lib("import functools\n@functools.singledispatch\ndef g(a, x):\n    return x\n"),
        changed="either",
    ),
    trap(
        "library: used by a jitted function that two share",
        """
        import fakelib
        @jax.jit
        def inner(x):
            return fakelib.h(x)
        @ejit
        def g(x):
            return inner(x) + 1
        @ejit
        def f(x):
            return inner(x) * 5
        """,
        files=_lib("K = «2|3»\ndef h(x):\n    return x * K\n"),
        call="«(g(jnp.arange(4.0)), f(jnp.arange(4.0)))[1]|f(jnp.arange(4.0))»",
    ),
    trap(
        "library: traced for another kind of argument",
        """
        import fakelib
        @ejit
        def f(x):
            return fakelib.h(x)
        """,
        files=_lib("K = «2|3»\ndef h(x):\n    return x * K\n"),
        call="(«f(jnp.arange(4.0))|0», f(jax.device_put(jnp.arange(4.0), jax.devices()[0])))[1]",
    ),
    trap(
        "value changed between two calls",
        """
        K = 2
        @ejit
        def f(x):
            return x * K
        def calls(x):
            global K
            K = 2
            first = f(x)
            K = «2|3»
            return first, f(np.asarray(x))
        """,
        call="calls(jnp.arange(4.0))",
        changed="either",
    ),
]

"""The values that a trace reads: closures, defaults, globals, attributes, containers."""

from __future__ import annotations

from direct_traps.trap import trap

TRAPS = [
    trap(
        "closure value",
        """
        def make(k):
            @ejit
            def f(x):
                return x * k
            return f
        f = make(«2|3»)
        """,
    ),
    trap(
        "closure in a closure",
        """
        def make(k):
            def h(x):
                return x * k
            @ejit
            def f(x):
                return h(x)
            return f
        f = make(«2|3»)
        """,
    ),
    trap(
        "closure array (NumPy)",
        """
        def make(k):
            return ejit(lambda x: x * k)
        f = make(np.array([1.0, 2.0, 3.0, «4.0|5.0»], np.float32))
        """,
    ),
    trap(
        "closure array (JAX)",
        """
        def make(k):
            return ejit(lambda x: x * k)
        f = make(jnp.array([1.0, 2.0, 3.0, «4.0|5.0»]))
        """,
    ),
    trap(
        "default",
        """
        @ejit
        def f(x, k=«2|3»):
            return x * k
        """,
        changed="either",
    ),
    trap(
        "keyword default",
        """
        @ejit
        def f(x, *, k=«2|3»):
            return x * k
        """,
        changed="either",
    ),
    trap(
        "helper's default",
        """
        def h(x, k=«2|3»):
            return x * k
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "global number",
        """
        K = «2|3»
        @ejit
        def f(x):
            return x * K
        """,
    ),
    trap(
        "global set later",
        """
        K = 1
        @ejit
        def f(x):
            return x * K
        K = «2|3»
        """,
    ),
    trap(
        "global dict entry",
        """
        cfg = {"k": «2|3»}
        @ejit
        def f(x):
            return x * cfg["k"]
        """,
    ),
    trap(
        "global dict mutated",
        """
        cfg = {"k": 1}
        @ejit
        def f(x):
            return x * cfg["k"]
        cfg["k"] = «2|3»
        """,
    ),
    trap(
        "nested containers",
        """
        cfg = {"a": [1, ({"k": «2|3»},)]}
        @ejit
        def f(x):
            return x * cfg["a"][1][0]["k"]
        """,
    ),
    trap(
        "dict order",
        """
        cfg = {«"a": 2, "b": 3|"b": 3, "a": 2»}
        @ejit
        def f(x):
            for k in cfg.values():
                x = x * k + 1
            return x
        """,
    ),
    trap(
        "attribute of a module",
        """
        import conf
        @ejit
        def f(x):
            return x * conf.K
        """,
        files={"conf.py": "K = «2|3»\n"},
    ),
    trap(
        "attribute set on a module",
        """
        import conf
        @ejit
        def f(x):
            return x * conf.K
        conf.K = «2|3»
        """,
        files={"conf.py": "K = 1\n"},
    ),
    trap(
        "class attribute",
        """
        class Conf:
            k = «2|3»
        @ejit
        def f(x):
            return x * Conf.k
        """,
    ),
    trap(
        "class attribute set later",
        """
        class Conf:
            k = 1
        @ejit
        def f(x):
            return x * Conf.k
        Conf.k = «2|3»
        """,
    ),
    trap(
        "instance attribute",
        """
        class Conf:
            def __init__(self, k):
                self.k = k
        conf = Conf(«2|3»)
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "slots",
        """
        class Conf:
            __slots__ = ("k",)
        conf = Conf()
        conf.k = «2|3»
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "private slots",
        """
        class Conf:
            __slots__ = ("__k",)
            def __init__(self, k):
                self.__k = k
            def get(self):
                return self.__k
        conf = Conf(«2|3»)
        @ejit
        def f(x):
            return x * conf.get()
        """,
    ),
    trap(
        "type(self).k",
        """
        class Conf:
            k = «2|3»
            def get(self):
                return type(self).k
        conf = Conf()
        @ejit
        def f(x):
            return x * conf.get()
        """,
    ),
    trap(
        "dataclass default",
        """
        import dataclasses
        @dataclasses.dataclass
        class Conf:
            k: int = «2|3»
        @ejit
        def f(x):
            return x * Conf().k
        """,
    ),
    trap(
        "dataclass instance",
        """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Conf:
            k: int
        conf = Conf(«2|3»)
        @ejit
        def f(x):
            return x * conf.k
        """,
    ),
    trap(
        "namedtuple default",
        """
        import collections
        D = collections.namedtuple("D", "k", defaults=[«2|3»])
        @ejit
        def f(x):
            return x * D().k
        """,
    ),
    trap(
        "enum value",
        """
        import enum
        class E(enum.Enum):
            K = «2|3»
        @ejit
        def f(x):
            return x * E.K.value
        """,
    ),
    trap(
        "ChainMap",
        """
        import collections
        cfg = collections.ChainMap({«"k"|"j"»: 2}, {"k": 3})
        @ejit
        def f(x):
            return x * cfg["k"]
        """,
    ),
    trap(
        "defaultdict",
        """
        import collections
        cfg = collections.defaultdict(lambda: «2|3», a=1)
        @ejit
        def f(x):
            return x * cfg.get("b", cfg.default_factory())
        """,
    ),
    trap(
        "OrderedDict",
        """
        import collections
        cfg = collections.OrderedDict([("a", 2), ("b", 3)])
        «|cfg.move_to_end("a")»
        @ejit
        def f(x):
            for k in cfg.values():
                x = x * k + 1
            return x
        """,
    ),
    trap(
        "deque",
        """
        import collections
        cfg = collections.deque([1, 2, 3])
        «|cfg.rotate(1)»
        @ejit
        def f(x):
            return x * cfg[0]
        """,
    ),
    trap(
        "Counter",
        """
        import collections
        cfg = collections.Counter("aa«|a»")
        @ejit
        def f(x):
            return x * cfg["a"]
        """,
    ),
    trap(
        "SimpleNamespace",
        """
        import types
        cfg = types.SimpleNamespace(k=«2|3»)
        @ejit
        def f(x):
            return x * cfg.k
        """,
    ),
    trap(
        "MappingProxyType",
        """
        import types
        under = {"k": 1}
        cfg = types.MappingProxyType(under)
        under["k"] = «2|3»
        @ejit
        def f(x):
            return x * cfg["k"]
        """,
    ),
    trap(
        "weak dictionary",
        """
        import weakref
        class Key: pass
        key = Key()
        cfg = weakref.WeakKeyDictionary()
        cfg[key] = «2|3»
        @ejit
        def f(x):
            return x * cfg[key]
        """,
        changed="either",
    ),
]

"""Ways to a value that are no names in the code: computed names, modules as values, imports, the interpreter's own."""

from __future__ import annotations

from direct_traps.trap import trap

_LIB = {"lib.py": "K = «2|3»\n"}
_COMPUTED = "its way to the value is computed at run time"

TRAPS = [
    trap(
        "attrgetter",
        """
        import operator, types
        conf = types.SimpleNamespace(k=«2|3»)
        g = operator.attrgetter("k")
        @ejit
        def f(x):
            return x * g(conf)
        """,
        changed="either",
    ),
    trap(
        "attrgetter, other name",
        """
        import operator, types
        conf = types.SimpleNamespace(a=2, b=3)
        g = operator.attrgetter("«a|b»")
        @ejit
        def f(x):
            return x * g(conf)
        """,
    ),
    trap(
        "methodcaller and itemgetter",
        """
        import operator
        g = operator.itemgetter(«0|1»)
        @ejit
        def f(x):
            return x * g((2, 3))
        """,
    ),
    trap(
        "weakly referenced config",
        """
        import weakref
        class Conf: pass
        conf = Conf()
        conf.k = «2|3»
        ref = weakref.ref(conf)
        @ejit
        def f(x):
            return x * ref().k
        """,
    ),
    trap(
        "getattr with a computed name",
        """
        class Conf: pass
        conf = Conf()
        conf.ka, conf.kb = 2, 3
        name = "«a|b»"
        @ejit
        def f(x):
            return x * getattr(conf, "k" + name)
        """,
    ),
    trap(
        "getattr on a module",
        """
        import lib
        name = "K"
        @ejit
        def f(x):
            return x * getattr(lib, name)
        """,
        files=_LIB,
        changed="either",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "vars() of a module",
        """
        import lib
        @ejit
        def f(x):
            return x * vars(lib)["K"]
        """,
        files=_LIB,
        changed="either",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "__getattr__ of a module",
        """
        import lib
        @ejit
        def f(x):
            return x * lib.anything
        """,
        files={"lib.py": "def __getattr__(name):\n    return «2|3»\n"},
        changed="either",
    ),
    trap(
        "globals()",
        """
        K = «2|3»
        @ejit
        def f(x):
            return x * globals()["K"]
        """,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "eval in the trace",
        """
        K = «2|3»
        @ejit
        def f(x):
            return x * eval("K")
        """,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "eval of text from a global",
        """
        text = "lambda x: x * «2|3»"
        @ejit
        def f(x):
            return eval(text)(x)
        """,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "str.format with attributes",
        """
        class Conf:
            k = «2|3»
        conf = Conf()
        text = "{0.k}"
        @ejit
        def f(x):
            return x * int(text.format(conf))
        """,
    ),
    trap(
        "f-string of a config",
        """
        import types
        conf = types.SimpleNamespace(k=«2|3»)
        @ejit
        def f(x):
            return x * float(f"{conf.k}.5")
        """,
    ),
    trap(
        "locals()",
        """
        K = «2|3»
        @ejit
        def f(x):
            k = K
            return x * locals()["k"]
        """,
        changed="either",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "sys.modules",
        """
        import sys
        K = «2|3»
        @ejit
        def f(x):
            return x * sys.modules["__main__"].K
        """,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "value through sys.modules",
        """
        import sys
        def h():
            return sys.modules[__name__].K
        K = «2|3»
        @ejit
        def f(x):
            return x * h()
        """,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "importlib in the trace",
        """
        import importlib
        @ejit
        def f(x):
            return x * importlib.import_module("lib").K
        """,
        files=_LIB,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "import in the function",
        """
        @ejit
        def f(x):
            import lib
            return x * lib.K
        """,
        files=_LIB,
        changed="refused",
        unchanged="refused",
        why="the trace runs the import",
    ),
    trap(
        "import in the function, imported before",
        """
        import lib
        @ejit
        def f(x):
            from lib import K
            return x * K
        """,
        files=_LIB,
    ),
    trap(
        "relative import in the function",
        """
        import pack.outer
        from pack.outer import h
        @ejit
        def f(x):
            return h(x)
        """,
        files={
            "pack/__init__.py": "",
            "pack/inner.py": "K = «2|3»\n",
            "pack/outer.py": "from . import inner as _\ndef h(x):\n    from .inner import K\n    return x * K\n",
        },
    ),
    trap(
        "f.__globals__",
        """
        K = «2|3»
        def h(): pass
        @ejit
        def f(x):
            return x * h.__globals__["K"]
        """,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "globals by a computed name",
        """
        K = «2|3»
        def h(): pass
        name = "__glo" + "bals__"
        @ejit
        def f(x):
            return x * getattr(h, name)["K"]
        """,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "frame's globals",
        """
        import inspect
        K = «2|3»
        @ejit
        def f(x):
            return x * inspect.currentframe().f_globals["K"]
        """,
        changed="refused",
        unchanged="refused",
        why=_COMPUTED,
    ),
    trap(
        "caller's local variable",
        """
        import sys
        def h():
            return sys._getframe(1).f_locals["k"]
        @ejit
        def f(x):
            k = «2|3»
            return x * h()
        """,
        changed="refused",
        unchanged="refused",
        why="it reads the frames of the interpreter",
    ),
    trap(
        "gc",
        """
        import gc
        class Conf: pass
        conf = Conf()
        conf.k = «2|3»
        @ejit
        def f(x):
            return x * next(each.k for each in gc.get_objects() if type(each).__name__ == "Conf")
        """,
        changed="refused",
        unchanged="refused",
        why="it asks the garbage collector for objects",
    ),
    trap(
        "inspect.getsource",
        """
        import inspect
        def h(x):
            # «|longer»
            return x
        @ejit
        def f(x):
            return x * len(inspect.getsource(h))
        """,
        changed="refused",
        unchanged="refused",
        why="it reads the source file",
    ),
    trap(
        "inspect.stack",
        """
        import inspect
        def outer():
            return inspect.stack()[1].lineno
        «|#
        #»
        @ejit
        def f(x):
            return x * outer()
        """,
        changed="refused",
        unchanged="refused",
        why="it reads the frames of the interpreter",
    ),
    trap(
        "value kept by a library object",
        """
        import logging
        logging.getLogger("a").k = «2|3»
        log = logging.getLogger("a")
        @ejit
        def f(x):
            return x * log.k
        """,
        changed="either",
    ),
    trap(
        "attribute set on a library module",
        """
        import math
        math.k = «2|3»
        @ejit
        def f(x):
            return x * math.k
        """,
    ),
    trap(
        "builtins",
        """
        import builtins
        builtins.K = «2|3»
        @ejit
        def f(x):
            return x * K
        """,
    ),
    trap(
        "builtin hidden by a global",
        """
        «|def len(x):
            return 3»
        @ejit
        def f(x):
            return x * len((1, 2))
        """,
    ),
    trap(
        "defaults replaced",
        """
        def h(x, k=1):
            return x * k
        h.__defaults__ = («2|3»,)
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "keyword defaults replaced",
        """
        def h(x, *, k=1):
            return x * k
        h.__kwdefaults__ = {"k": «2|3»}
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "positional-only default",
        """
        def h(x, k=«2|3», /):
            return x * k
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "code replaced",
        """
        def h(x):
            return x * 2
        def g(x):
            return x * 3
        «|h.__code__ = g.__code__»
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "attribute of a function",
        """
        def h(x):
            return x * h.k
        h.k = «2|3»
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "cell changed from outside",
        """
        def make(k):
            return lambda x: x * k
        h = make(2)
        h.__closure__[0].cell_contents = «2|3»
        @ejit
        def f(x):
            return h(x)
        """,
    ),
    trap(
        "map, filter, reduce",
        """
        import functools, operator
        @ejit
        def f(x):
            return functools.reduce(operator.«add|mul», map(lambda k: x * k, filter(None, [0, 2, 3])))
        """,
    ),
    trap(
        "sort key",
        """
        order = {"a": «1|3», "b": 2}
        names = ["a", "b"]
        @ejit
        def f(x):
            for each in sorted(names, key=order.get):
                x = x * len(names) + ord(each)
            return x
        """,
    ),
]

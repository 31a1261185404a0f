"""Installed code that reads files, clocks and state of its own, which the program may have set."""

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


TRAPS = [
    trap(
        "library: memo filled before, value kept",
        "import fakelib\nfakelib.k(2)\n" + _CALL,
        files=_lib(
            """
            import functools
            K = «2|3»
            @functools.cache
            def k(n):
                return n * K
            def h(x):
                return x * k(2)
            """
        ),
        changed="either",
        unchanged="either",
        why="what a memo holds cannot be read",
    ),
    trap(
        "library: generator of its own, seeded",
        """
        import fakelib
        «|fakelib.rng.random()»
        @ejit
        def f(x):
            return fakelib.h(x)
        """,
        files=_lib("import random\nrng = random.Random(1)\ndef h(x):\n    return x * rng.random()\n"),
        changed="either",
        unchanged="either",
        why="it draws random numbers",
    ),
    trap(
        "library: itertools.count",
        """
        import fakelib
        «|next(fakelib.c)»
        @ejit
        def f(x):
            return fakelib.h(x)
        """,
        files=_lib("import itertools\nc = itertools.count(1)\ndef h(x):\n    return x * next(c)\n"),
        changed="either",
        unchanged="either",
        why="the trace changes what it reads",
    ),
    trap(
        "library: an attribute that is named as counters are",
        "import fakelib\nfakelib.config._count = «2|3»\n" + _CALL,
        files=_lib(
            """
            class Config:
                def __init__(self):
                    self._count = 1
            config = Config()
            def h(x):
                return x * config._count
            """
        ),
    ),
    trap(
        "library: a private object in a global",
        "import fakelib\nfakelib._state = fakelib.State(«2|3»)\n" + _CALL,
        files=_lib(
            """
            class State:
                def __init__(self, k):
                    self.inner = {"deep": [k]}
            _state = State(1)
            def h(x):
                return x * _state.inner["deep"][0]
            """
        ),
    ),
    trap(
        "library: an object in an object",
        "import fakelib\nfakelib.config.inner.k = «2|3»\n" + _CALL,
        files=_lib(
            """
            class Inner:
                def __init__(self):
                    self.k = 1
            class Config:
                def __init__(self):
                    self.inner = Inner()
            config = Config()
            def h(x):
                return x * config.inner.k
            """
        ),
    ),
    trap(
        "library: reads a file",
        _CALL,
        files={
            "k.txt": "«2|3»",
            **_lib("def h(x):\n    with open('k.txt') as file:\n        return x * int(file.read())\n"),
        },
        changed="refused",
        unchanged="refused",
        why="it reads a file",
    ),
    trap(
        "library: reads the environment",
        _CALL,
        files=_lib("import os\ndef h(x):\n    return x * int(os.environ.get('TRAP_K', 1))\n"),
        env={"TRAP_K": "«2|3»"},
    ),
    trap(
        "library: reads the clock",
        _CALL,
        files=_lib("import time\ndef h(x):\n    return x * (time.time() % 1000)\n"),
        changed="refused",
        unchanged="refused",
        why="it reads the clock",
        repeats=False,
    ),
    trap(
        "library: draws random numbers",
        _CALL,
        files=_lib("import numpy as np\ndef h(x):\n    return x * np.random.rand()\n"),
        changed="refused",
        unchanged="refused",
        why="it draws random numbers",
        repeats=False,
    ),
    trap(
        "library: generator of its own",
        _CALL,
        files=_lib("import random\nrng = random.Random()\ndef h(x):\n    return x * rng.random()\n"),
        repeats=False,
        changed="either",
        unchanged="either",
        why="it draws random numbers",
    ),
    trap(
        "library: counter",
        "import fakelib\n«|fakelib.h(1)»\n" + _CALL,
        files=_lib("n = 0\ndef h(x):\n    global n\n    n += 1\n    return x * n\n"),
        call="(f(jnp.arange(4.0)), fakelib.n)",
        changed="either",
        unchanged="refused",
        why="the trace changes what it reads",
    ),
    trap(
        "library: context manager's stack",
        """
        import fakelib
        manager = fakelib.scale(«2|3»)
        manager.__enter__()
        @ejit
        def f(x):
            return fakelib.h(x)
        """,
        files=_lib(
            """
            import contextlib
            stack = [1]
            @contextlib.contextmanager
            def scale(k):
                stack.append(k)
                yield
                stack.pop()
            def h(x):
                return x * stack[-1]
            """
        ),
    ),
    trap(
        "library: thread-local stack",
        """
        import fakelib
        fakelib.state.stack = [1, «2|3»]
        @ejit
        def f(x):
            return fakelib.h(x)
        """,
        files=_lib("import threading\nstate = threading.local()\ndef h(x):\n    return x * state.stack[-1]\n"),
        changed="either",
    ),
    trap(
        "library: contextvar",
        """
        import fakelib
        fakelib.var.set(«2|3»)
        @ejit
        def f(x):
            return fakelib.h(x)
        """,
        files=_lib(
            "import contextvars\nvar = contextvars.ContextVar('v', default=1)\ndef h(x):\n    return x * var.get()\n"
        ),
        changed="either",
    ),
    trap(
        "library: getattr with a computed name",
        _CALL,
        files=_lib(
            "import types\nc = types.SimpleNamespace(ka=«2|3»)\ndef h(x):\n    return x * getattr(c, 'k' + 'a')\n"
        ),
    ),
    trap(
        "library: getattr with one of two names",
        _CALL,
        files=_lib(
            """
            NAME = "_ka"
            class Config:
                _kb = 1
            def same(value):
                return value
            c = Config()
            c._ka = «2|3»
            def h(x):
                name = NAME
                return x * getattr(c, name or "_kb")
            """
        ),
    ),
    trap(
        "library: getattr with a computed name and a computed default",
        _CALL,
        files=_lib(
            """
            NAME = "_ka"
            class Config:
                _kb = 1
            def same(value):
                return value
            c = Config()
            c._ka = «2|3»
            def h(x):
                name = NAME
                return x * getattr(c, name, same("_kb"))
            """
        ),
    ),
    trap(
        "library: numbers that tell the objects of a known package apart",
        """
        import haiku
        @ejit
        def f(x):
            return haiku.h(x) * «2|3»
        """,
        files={
            "site-packages/haiku.py": """
            import itertools
            frame_ids = itertools.count()
            def h(x):
                next(frame_ids)
                return x
            """
        },
    ),
    trap(
        "library: getattr on its module",
        _CALL,
        files=_lib("import sys\nka = «2|3»\ndef h(x):\n    return x * getattr(sys.modules[__name__], 'k' + 'a')\n"),
    ),
    trap(
        "library: getattr with a name made at run time",
        _CALL,
        files=_lib(
            "class Conf: pass\nc = Conf()\nc.ka = «2|3»\ndef h(x):\n    return x * getattr(c, ''.join(['k', 'a']))\n"
        ),
    ),
    trap(
        "library: getattr on its module with a name made at run time",
        _CALL,
        files=_lib(
            "import sys\nka = «2|3»\ndef h(x):\n    return x * getattr(sys.modules[__name__], ''.join(['k', 'a']))\n"
        ),
    ),
    trap(
        "library: attrgetter",
        _CALL,
        files=_lib(
            "import operator\nclass Conf: pass\nc = Conf()\nc.ka = «2|3»\n"
            "g = operator.attrgetter(''.join(['k', 'a']))\ndef h(x):\n    return x * g(c)\n"
        ),
    ),
    trap(
        "library: globals()",
        _CALL,
        files=_lib("k = «2|3»\ndef h(x):\n    return x * globals()['k']\n"),
        changed="either",
        unchanged="either",
        why="its way to the value is computed at run time",
    ),
    trap(
        "library: import in a function",
        _CALL,
        files={
            "site-packages/fakelib/__init__.py": "def h(x):\n    from fakelib.late import K\n    return x * K\n",
            "site-packages/fakelib/late.py": "K = «2|3»\n",
        },
    ),
    trap(
        "library: array in a table",
        _CALL,
        files=_lib(
            "import numpy as np\nT = {'w': np.array([1, 2, 3, «4|5»], np.float32)}\ndef h(x):\n    return x * T['w']\n"
        ),
    ),
    trap(
        "library: array in a global",
        _CALL,
        files=_lib("import numpy as np\nW = np.array([1, 2, 3, «4|5»], np.float32)\ndef h(x):\n    return x * W\n"),
    ),
    trap(
        "library: dtype in a global",
        _CALL,
        files=_lib("import jax.numpy as jnp\nD = jnp.«float32|bfloat16»\ndef h(x):\n    return x.astype(D)\n"),
    ),
    trap(
        "library: enum",
        _CALL,
        files=_lib("import enum\nclass E(enum.Enum):\n    A = «2|3»\ndef h(x):\n    return x * E.A.value\n"),
    ),
    trap(
        "library: named tuple in a global",
        _CALL,
        files=_lib(
            "import collections\nT = collections.namedtuple('T', 'k')\nt = T(«2|3»)\ndef h(x):\n    return x * t.k\n"
        ),
    ),
    trap(
        "library: frozen dataclass in a global",
        _CALL,
        files=_lib(
            """
            import dataclasses
            @dataclasses.dataclass(frozen=True)
            class T:
                k: int
            t = T(«2|3»)
            def h(x):
                return x * t.k
            """
        ),
    ),
    trap(
        "library: property",
        "import fakelib\nmodel = fakelib.Model()\nf = ejit(lambda x: x * model.k)\n",
        files=_lib("class Model:\n    @property\n    def k(self):\n        return «2|3»\n"),
    ),
    trap(
        "library: generated code",
        _CALL,
        files=_lib("names = {}\nexec('def h(x):\\n    return x * «2|3»\\n', names)\nh = names['h']\n"),
        changed="either",
        unchanged="either",
        why="the code is in no file",
    ),
    trap(
        "library: upgraded module, same source elsewhere",
        _CALL,
        files=_lib("def k(x):\n    return x * 2\n\n\n«|# a comment, and another line\n»def h(x):\n    return k(x)\n"),
        changed="right",
    ),
]

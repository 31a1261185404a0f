"""Pairs of programs that differ in one thing, and programs that have no fingerprint. Each defines a function `f`.

`«one|other»` in a source stands for one version or the other.
"""

from __future__ import annotations

import re
import sys
import types

CHANGES = {
    "the code": "def f(x): return x * «2|3»",
    "the type of a constant": "def f(x): return x * «2|2.0»",
    "the sign of zero": "def f(x): return x * «0.0|-0.0»",
    "a constant in a tuple": "def f(x): return x in (1, «2|2.0»)",
    "a lambda": "f = lambda x: x * «2|3»",
    "a comprehension": "def f(x): return [a * «2|3» for a in x]",
    "a nested function": "def f(x):\n def g(y): return y * «2|3»\n return g(x)",
    "a global number": "K = «2|3»\ndef f(x): return x * K",
    "a global for a nested function": "K = «2|3»\ndef f(x): return [K for _ in x]",
    "a global in a class body": "K = «2|3»\ndef f(x):\n class C:\n  k = K\n return C.k",
    "a global that appears": "«pass|K = 2»\ndef f(x): return K",
    "a helper": "def h(x): return x * «2|3»\ndef f(x): return h(x)",
    "a helper's helper": "K = «2|3»\ndef g(x): return x * K\ndef h(x): return g(x)\ndef f(x): return h(x)",
    "a closure": "def make(k):\n def f(x): return x * k\n return f\nf = make(«2|3»)",
    "an empty cell": "def make():\n def f(x): return k\n «k = 1|pass»\n if False: k = 2\n return f\nf = make()",
    "a default": "def f(x, k=«2|3»): return x * k",
    "a keyword default": "def f(x, *, k=«2|3»): return x * k",
    "a helper's default": "def h(x, k=«2|3»): return x * k\ndef f(x): return h(x)",
    "an attribute of the function": "def f(x): return f.k\nf.k = «2|3»",
    "the name of the function": "def f(x): return f.__name__\nf.__name__ = '«a|b»'",
    "a docstring": "def f(x):\n '«a|b»'\n return f.__doc__",
    "an annotation": "def f(x: «int|str»): return f.__annotations__",
    "an entry of a dict": "C = {'k': «2|3»}\ndef f(x): return C['k']",
    "the order of a dict": "C = {«'a': 1, 'b': 2|'b': 2, 'a': 1»}\ndef f(x): return list(C)",
    "the type of a key": "C = {«1|True»: 2}\ndef f(x): return C",
    "nested containers": "C = [{'a': ({'b': [«2|3»]},)}]\ndef f(x): return C",
    "a list for a tuple": "C = «[1, 2]|(1, 2)»\ndef f(x): return C",
    "sharing": "A = []\nB = «A|[]»\ndef f(x): return A is B",
    "a set": "S = {1, «2|3»}\ndef f(x): return [s for s in S]",
    "a set that is asked what it contains": "S = {'a', '«b|c»'}\ndef f(x): return x in S",
    "a frozenset": "S = frozenset([«2|3»])\ndef f(x): return tuple(S)",
    "a deque": "import collections\nD = collections.deque([1], maxlen=«2|3»)\ndef f(x): return D",
    "an ordered dict": "import collections\nD = collections.OrderedDict(a=«2|3»)\ndef f(x): return D",
    "a default factory": "import collections\nD = collections.defaultdict(«list|dict»)\ndef f(x): return D",
    "a counter": "import collections\nD = collections.Counter('«aa|ab»')\ndef f(x): return D",
    "a mapping proxy": "import types\nD = types.MappingProxyType({'a': «2|3»})\ndef f(x): return D",
    "a chain map": "import collections\nD = collections.ChainMap({'a': «2|3»})\ndef f(x): return D",
    "a range": "R = range(«2|3»)\ndef f(x): return R",
    "a slice": "R = slice(«2|3»)\ndef f(x): return x[R]",
    "a bytearray": "R = bytearray(b'«2|3»')\ndef f(x): return R",
    "nan": "R = «float('nan')|1.0»\ndef f(x): return R",
    "a big number": "R = 10 ** 5000 + «2|3»\ndef f(x): return R",
    "a class attribute": "class C:\n k = «2|3»\ndef f(x): return C.k",
    "a class attribute set later": "class C: pass\nC.k = «2|3»\ndef f(x): return C.k",
    "an instance attribute": "class C: pass\nc = C()\nc.k = «2|3»\ndef f(x): return c.k",
    "slots": "class C:\n __slots__ = ('k',)\nc = C()\nc.k = «2|3»\ndef f(x): return c.k",
    "a slot that is not set": "class C:\n __slots__ = ('k',)\nc = C()\n«c.k = 2|pass»\ndef f(x): return c.k",
    "private slots": "class C:\n __slots__ = ('__k',)\n def __init__(self): self.__k = «2|3»\nc = C()\n"
    "def f(x): return c",
    "a method": "class C:\n def m(self, x): return x * «2|3»\nc = C()\ndef f(x): return c.m(x)",
    "a bound method": "class C:\n def __init__(s, k): s.k = k\n def m(self, x): return self.k\nf = C(«2|3»).m",
    "a callable object": "class C:\n def __call__(self, x): return x * «2|3»\nf = C()",
    "a property": "class C:\n @property\n def k(self): return «2|3»\nc = C()\ndef f(x): return c.k",
    "a cached property": "import functools\nclass C:\n @functools.cached_property\n def k(self): return «2|3»\n"
    "c = C()\ndef f(x): return c.k",
    "a static method": "class C:\n @staticmethod\n def k(): return «2|3»\ndef f(x): return C.k()",
    "a class method": "class C:\n @classmethod\n def k(cls): return «2|3»\ndef f(x): return C.k()",
    "a descriptor": "class D:\n def __get__(self, o, t): return «2|3»\nclass C:\n k = D()\ndef f(x): return C.k",
    "__getattr__": "class C:\n def __getattr__(self, n): return «2|3»\nc = C()\ndef f(x): return c.k",
    "an inherited method": "class B:\n def m(self): return «2|3»\nclass C(B): pass\nc = C()\ndef f(x): return c.m()",
    "super": "class B:\n def m(self): return «2|3»\nclass C(B):\n def m(self): return super().m()\n"
    "def f(x): return C().m()",
    "an override": "class B:\n k = 1\nclass C(B):\n «pass|k = 2»\nc = C()\ndef f(x): return c.k",
    "another base": "class A: pass\nclass B: pass\nclass C(«A|B»): pass\ndef f(x): return isinstance(C(), A)",
    "a metaclass": "class M(type):\n k = «2|3»\nclass C(metaclass=M): pass\ndef f(x): return C.k",
    "the class of an instance": "class A:\n k = 1\nclass B:\n k = 2\nc = A()\nc.__class__ = «A|B»\n"
    "def f(x): return c.k",
    "an abstract class": "import abc\nclass A(abc.ABC): pass\nclass B: pass\n«pass|A.register(B)»\n"
    "def f(x): return isinstance(x, A)",
    "a library's abstract class": "import numbers\nclass B: pass\n«pass|numbers.Number.register(B)»\n"
    "b = B()\ndef f(x): return isinstance(b, numbers.Number)",
    "a registry by __init_subclass__": "R = []\nclass B:\n def __init_subclass__(cls): R.append(cls.k)\n"
    "class C(B):\n k = «2|3»\ndef f(x): return R",
    "a dataclass": "import dataclasses\n@dataclasses.dataclass\nclass C:\n k: int = «2|3»\ndef f(x): return C().k",
    "an instance of a dataclass": "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n k: int\n"
    "c = C(«2|3»)\ndef f(x): return c.k",
    "metadata of a field": "import dataclasses\n@dataclasses.dataclass\nclass C:\n"
    " k: int = dataclasses.field(default=1, metadata={'a': «2|3»})\ndef f(x): return dataclasses.fields(C)",
    "a named tuple": "import collections\nT = collections.namedtuple('T', 'a b')\nt = T(1, «2|3»)\n"
    "def f(x): return t.b",
    "a default of a named tuple": "import typing\nclass T(typing.NamedTuple):\n a: int = «2|3»\ndef f(x): return T().a",
    "the order of a named tuple": "import collections\nT = collections.namedtuple('T', '«a b|b a»')\nt = T(1, 2)\n"
    "def f(x): return t.a",
    "an enum": "import enum\nclass E(enum.Enum):\n A = «2|3»\ndef f(x): return E.A.value",
    "a member of an enum": "import enum\nclass E(enum.Enum):\n A = 2\n B = 3\ne = E.«A|B»\ndef f(x): return e",
    "a flag": "import enum\nclass E(enum.IntFlag):\n A = 1\n B = 2\ne = E.A | E.«A|B»\ndef f(x): return e",
    "a dict with a method": "class D(dict):\n def __missing__(self, k): return «2|3»\nd = D()\ndef f(x): return d['k']",
    "a subclass of a list": "class D(list): pass\nd = D([«2|3»])\ndef f(x): return d",
    "a subclass of a number": "class D(int): pass\nd = D(«2|3»)\ndef f(x): return d",
    "a subclass of a float": "class D(float): pass\nd = D(«0.0|-0.0»)\ndef f(x): return d",
    "a subclass of a string": "class D(str): pass\nd = D('«2|3»')\ndef f(x): return d",
    "an attribute of a string": "class D(str): pass\nd = D('a')\nd.k = «2|3»\ndef f(x): return d",
    "a partial": "import functools\ndef h(k, x): return x * k\nf = functools.partial(h, «2|3»)",
    "a keyword of a partial": "import functools\ndef h(x, k): return x * k\nf = functools.partial(h, k=«2|3»)",
    "a decorator": "def d(g):\n def w(x): return g(x) * «2|3»\n return w\n@d\ndef f(x): return x",
    "under wraps": "import functools\ndef d(g):\n @functools.wraps(g)\n def w(x): return g(x)\n return w\n"
    "@d\ndef f(x): return x * «2|3»",
    "a memoised helper": "import functools\n@functools.cache\ndef h(x): return «2|3»\ndef f(x): return h(x)",
    "singledispatch": "import functools\n@functools.singledispatch\ndef h(x): return 1\n@h.register\n"
    "def _(x: int): return «2|3»\ndef f(x): return h(x)",
    "a context variable": "import contextvars\nV = contextvars.ContextVar('V')\nV.set(«2|3»)\ndef f(x): return V.get()",
    "a thread local": "import threading\nL = threading.local()\nL.k = «2|3»\ndef f(x): return L.k",
    "the level of a logger": "import logging\nL = logging.getLogger('ejcache.test')\nL.setLevel(«10|20»)\n"
    "def f(x): return L.isEnabledFor(15)",
    "a weak reference": "import weakref\nclass C: pass\nc = C()\nc.k = «2|3»\nW = weakref.ref(c)\n"
    "def f(x): return W().k",
    "an attrgetter": "import operator\ng = operator.attrgetter('«a|b»')\ndef f(x): return g(x)",
    "a methodcaller": "import operator\ng = operator.methodcaller('a', «2|3»)\ndef f(x): return g(x)",
    "a decimal": "import decimal\nD = decimal.Decimal('«2|2.0»')\ndef f(x): return D",
    "a fraction": "import fractions\nD = fractions.Fraction(1, «2|3»)\ndef f(x): return D",
    "a path": "import pathlib\nD = pathlib.Path('«2|3»')\ndef f(x): return D",
    "a pattern": "import re\nD = re.compile('«2|3»')\ndef f(x): return D.match(x)",
    "a date": "import datetime\nD = datetime.datetime(2020, 1, «2|3»)\ndef f(x): return D",
    "a timedelta": "import datetime\nD = datetime.timedelta(«2|3»)\ndef f(x): return D",
    "a uuid": "import uuid\nD = uuid.UUID(int=«2|3»)\ndef f(x): return D",
    "a namespace": "import types\nD = types.SimpleNamespace(k=«2|3»)\ndef f(x): return D.k",
    "a generic alias": "D = list[«int|str»]\ndef f(x): return D",
    "a union": "D = int | «str|float»\ndef f(x): return D",
    "a typing construct": "import typing\nD = typing.Optional[«int|str»]\ndef f(x): return D",
    "a literal": "import typing\nD = typing.Literal[«1|2»]\ndef f(x): return D",
    "a seeded generator": "import random\nR = random.Random(«2|3»)\ndef f(x): return R.random()",
    "an exception": "E = ValueError('«2|3»')\ndef f(x): raise E",
    "a builtin": "h = «len|sum»\ndef f(x): return h(x)",
    "a method of a builtin type": "h = str.«upper|lower»\ndef f(x): return h(x)",
    "a bound builtin": "h = '«a|b»'.join\ndef f(x): return h(x)",
    "a function of a library": "import math\nh = math.«sin|cos»\ndef f(x): return h(x)",
    "a python function of a library": "import textwrap\nh = textwrap.«indent|dedent»\ndef f(x): return h(x)",
    "a default of a library's function": "import textwrap\ndef f(x): return textwrap.indent(x, 'a')\n"
    "textwrap.indent.__defaults__ = («None|print»,)",
    "a generator function": "def g():\n yield «2|3»\ndef f(x): return list(g())",
    "a name read from an imported module": "import lib\ndef f(x): return lib.K\nlib.K = «2|3»",
    "a name from an import inside": "import lib\nlib.K = «2|3»\ndef f(x):\n import lib as l\n return l.K",
    "a name imported inside": "import lib\nlib.K = «2|3»\ndef f(x):\n from lib import K as k\n return k",
    "an import of an outer function": "import lib\nlib.K = «2|3»\ndef make():\n import lib\n def f(x): return lib.K\n"
    " return f\nf = make()",
    "code from exec": "exec('def f(x): return x * «2|3»')",
    "a patched builtin": "len = «len|lambda x: 0»\ndef f(x): return len(x)",
    "a class named in an annotation": "class C:\n k = «2|3»\ndef f(x: C): return f.__annotations__",
    "a user's value in a library's class": "import textwrap\nclass U:\n def __init__(s, k): s.k = k\n"
    "textwrap.TextWrapper.u = U(«2|3»)\nw = textwrap.TextWrapper()\ndef f(x): return w.u.k",
    "a patched method of a library's class": "import string\ndef g(self): return «2|3»\nstring.Formatter.g = g\n"
    "w = string.Formatter()\ndef f(x): return w.g()",
    "an instance of a library's class": "import textwrap\nw = textwrap.TextWrapper(width=«20|30»)\ndef f(x): return w",
    "the default of a context variable": "import contextvars\nV = contextvars.ContextVar('V', default=«2|3»)\n"
    "def f(x): return V.get()",
    "a flag on a library's class": "import textwrap\ntextwrap.TextWrapper.flag = «2|3»\n"
    "def f(x): return textwrap.TextWrapper.flag",
    "a table on a library's class": "import textwrap\ntextwrap.TextWrapper.table = {'k': «2|3»}\n"
    "w = textwrap.TextWrapper()\ndef f(x): return w.table['k']",
    "a table that is read by getattr": "import textwrap\ntextwrap.TextWrapper.table = {'k': «2|3»}\n"
    "w = textwrap.TextWrapper()\ndef f(x): return getattr(w, 'table')",
    "a number in a library's module": "import textwrap\ntextwrap.ejcache_k = «2|3»\n"
    "def f(x): return getattr(textwrap, x)",
    "a function in a library's module": "import textwrap\ntextwrap.ejcache_k = textwrap.«indent|dedent»\n"
    "def f(x): return getattr(textwrap, x)",
    "the user's function in a library's module": "import textwrap\ntextwrap.ejcache_k = lambda: «2|3»\n"
    "class C: pass\nc = C()\nc.m = textwrap\ndef f(x): return getattr(c.m, x)()",
    "a protocol": "import typing\n@typing.runtime_checkable\nclass P(typing.Protocol):\n a: int\n «b|c»: int\n"
    "def f(x): return isinstance(x, P)",
    "a flag of the interpreter": "import sys\nsys.ejcache_flag = «2|3»\ndef f(x): return sys.ejcache_flag",
}
"""Changes that another digest must show."""

REFUSALS = {
    "import io\nclass C: pass\ncfg = C()\ncfg.log = io.TextIOWrapper(io.BytesIO())\ndef f(x): return cfg.log": (
        "f → cfg.log is an _io.TextIOWrapper"
    ),
    "def g():\n yield 1\nit = g()\ndef f(x): return next(it)": "f → it is a generator",
    "it = iter([1])\ndef f(x): return next(it)": "f → it is a list_iterator",
    "import itertools\nc = itertools.count()\ndef f(x): return next(c)": "f → c is an itertools.count",
    "import socket\ns = socket.socket()\ns.close()\ndef f(x): return s": "f → s is a socket.socket",
    "import lib\ndef f(x): return getattr(lib, x)": "f uses the module lib as a value",
    "import lib\ndef f(x): return lib.__dict__": "f uses the module lib.__dict__ as a value",
    "import lib\nclass C: pass\nc = C()\nc.m = lib\ndef f(x): return c.m": "f → c.m is the module lib",
    "def f(x): return globals()": "f uses globals()",
    "def f(x): return eval(x)": "f uses eval()",
    "def f(x): exec(x)": "f uses exec()",
    "def f(x): return id(x)": "f uses id()",
    "def f(x): return open(x)": "f uses open()",
    "def f(x): return __import__(x)": "f uses __import__()",
    "def g(x): return x.__globals__\ndef f(x): return g(x)": "f → g reads __globals__",
    "def f(x): return getattr(x, '__globals__')": "f reads __globals__",
    "import sys\ndef f(x): return sys._getframe()": "f uses sys._getframe()",
    "import sys\ndef f(x): return sys.modules": "f uses sys.modules",
    "import gc\ndef f(x): return gc.get_objects()": "f uses gc.get_objects()",
    "import importlib\ndef f(x): return importlib.import_module(x)": "f uses importlib.import_module()",
    "def f(x):\n import ejcache_no_such_module": "f imports ejcache_no_such_module, which is not imported yet",
    "N = 0\ndef f(x):\n global N\n N += 1": "f writes the global N",
    "import time\ndef f(x): return time.time()": "f uses time.time()",
    "import time as t\nclass C: pass\nc = C()\nc.clock = t.perf_counter\ndef f(x): return c.clock()": (
        "f → c.clock is time.perf_counter"
    ),
    "import datetime\ndef f(x): return datetime.datetime.now()": "f uses datetime.now()",
    "import random\ndef f(x): return random.random()": "f uses random.random()",
    "import random\ndef f(x): return random.uniform(1, 2)": "f uses random.uniform()",
    "import os\ndef f(x): return os.urandom(1)": "f uses os.urandom()",
    "import functools\n@functools.cache\ndef h(x): return x\nh(1)\ndef f(x): return h(x)": (
        "f → h is memoised, and was called before"
    ),
    "import threading\nclass L(threading.local):\n def __init__(self): self.k = 1\nl = L()\ndef f(x): return l.k": (
        "f → l is a program.L, whose __init__ would run"
    ),
}
"""Programs without a fingerprint, and the reason."""


def versions(source: str) -> tuple[str, str]:
    """Both versions of a source."""
    return re.sub(r"«(.*?)\|(.*?)»", r"\1", source), re.sub(r"«(.*?)\|(.*?)»", r"\2", source)


def load(source: str) -> types.ModuleType:
    """Run a program as a module of its own beside an imported module `lib`."""
    sys.modules["lib"] = library = types.ModuleType("lib")
    library.__file__ = "lib.py"
    sys.modules["program"] = module = types.ModuleType("program")
    module.__file__ = "program.py"
    exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
    return module

# ruff: noqa: E501 (a trap is read best in one line)
"""Many inputs in one project that change one at a time, and many pairs of calls that only their own words tell apart.

To start a process takes longer than all else here. So one program reads all the inputs, each for a function of its own,
and one change after the other is made to it; and one program asks all the pairs, each with a cache of its own.
"""

from __future__ import annotations

import json
import sys

import pytest
from helpers import run_program
from test_traps import HEAD, TAIL

MANY = """
import importlib.metadata, importlib.util
k = {}
number = lambda path: float(open(path).read())
k["argument"] = float(sys.argv[1])
k["attached to a short option"] = number(sys.argv[2][2:])
k["second of a list"] = number(sys.argv[3].split("=")[1].split(",")[1])
k["behind a colon"] = number(sys.argv[4].partition(":")[2])
k["from the first directory"] = number(sys.argv[5])
k["popped"] = float(os.environ.pop("POPPED"))
k["overwritten"] = float(os.environ["OVERWRITTEN"])
os.environ["OVERWRITTEN"] = "0"
k["name of the script"] = len(os.path.basename(sys.argv[0]))
here = Path(__file__).parent
for name in ("k.YAML", ".env.local", "conf/deep/k.csv", "conf/k.Toml", "p/prompt.j2", "k.model", "linked.json"):
    k[name] = number(here / name)
k["version of the project"] = float(importlib.metadata.version("mine"))
sys.path.append("../elsewhere")
import moved
k["a module elsewhere"] = moved.K
spec = importlib.util.spec_from_file_location("by_hand", "by_hand.py")
by_hand = importlib.util.module_from_spec(spec)
spec.loader.exec_module(by_hand)
k["a module that is in no table"] = by_hand.K
k["code beside it"] = (here / "p/kernel.cu").stat().st_size
k["files of code"] = len(list(here.rglob("*.py")))
k["hash seed"] = float(os.environ.get("PYTHONHASHSEED", 0))
k["optimised"] = 2.0 - __debug__
k["python path"] = len(sys.path)
os.chdir("/")
declared = here / "../declared"
float8 = (jnp.float8_e4m3fn, jnp.float8_e5m2)[int(number(here / "kind.bin"))]
fields = np.zeros(2, [(("a", "b")[int(number(here / "kind.bin"))], "f4")])
results = {}
def one(name, value, **options):
    @ejit(name=name, **options)
    def f(x):
        traced.append(name)
        return x * value
    results[name] = float(f(x)[1])
for name, value in k.items():
    one(name, value)
one("declared file", number(declared / "k"), reuse_lowering={"k": declared / "k"})
one("declared directory behind a link", number(declared / "d/link/k"), reuse_lowering={"k": declared / "d"})
one("declared type", jnp.finfo(float8).bits * 1.0 + (float8 is jnp.float8_e5m2), reuse_lowering={"k": lambda: np.dtype(float8)})
one("declared array of a type", 1.0 + (float8 is jnp.float8_e5m2), reuse_lowering={"k": lambda: np.zeros(2, float8)})
one("declared fields", float(len(fields.dtype.names[0]) + (fields.dtype.names[0] == "b")), reuse_lowering={"k": lambda: fields})
print(json.dumps({"traced": len(traced), "results": results}))
"""
FILES = {
    "k.YAML": "2", ".env.local": "2", "conf/deep/k.csv": "2", "conf/k.Toml": "2", "p/prompt.j2": "2", "k.model": "2",
    "../target.json": "2", "../elsewhere/moved.py": "K = 2.0", "by_hand.py": "K = 2.0", "p/kernel.cu": "ab", "short": "2",
    "list": "2", "colon": "2", "first": "2", "../site/mine-2.dist-info/METADATA": "Name: mine\nVersion: 2\n", "kind.bin": "0",
    "../site/mine-2.dist-info/RECORD": "mine.py,sha256=x,5\n", "../declared/k": "2", "../behind/k": "2", "../declared/d/a": "",
}  # fmt: skip
LINKS = {"linked.json": "../target.json", "../declared/d/link": "../../behind"}
WORDS = ["2", "-cshort", "--k=other,list", "model:colon", "first"]
ENVIRONMENT = {"POPPED": "2", "OVERWRITTEN": "2", "PYTHONPATH": "../site"}
CHANGES = {
    "argument": {"words": ["3", *WORDS[1:]]},
    "attached to a short option": {"files": {"short": "3"}},
    "second of a list": {"files": {"list": "3"}},
    "behind a colon": {"files": {"colon": "3"}},
    "from the first directory": {"files": {"first": "3"}},
    "popped": {"env": {"POPPED": "3"}},
    "overwritten": {"env": {"OVERWRITTEN": "3"}},
    "name of the script": {"script": "longer.py"},
    **{name: {"files": {name: "3"}} for name in ("k.YAML", ".env.local", "conf/deep/k.csv", "conf/k.Toml", "p/prompt.j2", "k.model")},
    "linked.json": {"files": {"../target.json": "3"}},
    "version of the project": {"files": {
        "../site/mine-2.dist-info/METADATA": "Name: mine\nVersion: 3\n", "../site/mine-2.dist-info/RECORD": "mine.py,sha256=y,5\n",
    }},
    "a module elsewhere": {"files": {"../elsewhere/moved.py": "K = 3.0"}},
    "a module that is in no table": {"files": {"by_hand.py": "K = 3.0"}},
    "code beside it": {"files": {"p/kernel.cu": "abc"}},
    "files of code": {"files": {"p/more.py": ""}},
    "hash seed": {"env": {"PYTHONHASHSEED": "3"}},
    "optimised": {"switches": ["-O"]},
    "python path": {"env": {"PYTHONPATH": "../site:../more"}},
    "declared file": {"files": {"../declared/k": "3"}},
    "declared directory behind a link": {"files": {"../behind/k": "3"}},
    "declared type": {"files": {"kind.bin": "1"}},
    "declared array of a type": {"files": {"kind.bin": "1"}},
    "declared fields": {"files": {"kind.bin": "1"}},
}  # fmt: skip


@pytest.fixture
def project(tmp_path):
    place = tmp_path / "project"
    place.mkdir()
    write(place, {"train.py": HEAD + MANY, **FILES})
    for name, target in LINKS.items():
        (place / name).symlink_to(target)
    (place / "longer.py").symlink_to("train.py")
    return place


def write(place, files):
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def start(place, *, script="train.py", words=WORDS, env=None, switches=(), plain=False, check=True):
    run_program([sys.executable, "-c", "pass"])  # what was just written is older than what starts now
    variables = {
        "CACHE_AT": str(place / "../cache"), "XDG_CACHE_HOME": str(place / "../home"), "EJCACHE_REUSE_FLOOR": "0",
        "EJCACHE_REUSE_CHECK_ONE_IN": "0", "PLAIN": "1" if plain else None, "PYTHONDONTWRITEBYTECODE": "1",
        **ENVIRONMENT, **(env or {}),
    }  # fmt: skip
    done = run_program([sys.executable, *switches, script, *words], cwd=place, env=variables, check=check)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.soak
def test_each_change_is_seen(project):
    """One input after the other changes its function's result at once; unchanged, a third start traces nothing."""
    first, second, third = (start(project) for _ in range(3))
    assert (first["traced"], third["traced"]) == (len(first["results"]), 0)
    assert first["results"] == second["results"] == third["results"]
    assert set(CHANGES) == set(first["results"])
    overlooked = []
    for name, change in CHANGES.items():
        files = change.get("files", {})
        before = {each: (project / each).read_text() if (project / each).exists() else None for each in files}
        write(project, files)
        now = start(project, **{part: given for part, given in change.items() if part != "files"})
        for each, text in before.items():
            if text is None:
                (project / each).unlink()
            else:
                (project / each).write_text(text)
        if now["results"][name] == first["results"][name]:
            overlooked.append(name)
    assert overlooked == []


def test_a_link_that_changes_while_the_process_starts(tmp_path):
    """The process has loaded the release before: it neither records nor reuses."""
    body = "@ejit\ndef f(x):\n    traced.append(1)\n    return x * 2\nresults.append(f(x))\n"
    write(tmp_path, {"release/train.py": SWAP + HEAD + body + TAIL})
    (tmp_path / "current").symlink_to("release")
    said = [start(tmp_path, script=f"{tmp_path}/current/train.py", words=[]) for _ in range(3)]
    assert [each["traced"] for each in said] == [1, 1, 1]


SWAP = """
import os, sys
link = os.path.dirname(sys.argv[0])
os.symlink("release", link + ".new")
os.replace(link + ".new", link)
"""

PAIRS = {
    "a global": "k = 2.0\ndef f(x):\n    return x * k\nstep = ejit(f)\nuse(step)\nk = 3.0\njax.clear_caches()\nuse(step)",
    "methods": "class T:\n    def __init__(self, k):\n        self.k = k\n    def step(self, x):\n        return x * self.k\nuse(ejit(T(2.0).step))\nuse(ejit(T(3.0).step))",
    "partials": "def f(k, x):\n    return x * k\nuse(ejit(functools.partial(f, 2.0)))\nuse(ejit(functools.partial(f, 3.0)))",
    "lambdas": "for k in (2.0, 3.0):\n    use(ejit(lambda x, k=k: x * k))",
    "closures": "def make(k):\n    def f(x):\n        return x * k\n    return f\nuse(ejit(make(2.0)))\nuse(ejit(make(3.0)))",
    "gradients": "def make(k):\n    def loss(x):\n        return (x ** k).sum()\n    return loss\nuse(ejit(jax.grad(make(2.0))))\nuse(ejit(jax.grad(make(3.0))))",
    "vmap": "def make(k):\n    def f(x):\n        return x * k\n    return f\nuse(ejit(jax.vmap(make(2.0))))\nuse(ejit(jax.vmap(make(3.0))))",
    "remat": "def f(x):\n    return jnp.sin(x) * k\nk = 2.0\nuse(ejit(f))\nk = 3.0\nuse(ejit(jax.checkpoint(f)))",
    "a module": "import types\nm = types.ModuleType('m')\nm.k = 2.0\ndef f(x):\n    return x * m.k\nuse(ejit(f))\nm.k = 3.0\njax.clear_caches()\nuse(ejit(f))",
    "a dictionary": "c = {'k': 2.0}\ndef f(x):\n    return x * c['k']\nuse(ejit(f))\nc['k'] = 3.0\njax.clear_caches()\nuse(ejit(f))",
    "a list": "c = [2.0]\ndef f(x):\n    return x * sum(c)\nuse(ejit(f))\nc.append(1.0)\njax.clear_caches()\nuse(ejit(f))",
    "an attribute of a class": "class C:\n    k = 2.0\ndef f(x):\n    return x * C.k\nuse(ejit(f))\nC.k = 3.0\njax.clear_caches()\nuse(ejit(f))",
    "a variable of the environment": "def f(x):\n    return x * float(os.environ.get('PAIR_K', 2))\nuse(ejit(f))\nos.environ['PAIR_K'] = '3'\njax.clear_caches()\nuse(ejit(f))\ndel os.environ['PAIR_K']",
    "an array of NumPy's": "k = np.full(4, 2.0, np.float32)\ndef f(x):\n    return x * k\nuse(ejit(f))\nk = k + 1\njax.clear_caches()\nuse(ejit(f))",
    "a context variable": "import contextvars\nv = contextvars.ContextVar('v', default=2.0)\ndef f(x):\n    return x * v.get()\nuse(ejit(f))\nv.set(3.0)\njax.clear_caches()\nuse(ejit(f))",
    "optimisers": "class Tx(tuple):\n    pass\ndef sgd(k):\n    def update(x):\n        return x * k\n    return update\nclass S:\n    def __init__(self, tx):\n        self.tx = tx\n    def step(self, x):\n        return self.tx(x)\nuse(ejit(S(sgd(2.0)).step))\nuse(ejit(S(sgd(3.0)).step))",
    "static objects": "class C:\n    def __init__(self, k):\n        self.k = k\ndef f(x, c):\n    return x * c.k\nstep = ejit(f, static_argnums=1)\nuse(lambda x: step(x, C(2.0)))\nuse(lambda x: step(x, C(3.0)))",
    "parts of a tree": "class N:\n    def __init__(self, v, k):\n        self.v, self.k = v, k\nclass K:\n    def __init__(self, k):\n        self.k = k\njax.tree_util.register_pytree_node(N, lambda n: ((n.v,), n.k), lambda k, v: N(v[0], k))\ndef f(n):\n    return n.v * n.k.k\nstep = ejit(f)\nuse(lambda x: step(N(x, K(2.0))))\nuse(lambda x: step(N(x, K(3.0))))",
    "wrappers": "def scaled(k):\n    def around(g):\n        @functools.wraps(g)\n        def inner(x):\n            return g(x) * k\n        return inner\n    return around\ndef f(x):\n    return x\nuse(ejit(scaled(2.0)(f)))\nuse(ejit(scaled(3.0)(f)))",
    "callable objects": "class F:\n    def __init__(self, k):\n        self.k = k\n    def __call__(self, x):\n        return x * self.k\nuse(ejit(F(2.0)))\nuse(ejit(F(3.0)))",
    "a helper that is replaced": "def helper(x):\n    return x * 2.0\ndef f(x):\n    return helper(x)\nuse(ejit(f))\ndef helper(x):\n    return x * 3.0\njax.clear_caches()\nuse(ejit(f))",
    "a counter": "n = [1.0]\ndef f(x):\n    n[0] += 1\n    return x * n[0]\nuse(ejit(f))\njax.clear_caches()\nuse(ejit(f))",
    "an iterator": "it = iter([2.0, 3.0] * 4)\ndef f(x):\n    return x * next(it)\nuse(ejit(f))\njax.clear_caches()\nuse(ejit(f))",
    "a function of JAX": "def f(x):\n    return jnp.pair_helper(x)\njnp.pair_helper = lambda x: x * 2.0\nuse(ejit(f))\njnp.pair_helper = lambda x: x * 3.0\njax.clear_caches()\nuse(ejit(f))\ndel jnp.pair_helper",
    "what a thread has": "import threading\nlocal = threading.local()\nlocal.k = 2.0\ndef f(x):\n    return x * local.k\nuse(ejit(f))\nlocal.k = 3.0\njax.clear_caches()\nuse(ejit(f))",
    "a second try": "bad = True\ndef f(x):\n    if bad:\n        raise MemoryError\n    return x * 3.0\nstep = ejit(f)\ntry:\n    use(step)\nexcept MemoryError:\n    bad = False\n    use(step)\nuse(ejit(lambda x: x))",
    "a setting of JAX": "def f(x):\n    return x + jnp.arange(4.0).dtype.itemsize\nuse(ejit(f))\nwith jax.enable_x64(True):\n    use(ejit(f))",
    "classes of one name": "def make(k):\n    class C:\n        def step(self, x):\n            return x * k\n    return C()\nuse(ejit(make(2.0).step))\nuse(ejit(make(3.0).step))",
    "text that is run": "for k in (2.0, 3.0):\n    space = {}\n    exec(f'def f(x):\\n    return x * {k}', space)\n    use(ejit(space['f']))",
    "a cached property": "class C:\n    k = 2.0\n    @functools.cached_property\n    def scale(self):\n        return self.k\n    def step(self, x):\n        return x * self.scale\nuse(ejit(C().step))\nC.k = 3.0\nuse(ejit(C().step))",
    "properties": "class C:\n    k = 2.0\n    @property\n    def scale(self):\n        return type(self).k\nc = C()\ndef f(x):\n    return x * c.scale\nuse(ejit(f))\nC.k = 3.0\njax.clear_caches()\nuse(ejit(f))",
    "defaults": "def f(x, k=2.0):\n    return x * k\nstep = ejit(f)\nuse(step)\nf.__defaults__ = (3.0,)\njax.clear_caches()\nuse(step)",
}  # fmt: skip
ASKED = """
import contextlib, functools
for number, text in enumerate(json.loads(open("pairs.json").read())):
    with ejcache.enable(os.environ["CACHE_AT"] + str(number), min_compile_seconds=0):
        space = {"use": lambda f: results.append(f(x)), "ejit": ejit, "jax": jax, "jnp": jnp, "np": np, "os": os, "functools": functools, "__name__": "__main__"}
        exec(text, space)
"""


@pytest.mark.soak
def test_pairs_that_are_asked_in_one_process(tmp_path):
    """Nothing changes between starts, and each start computes what it does without reuse."""
    place = tmp_path / "project"
    write(place, {"train.py": HEAD + ASKED + TAIL, "pairs.json": json.dumps(list(PAIRS.values()))})
    plain = start(place, words=[], plain=True)["results"]
    assert len(plain) >= 2 * len(PAIRS)
    for _ in range(4):
        assert start(place, words=[])["results"] == plain

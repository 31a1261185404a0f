# ruff: noqa: E501 (a trap is read best in one line)
"""Programs that change between two starts: a fourth start must compute what plain JAX computes, whatever was recorded.

Each trap starts its first version three times, of which the third traces nothing, and then its second version. It is
also started without reuse, and what it computes there is what it must compute.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers import run_program

HEAD = """
import json, os, sys, dataclasses, pathlib
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
import ejcache

ejcache.enable(os.environ["CACHE_AT"], min_compile_seconds=0)
traced = []
results = []
x = np.arange(4.0, dtype=np.float32)
def ejit(fun=None, **options):
    if fun is None:
        return lambda fun: ejit(fun, **options)
    options.setdefault("reuse_lowering", True)
    if os.environ.get("PLAIN"):
        options = {k: v for k, v in options.items() if k not in ("reuse_lowering", "name")}
    return ejcache.ejit(fun, **options)
"""
TAIL = """
print(json.dumps({"traced": len(traced), "results": [np.asarray(each).tolist() for each in results]}))
"""


@dataclass(frozen=True)
class Trap:
    """A program, and what its second version changes.

    Attributes:
        body: the program; K is what it multiplies with.
        files: of the project, by name.
        words: of the command line.
        env: the environment.
        switches: of the interpreter.
        change: the same of the second version, where it differs; a file that is None is removed.
        reused: whether the third start of the first version traces nothing.
    """

    body: str
    files: dict = field(default_factory=dict)
    words: tuple = ()
    env: dict = field(default_factory=dict)
    switches: tuple = ()
    change: dict = field(default_factory=dict)
    reused: bool = True


F = """
@ejit
def f(x):
    traced.append(1)
    return x * K
results.append(f(x))
"""


def reading(expression, **options):
    return Trap(f"K = {expression}\n{F}", **options)


TRAPS = {
    "an argument": reading("float(sys.argv[1])", words=("2",), change={"words": ("3",)}),
    "an argument with =": reading(
        "float(sys.argv[1].partition('=')[2])", words=("k=2",), change={"words": ("k=3",)}
    ),
    "one argument more": reading("len(sys.argv)", change={"words": ("a",)}),
    "a file that an argument names": reading(
        "float(open(sys.argv[1]).read())", words=("../k.dat",), files={"../k.dat": "2"}, change={"files": {"../k.dat": "3"}}
    ),
    "a file behind =": reading(
        "float(open(sys.argv[1][4:]).read())",
        words=("--k=../k.dat",), files={"../k.dat": "2"}, change={"files": {"../k.dat": "3"}},
    ),
    "a file behind @": reading(
        "float(open(sys.argv[1][1:]).read())",
        words=("@../k.dat",), files={"../k.dat": "2"}, change={"files": {"../k.dat": "3"}},
    ),
    "a variable": reading("float(os.environ['K'])", env={"K": "2"}, change={"env": {"K": "3"}}),
    "a variable that was unset": reading("float(os.environ.get('K', 2))", change={"env": {"K": "3"}}),
    "a variable read in the trace": Trap(
        F.replace("x * K", "x * float(os.environ['MODEL_K'])"), env={"MODEL_K": "2"}, change={"env": {"MODEL_K": "3"}}
    ),
    "a rank": reading("float(os.environ['RANK'])", env={"RANK": "2"}, change={"env": {"RANK": "3"}}),
    "yaml": reading("float(open('conf/k.yaml').read())", files={"conf/k.yaml": "2"}, change={"files": {"conf/k.yaml": "3"}}),
    "json in the trace": Trap(
        F.replace("x * K", "x * json.load(open('k.json'))"), files={"k.json": "2"}, change={"files": {"k.json": "3"}}
    ),
    "a configuration file that is added": reading(
        "3 if os.path.exists('override.toml') else 2", change={"files": {"override.toml": "1"}}
    ),
    "a configuration file that goes": reading(
        "3 if os.path.exists('override.ini') else 2", files={"override.ini": "1"}, change={"files": {"override.ini": None}}
    ),
    "a dot file": reading("float(open('.env').read())", files={".env": "2"}, change={"files": {".env": "3"}}),
    "a module": reading("__import__('m').K", files={"m.py": "K = 2"}, change={"files": {"m.py": "K = 3"}}),
    "a module of a package": reading(
        "__import__('p.q', fromlist=['K']).K",
        files={"p/__init__.py": "", "p/q.py": "K = 2"}, change={"files": {"p/q.py": "K = 3"}},
    ),
    "a module that is added": reading(
        "2 + __import__('importlib.util', fromlist=['x']).find_spec('added').__class__.__name__.count('ModuleSpec')",
        change={"files": {"added.py": ""}},
    ),
    "a module imported in the trace": Trap(
        F.replace("return x * K", "import lib.m; return x * lib.m.K").replace("@ejit", "sys.path.append('../more')\n@ejit"),
        files={"../more/lib/__init__.py": "", "../more/lib/m.py": "K = 2"},
        change={"files": {"../more/lib/m.py": "K = 3"}},
    ),
    "a module in a directory that is no identifier": reading(
        "(sys.path.append('my-lib'), __import__('m').K)[1]", files={"my-lib/m.py": "K = 2"},
        change={"files": {"my-lib/m.py": "K = 3"}},
    ),
    "a module of equal size and time": reading(
        "__import__('m').K", files={"m.py": "K = 2"}, change={"files": {"m.py": "K = 3"}, "same_time": ("m.py",)}
    ),
    "a module through a link": reading(
        "__import__('linked').K", files={"../elsewhere/linked.py": "K = 2"},
        change={"files": {"../elsewhere/linked.py": "K = 3"}},
    ),
    "a package on the search path": reading(
        "__import__('lib.m', fromlist=['K']).K", env={"PYTHONPATH": "../site"},
        files={"../site/lib/__init__.py": "", "../site/lib/m.py": "K = 2"},
        change={"files": {"../site/lib/m.py": "K = 3"}},
    ),
    "another version of a distribution": reading(
        "__import__('dist').K", env={"PYTHONPATH": "../site"},
        files={
            "../site/dist.py": "K = 2", "../site/dist-1.0.dist-info/INSTALLER": "pip\n",
            "../site/dist-1.0.dist-info/RECORD": "dist.py,sha256=x,5\n",
        },
        change={"files": {
            "../site/dist.py": "K = 3", "../site/dist-1.0.dist-info/RECORD": "dist.py,sha256=y,5\n",
        }},
    ),
    "a distribution that was edited by hand": reading(
        "__import__('dist').K", env={"PYTHONPATH": "../site"},
        files={
            "../site/dist.py": "K = 2", "../site/dist-1.0.dist-info/INSTALLER": "pip\n",
            "../site/dist-1.0.dist-info/RECORD": "dist.py,sha256=x,5\n",
        },
        change={"files": {"../site/dist.py": "K = 3"}},
    ),
    "a file alone in a library": reading(
        "__import__('sitecustomize').K", env={"PYTHONPATH": "../site"},
        files={"../site/sitecustomize.py": "K = 2", "../site/dist-1.0.dist-info/RECORD": ""},
        change={"files": {"../site/sitecustomize.py": "K = 3"}},
    ),
    "a switch": reading("2 if __debug__ else 3", change={"switches": ("-O",)}),
    "a switch by a variable": reading("2 + sys.flags.optimize", change={"env": {"PYTHONOPTIMIZE": "1"}}),
    "64 bits": Trap(F.replace("x * K", "x * 2 + jnp.arange(4.0).dtype.itemsize"), change={"env": {"JAX_ENABLE_X64": "1"}}),
    "devices": Trap(
        F.replace("x * K", "x * jax.device_count()"),
        change={"env": {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}},
    ),
    "a setting of JAX": Trap(
        "jax.config.update('jax_enable_x64', len(sys.argv) > 1)\n" + F.replace("x * K", "x + jnp.arange(4.0).dtype.itemsize"),
        change={"words": ("a",)},
    ),
    "a declared callable": Trap(
        "K = float(open('k.bin').read())\n" + F.replace("@ejit", "@ejit(reuse_lowering={'k': lambda: K})"),
        files={"k.bin": "2"}, change={"files": {"k.bin": "3"}},
    ),
    "a declared path": Trap(
        F.replace("@ejit", "@ejit(reuse_lowering={'k': Path('k.bin')})").replace("x * K", "x * float(open('k.bin').read())"),
        files={"k.bin": "2"}, change={"files": {"k.bin": "3"}},
    ),
    "a declared directory": Trap(
        F.replace("@ejit", "@ejit(reuse_lowering={'k': Path('../d')})").replace("x * K", "x * len(os.listdir('../d'))"),
        files={"../d/a.bin": "2"}, change={"files": {"../d/b.bin": "3"}},
    ),
    "a declared array": Trap(
        "K = np.fromfile('k.bin', np.float32)\n" + F.replace("@ejit", "@ejit(reuse_lowering={'k': lambda: [{'k': K}]})"),
        files={"k.bin": "aaaa"}, change={"files": {"k.bin": "aaab"}},
    ),
    "a static number": Trap(
        "@ejit(static_argnums=1)\ndef f(x, k):\n    traced.append(1)\n    return x * k\nresults.append(f(x, float(sys.argv[1])))",
        words=("2",), change={"words": ("3",)},
    ),
    "the working directory": reading("len(Path.cwd().name)", files={"sub/x.py": ""}, change={"cwd": "sub"}),
    "two methods of one name": Trap(
        "class T:\n    def __init__(self, k):\n        self.k = k\n        self.step = ejit(self._step)\n"
        "    def _step(self, x):\n        traced.append(1)\n        return x * self.k\n"
        "for k in (2, 3):\n    results.append(T(k).step(x))",
        change={"words": ()}, reused=False,
    ),
    "one question twice": Trap(
        "K = 2\n" + F + "K = 3\njax.clear_caches()\nresults.append(f(x))", reused=False, change={"words": ()}
    ),
    "gradients of one name": Trap(
        "def loss(x):\n    traced.append(1)\n    return (x ** 2).sum()\n"
        "results.append(ejit(jax.grad(loss))(x))\nresults.append(ejit(jax.grad(lambda x: loss(x) * 2))(x))",
        change={"words": ()},
    ),
    "static numbers that Python takes for equal": Trap(
        "@ejit(static_argnums=1)\ndef f(x, k):\n    traced.append(1)\n    return x * (2 if k is True else 3)\n"
        "results.append(f(x, bool(1)) if len(sys.argv) < 2 else f(x, 1))", change={"words": ("a",)},
    ),
    "a negative zero": Trap(
        "@ejit(static_argnums=1)\ndef f(x, k):\n    traced.append(1)\n    return jnp.copysign(x, k)\n"
        "results.append(f(x, -0.0))\nresults.append(f(x, 0.0))", change={"words": ()},
    ),
    "a function that sets what another one reads": Trap(
        "N = 1\n@ejit\ndef init(x):\n    global N\n    traced.append(1)\n    N = 2\n    return x + 1\n"
        "@ejit\ndef step(x):\n    traced.append(1)\n    return x * N\n"
        "results.append(step(init(x)) if len(sys.argv) < 3 else step(jnp.concatenate([init(x), init(x)])))",
        change={"words": ()},
    ),
    "weights that are baked in": Trap(
        "K = jnp.asarray(np.fromfile('k.bin', np.float32))\n" + F, files={"k.bin": "aaaa"},
        change={"files": {"k.bin": "aaab"}}, reused=False,
    ),
    "a result with another unit": Trap(
        "@jax.tree_util.register_dataclass\n@dataclasses.dataclass(frozen=True)\nclass Q:\n    v: object\n"
        "    unit: str = dataclasses.field(metadata={'static': True})\n"
        "@ejit\ndef f(x):\n    traced.append(1)\n    return Q(x, open('unit.txt').read())\n"
        "q = f(x)\nresults.append(q.v)\nresults.append(len(q.unit))",
        files={"unit.txt": "m"}, change={"files": {"unit.txt": "km"}},
    ),
    "an archive": reading(
        "(sys.path.append('a.zip'), __import__('zipped').K)[1]", files={"a.zip": "2"}, change={"files": {"a.zip": "3"}}
    ),
    "a search path that grows between two functions": Trap(
        F.replace("x * K", "x + 1") + "sys.path.append('../more')\n@ejit\ndef g(x):\n    traced.append(1)\n"
        "    import base\n    try:\n        import piece\n        return x * piece.K\n    except ImportError:\n        return x * base.K\n"
        "results.append(g(x))",
        files={"../more/base.py": "K = 2"}, change={"files": {"../more/piece.py": "K = 3"}},
    ),
    "a policy of autotuning": Trap(
        F.replace("x * K", "x * len(resolve().autotune_policy)").replace("@ejit", "from ejcache.settings.resolve import resolve\n@ejit"),
        env={"EJCACHE_AUTOTUNE_POLICY": "error"}, change={"env": {"EJCACHE_AUTOTUNE_POLICY": "heuristics"}},
    ),
    "a host callback": Trap(
        "K = float(sys.argv[1])\n@ejit\ndef f(x):\n    traced.append(1)\n"
        "    return jax.pure_callback(lambda x: np.asarray(x) * K, x, x)\nresults.append(f(x))",
        words=("2",), change={"words": ("3",)}, reused=False,
    ),
}  # fmt: skip
QUICK = {"a distribution that was edited by hand", "a declared callable"}
"""Those that run with all tests; `make soak` runs the others."""


def write(place, files):
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.unlink()
        elif name.endswith(".zip"):
            import zipfile

            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("zipped.py", f"K = {text}")
        else:
            path.write_text(text)
    record = place / "../site/dist-1.0.dist-info/RECORD"
    if record.exists() and "../site/dist-1.0.dist-info/RECORD" in files:
        for path in (place / "../site/dist.py", record):
            if path.exists():
                os.utime(path, (1e9, 1e9 + path.name.count("RECORD")))


def start(tmp_path, trap, version, *, plain=False):
    def of(name):
        return version.get(name, getattr(trap, name, ""))

    run_program([sys.executable, "-c", "pass"])  # what was just written is older than what starts now
    env = {
        "CACHE_AT": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "home"), "EJCACHE_REUSE_FLOOR": "0",
        "EJCACHE_REUSE_CHECK_ONE_IN": "0", "PLAIN": "1" if plain else None, "PYTHONDONTWRITEBYTECODE": "1", **of("env"),
    }  # fmt: skip
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = str((tmp_path / "project" / env["PYTHONPATH"]).resolve())
    program = tmp_path / "project" / "train.py"
    done = run_program(
        [sys.executable, *of("switches"), str(program), *of("words")],
        cwd=tmp_path / "project" / (version.get("cwd") or ""),
        env=env,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.soak]) for name in TRAPS]
)
def test_a_change_is_never_overlooked(name, tmp_path):
    """The changed program computes what it does without reuse; unchanged, its third start traces nothing."""
    trap = TRAPS[name]
    place = tmp_path / "project"
    place.mkdir()
    write(place, {"train.py": HEAD + trap.body + TAIL, **trap.files})
    if "linked" in trap.body:
        (place / "linked.py").symlink_to("../elsewhere/linked.py")
    unchanged = [start(tmp_path, trap, {}) for _ in range(3)]
    assert unchanged[0]["results"] == unchanged[1]["results"] == unchanged[2]["results"]
    assert (unchanged[2]["traced"] == 0) is trap.reused, unchanged

    times = {each: (place / each).stat() for each in trap.change.get("same_time", ())}
    write(place, trap.change.get("files", {}))
    for each, status in times.items():
        os.utime(place / each, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = start(tmp_path, trap, trap.change)
    shutil.rmtree(tmp_path / "home")
    assert changed["results"] == start(tmp_path, trap, trap.change, plain=True)["results"]
    assert Path(tmp_path / "cache").exists()

# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs that came to mind while the implementation was read, after those of the page had been written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attack_calls import _modes
from attack_inputs import _VECTOR

if TYPE_CHECKING:
    from attack_driver import Place


def link_within_the_project(p: Place) -> None:
    """A link from one directory of the project to another, under a name that comes behind and one that comes before."""
    p.write("proj/conf/prod/a.yaml", "1")
    p.write("proj/conf/test/a.yaml", "2")
    p.link("proj/conf/used", "prod")
    p.link("proj/conf/active", "prod")
    p.link("proj/conf/file.yaml", "prod/a.yaml")
    p.program(f"""
def values():
    return [num("conf/used/a.yaml"), num("conf/active/a.yaml"), num("conf/file.yaml")]
{_VECTOR}""")
    p.must("the one behind", lambda q: q.link("proj/conf/used", "test"))
    p.must("the one before", lambda q: q.link("proj/conf/active", "test"))
    p.must("the file", lambda q: q.link("proj/conf/file.yaml", "test/a.yaml"))
    p.twin("a link to outputs", lambda q: (q.write("proj/outputs/1/a.yaml", "1"), q.link("proj/newest", "outputs/1")))


def packages_within_the_project(p: Place) -> None:
    """Packages that `pip install --target` put beside the main file."""
    p.write("proj/dep/__init__.py", "k = 1\n")
    p.write("proj/dep-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: dep\nVersion: 1.0\n")
    p.write("proj/dep-1.0.dist-info/INSTALLER", "pip\n")
    p.write("proj/dep-1.0.dist-info/RECORD", "dep/__init__.py,,6\ndep-1.0.dist-info/RECORD,,\n")
    p.write("proj/conf/a.yaml", "1")
    p.write("proj/b.yaml", "1")
    p.write("proj/helper.py", "k = 1\n")
    p.write("proj/late.py", "k = 1\n")
    p.program(f"""
import dep, helper
def values():
    import late
    return [dep.k, helper.k, late.k, num("conf/a.yaml"), num("b.yaml")]
{_VECTOR}""")
    p.must("configuration in a directory", lambda q: q.write("proj/conf/a.yaml", "2"))
    p.must("configuration beside the main file", lambda q: q.write("proj/b.yaml", "2"))
    p.must("a module", lambda q: q.write("proj/helper.py", "k = 2\n"))
    p.must("a module that the trace imports", lambda q: q.write("proj/late.py", "k = 2\n"))
    p.must("the main file", lambda q: q.replace("proj/main.py", "dep.k,", "dep.k + 1,"))
    p.must("the package", lambda q: q.write("proj/dep/__init__.py", "k = 23\n"))


def gone_before_ejcache(p: Place) -> None:
    """A program that goes elsewhere before it imports ejcache, and has read a file that a word names."""
    p.write("out/k.bin", "1")
    p.write("elsewhere/x", "")
    p.argv = ["../out/k.bin"]
    p.program(f"""
def values():
    return [kept]
{_VECTOR}""")
    p.replace(
        "proj/main.py",
        "import os, re, sys, json\n",
        "import os, re, sys, json\nkept = int(open(sys.argv[1]).read())\nos.chdir(__file__.rpartition('/')[0] + '/../elsewhere')\n",
    )
    p.must("the file", lambda q: q.write("out/k.bin", "2"))


def environment_between_two_functions(p: Place) -> None:
    """A program that sets a variable between the first question and the second, from a file outside."""
    p.write("out/k", "1")
    p.program("""
@ejcache.ejit(reuse_lowering=True)
def first(x):
    traced("first")
    return x + 1
show(first(jnp.float32(1)))
os.environ["K"] = open("../out/k").read()
@ejcache.ejit(reuse_lowering=True)
def second(x):
    traced("second")
    return x * int(os.environ["K"])
show(second(jnp.float32(1)))
""")
    p.must("the variable", lambda q: q.write("out/k", "2"), traced="second")


def old_metadata(p: Place) -> None:
    """Packages whose metadata is an `.egg-info`, as distributions of Linux install them."""
    p.write("lib/old/__init__.py", "")
    p.write("lib/old-1.0.egg-info/PKG-INFO", "Metadata-Version: 2.1\nName: old\nVersion: 1.0\n")
    p.write("lib/single-1.0.egg-info", "Metadata-Version: 2.1\nName: single\nVersion: 1.0\n")
    p.env["PYTHONPATH"] = str(p.path("lib"))
    p.program(f"""
import old
from importlib import metadata
def values():
    return [int(metadata.version("old")[0]), int(metadata.version("single")[0]), len(metadata.entry_points(group="g"))]
{_VECTOR}""")
    p.must(
        "a version",
        lambda q: q.write("lib/old-1.0.egg-info/PKG-INFO", "Metadata-Version: 2.1\nName: old\nVersion: 2.0\n"),
    )
    p.must(
        "a version in one file",
        lambda q: q.write("lib/single-1.0.egg-info", "Metadata-Version: 2.1\nName: single\nVersion: 2.0\n"),
    )
    p.must("entry points", lambda q: q.write("lib/old-1.0.egg-info/entry_points.txt", "[g]\na = b:c\n"))


def modules_that_leave_no_trace(p: Place) -> None:
    """Modules that are taken out of sys.modules, or put an object in their place, alone in their directories."""
    p.write("a/gone.py", "k = 1\n")
    p.write("b/lazy_one.py", "import sys\nclass L:\n    k = 1\nsys.modules[__name__] = L()\n")
    p.write("c/odd.expr", "k = 1\n")
    p.env["PYTHONPATH"] = f"{p.path('a')}:{p.path('b')}"
    p.program(f"""
import gone, lazy_one
del sys.modules["gone"]
import importlib.util, importlib.machinery
loader = importlib.machinery.SourceFileLoader("odd", "../c/odd.expr")
odd = importlib.util.module_from_spec(importlib.util.spec_from_loader("odd", loader))
sys.modules["odd"] = odd
loader.exec_module(odd)
def values():
    return [gone.k, lazy_one.k, odd.k]
{_VECTOR}""")
    p.must("one that is gone", lambda q: q.write("a/gone.py", "k = 2\n"))
    p.must("one that is an object", lambda q: q.replace("b/lazy_one.py", "k = 1", "k = 2"))
    p.must("one with another ending", lambda q: q.write("c/odd.expr", "k = 2\n"))


def static_values_of_subclasses(p: Place) -> None:
    """Static numbers and texts of classes that are not Python's own, as readers of YAML make them."""
    _modes(
        p,
        """
class Text(str): pass
class Number(int): pass
class Real(float): pass
S = {"text": (Text("a"), Text("b")), "number": (Number(1), Number(2)), "real": (Real(0.5), Real(0.25)), "numpy text": (np.str_("a"), np.str_("b"))}
for name, (base, changed) in S.items():
    def make(name):
        def f(x, s):
            traced(name.replace(" ", "_"))
            return x + sum(repr(s).encode())
        return f
    show(ejcache.ejit(make(name), static_argnums=1, reuse_lowering=True, name=name)(1.0, changed if mode == name else base))
""",
        {n: n.replace(" ", "_") for n in ("text", "number", "real", "numpy text")},
    )


def no_device_is_one_less(p: Place) -> None:
    """An empty list of devices is none."""
    p.env["CUDA_VISIBLE_DEVICES"] = "0"
    p.program(f"""
def values():
    return [len(os.environ["CUDA_VISIBLE_DEVICES"])]
{_VECTOR}""")
    p.must("none", lambda q: q.env.update(CUDA_VISIBLE_DEVICES=""))


def directory_behind_a_release(p: Place) -> None:
    """A directory of configuration is replaced by renaming while the program starts: nobody touches a file."""
    p.reuses = False
    p.write("proj/conf/a.json", "1")
    p.write("proj/other/a.json", "2")
    p.write("out/turn", "1")
    p.program(
        f"""
def turn():
    os.rename("conf", "between"); os.rename("other", "conf"); os.rename("between", "other")
v = num("conf/a.json")
if num("../out/turn") == 1 and v == 1:
    turn()
def values():
    return [v]
{_VECTOR}""".replace("show(step", "print('A', os.path.exists('conf'))\nshow(step")
        + """
if num("../out/turn") == 1 and v == 1:
    turn()
"""
    )
    p.must("it has been replaced before", _replaced)


def _replaced(q: Place) -> None:
    q.write("out/turn", "0")
    for old, new in (("conf", "between"), ("other", "conf"), ("between", "other")):
        q.path(f"proj/{old}").rename(q.path(f"proj/{new}"))


def search_path_grows_in_the_trace(p: Place) -> None:
    """A trace puts a directory on the search path, asks for modules, and takes it away again, as the program did before."""
    p.write("late/notes.txt", "")
    p.write("late/space/notes.txt", "")
    p.program(f"""
def optional(name):
    import importlib
    try:
        return getattr(importlib.import_module(name), "k", 0)
    except ImportError:
        return 0
def values():
    sys.path.insert(0, "../late")
    found = [optional("piece"), optional("package"), optional("fresh.deep.fast")]
    sys.path.remove("../late")
    return found
sys.path.insert(0, "../late")
optional("other")
sys.path.remove("../late")
{_VECTOR}""")
    p.must("a piece comes", lambda q: q.write("late/piece.py", "k = 2\n"))
    p.must("a package comes", lambda q: q.write("late/package/__init__.py", "k = 2\n"))
    p.must("a namespace comes", lambda q: q.write("late/fresh/deep/fast.py", "k = 2\n"))


def two_functions_ask_at_one_moment(p: Place) -> None:
    """While one function is traced, another of the same name asks the same question in another thread."""
    p.reuses = False
    p.write("out/first.txt", "1")
    p.program("""
import threading
inside, done = threading.Event(), threading.Event()
first = num("../out/first.txt")
def make(k):
    def f(x):
        traced(f"f{k}")
        if k == first:
            inside.set()
            done.wait(60)
        return x * k
    return ejcache.ejit(f, reuse_lowering=True)
out = {}
def work(k):
    out[k] = make(k)(np.float32(1))
one = threading.Thread(target=work, args=(first,))
one.start()
while one.is_alive() and not inside.wait(0.1):
    pass
work(3 - first)
done.set()
one.join()
show(out[first], out[3 - first])
""")
    p.must("the other is the first", lambda q: q.write("out/first.txt", "2"))

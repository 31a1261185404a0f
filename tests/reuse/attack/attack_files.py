# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs whose project files change."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attack_inputs import _VECTOR, _renamed, _same_stat, _swapped

if TYPE_CHECKING:
    from attack_driver import Place


def _rewritten(name: str):
    return lambda q: q.write(name, "2")


def endings(p: Place) -> None:
    """One file of each ending, read as data."""
    p.write("proj/conf/one.yaml", "1")
    names = [
        *(
            f"conf/c{i}.{e}"
            for i, e in enumerate(
                ["yml", "toml", "json5", "jsonc", "jsonnet", "libsonnet", "ini", "cfg", "conf", "properties", "xml"]
            )
        ),
        *(
            f"conf/d{i}.{e}"
            for i, e in enumerate(["csv", "tsv", "gin", "txt", "pbtxt", "textproto", "j2", "jinja", "model", "vocab"])
        ),
        *(
            f"kern/k{i}.{e}"
            for i, e in enumerate(
                [
                    "pyx",
                    "so",
                    "dylib",
                    "dll",
                    "pyd",
                    "c",
                    "cc",
                    "cpp",
                    "h",
                    "cu",
                    "cuh",
                    "ptx",
                    "cubin",
                    "hsaco",
                    "mlir",
                    "zip",
                    "egg",
                    "pyz",
                    "pth",
                    "pyc",
                ]
            )
        ),
        *(
            "conf/A.JSON",
            "conf/B.Yaml",
            ".env",
            ".env.local",
            ".ENV",
            "conf/.hidden.yaml",
            "conf/.json",
            "données/f.cfg",
        ),
        *("conf/ü.ini", "conf/with space.conf", "conf/a.b.yaml", "conf/-x.json", "_private/a.toml", "conf/🙂.json"),
        *(
            "outputs/kernel.py",
            "results/gen.cu",
            "my_outputs/o.yaml",
            "Outputs/o.yaml",
            "node_modules/o.json",
            "build/o.json",
        ),
        *("conf/new\nline.json", "a1/b1/c1/d1/e1/f1/deep.json", "conf/.env.d.txt"),
    ]
    for name in names:
        p.write(f"proj/{name}", "1")
    p.write("proj/conf/empty_later.json", "5")
    p.program(f"""
names = {names!r}
def values():
    return [num(n) for n in names] + [num("conf/empty_later.json")]
{_VECTOR}""")
    for name in names:
        if name.startswith("node_modules/"):
            p.listed(2, f"content of {name!r}", _rewritten(f"proj/{name}"))
        else:
            p.must(f"content of {name!r}", _rewritten(f"proj/{name}"))
    p.must("a file becomes empty", lambda q: q.write("proj/conf/empty_later.json", ""))


def sets_of_files(p: Place) -> None:
    """Files that come, go, and change their names."""
    for name in (
        *(
            "conf/a.yaml",
            "conf/b.yaml",
            "only_code/x.py",
            "only_data/x.npz",
            "plug/__init__.py",
            "plug/one.py",
            "pair_a/v.json",
        ),
        *("lists/a.csv", "deep/in/there/a.json"),
    ):
        p.write(f"proj/{name}", "n = 1")
    p.write("proj/pair_b/v.json", "n = 2")
    p.path("proj/empty").mkdir()
    p.path("proj/empty/inner").mkdir()
    p.program(f"""
def values():
    here = Path(__file__).parent
    found = sorted(str(f.relative_to(here)) for f in here.rglob("*") if f.is_file() and "__pycache__" not in str(f))
    text = repr([(f, num(f)) for f in found]).encode()
    return [sum((i % 97 + 1) * c for i, c in enumerate(text)) % 9973]
{_VECTOR}""")
    p.must("configuration comes", lambda q: q.write("proj/conf/c.yaml", "3"))
    p.must("configuration comes beside the main file", lambda q: q.write("proj/local.toml", "3"))
    p.must("a dot file comes beside the main file", lambda q: q.write("proj/.env", "3"))
    p.must("configuration comes where only code was", lambda q: q.write("proj/only_code/c.yaml", "3"))
    p.must("configuration comes where only data was", lambda q: q.write("proj/only_data/c.yaml", "3"))
    p.must("configuration comes to an empty directory", lambda q: q.write("proj/empty/c.yaml", "3"))
    p.must("configuration comes to an empty directory in one", lambda q: q.write("proj/empty/inner/c.yaml", "3"))
    p.must("configuration comes where only directories were", lambda q: q.write("proj/deep/c.yaml", "3"))
    p.must("configuration goes", lambda q: q.path("proj/conf/b.yaml").unlink())
    p.must("configuration gets another name", lambda q: q.path("proj/conf/b.yaml").rename(q.path("proj/conf/c.yaml")))
    p.must(
        "configuration gets an ending that does not count",
        lambda q: q.path("proj/conf/b.yaml").rename(q.path("proj/conf/b.yaml.off")),
    )
    p.must("configuration gets other capitals", lambda q: q.path("proj/conf/b.yaml").rename(q.path("proj/conf/B.yaml")))
    p.must(
        "configuration moves to another directory",
        lambda q: q.path("proj/conf/b.yaml").rename(q.path("proj/lists/b.yaml")),
    )
    p.must(
        "a directory of configuration goes",
        lambda q: (q.path("proj/lists/a.csv").unlink(), q.path("proj/lists").rmdir()),
    )
    p.must(
        "a directory of configuration gets another name", lambda q: q.path("proj/lists").rename(q.path("proj/tables"))
    )
    p.must("two directories change places", _swapped("proj/pair_a", "proj/pair_b"), warm=True)
    p.must("two files change places", _swapped("proj/pair_a/v.json", "proj/pair_b/v.json"), warm=True)
    p.must("code comes", lambda q: q.write("proj/plug/two.py", "n = 3"))
    p.must("code comes to a new directory", lambda q: q.write("proj/newplug/two.py", "n = 3"))
    p.must("code comes to a new directory of outputs", lambda q: q.write("proj/outputs/two.py", "n = 3"))
    p.must("code goes", lambda q: q.path("proj/plug/one.py").unlink())
    p.must("code gets another name", lambda q: q.path("proj/plug/one.py").rename(q.path("proj/plug/first.py")))
    p.must(
        "a file becomes a directory",
        lambda q: (q.path("proj/conf/b.yaml").unlink(), q.write("proj/conf/b.yaml/c.yaml", "1")),
    )
    p.must("an empty file of code comes", lambda q: q.write("proj/plug/two.py", ""))
    p.must("a link to configuration comes", lambda q: q.link("proj/conf/l.yaml", "a.yaml"))
    p.must("a broken link of configuration comes true", lambda q: q.link("proj/conf/l.yaml", "../only_data/x.npz"))
    p.must("a directory of code is moved", lambda q: q.path("proj/plug").rename(q.path("proj/only_data/plug")))
    p.listed(2, "configuration comes in a new directory", lambda q: q.write("proj/fresh/c.yaml", "3"))
    p.listed(2, "an empty directory goes", lambda q: q.write("proj/debug/.keep", ""))


def remembered_stats(p: Place) -> None:
    """Changes that leave size and time as they were, when digests of the files are remembered."""
    for name in ("a.json", "b.py", "c.yaml", "d.txt", "e.csv"):
        p.write(f"proj/conf/{name}", "n = 1")
    os.link(p.path("proj/conf/c.yaml"), p.path("proj/conf/hard.npz"))
    p.write("proj/past/f.toml", "n = 1")
    os.utime(p.path("proj/past/f.toml"), (0, 0))
    p.program(f"""
names = ["conf/a.json", "conf/b.py", "conf/c.yaml", "conf/d.txt", "conf/e.csv", "past/f.toml"]
def values():
    return [num(n) for n in names]
{_VECTOR}""")
    p.must("in place", _same_stat("proj/conf/a.json"), warm=True)
    p.must("in place, code", _same_stat("proj/conf/b.py"), warm=True)
    p.must("by another file in its place", _renamed("proj/conf/d.txt"), warm=True)
    p.must("through another name of the same file", _through_hard_link, warm=True)
    p.must("through a mapping of the file", _mapped, warm=True)
    p.must("a file from 1970", _aged("proj/past/f.toml", 0))


def files_from_the_future(p: Place) -> None:
    """A directory of files whose times lie ahead, as a server with another clock writes them."""
    p.reuses = False
    later = 4_000_000_000
    for name in ("ahead/f.toml", "ahead/g.toml"):
        os.utime(p.write(f"proj/{name}", "n = 1"), (later, later))
    p.program(f"""
def values():
    return [num(n) for n in ("ahead/f.toml", "ahead/g.toml", "ahead/new.toml")]
{_VECTOR}""")
    p.must("content", _aged("proj/ahead/f.toml", later))
    p.must("a file comes", _aged("proj/ahead/new.toml", later))


def _through_hard_link(q: Place) -> None:
    one, two = q.path("proj/conf/c.yaml"), q.path("proj/conf/hard.npz")
    if one.stat().st_ino != two.stat().st_ino:
        two.unlink()
        os.link(one, two)
    was = one.stat()
    with two.open("r+b") as file:
        file.write(b"n = 2")
    os.utime(two, ns=(was.st_atime_ns, was.st_mtime_ns))


def _mapped(q: Place) -> None:
    import mmap

    path = q.path("proj/conf/e.csv")
    was = path.stat()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[4:5] = b"2"
        view.flush()
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def _aged(name: str, seconds: int):
    def change(q: Place) -> None:
        q.write(name, "n = 2")
        os.utime(q.path(name), (seconds, seconds))

    return change


def large_files(p: Place) -> None:
    """Files above 16 MiB count by size and time."""
    p.write("proj/big.txt", b"1" + b" " * (17 << 20))
    p.write("proj/fits.txt", b"1" + b" " * ((16 << 20) - 1))
    p.program(f"""
def values():
    return [num("big.txt"), num("fits.txt")]
{_VECTOR}""")
    p.must("a large file of another size", lambda q: q.write("proj/big.txt", b"2" + b" " * (18 << 20)))
    p.must("a large file of another time", lambda q: q.write("proj/big.txt", b"2" + b" " * (17 << 20)))
    p.must("a file of 16 MiB with the same time", _same_stat("proj/fits.txt"), warm=True)


def links_out_of_the_project(p: Place) -> None:
    """Links in the project to what lies elsewhere."""
    p.write("out/x.json", "1")
    p.write("out/y.json", "2")
    p.write("out/z.bin", "1")
    p.write("out/conf/a.yaml", "1")
    p.write("out/conf/in/a.yaml", "1")
    p.write("out/conf2/a.yaml", "3")
    p.write("out/conf2/in/a.yaml", "3")
    p.write("out/code/m.py", "k = 1")
    p.link("proj/conf/x.json", "../../out/x.json")
    p.link("proj/conf/chain.json", "middle")
    p.link("proj/conf/middle", "../../out/x.json")
    p.link("proj/conf/data.json", "../../out/z.bin")
    p.link("proj/linked", "../out/conf")
    p.link("proj/code", "../out/code")
    p.link("proj/loop", ".")
    p.link("proj/conf/broken.json", "../../out/none.json")
    p.program(
        f"""
from code_ import k
def values():
    names = ["conf/x.json", "conf/chain.json", "conf/data.json", "linked/a.yaml", "linked/in/a.yaml", "conf/broken.json"]
    return [num(n) for n in names] + [k]
{_VECTOR}""".replace("from code_ import k", "sys.path.insert(0, 'code')\nfrom m import k")
    )
    p.must("the target of a link", _rewritten("out/x.json"))
    p.must("another target of a link", lambda q: q.link("proj/conf/x.json", "../../out/y.json"))
    p.must("another target in a chain of links", lambda q: q.link("proj/conf/middle", "../../out/y.json"))
    p.must("the target of a link has another ending", _rewritten("out/z.bin"))
    p.must("a file in a linked directory", _rewritten("out/conf/a.yaml"))
    p.must("a file deep in a linked directory", _rewritten("out/conf/in/a.yaml"))
    p.must("another directory behind the link", lambda q: q.link("proj/linked", "../out/conf2"))
    p.must("a module in a linked directory", lambda q: q.write("out/code/m.py", "k = 2"))
    p.must("the target of a broken link comes", _rewritten("out/none.json"))
    p.must("a link becomes a file", lambda q: (q.path("proj/conf/x.json").unlink(), q.write("proj/conf/x.json", "7")))


def _release(p: Place) -> None:
    p.program(
        f"""
from settings import k
def values():
    return [k, num(Path(__file__).parent / "c.json")]
{_VECTOR}""",
        "r1/app/main.py",
    )
    p.write("r1/app/settings.py", "k = 1")
    p.write("r1/app/c.json", "1")
    p.write("r2/app/settings.py", "k = 2")
    p.write("r2/app/c.json", "1")
    p.write("r2/app/main.py", p.path("r1/app/main.py").read_text())
    p.link("current", "r1")


def release_link(p: Place) -> None:
    """The whole program lies behind a link that each release turns."""
    _release(p)
    p.main, p.cwd = ["main.py"], "current/app"
    p.must("the link is turned", lambda q: q.link("current", "r2"))


def release_link_in_a_word(p: Place) -> None:
    """The same, with the link in the command."""
    _release(p)
    p.main, p.cwd = ["current/app/main.py"], "."
    p.must("the link is turned", lambda q: q.link("current", "r2"))


def changed_while_it_starts(p: Place) -> None:
    """What the program, or somebody beside it, changes while it starts: the value it read is not the one that lies there."""
    p.write("out/how.txt", "none")
    p.write("proj/conf/a.json", "1")
    p.write("proj/conf_b/a.json", "2")
    p.write("proj/conf_c/a.json", "1")
    p.link("proj/now", "conf")
    p.write("proj/real/only/a.json", "1")
    p.program(f"""
how = open("../out/how.txt").read()
conf, b, t = Path("conf"), Path("conf_b"), Path("between")
def swap():
    conf.rename(t); b.rename(conf); t.rename(b)
def value():
    if how == "swap":
        swap()
    if how == "swap and back":
        swap(); v = num("conf/a.json"); swap(); return v
    if how == "replace":
        os.replace("conf_b/a.json", "conf/a.json")
    if how == "write and back":
        open("conf/a.json", "w").write("3"); v = num("conf/a.json"); open("conf/a.json", "w").write("1"); return v
    if how == "move and back":
        os.rename("conf/a.json", "x"); os.rename("conf_b/a.json", "conf/a.json"); v = num("conf/a.json")
        os.rename("conf/a.json", "conf_b/a.json"); os.rename("x", "conf/a.json"); return v
    if how == "link and back":
        os.unlink("now"); os.symlink("conf_b", "now"); v = num("now/a.json"); os.unlink("now"); os.symlink("conf", "now"); return v
    if how == "link by renaming":
        os.symlink("conf_b", "n"); os.rename("now", "old"); os.rename("n", "now"); v = num("now/a.json"); os.rename("old", "now"); return v
    return num("now/a.json")
v = value()
def values():
    return [v]
{_VECTOR}""")
    for how in (
        "swap",
        "swap and back",
        "replace",
        "write and back",
        "move and back",
        "link and back",
        "link by renaming",
    ):
        p.must(how, lambda q, how=how: q.write("out/how.txt", how))


def generated_configuration(p: Place) -> None:
    """A program that writes its configuration into the project at each start, from a number outside of it."""
    p.reuses = False
    p.write("out/n.txt", "1")
    p.write("proj/conf/a.json", "1")
    p.program(f"""
n = num("../out/n.txt")
open("conf/gen.json", "w").write(str(n))
def values():
    return [num("conf/gen.json")]
{_VECTOR}""")
    p.must("the number", lambda q: q.write("out/n.txt", "2"))


def read_in_the_trace(p: Place) -> None:
    """Configuration that is read when it is needed: in the trace, through every way that Python has."""
    for name in ("a.json", "b.toml", "c.ini", "d.txt", "e.txt", "f.py", "g.csv", "h.json", "i.yaml", "j.xml"):
        p.write(f"proj/conf/{name}", "1")
    p.write("proj/conf/__init__.py", "")
    p.write("proj/conf/b.toml", "k = 1")
    p.write("proj/conf/c.ini", "[s]\nk = 1")
    p.write("proj/conf/i.yaml", "k: 1\n")
    p.write("proj/conf/j.xml", "<a k='1'/>")
    p.write("proj/conf/include.json", '{"include": "h.json"}')
    p.write("proj/late.py", "k = 1")
    p.write("proj/later/__init__.py", "from later.inner import k")
    p.write("proj/later/inner.py", "k = 1")
    p.write("proj/text.py", "# 1\ndef f(x):\n    return x\n")
    p.program(f"""
import tomllib, configparser, linecache, csv, io, mmap, pkgutil, inspect, runpy, xml.etree.ElementTree as ET
import importlib.resources
def fd(name):
    file = os.open(name, os.O_RDONLY)
    try:
        return int(os.pread(file, 9, 0))
    finally:
        os.close(file)
def values():
    import late
    from later import k
    import text
    parser = configparser.ConfigParser(); parser.read("conf/c.ini")
    import yaml
    return [
        json.load(open("conf/a.json")), tomllib.load(open("conf/b.toml", "rb"))["k"], int(parser["s"]["k"]), fd("conf/d.txt"),
        int(linecache.getline("conf/e.txt", 1)), int(pkgutil.get_data("conf", "f.py")), int(next(csv.reader(open("conf/g.csv")))[0]),
        int(importlib.resources.files("conf").joinpath(json.load(open("conf/include.json"))["include"]).read_text()),
        yaml.safe_load(open("conf/i.yaml"))["k"], int(ET.parse("conf/j.xml").getroot().get("k")), late.k, k,
        num(inspect.getsourcefile(text)),
    ]
{_VECTOR}""")
    p.must("json", _rewritten("proj/conf/a.json"))
    p.must("toml", lambda q: q.write("proj/conf/b.toml", "k = 2"))
    p.must("configparser", lambda q: q.write("proj/conf/c.ini", "[s]\nk = 2"))
    p.must("os.pread", _rewritten("proj/conf/d.txt"))
    p.must("linecache", _rewritten("proj/conf/e.txt"))
    p.must("pkgutil", _rewritten("proj/conf/f.py"))
    p.must("csv", _rewritten("proj/conf/g.csv"))
    p.must("importlib.resources, by an include", _rewritten("proj/conf/h.json"))
    p.must(
        "the include",
        lambda q: (q.write("proj/conf/k.json", "3"), q.write("proj/conf/include.json", '{"include": "k.json"}')),
    )
    p.must("yaml", lambda q: q.write("proj/conf/i.yaml", "k: 2\n"))
    p.must("xml", lambda q: q.write("proj/conf/j.xml", "<a k='2'/>"))
    p.must("a module that the trace imports", lambda q: q.write("proj/late.py", "k = 2"))
    p.must("a package that the trace imports", lambda q: q.write("proj/later/inner.py", "k = 2"))
    p.must("a comment in a module", lambda q: q.replace("proj/text.py", "# 1", "# 2"))
    p.must(
        "a module becomes a package",
        lambda q: (q.path("proj/late.py").unlink(), q.write("proj/late/__init__.py", "k = 2")),
    )
    p.must("byte code in the place of a module", _compiled)
    p.must(
        "a module that shadows one of a distribution",
        lambda q: q.write("proj/yaml.py", "def safe_load(f):\n    return {'k': 4}\n"),
    )
    p.must(
        "a module that shadows one of Python's", lambda q: q.write("proj/csv.py", "def reader(f):\n    yield ['4']\n")
    )


def _compiled(q: Place) -> None:
    import py_compile

    source = q.path("proj/late.py")
    source.write_text("k = 2")
    py_compile.compile(str(source), cfile=str(q.path("proj/late.pyc")), doraise=True)
    source.unlink()


def optional_pieces(p: Place) -> None:
    """What is used if it is there."""
    p.write("proj/pieces/__init__.py", "")
    p.write("proj/pieces/base.py", "k = 1")
    p.write("proj/conf/base.yaml", "1")
    p.program(f"""
import pkgutil, importlib, glob
import pieces
def plugins():
    return [importlib.import_module("pieces." + m.name).k for m in pkgutil.iter_modules(pieces.__path__)]
def values():
    try:
        import local_settings
        local = local_settings.k
    except ImportError:
        local = 0
    try:
        from pieces import _fast
        fast = _fast.k
    except ImportError:
        fast = 0
    site = next((num(f) for f in ("conf/site.yaml", "conf/base.yaml") if os.path.exists(f)), 0)
    return [local, fast, sum(plugins()), site, len(glob.glob("conf/*.yaml")), len(glob.glob("**/*.toml", recursive=True))]
{_VECTOR}""")
    p.must("local settings", lambda q: q.write("proj/local_settings.py", "k = 5"))
    p.must("a faster module", lambda q: q.write("proj/pieces/_fast.py", "k = 5"))
    p.must("a faster package", lambda q: q.write("proj/pieces/_fast/__init__.py", "k = 5"))
    p.must("a plugin", lambda q: q.write("proj/pieces/more.py", "k = 5"))
    p.must("configuration of the site", lambda q: q.write("proj/conf/site.yaml", "5"))
    p.must("one file more of a pattern", lambda q: q.write("proj/conf/z.yaml", "5"))
    p.must("a namespace package", lambda q: q.write("proj/local_settings/x.py", "k = 5"))


def beside_the_project(p: Place) -> None:
    """Configuration beside the directory of the main file: on the list, unless a module lies there."""
    p.write("proj/conf/a.yaml", "1")
    p.write("proj/lib/__init__.py", "")
    p.write("proj/lib/util.py", "")
    p.write("proj/lib/defaults.yaml", "1")
    p.write("proj/lib/sub/d.yaml", "1")
    p.program(
        f"""
root = Path(__file__).resolve().parent.parent
sys.path.append(str(root))
import lib.util
def values():
    return [num(root / n) for n in ("conf/a.yaml", "lib/defaults.yaml", "lib/sub/d.yaml")]
{_VECTOR}""",
        "proj/scripts/train.py",
    )
    p.main = ["scripts/train.py"]
    p.listed(1, "conf/ next to scripts/", _rewritten("proj/conf/a.yaml"))
    p.must("a package's configuration", _rewritten("proj/lib/defaults.yaml"))
    p.must("a package's configuration in a directory", _rewritten("proj/lib/sub/d.yaml"))


def module_at_the_root(p: Place) -> None:
    """A module beside scripts/ brings its directory, with conf/, into the project."""
    p.write("proj/conf/a.yaml", "1")
    p.write("proj/lib.py", "")
    p.program(
        f"""
root = Path(__file__).resolve().parent.parent
sys.path.append(str(root))
import lib
def values():
    return [num(root / "conf/a.yaml")]
{_VECTOR}""",
        "proj/scripts/train.py",
    )
    p.main = ["scripts/train.py"]
    p.must("conf/ next to it", _rewritten("proj/conf/a.yaml"))


def descended_or_not(p: Place) -> None:
    """Directories that are not descended: what is read there is on the list, a module that is loaded from there is not."""
    p.write("proj/my-lib/m.py", "k = 1")
    p.write("proj/my-lib/m.json", "1")
    p.write("proj/env/pyvenv.cfg", "")
    p.write("proj/env/mod.py", "k = 1")
    p.write("proj/my-data/s.yaml", "1")
    p.program(f"""
sys.path[:0] = ["my-lib", "env"]
import m, mod
def values():
    return [m.k, num("my-lib/m.json"), mod.k, num("my-data/s.yaml")]
{_VECTOR}""")
    p.must("a module", lambda q: q.write("proj/my-lib/m.py", "k = 2"))
    p.must("configuration beside a module", _rewritten("proj/my-lib/m.json"))
    p.must("a module in a virtual environment", lambda q: q.write("proj/env/mod.py", "k = 2"))
    p.listed(2, "configuration", _rewritten("proj/my-data/s.yaml"))


def what_is_listed(p: Place) -> None:
    """Some of what the list names, to see that it is so."""
    for name in (
        "w.npz",
        "VERSION",
        "outputs/o.yaml",
        "conf.d/c.yaml",
        "2024/c.yaml",
        "conf/a.yaml.bak",
        ".hydra/c.yaml",
    ):
        p.write(f"proj/{name}", "1")
    p.write("out/a.json", "1")
    p.program(f"""
def values():
    return [num(n) for n in ("w.npz", "VERSION", "outputs/o.yaml", "conf.d/c.yaml", "2024/c.yaml", "conf/a.yaml.bak", ".hydra/c.yaml", "../out/a.json")]
{_VECTOR}""")
    for name in ("w.npz", "VERSION", "outputs/o.yaml", "conf.d/c.yaml", "conf/a.yaml.bak", ".hydra/c.yaml"):
        p.listed(2, name, _rewritten(f"proj/{name}"))
    p.listed(1, "outside", _rewritten("out/a.json"))

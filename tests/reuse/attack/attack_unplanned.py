# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs of kinds that no earlier group has: each asks where the page's rule would leak, and was written before it ran."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from attack_calls import _modes
from attack_inputs import _VECTOR
from attack_packages import _code, _environment, _install

if TYPE_CHECKING:
    from attack_driver import Place


def pieces_deep_on_the_search_path(p: Place) -> None:
    """The trace asks for modules that are not there, in packages without `__init__.py` that are not there either."""
    p.write("lib/notes.txt", "")
    p.write("lib/space/notes.txt", "")
    p.env["PYTHONPATH"] = str(p.path("lib"))
    p.program(f"""
def optional(name):
    import importlib
    try:
        return importlib.import_module(name).k
    except ImportError:
        return 0
def values():
    return [optional("space.deep.fast"), optional("fresh.deep.fast"), optional("space.deep.deeper.fast"), optional("fresh.deep.deeper.x")]
{_VECTOR}""")
    p.must("in a directory that is there", _code("lib/space/deep/fast.py"))
    p.must("in one that is not", _code("lib/fresh/deep/fast.py"))
    p.must("deeper in one that is not", _code("lib/fresh/deep/deeper/x.py"))
    p.twin("data deep in one that is not", lambda q: q.write("lib/fresh_data/deep/x.bin", "1"))
    p.must("in one below it", _code("lib/space/deep/deeper/fast.py"))


def pieces_of_installed_packages(p: Place) -> None:
    """Somebody copies modules and packages into site-packages by hand; the trace asks for them."""
    site = _environment(p)
    _install(
        p,
        site,
        "alpha",
        {"alpha/__init__.py": "", "alpha/sub/__init__.py": "", "alpha/late/__init__.py": "k = 1\n"},
    )
    _install(p, site, "spaced", {"spaced/one.py": "k = 1\n"})
    p.write(f"{site}/bare/data.txt", "1")
    p.program(f"""
import importlib, pkgutil
import alpha.sub, spaced.one
def optional(name):
    try:
        return importlib.import_module(name).k
    except ImportError:
        return 0
def values():
    import alpha.late
    names = ["alpha._fast", "alpha.sub._fast", "alpha.late._fast", "extra", "spaced.two", "bare.part", "extra_space.part", "far.deep.part", "alpha.far.deep.part"]
    return [optional(n) for n in names] + [len(list(pkgutil.iter_modules(alpha.__path__)))]
{_VECTOR}""")
    p.must("a module comes to a package", _code(f"{site}/alpha/_fast.py"))
    p.must("a module comes to a package in one", _code(f"{site}/alpha/sub/_fast.py"))
    p.must("a module comes to a package that the trace imports", _code(f"{site}/alpha/late/_fast.py"))
    p.must("a package comes to a package", _code(f"{site}/alpha/_fast/__init__.py"))
    p.must("a package comes", _code(f"{site}/extra/__init__.py"))
    p.must("a part comes to a namespace package", _code(f"{site}/spaced/two.py"))
    p.must("a module comes to a directory without code", _code(f"{site}/bare/part.py"))
    p.must("a namespace package comes", _code(f"{site}/extra_space/part.py"))
    p.must("a namespace package of several levels comes", _code(f"{site}/far/deep/part.py"))
    p.must("a namespace package of several levels comes to a package", _code(f"{site}/alpha/far/deep/part.py"))
    p.twin("a directory of data comes", lambda q: q.write(f"{site}/alpha/cache/deep/x.bin", "x"))
    p.must("a package comes with its metadata", lambda q: _install(q, site, "extra", {"extra/__init__.py": "k = 5\n"}))
    p.twin("byte code comes", lambda q: q.write(f"{site}/alpha/__pycache__/old.cpython-312.pyc", "x"))
    p.twin("data come to a package", lambda q: q.write(f"{site}/alpha/cache.bin", "x"))


def synchronised_into_an_installed_package(p: Place) -> None:
    """`rsync -a` brings older files of the same size into installed packages: their times are those of the source."""
    site = _environment(p)
    _install(p, site, "alpha", {"alpha/__init__.py": "k = 1\n", "alpha/late.py": "k = 1\n", "alpha/same.py": "k = 1\n"})
    p.program(f"""
import alpha
def values():
    import alpha.late
    return [alpha.k, alpha.late.k]
{_VECTOR}""")

    def older(name: str, k: int):
        def change(q: Place) -> None:
            q.write("coming.py", f"k = {k}\n")
            os.utime(q.path("coming.py"), (1_600_000_000, 1_600_000_000))
            q.path("coming.py").replace(q.path(f"{site}/alpha/{name}"))

        return change

    p.must("a module", older("__init__.py", 2))
    p.must("a module that the trace imports", older("late.py", 2))
    p.must("a module, when its file is remembered", older("__init__.py", 2), warm=True)
    p.twin("a module of the same content", older("late.py", 1))


def upgraded_while_it_starts(p: Place) -> None:
    """An installer or an editor changes packages after the program has imported them, and before a function asks."""
    site = _environment(p)
    _install(p, site, "alpha", {"alpha/__init__.py": "k = 2\n"}, version="2.0")
    _install(p, site, "beta", {"beta/__init__.py": "k = 1\n"})
    p.write(f"{site}/beta/__init__.py", "k = 22\n")
    p.write("out/alpha.py", "k = 2\n")
    p.write("out/how.txt", "none")
    p.program(f"""
import alpha, beta
how = open("../out/how.txt").read()
site = Path(alpha.__file__).parent.parent
if how == "upgrade":
    import shutil
    shutil.rmtree(site / "alpha-1.0.dist-info")
    shutil.rmtree(site / "alpha")
    shutil.copytree("../out/alpha", site / "alpha")
    shutil.copytree("../out/alpha-2.0.dist-info", site / "alpha-2.0.dist-info")
if how == "edit":
    (site / "beta/__init__.py").write_text("k = 22\\n")
def values():
    return [alpha.k, beta.k]
{_VECTOR}""")

    def older(q: Place) -> None:
        for name in ("alpha", "alpha-2.0.dist-info"):
            shutil.copytree(q.path(f"{site}/{name}"), q.path(f"out/{name}"))
            shutil.rmtree(q.path(f"{site}/{name}"))
        _install(q, site, "alpha", {"alpha/__init__.py": "k = 1\n"}, version="1.0")
        q.write("out/how.txt", "upgrade")

    def edited(q: Place) -> None:
        q.write(f"{site}/beta/__init__.py", "k = 11\n")
        q.write("out/how.txt", "edit")

    p.must("it is upgraded to what is recorded", older)
    p.must("it is edited to what is recorded", edited)


def distributions_without_a_record(p: Place) -> None:
    """Packages of an operating system: a `.dist-info` without RECORD."""
    p.write("lib/osdist/__init__.py", "value = 1\nvalue2 = 2\n")
    p.write("lib/osdist-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: osdist\nVersion: 1.0\n")
    p.write("lib/osdist-1.0.dist-info/entry_points.txt", "[attack.plugins]\na = osdist:value\n")
    p.write("lib/osdist-1.0.dist-info/INSTALLER", "debian\n")
    p.env["PYTHONPATH"] = str(p.path("lib"))
    p.program(f"""
from importlib import metadata
def values():
    return [sum(e.load() for e in metadata.entry_points(group="attack.plugins")), int(metadata.version("osdist")[0])]
{_VECTOR}""")
    p.must("entry points", lambda q: q.replace("lib/osdist-1.0.dist-info/entry_points.txt", ":value", ":value2"))
    p.must("the version in its metadata", lambda q: q.replace("lib/osdist-1.0.dist-info/METADATA", "1.0", "2.0"))
    p.must("a module", lambda q: q.replace("lib/osdist/__init__.py", "value = 1", "value = 3"))


def current_directory_on_the_search_path(p: Place) -> None:
    """A program that puts "" on the search path, as the console has it, and lies elsewhere."""
    p.write("work/near.py", "k = 1\n")
    p.write("work/notes.txt", "")
    p.main, p.cwd = ["../proj/main.py"], "work"
    p.program(f"""
sys.path.insert(0, "")
def values():
    import near
    try:
        import local_piece
        piece = local_piece.k
    except ImportError:
        piece = 0
    return [near.k, piece]
{_VECTOR}""")
    p.must("a module that the trace imports", _code("work/near.py"))
    p.must("a piece comes", _code("work/local_piece.py"))
    p.must("a package comes", _code("work/local_piece/__init__.py"))
    p.must("a module shadows one of Python's", lambda q: q.write("work/near/__init__.py", "k = 7\n"))


def packages_of_several_places(p: Place) -> None:
    """Packages that extend their own path: `pkgutil.extend_path`, a directory that is appended, and `.pth`-style parts."""
    p.write("a/part/__init__.py", "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n")
    p.write("b/part/__init__.py", "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n")
    p.write("b/part/there.py", "k = 1\n")
    p.write("plugs/notes.txt", "")
    p.write("plugs2/deep/notes.txt", "")
    p.write("proj/host/__init__.py", "__path__.append(__file__.rpartition('/proj/')[0] + '/plugs')\n")
    p.env["PYTHONPATH"] = os.pathsep.join(str(p.path(n)) for n in ("a", "b"))
    p.program(f"""
import importlib, pkgutil
import part, host
def optional(name):
    try:
        return importlib.import_module(name).k
    except ImportError:
        return 0
def values():
    import part.there
    return [part.there.k, optional("part.fast"), optional("host.fast"), len(list(pkgutil.iter_modules(host.__path__)))]
{_VECTOR}""")
    p.must("a module in the second place", _code("b/part/there.py"))
    p.must("a piece comes to the second place", _code("b/part/fast.py"))
    p.must("a piece comes to an appended directory", _code("plugs/fast.py"))
    p.must("a plugin comes to an appended directory", _code("plugs/another.py"))
    p.must("a package comes to an appended directory", _code("plugs/fast/__init__.py"))


def search_path_between_two_functions(p: Place) -> None:
    """The search path grows between the first function and the second, by a directory that has nothing yet."""
    p.write("later/notes.txt", "")
    p.write("later2/base.py", "k = 1\n")
    p.program("""
@ejcache.ejit(reuse_lowering=True)
def first(x):
    traced("first")
    return x + 1
show(first(jnp.float32(1)))
sys.path[:0] = ["../later", "../later2"]
def optional(name):
    try:
        return __import__(name).k
    except ImportError:
        return 0
@ejcache.ejit(reuse_lowering=True)
def second(x):
    traced("second")
    return x * optional("piece") + optional("base") + optional("piece2")
show(second(jnp.float32(1)))
""")
    p.must("a piece comes", _code("later/piece.py"), traced="second")
    p.must("a package comes", _code("later/piece/__init__.py"), traced="second")
    p.must("a piece comes beside a module", _code("later2/piece2.py"), traced="second")
    p.must("a module that the trace imports", _code("later2/base.py"), traced="second")
    p.must("it is shadowed", _code("later/base.py"), traced="second")


def long_words(p: Place) -> None:
    """A list of many files in one word, longer than any path, and lists that other words hold."""
    names = [f"../out/some_directory_with_a_name/shard_{i:05}.bin" for i in range(200)]
    for name in names:
        p.write(name.removeprefix("../"), "1")
    p.write("out/a,b.bin", "1")
    p.argv = [f"--data={','.join(names)}", ":".join(names[:100]), "x" * 5000 + "=../out/a,b.bin"]
    p.program(f"""
names = sys.argv[1].partition("=")[2].split(",")
other = sys.argv[2].split(":")
def values():
    return [num(n) for n in (names[0], names[100], names[-1])] + [num(other[7])] + [num(sys.argv[3].partition("=")[2])]
{_VECTOR}""")
    p.must("the first", lambda q: q.write(names[0][3:], "2"))
    p.must("one in the middle", lambda q: q.write(names[100][3:], "2"))
    p.must("the last", lambda q: q.write(names[-1][3:], "2"))
    p.must("one of those between colons", lambda q: q.write(names[7][3:], "2"))
    p.must("a name with a comma", lambda q: q.write("out/a,b.bin", "2"))


def words_from_the_project(p: Place) -> None:
    """A word names a file as seen from the main file's directory, not from where the program was started."""
    p.write("proj/weights/small.npz", "1")
    p.write("proj/large.npz", "1")
    p.write("work/x.txt", "")
    p.main, p.cwd, p.argv = ["../proj/main.py"], "work", ["weights/small.npz", "--also=large.npz"]
    p.program(f"""
here = Path(__file__).parent
def values():
    return [num(here / sys.argv[1]), num(here / sys.argv[2].partition("=")[2])]
{_VECTOR}""")
    p.must("its content", lambda q: q.write("proj/weights/small.npz", "2"))
    p.must("the content behind an option", lambda q: q.write("proj/large.npz", "2"))


def declared_texts_of_numpy(p: Place) -> None:
    """Declared arrays of texts, keys and structures: values that NumPy keeps elsewhere than in the array's bytes."""
    _modes(
        p,
        """
long = "a text that is longer than fifteen bytes, "
K = {
    "long texts": (np.array([long + "1"], np.dtypes.StringDType()), np.array([long + "2"], np.dtypes.StringDType())),
    "short texts": (np.array(["1"], np.dtypes.StringDType()), np.array(["2"], np.dtypes.StringDType())),
    "fixed texts": (np.array([long + "1"]), np.array([long + "2"])),
    "dates": (np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-02"], "M8[D]")),
    "fields": (np.array([(1, 2)], [("a", "i4"), ("b", "i4")]), np.array([(1, 3)], [("a", "i4"), ("b", "i4")])),
    "order": (np.arange(4).reshape(2, 2), np.arange(4).reshape(2, 2).T),
    "half": (jnp.bfloat16(1), jnp.bfloat16(2)),
    "byte order": (np.array([1], "<i4"), np.array([1], ">i4")),
    "texts in a dictionary": ({"a": [np.array([long + "1"], np.dtypes.StringDType())]}, {"a": [np.array([long + "2"], np.dtypes.StringDType())]}),
}
for name, (base, changed) in K.items():
    def make(name, value):
        def f(x):
            traced(name.replace(" ", "_"))
            text = repr(jax.tree.map(lambda v: (v.tolist(), str(v.dtype)), value)).encode()
            return x + sum((i % 97 + 1) * c for i, c in enumerate(text)) % 9973
        return f
    value = changed if mode == name else base
    show(ejcache.ejit(make(name, value), reuse_lowering={"k": lambda value=value: value}, name=name)(jnp.float32(1)))
""",
        {
            n: n.replace(" ", "_")
            for n in (
                *("long texts", "short texts", "fixed texts", "dates", "fields", "order", "half", "byte order"),
                "texts in a dictionary",
            )
        },
    )


def tuned_by_a_setting(p: Place) -> None:
    """ejcache's own settings that choose what a trace makes."""
    p.env["EJCACHE_AUTOTUNE_POLICY"] = "heuristics"
    p.program(f"""
from ejcache.settings.resolve import resolve
def values():
    return [sum(map(ord, str(resolve().autotune_policy))), sum(map(ord, str(resolve().autotune_dir).rpartition("/")[2]))]
{_VECTOR}""")
    p.must("the policy", lambda q: q.env.update(EJCACHE_AUTOTUNE_POLICY="error"))
    p.must("the policy goes", lambda q: q.env.pop("EJCACHE_AUTOTUNE_POLICY"))
    p.must("where tuned configurations are", lambda q: q.env.update(EJCACHE_AUTOTUNE_DIR=str(q.path("tuned"))))
    p.twin("the largest size of the cache", lambda q: q.env.update(EJCACHE_MAX_SIZE="1GB"))


def own_code_edited(p: Place) -> None:
    """ejcache itself lies in a directory of the search path, and somebody changes it."""
    import ejcache

    here = Path(ejcache.__file__).parent
    shutil.copytree(here, p.path("lib/ejcache"), ignore=shutil.ignore_patterns("__pycache__"))
    p.write("lib/ejcache/attack_constant.py", "k = 1\n")
    p.env["PYTHONPATH"] = str(p.path("lib"))
    p.program(f"""
import ejcache.attack_constant as c
def values():
    return [c.k]
{_VECTOR}""")
    p.must("one of its modules", _code("lib/ejcache/attack_constant.py"))


def contexts_of_jax(p: Place) -> None:
    """Contexts that are set outside of the function, from a number elsewhere, and change what its trace makes."""
    _modes(
        p,
        """
import contextlib
from jax.experimental import compute_on
null = contextlib.nullcontext
C = {
    "mesh": lambda: jax.set_mesh(jax.make_mesh((1,), ("x",))),
    "abstract mesh": lambda: jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("y",), axis_types=(jax.sharding.AxisType.Auto,))),
    "x64": lambda: jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(),
    "numpy promotion": lambda: jax.numpy_dtype_promotion("strict"),
}
def f(x):
    traced("f")
    mesh = jax.sharding.get_abstract_mesh()
    return x + len(mesh.axis_names) + sum(map(ord, "".join(mesh.axis_names))) + jnp.arange(1.0).dtype.itemsize * 7 + len(str(jax.config.jax_numpy_dtype_promotion))
with next((C[n]() for n in C if mode == n), null()):
    show(ejcache.ejit(f, reuse_lowering=True)(np.float32(1)))
""",
        dict.fromkeys(("mesh", "abstract mesh", "x64", "numpy promotion"), "f"),
    )


def settings_between_import_and_question(p: Place) -> None:
    """What a program sets between the import of JAX and its first function, as its words and files say."""
    p.write("proj/run.toml", "x64 = 0\nflags = 1\n")
    p.env["PYTHONHASHSEED"] = "1"
    p.env["LC_ALL"] = "C.UTF-8"
    p.program(f"""
import tomllib, locale
run = tomllib.load(open("run.toml", "rb"))
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={{run['flags']}}"
jax.config.update("jax_enable_x64", bool(run["x64"]))
def values():
    return [jax.device_count(), jnp.zeros(1, float).dtype.itemsize, len(locale.setlocale(locale.LC_CTYPE, None) or ""), len(os.environ["LC_ALL"]), hash("a") % 9973]
{_VECTOR}""")
    p.must("the width of numbers", lambda q: q.write("proj/run.toml", "x64 = 1\nflags = 1\n"))
    p.must("XLA_FLAGS", lambda q: q.write("proj/run.toml", "x64 = 0\nflags = 2\n"))
    p.must("the locale", lambda q: q.env.update(LC_ALL="C"))
    p.must("the hash seed", lambda q: q.env.update(PYTHONHASHSEED="2"))
    p.must("a library that is loaded before", lambda q: q.env.update(LC_ALL="POSIX", LD_PRELOAD=""))


def environment_behind_a_link(p: Place) -> None:
    """A virtual environment behind a link, which is turned to another one with the same packages, one of them patched."""
    site = _environment(p)
    _install(p, site, "alpha", {"alpha/__init__.py": "k = 1\n", "alpha/late.py": "k = 1\n"})
    p.path("env").rename(p.path("env_1"))
    p.link("env", "env_1")
    p.program(f"""
import alpha
def values():
    import alpha.late
    return [alpha.k, alpha.late.k]
{_VECTOR}""")

    def turned(name: str):
        def change(q: Place) -> None:
            shutil.copytree(q.path("env_1"), q.path("env_2"), symlinks=True)
            q.write(f"{site}/alpha/{name}".replace("env/", "env_2/", 1), "k = 222\n")
            q.link("env", "env_2")

        return change

    p.must("a patched module", turned("__init__.py"))
    p.must("a patched module that the trace imports", turned("late.py"))


def reinstalled_with_the_same_version(p: Place) -> None:
    """The same version again, with other code: from an index, and of a project that somebody builds anew."""
    site = _environment(p)
    url = {"direct_url.json": '{"url": "file:///x/local-1.0-py3-none-any.whl", "archive_info": {}}'}
    _install(p, site, "alpha", {"alpha/__init__.py": "", "alpha/late.py": "k = 1\n"})
    _install(p, site, "local", {"local/__init__.py": "", "local/late.py": "k = 1\n", "local/conf.yaml": "1"}, extra=url)
    p.program(f"""
import alpha, local
def values():
    import alpha.late, local.late
    return [alpha.late.k, local.late.k, num(Path(local.__file__).with_name("conf.yaml"))]
{_VECTOR}""")
    p.must(
        "from an index",
        lambda q: _install(q, site, "alpha", {"alpha/__init__.py": "", "alpha/late.py": "k = 2\n"}),
    )
    p.must(
        "a wheel of the project",
        lambda q: _install(
            q,
            site,
            "local",
            {"local/__init__.py": "", "local/late.py": "k = 2\n", "local/conf.yaml": "1"},
            extra=url,
        ),
    )
    p.must("its configuration, by hand", lambda q: q.write(f"{site}/local/conf.yaml", "2"))
    p.must("one of its modules, by hand", _code(f"{site}/local/late.py"))


def configuration_above(p: Place) -> None:
    """Configuration that is looked for in the directories above, as dotenv and linters do: a file outside."""
    p.write("work/.env", "K=1\n")
    p.write("work/pyproject.toml", "k = 1\n")
    p.write("work/app/near.toml", "k = 1\n")
    p.program(
        f"""
def find(name):
    return next((d / name for d in (Path(__file__).resolve().parent, *Path(__file__).resolve().parents) if (d / name).exists()), "")
def values():
    return [num(find(".env")), num(find("pyproject.toml")), num(find("near.toml"))]
{_VECTOR}""",
        "work/app/main.py",
    )
    p.cwd = "work/app"
    p.listed(1, ".env above", lambda q: q.write("work/.env", "K=2\n"))
    p.must(".env comes nearer", lambda q: q.write("work/app/.env", "K=3\n"))
    p.must("pyproject.toml comes nearer", lambda q: q.write("work/app/pyproject.toml", "k = 3\n"))
    p.must("beside the main file", lambda q: q.write("work/app/near.toml", "k = 2\n"))


def data_in_archives(p: Place) -> None:
    """Resources of packages in archives, and an archive of data in the project."""
    import zipfile

    def make(q: Place, k: int, m: int) -> None:
        for name, value in (("lib/a.zip", k), ("proj/tables.zip", m)):
            q.path(name).parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(q.path(name), "w") as archive:
                archive.writestr("inside/__init__.py", "")
                archive.writestr("inside/scale.bin", str(value))

    make(p, 1, 1)
    p.env["PYTHONPATH"] = str(p.path("lib/a.zip"))
    p.program(f"""
import inside, zipfile, importlib.resources
def values():
    table = zipfile.ZipFile("tables.zip").read("inside/scale.bin")
    return [int(importlib.resources.files("inside").joinpath("scale.bin").read_text()), int(table)]
{_VECTOR}""")
    p.must("a resource in an archive of the search path", lambda q: make(q, 2, 1))
    p.must("a file in an archive of the project", lambda q: make(q, 1, 2))


def pipes_in_the_project(p: Place) -> None:
    """A pipe where configuration is looked for: whoever reads it takes away what the program needs, or waits for ever."""
    p.reuses = False
    p.write("proj/conf/a.json", "1")
    p.write("out/k", "1")
    p.program(f"""
import threading
os.mkfifo(".env")
def feed():
    with open(".env", "w") as file:
        file.write(open("../out/k").read())
threading.Thread(target=feed, daemon=True).start()
k = num(".env")
def values():
    return [k]
{_VECTOR}
os.unlink(".env")
""")
    p.must("what comes through it", lambda q: q.write("out/k", "2"))

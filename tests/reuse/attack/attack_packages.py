# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs whose modules and packages come from elsewhere: PYTHONPATH, archives, loaders, distributions, `.pth` files."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from attack_inputs import _VECTOR, _same_stat

if TYPE_CHECKING:
    from attack_driver import Place


def _code(name: str, k: int = 2):
    return lambda q: q.write(name, f"k = {k}\n")


def python_path(p: Place) -> None:
    """Directories of PYTHONPATH: modules that are imported early, in the trace, not at all, and ones that come first."""
    p.write("first/unused.txt", "")
    p.write("lib/early.py", "k = 1\n")
    p.write("lib/early.json", "1")
    p.write("lib/late.py", "k = 1\n")
    p.write("lib/gone.py", "k = 1\n")
    p.write("second/late2.py", "k = 1\n")
    p.write("second/data2.json", "1")
    p.write("ns1/space/one.py", "k = 1\n")
    p.write("ns2/space/two.py", "k = 1\n")
    p.write("third/other.json", "1")
    p.write("nsdata/assets/scale.json", "1")
    p.env["PYTHONPATH"] = os.pathsep.join(
        str(p.path(n)) for n in ("first", "lib", "second", "ns1", "ns2", "third", "nsdata", "none")
    )
    p.program(f"""
import early, gone, space.one, space.two
import assets, pkgutil, importlib
k_gone = gone.k
del sys.modules["gone"]
def values():
    import late, late2
    extra = 0
    try:
        import extra_piece
        extra = extra_piece.k
    except ImportError:
        pass
    beside = num(Path(early.__file__).with_name("early.json"))
    found = sorted(m.name for m in pkgutil.iter_modules(space.__path__))
    return [early.k, late.k, late2.k, num(Path(late2.__file__).with_name("data2.json")), k_gone, space.one.k, space.two.k, extra,
            beside, num(next(iter(assets.__path__)) + "/scale.json"), len(found)]
{_VECTOR}""")
    p.must("a module", _code("lib/early.py"))
    p.must("configuration beside a module", lambda q: q.write("lib/early.json", "2"))
    p.must("a module that the trace imports", _code("lib/late.py"))
    p.must("a module that the trace imports, alone in its directory", _code("second/late2.py"))
    p.must("configuration beside a module that the trace imports", lambda q: q.write("second/data2.json", "2"))
    p.must("a module that is taken out of sys.modules", _code("lib/gone.py"))
    p.must("a part of a namespace package", _code("ns2/space/two.py"))
    p.must("a part comes to a namespace package", _code("ns2/space/three.py"))
    p.must("a part comes to a namespace package from a new directory", _code("third/space/three.py"))
    p.must("a data file of a namespace package", lambda q: q.write("nsdata/assets/scale.json", "2"))
    p.must("an early module is shadowed by an earlier directory", _code("first/early.py"))
    p.must("a late module is shadowed by an earlier directory", _code("first/late.py"))
    p.must("a late module is shadowed by an earlier package", _code("first/late/__init__.py"))
    p.must("a piece comes to a directory of modules", _code("lib/extra_piece.py"))
    p.must("a piece comes to a directory without modules", _code("third/extra_piece.py"))
    p.must("a piece comes to a directory that was missing", _code("none/extra_piece.py"))
    p.must("a package comes to a directory without modules", _code("third/extra_piece/__init__.py"))


def path_added_inside(p: Place) -> None:
    """Directories that the program itself adds to sys.path."""
    p.write("a/unused.txt", "")
    p.write("b/late.py", "k = 1\n")
    p.write("out/which.txt", "../b")
    p.write("c/late.py", "k = 2\n")
    p.program(f"""
sys.path[:0] = ["../a", open("../out/which.txt").read()]
def values():
    import late
    return [late.k]
{_VECTOR}""")
    p.must("a module that the trace imports", _code("b/late.py"))
    p.must("it is shadowed", _code("a/late.py"))
    p.must("another directory is added", lambda q: q.write("out/which.txt", "../c"))


def archives(p: Place) -> None:
    """Modules from archives, whatever their names."""
    _zip(p, "lib/a.zip", 1)
    _zip(p, "lib/b.egg", 1)
    _zip(p, "lib/c.bin", 1)
    _zip(p, "lib/d.whl", 1)
    p.write("proj/note.txt", "")
    p.program(f"""
sys.path[:0] = ["../lib/" + n for n in ("a.zip", "b.egg", "c.bin", "d.whl")]
import a, b, c
def values():
    import d
    return [a.k, b.k, c.k, d.k]
{_VECTOR}""")
    p.must("an archive", lambda q: _zip(q, "lib/a.zip", 2))
    p.must("an egg", lambda q: _zip(q, "lib/b.egg", 2))
    p.must("an archive with another ending", lambda q: _zip(q, "lib/c.bin", 2))
    p.must("a wheel from which the trace imports", lambda q: _zip(q, "lib/d.whl", 2))


def _zip(p: Place, name: str, k: int) -> None:
    path = p.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}.py", f"k = {k}\n")


def loaders(p: Place) -> None:
    """Modules that somebody's own loader makes from files with endings of its own."""
    p.write("proj/rules.expr", "1")
    p.write("out/far.expr", "1")
    p.write("proj/settings.conf_py", "k = 1\n")
    p.write("out/settings2.conf_py", "k = 1\n")
    p.write("out/lazy_one.py", "class L:\n    k = 1\nimport sys\nsys.modules[__name__] = L()\n")
    p.write("out/anon.py", "k = 1\n")
    p.write("out/run.py", "k = 1\n")
    p.program(f"""
import importlib.abc, importlib.util, importlib.machinery, runpy
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        for d in (".", "../out"):
            if os.path.exists(f"{{d}}/{{name}}.expr"):
                return importlib.util.spec_from_file_location(name, os.path.abspath(f"{{d}}/{{name}}.expr"), loader=self)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.k = num(module.__spec__.origin)
sys.meta_path.append(Finder())
import rules, far
def load(name, path):
    loader = importlib.machinery.SourceFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module
    loader.exec_module(module)
    return module
s, s2 = load("settings", "settings.conf_py"), load("settings2", "../out/settings2.conf_py")
sys.path.append("../out")
import lazy_one
spec = importlib.util.spec_from_file_location("anon", "../out/anon.py")
anon = importlib.util.module_from_spec(spec); spec.loader.exec_module(anon)
sys.path.remove("../out")
run = runpy.run_path("../out/run.py")["k"]
def values():
    return [rules.k, far.k, s.k, s2.k, lazy_one.k, anon.k, run]
{_VECTOR}""")
    p.must("a loader of one's own", lambda q: q.write("proj/rules.expr", "2"))
    p.must("a loader of one's own, outside", lambda q: q.write("out/far.expr", "2"))
    p.must("Python code with another ending", _code("proj/settings.conf_py"))
    p.must("Python code with another ending, outside", _code("out/settings2.conf_py"))
    p.must("a module that replaces itself by an object", lambda q: q.replace("out/lazy_one.py", "k = 1", "k = 2"))
    p.must("a module that nobody registers", _code("out/anon.py"))


def code_outside(p: Place) -> None:
    """Code outside that is run and not loaded as a module: a file outside of the project."""
    p.write("out/anon.py", "k = 1\n")
    p.write("out/run.py", "k = 1\n")
    p.write("out/text.txt", "k = 1\n")
    p.write("out/pickled.bin", b"")
    p.program(f"""
import importlib.util, runpy
spec = importlib.util.spec_from_file_location("anon", "../out/anon.py")
anon = importlib.util.module_from_spec(spec); spec.loader.exec_module(anon)
run = runpy.run_path("../out/run.py")["k"]
exec(open("../out/text.txt").read())
def values():
    return [anon.k, run, k]
{_VECTOR}""")
    p.listed(1, "a module that nobody registers", _code("out/anon.py"))
    p.listed(1, "runpy", _code("out/run.py"))
    p.listed(1, "exec", _code("out/text.txt"))


def _environment(p: Place) -> Path:
    """A virtual environment of its own that sees the packages of this one. Return its site-packages."""
    site = p.path(f"env/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
    site.mkdir(parents=True)
    base = Path(sys.executable).resolve()
    p.write("env/pyvenv.cfg", f"home = {base.parent}\ninclude-system-site-packages = false\n")
    p.link("env/bin/python", base)
    p.write(
        f"{site.relative_to(p.root)}/zz_parent.pth",
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n",
    )
    p.python = str(p.path("env/bin/python"))
    return site.relative_to(p.root)


def _install(
    p: Place,
    site: Path,
    name: str,
    files: dict[str, str],
    *,
    version: str = "1.0",
    extra: dict[str, str] | None = None,
    unhashed: tuple[str, ...] = (),
) -> None:
    """Install a distribution as pip does, with a RECORD."""
    info = f"{name}-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/INSTALLER": "pip\n",
    }
    texts |= {f"{info}/{n}": t for n, t in (extra or {}).items()}
    rows = []
    for file, text in texts.items():
        p.write(f"{site}/{file}", text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{file},," if file in unhashed else f"{file},sha256={digest},{len(text.encode())}")
    p.write(f"{site}/{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))


def distributions(p: Place) -> None:
    """Installed distributions: by name, version and RECORD, and modules that somebody changed by hand."""
    site = _environment(p)
    _install(
        p,
        site,
        "alpha",
        {
            "alpha/__init__.py": "k = 1\n",
            "alpha/late.py": "k = 1\n",
            "alpha/data.json": "1",
            "alpha/built.py": "k = 1\n",
        },
        unhashed=("alpha/built.py",),
    )
    p.write(f"{site}/alpha/generated.py", "k = 1\n")
    p.write(f"{site}/alpha/generated.json", "1")
    p.write(f"{site}/lone.py", "k = 1\n")
    p.write(f"{site}/bare/__init__.py", "k = 1\n")
    p.write(f"{site}/bare/data.yaml", "1")
    _install(p, site, "single", {"single.py": "k = 1\n"})
    _install(
        p,
        site,
        "fromgit",
        {"fromgit.py": "k = 1\n"},
        extra={"direct_url.json": '{"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "1"}}'},
    )
    p.write(f"{site}/old/__init__.py", "k = 1\n")
    p.write(f"{site}/old-1.0.egg-info/PKG-INFO", "Metadata-Version: 2.1\nName: old\nVersion: 1.0\n")
    p.write(f"{site}/old-1.0.egg-info/top_level.txt", "old\n")
    p.program(f"""
import alpha, alpha.built, alpha.generated, lone, bare, single, fromgit, old
from importlib import metadata
def values():
    import alpha.late
    plugins = sorted(metadata.entry_points(group="attack.plugins"), key=lambda e: e.name)
    return [alpha.k, alpha.late.k, alpha.built.k, alpha.generated.k, lone.k, bare.k, single.k, fromgit.k, old.k,
            num(Path(alpha.__file__).with_name("data.json")), num(Path(bare.__file__).with_name("data.yaml")),
            int(metadata.version("alpha").split(".")[0]), sum(e.load() for e in plugins), len(plugins),
            len(list(metadata.distributions()))]
{_VECTOR}""")
    p.must("a module changed by hand", _code(f"{site}/alpha/__init__.py"))
    p.listed(12, "a module changed by hand, same size and time", _same_stat(f"{site}/alpha/__init__.py"))
    p.must("a module that the trace imports, changed by hand", _code(f"{site}/alpha/late.py"))
    p.must("a module without a digest in RECORD", _code(f"{site}/alpha/built.py"))
    p.must("a module that RECORD does not name", _code(f"{site}/alpha/generated.py"))
    p.must("a lone module beside the packages", _code(f"{site}/lone.py"))
    p.must("a package that belongs to no distribution", _code(f"{site}/bare/__init__.py"))
    p.must(
        "configuration of a package that belongs to no distribution", lambda q: q.write(f"{site}/bare/data.yaml", "2")
    )
    p.must("a distribution that is one module, changed by hand", _code(f"{site}/single.py"))
    p.must(
        "another commit of a repository",
        lambda q: _install(
            q,
            site,
            "fromgit",
            {"fromgit.py": "k = 2\n"},
            extra={
                "direct_url.json": '{"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "2"}}'
            },
        ),
    )
    p.must("a module of a distribution without RECORD", _code(f"{site}/old/__init__.py"))
    p.must(
        "another version",
        lambda q: (
            _rename(q, site, "alpha-1.0.dist-info", "alpha-2.0.dist-info"),
            q.replace(f"{site}/alpha-2.0.dist-info/METADATA", "1.0", "2.0"),
        ),
    )
    p.must(
        "a distribution with a plugin comes",
        lambda q: _install(
            q,
            site,
            "plugin",
            {"plugin.py": "value = 5\n"},
            extra={"entry_points.txt": "[attack.plugins]\na = plugin:value\n"},
        ),
    )
    p.must("a distribution goes", lambda q: _rename(q, site, "single-1.0.dist-info", "single-1.0.off"))
    p.must("sitecustomize comes", lambda q: q.write(f"{site}/sitecustomize.py", "import alpha\nalpha.k = 9\n"))
    p.must("a .pth file with code comes", lambda q: q.write(f"{site}/code.pth", "import alpha; alpha.k = 9\n"))
    p.must(
        "a lone module shadows one that the trace imports",
        lambda q: (
            q.write("proj/alpha/__init__.py", "k = 3\n")
            and q.write("proj/alpha/late.py", "k = 3\n")
            and q.write("proj/alpha/built.py", "k = 3\n")
            and q.write("proj/alpha/generated.py", "k = 3\n")
            and q.write("proj/alpha/data.json", "3")
        ),
    )
    p.listed(1, "a data file in an installed package", lambda q: q.write(f"{site}/alpha/data.json", "2"))


def _rename(p: Place, site: Path, old: str, new: str) -> None:
    p.path(f"{site}/{old}").rename(p.path(f"{site}/{new}"))


def lines_of_pth(p: Place) -> None:
    """`.pth` files, editable installations, `sitecustomize` and `usercustomize`."""
    site = _environment(p)
    p.write("lib_a/kernels.py", "k = 1\n")
    p.write("lib_b/kernels.py", "k = 2\n")
    p.write(f"{site}/local.pth", f"{p.path('lib_a')}\n{p.path('nothing')}\n")
    p.write(f"{site}/aa_code.pth", "import builtins; builtins.SCALE = 1\n")
    p.write(f"{site}/sitecustomize.py", "import builtins\nbuiltins.SITE = 1\n")
    p.write("editable/src/edit/__init__.py", "k = 1\n")
    p.write("editable/src/edit/deep/late.py", "k = 1\n")
    p.write("editable/src/edit/data/d.toml", "1")
    p.write("editable/pyproject.toml", "1")
    url = f'{{"dir_info": {{"editable": true}}, "url": "file://{p.path("editable")}"}}'
    _install(
        p,
        site,
        "edit",
        {"__editable__.edit.pth": f"{p.path('editable/src')}\n"},
        extra={"direct_url.json": url, "entry_points.txt": "[attack.kinds]\na = edit:k\n"},
    )
    p.write("editable2/hooked/__init__.py", "k = 1\n")
    hook = """\
import importlib.util, sys
MAP = {"hooked": PATH}
class F:
    @classmethod
    def find_spec(c, n, path=None, target=None):
        return importlib.util.spec_from_file_location(n, MAP[n]) if n in MAP else None
def install():
    sys.meta_path.append(F)
""".replace("PATH", repr(str(p.path("editable2/hooked/__init__.py"))))
    url2 = f'{{"dir_info": {{"editable": true}}, "url": "file://{p.path("editable2")}"}}'
    _install(
        p,
        site,
        "hooked",
        {
            "__editable___hooked_finder.py": hook,
            "__editable__.hooked.pth": "import __editable___hooked_finder; __editable___hooked_finder.install()\n",
        },
        extra={"direct_url.json": url2},
    )
    p.program(f"""
import kernels, edit, hooked
from importlib import metadata
def values():
    import edit.deep.late
    kinds = [e.value for e in metadata.entry_points(group="attack.kinds")]
    return [kernels.k, SCALE, SITE, edit.k, edit.deep.late.k, hooked.k, num(Path(edit.__file__).parent / "data/d.toml"), sum(map(len, kinds))]
{_VECTOR}""")
    p.must("a line of a .pth file", lambda q: q.write(f"{site}/local.pth", f"{q.path('lib_b')}\n"))
    p.must(
        "two lines of a .pth file", lambda q: q.write(f"{site}/local.pth", f"{q.path('lib_b')}\n{q.path('lib_a')}\n")
    )
    p.must(
        "a directory that a .pth file names comes",
        lambda q: (
            q.write("nothing/kernels.py", "k = 5\n")
            and q.write(f"{site}/local.pth", f"{q.path('nothing')}\n{q.path('lib_a')}\n")
        ),
    )
    p.must("code in a .pth file", lambda q: q.write(f"{site}/aa_code.pth", "import builtins; builtins.SCALE = 2\n"))
    p.must(
        "a new .pth file with code", lambda q: q.write(f"{site}/zz_more.pth", "import builtins; builtins.SCALE = 2\n")
    )
    p.must("sitecustomize", lambda q: q.write(f"{site}/sitecustomize.py", "import builtins\nbuiltins.SITE = 2\n"))
    p.must(
        "sitecustomize goes to the project's directory by PYTHONPATH",
        lambda q: (
            q.write("pp/sitecustomize.py", "import builtins\nbuiltins.SITE = 3\n"),
            q.env.update(PYTHONPATH=str(q.path("pp"))),
        ),
    )
    p.must("an editable package", lambda q: q.write("editable/src/edit/__init__.py", "k = 2\n"))
    p.must(
        "a module of an editable package that the trace imports",
        lambda q: q.write("editable/src/edit/deep/late.py", "k = 2\n"),
    )
    p.must("configuration of an editable package", lambda q: q.write("editable/src/edit/data/d.toml", "2"))
    p.must("an editable package by a finder", lambda q: q.write("editable2/hooked/__init__.py", "k = 2\n"))
    p.must(
        "entry points of an editable package",
        lambda q: _install(
            q,
            site,
            "edit",
            {"__editable__.edit.pth": f"{q.path('editable/src')}\n"},
            extra={"direct_url.json": url, "entry_points.txt": "[attack.kinds]\nab = edit:other\n"},
        ),
    )
    p.twin(
        "the editable project's pyproject.toml is touched",
        lambda q: os.utime(q.path("editable/src/edit/data/d.toml"), (1, 1)),
    )


def program_of_an_editable_project(p: Place) -> None:
    """A console script of an editable project: main lies in the environment's bin, the code elsewhere."""
    site = _environment(p)
    p.program(
        f"""
def values():
    return [1, num(Path(__file__).parent / "conf.yaml")]
def main():
    import edit.run
    show(edit.run.step(jnp.float32(0)))
{_VECTOR}""".replace("show(step(jnp.float32(0)))\n", ""),
        "editable/edit/run.py",
    )
    p.write("editable/edit/__init__.py", "")
    p.write("editable/edit/conf.yaml", "1")
    url = f'{{"dir_info": {{"editable": true}}, "url": "file://{p.path("editable")}"}}'
    _install(
        p,
        site,
        "edit",
        {"__editable__.edit.pth": f"{p.path('editable')}\n"},
        extra={"direct_url.json": url, "entry_points.txt": "[console_scripts]\nedit = edit.run:main\n"},
    )
    p.write("env/bin/edit", f"#!{p.python}\nimport sys\nfrom edit.run import main\nsys.exit(main())\n")
    p.write("proj/conf.yaml", "1")
    p.main = ["../env/bin/edit"]
    p.must("the code", lambda q: q.replace("editable/edit/run.py", "return [1,", "return [2,"))
    p.must("its configuration", lambda q: q.write("editable/edit/conf.yaml", "2"))
    p.twin("configuration in the working directory", lambda q: q.write("proj/conf.yaml", "2"))


def user_site(p: Place) -> None:
    """Packages and customizations in the home directory."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    p.write(f"home/.local/lib/{version}/site-packages/usermod.py", "k = 1\n")
    p.write("home/.app/conf.json", "1")
    p.env["PYTHONPATH"] = str(p.path(f"home/.local/lib/{version}/site-packages"))
    p.program(f"""
import usermod
def values():
    return [usermod.k, num(Path.home() / ".app/conf.json")]
{_VECTOR}""")
    p.must("a module there", _code(f"home/.local/lib/{version}/site-packages/usermod.py"))
    p.listed(1, "configuration at home", lambda q: q.write("home/.app/conf.json", "2"))


def native_code(p: Place) -> None:
    """A library that ctypes opens, in the project."""
    _library(p, 1)
    p.program(f"""
import ctypes
lib = ctypes.CDLL(str(Path(__file__).parent / "libk.so"))
def values():
    return [lib.k()]
{_VECTOR}""")
    p.must("the library", lambda q: _library(q, 2))


def _library(p: Place, k: int) -> None:
    import subprocess

    p.write("proj/k.bin", f"int k(void) {{ return {k}; }}\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-o", p.path("proj/libk.so"), p.path("proj/k.bin")], check=True
    )

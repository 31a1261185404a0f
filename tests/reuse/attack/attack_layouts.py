# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs laid out as people lay them out: monorepos, editable installs, mounted configuration, generated code, odd names."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from attack_calls import _modes
from attack_inputs import _VECTOR, _renamed, _same_stat
from attack_packages import _code, _environment, _install

if TYPE_CHECKING:
    from attack_driver import Place

_OPTIONAL = '''
import importlib
def optional(name):
    """What a module holds, 0 without it."""
    try:
        return getattr(importlib.import_module(name), "k", 0)
    except ImportError:
        return 0
'''


def monorepo_of_src_layouts(p: Place) -> None:
    """Several projects beside each other, each with its packages below `src`, joined by PYTHONPATH."""
    p.write("repo/core/src/core/__init__.py", "k = 1\n")
    p.write("repo/core/src/core/late.py", "k = 1\n")
    p.write("repo/core/src/core/conf/base.yaml", "1")
    p.write("repo/core/src/core/ops/deep/table.json", "1")
    p.write("repo/core/pyproject.toml", "k = 1\n")
    p.write("repo/tools/src/tools/__init__.py", "k = 1\n")
    p.write("repo/tools/src/tools/data.txt", "1")
    p.write("repo/tools/src/unused/__init__.py", "")
    p.env["PYTHONPATH"] = f"{p.path('repo/core/src')}:{p.path('repo/tools/src')}"
    p.main, p.cwd = ["apps/run/main.py"], "repo"
    p.program(
        f"""{_OPTIONAL}
import core
here = Path(core.__file__).parent
def values():
    import core.late, tools
    return [core.k, core.late.k, tools.k, num(here / "conf/base.yaml"), num(here / "ops/deep/table.json"),
            num(Path(tools.__file__).with_name("data.txt")), num(here.parents[1] / "pyproject.toml"),
            optional("core.fast"), optional("unused.fast"), optional("unused.deep.fast"), optional("extra")]
{_VECTOR}""",
        "repo/apps/run/main.py",
    )
    p.must("a module that the trace imports", _code("repo/core/src/core/late.py"))
    p.must("configuration of a package", lambda q: q.write("repo/core/src/core/conf/base.yaml", "2"))
    p.must("configuration deep in a package", lambda q: q.write("repo/core/src/core/ops/deep/table.json", "2"))
    p.must("a text beside a module that the trace imports", lambda q: q.write("repo/tools/src/tools/data.txt", "2"))
    p.must("a piece comes to a package", _code("repo/core/src/core/fast.py"))
    p.must("a piece comes to a package that nobody imported", _code("repo/tools/src/unused/fast.py"))
    p.must(
        "a package comes to one that the trace imports",
        lambda q: (_code("repo/tools/src/unused/deep/fast.py")(q), q.write("repo/tools/src/unused/deep/__init__.py")),
    )
    p.must("a package comes to the other project", _code("repo/tools/src/extra/__init__.py"))
    p.must("the other project's package shadows one", lambda q: q.write("repo/core/src/tools/__init__.py", "k = 3\n"))
    p.listed(1, "the project's file beside src", lambda q: q.write("repo/core/pyproject.toml", "k = 2\n"))


def two_editable_projects(p: Place) -> None:
    """Two projects installed with `pip install -e`, by a line of a `.pth` file and by a finder; one becomes a wheel."""
    site = _environment(p)
    info = '{"dir_info": {"editable": true}, "url": "file:///src/NAME"}'
    p.write("src/one/src/one/__init__.py", "k = 1\n")
    p.write("src/one/src/one/conf/a.json", "1")
    p.write("src/two/two/__init__.py", "k = 1\n")
    p.write("src/two/two/late.py", "k = 1\n")
    p.write("src/two/two_other/__init__.py", "k = 5\n")
    _install(
        p,
        site,
        "one",
        {"__editable__.one-1.0.pth": f"{p.path('src/one/src')}\n"},
        extra={"direct_url.json": info.replace("NAME", "one")},
    )
    finder = f"""
import sys
from importlib.machinery import PathFinder
MAPPING = {{"two": {str(p.path("src/two"))!r}}}
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return PathFinder.find_spec(name, [MAPPING[name]])
def install():
    sys.meta_path.append(Finder)
"""
    hook = {
        "__editable___two_finder.py": finder,
        "__editable__.two-1.0.pth": "import __editable___two_finder; __editable___two_finder.install()\n",
    }
    _install(
        p,
        site,
        "two",
        hook,
        extra={"direct_url.json": info.replace("NAME", "two"), "entry_points.txt": "[layout.parts]\na = two:k\n"},
    )
    p.program(f"""{_OPTIONAL}
import one
from importlib import metadata
def values():
    import two.late
    parts = sum(e.load() for e in metadata.entry_points(group="layout.parts"))
    return [one.k, two.k, two.late.k, num(Path(one.__file__).parent / "conf/a.json"), optional("one.fast"), optional("two.fast"), optional("one_more"), parts]
{_VECTOR}""")
    p.must("a module of the first", _code("src/one/src/one/__init__.py"))
    p.must("configuration of the first", lambda q: q.write("src/one/src/one/conf/a.json", "2"))
    p.must("a package comes beside the first", _code("src/one/src/one_more/__init__.py"))
    p.must("a module of the second that the trace imports", _code("src/two/two/late.py"))
    p.must("a piece comes to the second", _code("src/two/two/fast.py"))
    p.must(
        "where the finder looks",
        lambda q: (
            _code("src/three/two/late.py", 3)(q),
            _code("src/three/two/__init__.py", 3)(q),
            q.replace(f"{site}/__editable___two_finder.py", "src/two", "src/three"),
        ),
    )
    p.must(
        "an entry point, installed again",
        lambda q: (
            _install(
                q,
                site,
                "two",
                hook,
                extra={
                    "direct_url.json": info.replace("NAME", "two"),
                    "entry_points.txt": "[layout.parts]\na = two_other:k\n",
                },
            )
            or q.write(f"{site}/two_other.py", "k = 5\n")
        ),
    )

    def wheel(q: Place) -> None:
        q.path(f"{site}/__editable__.one-1.0.pth").unlink()
        _install(q, site, "one", {"one/__init__.py": "k = 4\n", "one/conf/a.json": "1"})

    p.must("the first is installed from a wheel", wheel)
    p.twin("a file beside the packages of the second", lambda q: q.write("src/two/README.md", "x"))


def extension_built_in_place(p: Place) -> None:
    """A C extension that `setup.py build_ext --inplace` leaves in a package, and one that a finder would take before its source."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    _extension(p, f"proj/pack/_ext{suffix}", 1)
    p.write("proj/pack/__init__.py", "")
    p.write("proj/pack/slow.py", "k = 1\n")
    p.link("proj/pack/libscale.so", "libscale.so.1")
    _extension(p, "proj/pack/libscale.so.1", 1)
    p.program(f"""
import pack._ext
import ctypes
def values():
    import pack.slow
    lib = ctypes.CDLL(str(Path(pack.__file__).with_name("libscale.so")))
    return [pack._ext.k, pack.slow.k, lib.scale()]
{_VECTOR}""")
    p.must("it is built again", lambda q: _extension(q, f"proj/pack/_ext{suffix}", 2))

    def kept(q: Place) -> None:
        path = q.path(f"proj/pack/_ext{suffix}")
        was = path.stat()
        _extension(q, f"proj/pack/_ext{suffix}", 2)
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))

    p.must("it is built again, with the old time", kept, warm=True)
    p.must("a module becomes an extension", lambda q: _extension(q, f"proj/pack/slow{suffix}", 3, "slow"))
    p.must("the library behind a link", lambda q: _extension(q, "proj/pack/libscale.so.1", 2))


def _extension(p: Place, name: str, k: int, module: str = "_ext") -> None:
    source = p.write(
        "build/ext.cc_text",
        f"""
#include <Python.h>
static struct PyModuleDef def = {{PyModuleDef_HEAD_INIT, "{module}", 0, -1, 0}};
int scale(void) {{ return {k}; }}
PyMODINIT_FUNC PyInit_{module}(void) {{ PyObject *m = PyModule_Create(&def); PyModule_AddIntConstant(m, "k", {k}); return m; }}
""",
    )
    include = sysconfig.get_path("include")
    p.path(name).parent.mkdir(parents=True, exist_ok=True)
    p.path(name).unlink(missing_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", "-x", "c", "-o", p.path(name), source], check=True)


def customised_interpreter(p: Place) -> None:
    """`sitecustomize` on PYTHONPATH: it patches, sets variables, and decides how many devices there are."""
    p.write("early/nothing.txt", "")
    p.write(
        "site/sitecustomize.py",
        "import os\nos.environ['SET_EARLY'] = '1'\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=1'\nfrom site_helper import k\nimport builtins\nbuiltins.SCALE = k\n",
    )
    p.write("site/site_helper.py", "k = 1\n")
    p.env["PYTHONPATH"] = f"{p.path('early')}:{p.path('site')}"
    p.program(f"""
import builtins
def values():
    return [builtins.SCALE, int(os.environ["SET_EARLY"]), jax.device_count()]
{_VECTOR}""")
    p.must("a variable", lambda q: q.replace("site/sitecustomize.py", "= '1'", "= '2'"))
    p.must("the number of devices", lambda q: q.replace("site/sitecustomize.py", "count=1", "count=2"))
    p.must("a helper", _code("site/site_helper.py"))
    p.must(
        "an earlier one comes",
        lambda q: q.write(
            "early/sitecustomize.py", q.path("site/sitecustomize.py").read_text() + "builtins.SCALE = 7\n"
        ),
    )
    p.must("an earlier helper comes", _code("early/site_helper.py", 9))


def flags_in_a_file(p: Place) -> None:
    """XLA_FLAGS names a file; what it says decides how many devices there are, and is otherwise a file outside."""
    p.write("out/flags.txt", "--xla_force_host_platform_device_count=1\n")
    p.env["XLA_FLAGS"] = str(p.path("out/flags.txt"))
    p.program(f"""
def values():
    return [jax.device_count(), os.path.getsize("../out/flags.txt")]
{_VECTOR}""")
    p.must("the number of devices", lambda q: q.write("out/flags.txt", "--xla_force_host_platform_device_count=3\n"))
    p.listed(
        1,
        "a comment",
        lambda q: q.write(
            "out/flags.txt", "--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=01\n"
        ),
    )


def plugins_by_entry_points(p: Place) -> None:
    """A program that loads whatever is installed for a group, and plug-ins by path from a directory that a variable names."""
    site = _environment(p)
    extra = {"entry_points.txt": "[layout.hooks]\nfirst = hook_a.sub:k\n"}
    _install(p, site, "hook_a", {"hook_a/__init__.py": "", "hook_a/sub.py": "k = 1\nother = 5\n"}, extra=extra)
    p.write("plugs/plug_one.py", "k = 1\n")
    p.write("plugs/plug_one.toml", "1")
    p.env["APP_PLUGINS"] = str(p.path("plugs"))
    p.program(f"""
import importlib.util
from importlib import metadata
def load(path):
    spec = importlib.util.spec_from_file_location("app_plugins_" + path.stem, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
plugs = [load(path) for path in sorted(Path(os.environ["APP_PLUGINS"]).glob("plug_*.py"))]
def values():
    hooks = [e.load() for e in sorted(metadata.entry_points(group="layout.hooks"), key=lambda e: e.name)]
    return [sum(hooks), len(hooks), sum(plug.k for plug in plugs), num(Path(os.environ["APP_PLUGINS"]) / "plug_one.toml")]
{_VECTOR}""")
    p.must(
        "another plug-in is installed",
        lambda q: _install(
            q,
            site,
            "hook_b",
            {"hook_b.py": "k = 3\n"},
            extra={"entry_points.txt": "[layout.hooks]\nsecond = hook_b:k\n"},
        ),
    )
    p.must("a plug-in is removed", lambda q: shutil.rmtree(q.path(f"{site}/hook_a-1.0.dist-info")))
    p.must("what a plug-in gives, edited by hand", lambda q: q.replace(f"{site}/hook_a/sub.py", "k = 1", "k = 2"))
    p.listed(
        1,
        "a plug-in's entry points, edited by hand",
        lambda q: q.replace(f"{site}/hook_a-1.0.dist-info/entry_points.txt", ":k", ":other"),
    )
    p.must("a plug-in by path", _code("plugs/plug_one.py"))
    p.must("a plug-in by path comes", _code("plugs/plug_two.py"))
    p.must("configuration beside a plug-in by path", lambda q: q.write("plugs/plug_one.toml", "2"))


def generated_by_a_build_step(p: Place) -> None:
    """Code that a build step writes: before the program by somebody, or by the program when its source is newer."""
    p.write("proj/schema/model.proto", "1")
    p.write("proj/gen/__init__.py", "")
    p.write("proj/gen/model_pb2.py", "k = 1\n")
    p.write("proj/gen/version_pb2.py", "k = 1\n")
    os.utime(p.path("proj/schema/model.proto"), (1_600_000_000, 1_600_000_000))
    p.env["PYTHONDONTWRITEBYTECODE"] = "1"
    p.program(f"""
here = Path(__file__).parent
source, made = here / "schema/model.proto", here / "gen/model_pb2.py"
if source.stat().st_mtime > made.stat().st_mtime:
    made.write_text(f"k = {{num(source)}}\\n")
import gen.model_pb2
def values():
    import gen.version_pb2
    return [gen.model_pb2.k, gen.version_pb2.k]
{_VECTOR}""")
    p.must("the source changes", lambda q: q.write("proj/schema/model.proto", "2"))
    p.must("the generated code, with the old time", _same_stat("proj/gen/version_pb2.py"), warm=True)
    p.must("the generated code, moved over it", _renamed("proj/gen/version_pb2.py"), warm=True)
    p.twin("the same code is generated again", lambda q: q.write("proj/gen/model_pb2.py", "k = 1\n"))

    def back(q: Place) -> None:
        text = q.path("proj/gen/version_pb2.py").read_text()
        q.write("proj/gen/version_pb2.py", "k = 2\n")
        q.write("proj/gen/version_pb2.py", text)

    p.twin("another checkout and back", back)


def mounted_configuration(p: Place) -> None:
    """A ConfigMap of Kubernetes in the project and one that a word names: files are links into `..data`, which is turned."""

    def version(q: Place, place: str, number: int, k: int) -> None:
        q.write(f"{place}/..2026_{number}/app.yaml", f"{k}")
        q.write(f"{place}/..2026_{number}/more.json", f"{k}")
        for name in ("app.yaml", "more.json"):
            os.utime(q.path(f"{place}/..2026_{number}/{name}"), (1_700_000_000, 1_700_000_000))

    for place in ("proj/config", "etc/app"):
        version(p, place, 1, 1)
        p.link(f"{place}/..data", "..2026_1")
        for name in ("app.yaml", "more.json"):
            p.link(f"{place}/{name}", f"..data/{name}")
    p.write("out/how.txt", "none")
    p.argv = ["--config=../etc/app/app.yaml"]
    p.program(f"""
how = open("../out/how.txt").read()
def turn(place, number):
    os.symlink("..2026_" + number, place + "/..data_tmp")
    os.replace(place + "/..data_tmp", place + "/..data")
def early():
    return [num("config/app.yaml"), num(sys.argv[1].partition("=")[2]), len(list(Path("config").glob("*.yaml")))]
read = early()
if how == "turned while it starts":
    turn("config", "1")
if how == "the other one turned while it starts":
    turn("../etc/app", "1")
def values():
    return read + [num("config/more.json")]
{_VECTOR}
if how != "none":
    turn("config" if how == "turned while it starts" else "../etc/app", "2")
""")

    def turned(place: str, how: str = "none", *, k: int = 2):
        def change(q: Place) -> None:
            version(q, place, 2, k)
            q.link(f"{place}/..data", "..2026_2")
            q.write("out/how.txt", how)

        return change

    p.must("it is turned", turned("proj/config"), warm=True)
    p.must("the one that a word names is turned", turned("etc/app"), warm=True)
    p.must("it is turned back while the program starts", turned("proj/config", "turned while it starts"))
    p.must(
        "the other is turned back while the program starts", turned("etc/app", "the other one turned while it starts")
    )
    p.must(
        "a file comes",
        lambda q: (
            q.write("proj/config/..2026_1/extra.yaml", "3"),
            q.link("proj/config/extra.yaml", "..data/extra.yaml"),
        ),
    )
    p.twin("it is turned to the same content", turned("proj/config", k=1))


def configuration_by_groups(p: Place) -> None:
    """Groups in files, a directory of configuration that a word names, and plug-ins of a namespace that others extend."""
    p.write("proj/conf_a/config.yaml", "db")
    p.write("proj/conf_a/db/small.yaml", "1")
    p.write("proj/conf_b/db/small.yaml", "4")
    p.write("proj/hydra_plugins/one_plugin/__init__.py", "k = 1\n")
    p.write("search/hydra_plugins/two_plugin/__init__.py", "k = 1\n")
    p.write("far/conf/db/small.yaml", "1")
    p.env["PYTHONPATH"] = str(p.path("search"))
    p.argv = ["--config-path=conf_a", "+db=small", "--far=../far/conf"]
    p.program(f"""
import pkgutil, importlib
def values():
    conf = Path(sys.argv[1].partition("=")[2])
    group = conf / "db" / (sys.argv[2].partition("=")[2] + ".yaml")
    import hydra_plugins
    plugins = [importlib.import_module("hydra_plugins." + m.name).k for m in pkgutil.iter_modules(hydra_plugins.__path__)]
    return [num(group), len(list(conf.glob("**/*.yaml"))), num("../far/conf/db/small.yaml"), sum(plugins)]
{_VECTOR}""")
    p.must("a group's file", lambda q: q.write("proj/conf_a/db/small.yaml", "2"))
    p.must("another path", lambda q: q.argv.__setitem__(0, "--config-path=conf_b"))
    p.must("an option comes to a group", lambda q: q.write("proj/conf_a/db/large.yaml", "9"))
    p.must("a plug-in elsewhere changes", _code("search/hydra_plugins/two_plugin/__init__.py"))
    p.must("a plug-in comes elsewhere", _code("search/hydra_plugins/three_plugin/__init__.py"))
    p.must("a plug-in comes in the project", _code("proj/hydra_plugins/four_plugin.py"))
    p.listed(3, "a file in a directory that a word names", lambda q: q.write("far/conf/db/small.yaml", "2"))
    p.twin("outputs of a run", lambda q: q.write("proj/outputs/2026/12/.hydra/config.yaml", "1"))


def resources_of_packages(p: Place) -> None:
    """`importlib.resources` over a package, a namespace in two places, and an installed package that declares its data."""
    site = _environment(p)
    p.write("a/assets/one.json", "1")
    p.write("b/assets/two.json", "1")
    p.write("b/assets/three.bin", "1")
    p.write("proj/pack/__init__.py", "")
    p.write("proj/pack/data/table.csv", "1")
    p.write("proj/pack/data/raw.bin", "1")
    _install(p, site, "wheel", {"wheel_data/__init__.py": "", "wheel_data/t.json": "1"})
    p.env["PYTHONPATH"] = f"{p.path('a')}:{p.path('b')}"
    p.program("""
from importlib import resources
def number(package, *names):
    return int(resources.files(package).joinpath(*names).read_text())
def values():
    import assets
    return [number("assets", "one.json"), number("assets", "two.json"), number("assets", "three.bin"), len(list(resources.files("assets").iterdir())),
            number("pack", "data", "table.csv"), number("pack", "data", "raw.bin"), number("wheel_data", "t.json")]
import wheel_data
@ejcache.ejit(reuse_lowering={"wheel": Path(wheel_data.__file__).parent})
def step(x):
    traced("step")
    return x + np.array(values())
show(step(jnp.float32(0)))
""")
    p.must("in the first place", lambda q: q.write("a/assets/one.json", "2"))
    p.must("in the second place", lambda q: q.write("b/assets/two.json", "2"))
    p.must("one more in the second place", lambda q: q.write("b/assets/four.json", "2"))
    p.must("of a package", lambda q: q.write("proj/pack/data/table.csv", "2"))
    p.must("of a declared directory of an installed package", lambda q: q.write(f"{site}/wheel_data/t.json", "2"))
    p.listed(2, "with another ending", lambda q: q.write("proj/pack/data/raw.bin", "2"))
    p.listed(2, "with another ending, elsewhere", lambda q: q.write("b/assets/three.bin", "2"))


def weights_beside_the_code(p: Place) -> None:
    """Weights and states near the code, some declared, as a path, a directory or what they give."""
    for name in ("declared/w0.npz", "declared/in-side/w1.pkl", "one.pkl", "table.json", "given.npy", "undeclared.npz"):
        p.write(f"proj/{name}", "1")
    p.link("proj/latest.ckpt", "declared/w0.npz")
    p.program("""
here = Path(__file__).parent
@ejcache.ejit(reuse_lowering={"d": here / "declared", "one": Path("one.pkl"), "given": lambda: np.full(3, num("given.npy")), "link": here / "latest.ckpt"})
def step(x):
    traced("step")
    names = ("declared/w0.npz", "declared/in-side/w1.pkl", "one.pkl", "table.json", "given.npy", "undeclared.npz", "latest.ckpt")
    return x + np.array([num(here / n) for n in names] + [len(list((here / "declared").iterdir()))])
show(step(jnp.float32(0)))
""")
    p.must("in a declared directory, same size and time", _same_stat("proj/declared/in-side/w1.pkl"), warm=True)
    p.must("a declared file is moved over", _renamed("proj/one.pkl"), warm=True)
    p.must("what it gives", lambda q: q.write("proj/given.npy", "2"))
    p.must("weights in text", lambda q: q.write("proj/table.json", "2"))
    p.must("a file comes to a declared directory", lambda q: q.write("proj/declared/w2.npz", "2"))
    p.must("a declared link", lambda q: (q.write("proj/w9.bin", "9"), q.link("proj/latest.ckpt", "w9.bin")))
    p.listed(2, "undeclared weights", lambda q: q.write("proj/undeclared.npz", "2"))


def names_beside_the_list(p: Place) -> None:
    """Variables whose names are near those that do not count, and values that are near."""
    names = [
        *(
            "TERMINATOR",
            "MAX_TOKENS",
            "API_KEY",
            "TOKEN",
            "SECRETARY",
            "SLURM_ARRAY_TASK_ID",
            "SLURM_PROCID",
            "SLURM_NTASKS",
        ),
        *(
            "PBS_ARRAY_INDEX",
            "PMI_RANK",
            "PMI_SIZE",
            "slurm_job_id",
            "PODS",
            "HOSTNAMES",
            "MASTER_ADDRESS",
            "WANDB_PROJECT",
            "WANDB_RUN_ID_2",
        ),
        *(
            "EJCACHES",
            "MY_PORT",
            "TMUX",
            "SHLVL2",
            "AWS_ACCESS_KEY_ID2",
            "JAX_COMPILATION_CACHE",
            "XDG",
            "MY_SERVICE_PORTAL",
            "TZ",
            "LANG",
            "LC_NUMERIC",
        ),
        *(
            "OMP_NUM_THREADS",
            "MY_VISIBLE_DEVICES",
            "KUBERNETES",
            "PWD2",
            "TORCHELASTIC_MAX",
            "DISPLAYS",
            "OMPI_COMM_WORLD_RANK",
            "empty",
            "a.b-c",
        ),
    ]
    listed = ("TERMINATOR", "TMUX", "MY_SERVICE_PORTAL")
    for name in names:
        p.env[name] = "1"
    p.env["MY_PORT"] = "8080"
    p.env["empty"] = ""
    p.program(f"""
names = {names!r}
def values():
    return [sum((i + 1) * (ord(c) % 97) for i, c in enumerate(os.environ.get(n, "none"))) for n in names]
{_VECTOR}""")
    for name in names:
        if name in ("MY_VISIBLE_DEVICES", "empty", "MY_PORT"):
            continue
        if name in listed:
            p.listed(5, name, lambda q, name=name: q.env.__setitem__(name, "2"))
        else:
            p.must(name, lambda q, name=name: q.env.__setitem__(name, "2"))
    p.must("a port", lambda q: q.env.update(MY_PORT="8081"))
    p.must("as many devices as names", lambda q: q.env.update(MY_VISIBLE_DEVICES="0,1"))
    p.must("an empty one goes", lambda q: q.env.pop("empty"))
    p.must("a blank behind a value", lambda q: q.env.update(LANG="1 "))


def every_setting_of_jax(p: Place) -> None:
    """Each of JAX's settings that is true or false is turned, from a number outside, around a function that reads it."""
    import jax

    unfit = (
        "cache",
        "debug",
        "no_",
        "disable_jit",
        "check",
        "pgle",
        "jax2tf",
        "distributed",
        "export",
        "dump",
        "guard",
        "share_binary",
        "mosaic",
        "unsafe",
        "enable_pre",
        "recover",
        "log_compiles",
        "pprint",
    )
    names = sorted(
        n
        for n, value in jax.config.values.items()
        if isinstance(value, bool) and hasattr(jax.config, n) and not any(u in n for u in unfit)
    )
    p.env["LAYOUT_SETTINGS"] = ",".join(names)
    _modes(
        p,
        """
def make(name):
    def f(x):
        traced(name)
        return x + bool(getattr(jax.config, name)) * 2
    return f
for name in os.environ["LAYOUT_SETTINGS"].split(","):
    before = getattr(jax.config, name)
    try:
        if mode == name:
            jax.config.update(name, not before)
        show(ejcache.ejit(make(name), reuse_lowering=True, name=name)(np.float32(1)))
    except Exception as error:
        traced(name)
        print("RESULT", name, type(error).__name__)
    finally:
        jax.config.update(name, before)
""",
        {n: n for n in names},
    )


def devices_set_in_code(p: Place) -> None:
    """Devices, the default device and the way of multiplying, set by the program from a number outside."""
    _modes(
        p,
        """
import contextlib, threading
if mode == "devices":
    jax.config.update("jax_num_cpu_devices", 3)
if mode == "level":
    jax.config.update("jax_optimization_level", "O1")
if mode == "precision":
    jax.config.update("jax_default_matmul_precision", "highest")
devices = jax.devices()
if mode == "default device":
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
def f(x):
    traced("f")
    read = [jax.device_count(), len(str(jax.config.jax_default_device)), len(str(jax.config.jax_default_matmul_precision)), len(str(jax.config.jax_optimization_level))]
    return x + np.array(read)
def in_thread():
    with jax.default_matmul_precision("float32") if mode == "thread" else contextlib.nullcontext():
        show(ejcache.ejit(f, reuse_lowering=True)(np.float32(1)))
t = threading.Thread(target=in_thread)
t.start()
t.join()
""",
        dict.fromkeys(("devices", "level", "precision", "default device", "thread"), "f"),
    )


def limits_of_a_shell(p: Place) -> None:
    """A shell sets masks and limits and becomes the program: the list has them, processors and the time zone's name count."""
    p.write("out/limits.sh", "")
    shell = 'ulimit -S -n 4000; umask 022; . ../out/limits.sh; exec "$0" main.py'
    p.python, p.main = "/bin/sh", ["-c", shell, sys.executable]
    p.env["TZ"] = "UTC"
    p.program(f"""
import resource, time
def values():
    mask = os.umask(0o22); os.umask(mask)
    return [resource.getrlimit(resource.RLIMIT_NOFILE)[0], mask, len(os.sched_getaffinity(0)), time.timezone, sys.flags.optimize, os.nice(0)]
{_VECTOR}""")
    p.listed(6, "a limit", lambda q: q.write("out/limits.sh", "ulimit -S -n 3000\n"))
    p.listed(6, "a mask", lambda q: q.write("out/limits.sh", "umask 077\n"))
    p.must("processors", lambda q: q.main.__setitem__(1, shell.replace('exec "$0"', 'exec taskset -c 0 "$0"')))
    p.must("the time zone", lambda q: q.env.update(TZ="ABC-5"))
    p.must("an optimised start", lambda q: q.write("out/limits.sh", "export PYTHONOPTIMIZE=1\n"))


def odd_names(p: Place) -> None:
    """Names that are long, empty of letters, not UTF-8, of other capitals, of keywords and of other scripts."""
    directory = os.fsencode(p.path("proj/conf"))
    p.path("proj/conf").mkdir(parents=True)
    odd = [
        b"\xff\xfe.yaml",
        b"n" * 250 + b".json",
        b"two\nlines.toml",
        b" blank .yaml",
        "é.json".encode(),
        "e\u0301.json".encode(),
        b".yaml",
        b"a.b.YAML",
        b"-.cfg",
    ]
    for name in odd:
        Path(os.fsdecode(directory + b"/" + name)).write_bytes(b"1")
    counted = (
        "données",
        "class",
        "None",
        "_private",
        "__dunder__",
        "x" * 200,
        "venv",
        "env",
        "Outputs",
        "results_v2",
        "build",
        "dist",
    )
    for name in (*counted, "tests", "site"):
        p.write(f"proj/{name}/a.json", "1")
    for name in ("2024", "my-data", "a.b", "é"):
        p.write(f"proj/conf/{name}/a.json", "1")
    p.program(f"""
def values():
    found = sorted(os.path.join(os.fsencode(d), f) for d, _, files in os.walk(os.fsencode(os.getcwd())) for f in map(os.fsencode, files) if f != b"main.py" and b"__pycache__" not in os.fsencode(d))
    return [num(f) for f in found]
{_VECTOR}""")
    for name in odd:
        p.must(
            f"content of {name[:20]!r}",
            lambda q, name=name: Path(os.fsdecode(os.fsencode(q.path("proj/conf")) + b"/" + name)).write_bytes(b"2"),
        )
    for name in (*counted, "conf/é"):
        p.must(f"in the directory {name[:20]}", lambda q, name=name: q.write(f"proj/{name}/a.json", "2"))
    p.listed(2, "in a directory of a year", lambda q: q.write("proj/conf/2024/a.json", "2"))
    Path(os.fsdecode(directory + b"/\xff\xfe.yaml")).write_bytes(b"3")
    p.must(
        "a name that is not UTF-8 changes",
        lambda q: Path(os.fsdecode(directory + b"/\xff\xfe.yaml")).rename(os.fsdecode(directory + b"/\x80.yaml")),
    )


def loops_and_dangling_links(p: Place) -> None:
    """Links that lead nowhere, to themselves, and back up; a directory that nobody may read."""
    p.write("proj/conf/a.yaml", "1")
    p.write("proj/pack/__init__.py", "k = 1\n")
    p.link("proj/conf/up", "..")
    p.link("proj/conf/self", ".")
    p.link("proj/loop_a", "loop_b")
    p.link("proj/loop_b", "loop_a")
    p.link("proj/conf/nowhere.yaml", "../../out/none.yaml")
    p.link("proj/conf/far", "../../out/none")
    p.link("proj/gone", "/nonexistent/place")
    p.write("out/there.txt", "")
    p.write("proj/closed/x.yaml", "1")
    p.path("proj/closed").chmod(0o000)
    p.program(f"""{_OPTIONAL}
import pack
def values():
    return [num("conf/a.yaml"), num("conf/up/conf/self/a.yaml"), num("conf/nowhere.yaml"), num("conf/far/b.yaml"), num("loop_a"), pack.k, optional("loop_a"), num("closed/x.yaml"), optional("gone.piece")]
{_VECTOR}""")
    p.must("configuration", lambda q: q.write("proj/conf/a.yaml", "2"))
    p.must("a link comes true", lambda q: q.write("out/none.yaml", "2"))
    p.must("a directory behind a link comes", lambda q: q.write("out/none/b.yaml", "2"))
    p.must("a loop becomes a package", lambda q: (q.path("proj/loop_a").unlink(), _code("proj/loop_a/__init__.py")(q)))
    p.must(
        "a link to a package comes true",
        lambda q: (q.link("proj/gone", "../out/packs"), _code("out/packs/piece.py")(q)),
    )


def profiled(p: Place) -> None:
    """`python -m cProfile`, which makes a main module of its own: a program of Python's library, traced as usual."""
    p.reuses = False
    p.write("out/k.txt", "1")
    p.main = ["-m", "cProfile", "-o", "../out/profile.bin", "main.py"]
    p.program(f"""
k = num("../out/k.txt")
def values():
    return [k]
{_VECTOR}""")
    p.must("a number from outside", lambda q: q.write("out/k.txt", "2"))


def debugged(p: Place) -> None:
    """`python -m pdb`: the same."""
    p.reuses = False
    p.write("out/k.txt", "1")
    p.main = ["-m", "pdb", "-c", "continue", "-c", "quit", "main.py"]
    p.stdin = "quit\nquit\n"
    p.program(f"""
k = num("../out/k.txt")
def values():
    return [k]
{_VECTOR}""")
    p.must("a number from outside", lambda q: q.write("out/k.txt", "2"))


def forked_before_it_asks(p: Place) -> None:
    """A server that imports everything and forks workers, which ask: forked children are traced as usual."""
    p.reuses = False
    p.write("out/k.txt", "1")
    p.program(f"""
k = num("../out/k.txt")
def values():
    return [k]
if os.fork():
    os.wait()
    os._exit(0)
{_VECTOR}
sys.stdout.flush()
""")
    p.must("a number from outside", lambda q: q.write("out/k.txt", "2"))


def lazy_modules(p: Place) -> None:
    """Modules that `LazyLoader` leaves unloaded until the trace needs them, and modules that name no file as theirs."""
    p.write("lazy/heavy.py", "import needed\nk = needed.k\n")
    p.write("needs/needed.py", "k = 1\n")
    p.write("liar/liar.py", "k = 1\n")
    p.write("bare/sourceless.txt", "")
    p.env["PYTHONPATH"] = ":".join(str(p.path(n)) for n in ("lazy", "needs", "liar"))
    p.program(f"""
import importlib.util, types
def lazy(name):
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
heavy = lazy("heavy")
import liar
del liar.__file__
sys.modules["weird"] = object()
sys.modules["made"] = types.ModuleType("made")
sys.modules["made"].__file__ = 7
sys.modules["none"] = None
def values():
    return [heavy.k, liar.k]
{_VECTOR}""")
    p.must("what a lazy module needs", _code("needs/needed.py"))
    p.must("a lazy module", lambda q: q.replace("lazy/heavy.py", "needed.k", "needed.k + 4"))
    p.must("a module that names no file", _code("liar/liar.py"))
    p.must("what a lazy module needs is shadowed", _code("lazy/needed.py"))


def relative_entries_after_a_move(p: Place) -> None:
    """Relative directories on the search path, and a program that goes elsewhere before its trace imports from them."""
    p.write("work/rel/late.py", "k = 1\n")
    p.write("other/rel/late.py", "k = 5\n")
    p.write("other/rel/only.py", "k = 1\n")
    p.write("other/rel/t.json", "1")
    p.main, p.cwd = ["../proj/main.py"], "work"
    p.program(f"""{_OPTIONAL}
sys.path.insert(0, "rel")
os.chdir("../other")
def values():
    import late, only
    return [late.k, only.k, optional("fast"), num("rel/t.json")]
{_VECTOR}""")
    p.must("a module that the trace imports", _code("other/rel/late.py"))
    p.must("another module that the trace imports", _code("other/rel/only.py"))
    p.must("a piece comes", _code("other/rel/fast.py"))
    p.must("configuration beside it", lambda q: q.write("other/rel/t.json", "2"))


def new_places_on_the_search_path(p: Place) -> None:
    """Packages that come to a directory of the search path as links, as byte code, in archives' inner directories."""
    import zipfile

    def archive(q: Place, k: int) -> None:
        q.path("lib").mkdir(exist_ok=True)
        with zipfile.ZipFile(q.path("lib/a.zip"), "w") as file:
            file.writestr("inner/deep/packed.py", f"k = {k}\n")

    p.write("lib/nothing.txt", "")
    p.write("elsewhere/space/deep/fast.py", "k = 2\n")
    archive(p, 1)
    p.env["PYTHONPATH"] = f"{p.path('lib')}:{p.path('lib/a.zip/inner/deep')}:{p.path('late_link')}"
    p.link("late_link", "not_yet")
    p.program(f"""{_OPTIONAL}
def values():
    import packed
    return [optional("linked.deep.fast"), optional("linked"), optional("sourceless"), packed.k, optional("é_module"), optional("behind")]
{_VECTOR}""")

    def compiled(q: Place) -> None:
        import py_compile

        source = q.write("elsewhere/sourceless.py", "k = 6\n")
        py_compile.compile(str(source), cfile=str(q.path("lib/sourceless.pyc")), doraise=True)

    p.must(
        "a link to a package",
        lambda q: (_code("elsewhere/pack/__init__.py")(q), q.link("lib/linked", "../elsewhere/pack")),
    )
    p.must("byte code without source", compiled)
    p.must("a module in an archive's directory", lambda q: archive(q, 3))
    p.must("a module of another script", _code("lib/é_module.py"))
    p.must("a directory that was a broken link", _code("not_yet/behind.py"))
    p.must("a namespace two levels deep behind a link", lambda q: q.link("lib/linked", "../elsewhere/space"))


def swapped_under_a_mount(p: Place) -> None:
    """Whole directories that change places with others of equal sizes and times, as releases and volumes do."""
    for name, k in (("blue", 1), ("green", 2)):
        p.write(f"proj/{name}/v.json", str(k))
        p.write(f"vol/{name}/codes.py", f"k = {k}\n")
        p.write(f"vol/{name}/c.yaml", str(k))
        for file in (f"proj/{name}/v.json", f"vol/{name}/codes.py", f"vol/{name}/c.yaml"):
            os.utime(p.path(file), (1_700_000_000, 1_700_000_000))
    shutil.copytree(p.path("vol/blue"), p.path("live"))
    for file in ("codes.py", "c.yaml"):
        os.utime(p.path(f"live/{file}"), (1_700_000_000, 1_700_000_000))
    p.env["PYTHONPATH"] = str(p.path("live"))
    p.env["PYTHONDONTWRITEBYTECODE"] = "1"
    p.program(f"""
def values():
    import codes
    return [num("blue/v.json"), codes.k, num(Path(codes.__file__).with_name("c.yaml"))]
{_VECTOR}""")

    def exchanged(a: str, b: str):
        def change(q: Place) -> None:
            q.path(a).rename(q.path("aside"))
            q.path(b).rename(q.path(a))
            q.path("aside").rename(q.path(b))

        return change

    p.must("two directories of the project", exchanged("proj/blue", "proj/green"), warm=True)
    p.must("a directory of the search path", exchanged("live", "vol/green"), warm=True)
    p.must("it becomes a link", lambda q: (shutil.rmtree(q.path("live")), q.link("live", "vol/green")), warm=True)
    p.must(
        "its files become links of the other's",
        lambda q: [
            (q.path(f"live/{n}").unlink(), os.link(q.path(f"vol/green/{n}"), q.path(f"live/{n}")))
            for n in ("codes.py", "c.yaml")
        ],
        warm=True,
    )

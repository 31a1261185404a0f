# ruff: noqa: E501  # programs and their changes are tables of texts
"""Programs whose command line, environment, switches or place change."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attack_driver import Place

_VECTOR = """
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    return x + np.array(values())
show(step(jnp.float32(0)))
"""


def words_that_name_files(p: Place) -> None:
    """Files that lie outside of the project, with endings that count for nothing, named by words in every way."""
    for name in "abcdefghijkl":
        p.write(f"out/{name}.bin", "1")
    p.write("out/sp ace.bin", "1")
    p.write("out/grün.bin", "1")
    p.write("out/x=y.bin", "1")
    p.write("out/[1].bin", "1")
    p.write("out/args.lst", "--k=1\n")
    p.write("out/v1.bin", "1")
    p.write("out/v2.bin", "2")
    p.write("out/dir/one.bin", "1")
    p.write("proj/7", "1")
    p.link("out/link.bin", "v1.bin")
    p.link("out/way", "dir")
    p.argv = [
        *("--a=../out/a.bin", "../out/b.bin", "-c../out/c.bin", "--d", "../out/d.bin", "k=v:../out/e.bin"),
        *("w,../out/f.bin,../out/g.bin", "../out/h.bin:10", f"file://{p.root}/out/i.bin", "@../out/args.lst"),
        *("../out/sp ace.bin", "../out/grün.bin", "../out/x=y.bin", "../out/[1].bin", "--cfg=k=../out/j.bin"),
        *(
            "--maybe=../out/none.bin",
            "../out/link.bin",
            "7",
            "",
            "../out/way/one.bin",
            "-vw../out/k.bin",
            "-l=../out/l.bin",
        ),
    ]
    p.program(
        f"""
A = sys.argv[1:]
names = [A[0][4:], A[1], A[2][2:], A[4], A[5][4:], *A[6].split(",")[1:], A[7][:-3], A[8][7:], *A[10:14], A[13 + 1][8:], A[15][8:]]
names += [A[16], A[17], A[19], A[20][3:], A[21][3:]]
def values():
    return [num(n) for n in names] + [num(A[9][1:])]
{_VECTOR}"""
    )
    for name, how in {
        "a": "behind an equals sign",
        "b": "a word",
        "c": "behind a short option",
        "d": "a word behind an option",
        "e": "behind an equals sign and a colon",
        "f": "in the middle of a list",
        "g": "at the end of a list",
        "h": "before a colon",
        "i": "a file URL",
        "j": "behind two equals signs",
        "k": "behind two short options",
        "l": "behind a short option and an equals sign",
    }.items():
        p.must(f"content of a file, {how}", lambda q, name=name: q.write(f"out/{name}.bin", "2"))
    p.must("content of a file with a space in its name", lambda q: q.write("out/sp ace.bin", "2"))
    p.must("content of a file with an umlaut", lambda q: q.write("out/grün.bin", "2"))
    p.must("content of a file with an equals sign in its name", lambda q: q.write("out/x=y.bin", "2"))
    p.must("content of a file that looks like a pattern", lambda q: q.write("out/[1].bin", "2"))
    p.must("content of a file of arguments", lambda q: q.write("out/args.lst", "--k=2\n"))
    p.must("a named file appears", lambda q: q.write("out/none.bin", "2"))
    p.must("a named file disappears", lambda q: q.path("out/b.bin").unlink())
    p.must("a named link points elsewhere", lambda q: q.link("out/link.bin", "v2.bin"))
    p.must("the target of a named link changes", lambda q: q.write("out/v1.bin", "3"))
    p.must("a number that is a file", lambda q: q.write("proj/7", "2"))
    p.must("a directory link on the way points elsewhere", _other_way)
    p.must("same size and time, written in place", _same_stat("out/b.bin"), warm=True)
    p.must("same size and time, another file in its place", _renamed("out/b.bin"), warm=True)
    p.must("two named files change places", _swapped("out/v2.bin", "out/link.bin"), warm=True)


def _other_way(q: Place) -> None:
    q.write("out/dir2/one.bin", "2")
    q.link("out/way", "dir2")


def _same_stat(name: str):
    def change(q: Place) -> None:
        path = q.path(name)
        was = path.stat()
        text = path.read_bytes().replace(b"1", b"2")
        with path.open("r+b") as file:
            file.write(text)
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        assert path.stat().st_size == was.st_size

    return change


def _renamed(name: str):
    def change(q: Place) -> None:
        path = q.path(name)
        was = path.stat()
        other = path.with_name("other")
        other.write_bytes(path.read_bytes().replace(b"1", b"2"))
        os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
        other.replace(path)

    return change


def _swapped(one: str, two: str):
    def change(q: Place) -> None:
        between = q.path("between")
        q.path(one).rename(between)
        q.path(two).rename(q.path(one))
        between.rename(q.path(two))

    return change


def words(p: Place) -> None:
    """The words themselves, as text."""
    p.argv = ["--lr=1", "a", "b", "", "x y", "-3"]
    p.program(
        f"""
def values():
    text = repr([os.fsencode(a) for a in sys.argv]).encode()
    return [sum((i + 1) * c for i, c in enumerate(text)) % 9973]
{_VECTOR}"""
    )

    def set_words(*new: str | bytes):
        return lambda q: setattr(q, "argv", list(new))

    p.must("1 becomes 1.0", set_words("--lr=1.0", "a", "b", "", "x y", "-3"))
    p.must("two words change places", set_words("--lr=1", "b", "a", "", "x y", "-3"))
    p.must("an empty word goes", set_words("--lr=1", "a", "b", "x y", "-3"))
    p.must("two words become one", set_words("--lr=1", "a b", "", "x y", "-3"))
    p.must("one word becomes two", set_words("--lr=1", "a", "b", "", "x", "y", "-3"))
    p.must("a word more", set_words("--lr=1", "a", "b", "", "x y", "-3", ""))
    p.must("a word that is no UTF-8", set_words("--lr=1", "a", "b", "", "x y", b"\xff"))
    p.must("an argument of the same name behind", set_words("--lr=1", "a", "b", "", "x y", "-3", "--lr=1"))
    p.must("sys.argv[0] is written in another way", lambda q: setattr(q, "main", ["./main.py"]))
    p.must("a main file by its absolute path", lambda q: setattr(q, "main", [str(q.path("proj/main.py"))]))
    p.must("a module instead of a file", lambda q: setattr(q, "main", ["-m", "main"]))


def switches(p: Place) -> None:
    """Python's own switches."""
    p.switches = ["-X", "faulthandler"]
    p.program(
        f'''
def documented():
    """Text."""
def values():
    text = repr([__debug__, documented.__doc__, sys._xoptions, sys.warnoptions, list(sys.flags)]).encode()
    return [sum((i + 1) * c for i, c in enumerate(text)) % 9973]
{_VECTOR}'''
    )
    for switch in (
        ["-O"],
        ["-OO"],
        ["-X", "kernel=2"],
        ["-W", "error::ImportWarning"],
        ["-B"],
        ["-s"],
        ["-X", "utf8"],
        ["-bb"],
    ):
        p.must(" ".join(switch), lambda q, switch=switch: q.switches.extend(switch))
    p.must("-X one=1 becomes -X one", lambda q: q.switches.__setitem__(1, "dev"))
    p.must("PYTHONOPTIMIZE", lambda q: q.env.__setitem__("PYTHONOPTIMIZE", "1"))


def variables(p: Place) -> None:
    """The environment."""
    p.env = {
        "MODE": "1",
        "EMPTY": "",
        "SLURM_PROCID": "0",
        "SLURM_ARRAY_TASK_ID": "1",
        "PMI_RANK": "0",
        "SLURM_NTASKS": "1",
        "APP_PORT": "8080",
        "LOCAL_RANK": "0",
        "JOB_COMPLETION_INDEX": "0",
        "CUDA_VISIBLE_DEVICES": "0",
        "USER": "me",
        "TOKEN": "1",
        "MY_TOKENS": "1",
        "my_token": "1",
        "DISPLAY2": "1",
        "XDG": "1",
        "A": "1",
        "B": "23",
        "X": "1\nY=2",
        "POPPED": "1",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "PBS_ARRAY_INDEX": "1",
        "SLURM_NNODES": "1",
        "AWS_REGION": "1",
        "SECRET": "1",
        "API_KEY": "1",
        "PASSWORD": "1",
        "NODE_NAMES": "1",
        "TRACEPARENTS": "1",
        "MASTER_ADDRESS": "1",
        "WANDB_MODE": "1",
        "JAX_COMPILATION": "1",
        "MPI_PORT_1_TCP": "1",
        "TMPDIR2": "1",
        "SLURM_CPUS_ON_NODE": "4",
        "SLURM_STEP_NUM_TASKS": "1",
        "OMPI_COMM_WORLD_RANK": "0",
        "PMIX_RANK": "0",
    }
    names = [n for n in p.env if n != "POPPED"]
    p.program(
        f"""
popped = os.environ.pop("POPPED", "9")
def values():
    text = lambda n: sum((i + 3) * c for i, c in enumerate(os.environb.get(n.encode(), b"~none~")))
    return [text(n) for n in {names!r}] + [len(popped) + ord(popped[0]), len(os.environ)]
{_VECTOR}"""
    )

    def put(name: str, value: str):
        return lambda q: q.env.__setitem__(name, value)

    for name in (
        *(
            "MODE",
            "SLURM_PROCID",
            "SLURM_ARRAY_TASK_ID",
            "PMI_RANK",
            "SLURM_NTASKS",
            "LOCAL_RANK",
            "JOB_COMPLETION_INDEX",
        ),
        *("USER", "TOKEN", "MY_TOKENS", "my_token", "DISPLAY2", "XDG", "POPPED", "SLURM_LOCALID", "SLURM_NODEID"),
        *(
            "PBS_ARRAY_INDEX",
            "SLURM_NNODES",
            "AWS_REGION",
            "SECRET",
            "API_KEY",
            "PASSWORD",
            "NODE_NAMES",
            "TRACEPARENTS",
        ),
        *("MASTER_ADDRESS", "WANDB_MODE", "JAX_COMPILATION", "TMPDIR2", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK"),
        *("APP_PORT", "PMIX_RANK"),
    ):
        p.must(f"{name} has another value", put(name, "5"))
    p.must("a variable goes", lambda q: q.env.pop("MODE"))
    p.must("an empty variable goes", lambda q: q.env.pop("EMPTY"))
    p.must("a variable comes", put("NEW", ""))
    p.must("the line between two values moves", lambda q: q.env.update(A="12", B="3"))
    p.must("a value with a line break becomes two variables", lambda q: q.env.update(X="1", Y="2"))
    p.must("a port becomes one of a service", put("APP_PORT", "tcp://10.0.0.1:80"))
    p.must("one device more is visible", put("CUDA_VISIBLE_DEVICES", "0,1"))
    p.must("other case of a name", lambda q: q.env.update(mode=q.env.pop("MODE")))
    p.must("a value that is no UTF-8", put("MODE", "\udcff"))
    p.must("two forms of one character", put("MODE", "e\u0301"))
    p.listed(5, "a token", put("HF_TOKEN", "2"))


def devices(p: Place) -> None:
    """What is compared of the machine, from a number outside of the project."""
    p.write("out/n.txt", "1 1")
    p.program("""
n, flag = map(int, open("../out/n.txt").read().split())
jax.config.update("jax_num_cpu_devices", n)
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    return x * jax.device_count() + len(jax.local_devices()) + len(os.environ.get("XLA_FLAGS", ""))
show(step(np.float32(3)))
""")
    p.must("jax_num_cpu_devices from a file", lambda q: q.write("out/n.txt", "2 1"))
    p.must("XLA_FLAGS", lambda q: q.env.__setitem__("XLA_FLAGS", "--xla_force_host_platform_device_count=3"))


def environment_from_a_file(p: Place) -> None:
    """A file outside of the project fills the environment: what counts is the environment as it is."""
    p.write("out/dot", "1")
    p.write("out/count", "1")
    p.program("""
os.environ["DOT"] = open("../out/dot").read()
@ejcache.ejit(reuse_lowering=True)
def step(x):
    traced("step")
    return x * int(os.environ["DOT"])
show(step(jnp.float32(3)))
""")
    p.must("a variable that the program sets", lambda q: q.write("out/dot", "2"))


def working_directory(p: Place) -> None:
    """Where the process was started, and a word that names a file from there."""
    p.write("proj/a/w.bin", "1")
    p.write("proj/b/w.bin", "2")
    p.write("proj/a/deep/w.bin", "3")
    p.main, p.argv, p.cwd = ["../main.py"], ["w.bin"], "proj/a"
    p.program(f"""
def values():
    return [num(sys.argv[1]), len(os.path.relpath(os.getcwd(), os.path.dirname(__file__)))]
{_VECTOR}""")
    p.must("another directory below", lambda q: setattr(q, "cwd", "proj/b"))
    p.must("the named file there", lambda q: q.write("proj/a/w.bin", "4"))


def changed_directory(p: Place) -> None:
    """A program that goes elsewhere before it opens what its word names."""
    p.write("proj/elsewhere/scale.json", "1")
    p.write("proj/main_", "")
    p.argv = ["scale.json"]
    p.program(f"""
os.chdir(Path(__file__).parent / "elsewhere")
def values():
    return [num(sys.argv[1])]
{_VECTOR}""")
    p.must("a configuration there", lambda q: q.write("proj/elsewhere/scale.json", "2"))


def arguments_changed_inside(p: Place) -> None:
    """A program that rewrites sys.argv before anybody looks: the page compares `sys.orig_argv`, which it leaves alone."""
    p.argv = ["--k=1", "--m=1"]
    p.program(
        f"""
def values():
    return [kept]
{_VECTOR}"""
    )
    p.replace(
        "proj/main.py",
        "import os, re, sys, json\n",
        "import os, re, sys, json\nkept = len(sys.argv[1]) * 7 + int(sys.argv[1][-1])\nsys.argv[1:] = []\n",
    )
    p.must("the word that was taken away", lambda q: q.argv.__setitem__(0, "--k=2"))


def environment_changed_before(p: Place) -> None:
    """A program that takes a variable away before ejcache is imported."""
    p.env["MODE"] = "1"
    p.program(f"""
def values():
    return [kept]
{_VECTOR}""")
    p.replace(
        "proj/main.py",
        "import os, re, sys, json\n",
        "import os, re, sys, json\nkept = int(os.environ.pop('MODE', '7'))\n",
    )
    p.must("the variable that was taken away", lambda q: q.env.__setitem__("MODE", "2"))


def started_again_inside(p: Place) -> None:
    """A launcher that replaces itself by the program, with a cleaned environment."""
    p.argv = ["1"]
    p.write(
        "proj/launch.py",
        "import os, sys\nos.execve(sys.executable, [sys.executable, 'main.py', str(int(sys.argv[1]) * 2)], os.environ)\n",
    )
    p.main = ["launch.py"]
    p.program(f"""
def values():
    return [int(sys.argv[1])]
{_VECTOR}""")
    p.must("the launcher's word", lambda q: q.argv.__setitem__(0, "2"))
    p.must("the launcher's code", lambda q: q.replace("proj/launch.py", "* 2", "* 3"))


def script_on_standard_input(p: Place) -> None:
    """A script that Python reads from standard input: its text is nowhere."""
    p.reuses = False
    p.write("proj/note.txt", "1")
    p.main = ["-"]
    from attack_driver import PRELUDE

    p.stdin = PRELUDE + "def values():\n    return [1]\n" + _VECTOR
    p.must("another text", lambda q: setattr(q, "stdin", q.stdin.replace("return [1]", "return [2]")))


def script_at_a_device(p: Place) -> None:
    """The same, as a file of devices."""
    p.reuses = False
    p.write("proj/note.txt", "1")
    p.main = ["/dev/stdin"]
    from attack_driver import PRELUDE

    p.stdin = PRELUDE + "def values():\n    return [1]\n" + _VECTOR
    p.must("another text", lambda q: setattr(q, "stdin", q.stdin.replace("return [1]", "return [2]")))


def program_text(p: Place) -> None:
    """python -c, which runs a file that nobody names."""
    p.reuses = False
    p.write("out/run.txt", "scale = 1")
    from attack_driver import PRELUDE

    p.write("proj/note.txt", "1")
    p.main = ["-c", PRELUDE + "exec(open('../out/run.txt').read())\ndef values():\n    return [scale]\n" + _VECTOR]
    p.must("the file", lambda q: q.write("out/run.txt", "scale = 2"))


def script_of_another_ending(p: Place) -> None:
    """Main files whose names do not end in .py: as they are, and as links."""
    p.program(
        f"""
def values():
    return [1]
{_VECTOR}""",
        "proj/train",
    )
    p.main = ["train"]
    p.must("the script", lambda q: q.replace("proj/train", "return [1]", "return [2]"))


def main_by_a_link(p: Place) -> None:
    """The main file is a link into another directory. Both directories have configuration."""
    p.program(
        f"""
def values():
    here = Path(__file__)
    return [num(here.parent / "c.json"), num(here.resolve().parent / "c.json")]
{_VECTOR}""",
        "proj/src/train.py",
    )
    p.write("proj/src/c.json", "1")
    p.write("proj/bin/c.json", "1")
    p.link("proj/bin/train.py", "../src/train.py")
    p.main = ["bin/train.py"]
    p.must("configuration beside the file", lambda q: q.write("proj/src/c.json", "2"))
    p.must("configuration beside the link", lambda q: q.write("proj/bin/c.json", "2"))
    p.must("the link points to another file", _other_main)


def _other_main(q: Place) -> None:
    q.write("proj/other/train.py", q.path("proj/src/train.py").read_text().replace("return [num", "return [5, num"))
    q.write("proj/other/c.json", "1")
    q.link("proj/bin/train.py", "../other/train.py")


def directory_as_program(p: Place) -> None:
    """python DIRECTORY."""
    p.program(
        f"""
import helper
def values():
    return [helper.k, num(Path(__file__).parent / "c.yaml")]
{_VECTOR}""",
        "proj/app/__main__.py",
    )
    p.write("proj/app/helper.py", "k = 1")
    p.write("proj/app/c.yaml", "k: 1")
    p.main = ["app"]
    p.must("its module", lambda q: q.write("proj/app/helper.py", "k = 2"))
    p.must("its configuration", lambda q: q.write("proj/app/c.yaml", "k: 2"))


def archive_as_program(p: Place) -> None:
    """python FILE.pyz."""
    _archive(p, 1)
    p.main = ["app.pyz"]
    p.must("its module", lambda q: _archive(q, 2))


def archive_without_ending(p: Place) -> None:
    """An executable archive whose name says nothing."""
    _archive(p, 1)
    p.path("proj/app.pyz").rename(p.path("proj/app"))
    p.main = ["app"]
    p.must("its module", lambda q: (_archive(q, 2), q.path("proj/app.pyz").replace(q.path("proj/app"))))


def _archive(p: Place, k: int) -> None:
    import zipfile

    from attack_driver import PRELUDE

    p.write("proj/readme.txt", "")
    with zipfile.ZipFile(p.path("proj/app.pyz"), "w") as archive:
        archive.writestr("__main__.py", PRELUDE + "import helper\ndef values():\n    return [helper.k]\n" + _VECTOR)
        archive.writestr("helper.py", f"k = {k}\n")


def module_of_a_package(p: Place) -> None:
    """python -m package.module, from the directory above it."""
    p.write("proj/pkg/__init__.py", "k = 1")
    p.write("proj/pkg/data/scale.json", "1")
    p.write("proj/top.toml", "k = 1")
    p.program(
        f"""
from . import k
import importlib.resources as resources
def values():
    return [k, int(resources.files("pkg").joinpath("data/scale.json").read_text()), num("top.toml")]
{_VECTOR}""",
        "proj/pkg/train.py",
    )
    p.main = ["-m", "pkg.train"]
    p.must("the package", lambda q: q.write("proj/pkg/__init__.py", "k = 2"))
    p.must("a resource of the package", lambda q: q.write("proj/pkg/data/scale.json", "2"))
    p.listed(1, "a file in the directory above the package", lambda q: q.write("proj/top.toml", "k = 2"))
    p.must(
        "a module that shadows one",
        lambda q: q.write("proj/pkg/json.py", "k = 2") and q.write("proj/pkg/__init__.py", "from .json import k"),
    )


def ignored_arguments(p: Place) -> None:
    """`reuse_ignore` names an argument, a variable and a file: nothing else may be left out with them."""
    p.env.update(EJCACHE_REUSE_IGNORE="--run-name,env:WANDB_*,metrics.csv,*.log.txt", WANDB_NAME="1", XWANDB_A="1")
    p.write("proj/metrics.csv", "1")
    p.write("proj/sub/metrics.csv", "1")
    p.write("proj/my_metrics.csv", "1")
    p.write("proj/metrics.csv.json", "1")
    p.write("proj/a.log.txt", "1")
    p.argv = ["--run-name", "r1", "pos", "--run-name-2", "z", "--run=1", "--lr", "1"]
    p.program(f"""
def clean(a):
    out, i = [], 0
    while i < len(a):
        if a[i] == "--run-name":
            i += 2
        elif a[i].startswith("--run-name="):
            i += 1
        else:
            out.append(a[i])
            i += 1
    return out
def values():
    text = repr([clean(sys.argv), os.environ["XWANDB_A"]]).encode()
    return [sum((i + 1) * c for i, c in enumerate(text)) % 9973] + [num(n) for n in ("sub/metrics.csv", "my_metrics.csv", "metrics.csv.json")]
{_VECTOR}""")

    def put(*new: str):
        return lambda q: setattr(q, "argv", list(new))

    p.must("the positional word", put("--run-name", "r1", "pos2", "--run-name-2", "z", "--run=1", "--lr", "1"))
    p.must(
        "an option that begins with its name",
        put("--run-name", "r1", "pos", "--run-name-2", "y", "--run=1", "--lr", "1"),
    )
    p.must(
        "an option that its name begins with",
        put("--run-name", "r1", "pos", "--run-name-2", "z", "--run=2", "--lr", "1"),
    )
    p.must("a word behind its value", put("--run-name=r1", "pos2", "pos", "--run-name-2", "z", "--run=1", "--lr", "1"))
    p.must("its negation", put("--run-name", "r1", "pos", "--run-name-2", "z", "--run=1", "--lr", "1", "--no-run-name"))
    p.must(
        "a word of the same name in a group",
        put("--run-name", "r1", "pos", "--run-name-2", "z", "--run=1", "--lr", "1", "model.run-name=2"),
    )
    p.must("a variable whose name contains it", lambda q: q.env.update(XWANDB_A="2"))
    p.must("a file of that name in a directory", lambda q: q.write("proj/sub/metrics.csv", "2"))
    p.must("a file whose name ends with it", lambda q: q.write("proj/my_metrics.csv", "2"))
    p.must("a file whose name begins with it", lambda q: q.write("proj/metrics.csv.json", "2"))
    p.twin(
        "the argument's value",
        put("--run-name", "r2", "pos", "--run-name-2", "z", "--run=1", "--lr", "1"),
        several=False,
    )
    p.twin(
        "the argument in one word",
        put("--run-name=r3", "pos", "--run-name-2", "z", "--run=1", "--lr", "1"),
        several=False,
    )
    p.twin("the variable", lambda q: q.env.update(WANDB_NAME="2"))
    p.twin("another such variable", lambda q: q.env.update(WANDB_X="2"))
    p.twin("the file", lambda q: q.write("proj/metrics.csv", "2"))
    p.twin("a file of the pattern", lambda q: q.write("proj/b.log.txt", "2"))


def other_interpreter(p: Place) -> None:
    """The interpreter by another name: the words behind it are the same."""
    p.program(f"""
def values():
    return [1]
{_VECTOR}""")
    p.twin(
        "python3 instead of python",
        lambda q: setattr(
            q, "python", sys.executable + "3" if not sys.executable.endswith("3") else sys.executable[:-1]
        ),
    )
    p.twin("the whole project elsewhere", _moved)


def _moved(q: Place) -> None:
    shutil.move(q.path("proj"), q.path("elsewhere/again/proj"))
    q.cwd = "elsewhere/again/proj"

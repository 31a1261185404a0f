"""`ejcache warm`: what it compiles from shapes is what a run then loads, and each program is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from cli_helpers import ejcache
from forking import ForkedWithChildren
from helpers import run_program

from ejcache.cli.programs.warm_worker import target_function
from ejcache.errors import SettingError, UsageError
from ejcache.jax_integration.shape_grammar import ArrayShape, parse_call
from ejcache.util.worker_processes import WorkerProcess

# What a shell has put in the background ignores Ctrl-C.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
PROGRAM = """
import functools, os
import jax, jax.numpy as jnp

print("imported")

@functools.partial(jax.jit, static_argnames=("mode", "sizes"), donate_argnums=0)
def step(state, x, lr=0.5, *, mode="fast", sizes=()):
    if mode == "bad":
        raise ValueError("no such\\nmode")
    if mode == "die":
        os._exit(3)
    if mode == "wait":
        os.read(0, 1)  # there is nothing to read until the process is killed
    return state + x.sum() * lr, jnp.sin(x)

class Model:
    @staticmethod
    def plain(x):
        return x * 3

def programs():
    import ejcache
    shape = jax.ShapeDtypeStruct((3,), "float32")
    ejcache.warm(Model.plain, {"a": shape}["a"])
    ejcache.warm(lambda tree: tree["a"] + tree["b"], {"a": shape, "b": 1.0})

def nothing():
    pass
"""
RUN = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
import ejcache
cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
import prog
device = jax.devices()[0]
state, x = np.ones((4, 4), np.float32), np.ones((8,), np.float32)
calls = {
    "numpy": lambda: prog.step(state, x, mode="slow"),
    "jax": lambda: prog.step(jnp.ones((4, 4)), jnp.ones(8), mode="slow"),
    "named": lambda: prog.step(state, x, lr=jnp.float32(0.1)),
    "committed": lambda: prog.step(jax.device_put(state, device), jax.device_put(x, device)),
    "weak": lambda: prog.step(state, x, 0.7, sizes=(1, 2)),
    "types": lambda: prog.step(jnp.ones((2,), jnp.bfloat16), jnp.ones((3,), jnp.int8)),
}
said = {}
for name, call in calls.items():
    jax.clear_caches()
    before = cache.stats()
    jax.block_until_ready(call())
    said[name] = [before.hits < cache.stats().hits, sum(e.key.startswith("jit_step") for e in ejcache.entries())]
print(json.dumps(said))
"""
SHAPES = [
    'f32[4,4] f32[8] mode:="slow"',
    "f32[4, 4] float32[8] lr=f32[]",
    "f32[4,4]@0 f32[8]@0",
    "f32[4,4] f32[8] :=0.1 sizes:=[1,2]",
    "bf16[2] i8[3]",
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prog.py").write_text(textwrap.dedent(PROGRAM))
    return tmp_path


def warm(*arguments):
    return ejcache("warm", *arguments, "--dir", "cache", "--min-compile-seconds", "0")


def given(shapes):
    return [word for shape in shapes for word in ("--shapes", shape)]


@pytest.mark.usefixtures("forked_children")
def test_a_run_hits_what_was_warmed(project, run_forked):
    """Static values, weak numbers, committed arrays, donation and types: each call of a run hits and stores nothing."""
    said = warm("prog.py:step", *given(SHAPES), "--jobs", "1", "--json").json
    assert (said["compiled"], said["failures"], said["jobs"]) == (5, 0, 1)
    assert [program["outcome"] for program in said["programs"]] == ["compiled"] * 5
    assert {program["shapes"] for program in said["programs"]} == set(SHAPES)
    done = run_forked(RUN, "cache")
    assert json.loads(done.stdout.splitlines()[-1]) == {
        name: [True, 5] for name in ("numpy", "jax", "named", "committed", "weak", "types")
    }


@pytest.mark.usefixtures("forked_children")
def test_it_continues_and_reports_each_program(project, monkeypatch):
    """A second call hits what the first stored; failures are one sentence each, and the others go on.

    A process that has answered is waited for, however long it writes its counters to slow storage.
    """
    patience, end = [], WorkerProcess.end
    monkeypatch.setattr(WorkerProcess, "end", lambda each, **named: patience.append(named) or end(each, **named))
    assert warm("prog.py:step", *given(SHAPES[:1])).status == 0
    (project / "shapes.txt").write_text(f"# calls\n\n{SHAPES[0]}\n{SHAPES[4]}\n")
    failing = ['f32[2] f32[2] mode:="bad"', 'f32[2] f32[2] mode:="die"', "x7[2] f32[2]", "f32[2]@99 f32[2]"]
    said = warm("prog.py:step", *given([*failing, "@shapes.txt"]), "-j", "1")
    assert patience.count({"timeout": None}) == len(patience) >= 2
    assert (said.status, said.err) == (1, "")
    assert said.lines == [
        'step f32[2] f32[2] mode:="bad": failed: ValueError: no such mode',
        'f32[2] f32[2] mode:="die": failed: its process ended with exit status 3',
        "step x7[2] f32[2]: failed: there is no type x7 of arrays",
        "step f32[2]@99 f32[2]: failed: there is no device 99; JAX sees 1",
        f"jit_step {SHAPES[0]}: hit",
        said.lines[5],
        f"1 hit, 1 compiled, 0 not stored, 4 failed ({project / 'cache'})",
    ]
    assert said.lines[5].startswith(f"jit_step {SHAPES[4]}: compiled in ")


@pytest.mark.usefixtures("forked_children")
def test_a_function_that_calls_warm(project):
    """Without --shapes the function is called, and says what to compile in Python; PyTrees are possible so."""
    said = warm("prog.py:programs", "--json").json
    assert [(p["program"], p["outcome"]) for p in said["programs"]] == [
        ("jit_plain", "compiled"), ("jit__lambda", "compiled"),
    ]  # fmt: skip
    assert warm("prog.py:Model.plain", "--shapes", "f32[3]", "--json").json["hits"] == 1


@pytest.mark.soak
def test_what_is_too_quick_is_said(project):
    """What a floor leaves out is not stored, and the line says why."""
    said = ejcache("warm", "prog.py:step", *given(SHAPES[:1]), "--dir", "cache", "--min-compile-seconds", "1000")
    assert said.status == 0
    assert "not stored: it compiled in less than the minimum compile time" in said.lines[0]


@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["prog.py:step"], 2, "prog.py:step is jitted; --shapes say for which arguments to compile it"),
        (["prog.py:nothing"], 2, "called ejcache.warm for nothing"),
        (["none.py:step", "--shapes", "f32[]"], 1, "there is no file none.py"),
        (["broken.py:f", "--shapes", "f32[]"], 1, "cannot be imported: ZeroDivisionError: division by zero"),
        (["ending.py:f", "--shapes", "f32[]"], 1, "ends its process with exit status 7 when it is imported"),
        (["prog.py:step", "--shapes", "f32[2"], 2, "--shapes cannot be 'f32[2'"),
        (["prog.py:step", "--shapes", "@none.txt"], 2, "the file cannot be read"),
        (["prog.py:step", "--shapes", "f32[]", "-j", "0"], 2, "--jobs cannot be '0'"),
        (["prog.py:step", "f32[]"], 2, "arguments are for scripts; give --shapes for prog.py:step"),
        (["--shapes", "f32[]", "prog.py"], 2, "prog.py is a script"),
        (["none.py"], 1, "there is no script none.py"),
    ],
)
def test_mistakes(project, arguments, status, complaint):
    """A target that does not exist or cannot be imported, and bad options, are one sentence."""
    (project / "broken.py").write_text("1 / 0")
    (project / "ending.py").write_text("import os\nos._exit(7)")
    said = ejcache("warm", "--dir", "cache", *arguments)
    assert complaint in said.err
    assert (said.status, said.out, said.err.count("\n")) == (status, "", 1)


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("few.py:none", "few has no none"),
        ("few.py:os", "few.py:os is not a function"),
        ("none:step", "there is no module none"),
    ],
)
def test_what_is_no_function(tmp_path, monkeypatch, target, complaint):
    """One sentence says what is missing of a target."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "few", raising=False)
    (tmp_path / "few.py").write_text("import os")
    with pytest.raises(UsageError, match=complaint):
        target_function(target)


def test_a_script_is_run(project):
    """A script runs with its own options and exit status, and its programs are stored."""
    (project / "script.py").write_text(
        "import sys, jax\njax.jit(lambda x: x * 2)(1.0)\nprint(sys.argv)\nsys.exit(int(sys.argv[2]))"
    )
    command = [sys.executable, "-m", "ejcache", "warm", "--dir", "cache", "--min-compile-seconds", "0", "script.py"]
    done = run_program([*command, "--json", "4"], cwd=project, check=False, start=ForkedWithChildren)
    assert (done.returncode, done.stdout) == (4, "['script.py', '--json', '4']\n")
    assert "0 hits, 1 miss, 1 stored" in done.stderr
    assert "1 hit, 0 misses" in run_program([*command, "--steps", "0"], cwd=project, start=ForkedWithChildren).stderr


@pytest.mark.soak
def test_an_interrupted_command_leaves_no_process_and_continues(project):
    """After Ctrl-C the processes are gone and what was compiled is kept; the same command goes on from there."""
    shapes = given([SHAPES[0], 'f32[4,4] f32[8] mode:="wait"'])
    code = f"{INTERRUPTIBLE}\nimport sys\nfrom ejcache.cli.main import main\nsys.exit(main())"
    options = ["--dir", "cache", "--min-compile-seconds", "0", "-j", "1"]
    child = subprocess.Popen(
        [sys.executable, "-c", code, "warm", "prog.py:step", *shapes, *options],
        cwd=project,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    assert f"{SHAPES[0]}: compiled" in first
    child.send_signal(signal.SIGINT)
    # The worker holds stderr open: its end means that no process is left.
    child.communicate(timeout=120)
    assert child.returncode == 130
    assert warm("prog.py:step", *given(SHAPES[:2]), "--json").json["hits"] == 1


def call_of(args=(), kwargs=None):
    return args, kwargs or {}


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("", call_of()),
        ("f32[]", call_of((ArrayShape("float32", ()),))),
        ("  bf16[ 3 , 4 ]\tu8[1]@2 ", call_of((ArrayShape("bfloat16", (3, 4)), ArrayShape("uint8", (1,), 2)))),
        ("bool[2] c64[2]", call_of((ArrayShape("bool", (2,)), ArrayShape("complex64", (2,))))),
        ("f8_e4m3fn[2] float16[2]", call_of((ArrayShape("float8_e4m3fn", (2,)), ArrayShape("float16", (2,))))),
        ('x=i32[8] m:="a b" n:=[1, [2]] o:=null', call_of((), {
            "x": ArrayShape("int32", (8,)), "m": "a b", "n": (1, (2,)), "o": None})),
        (":=3 :=0.5 :=true", call_of((3, 0.5, True))),
    ],
)  # fmt: skip
def test_calls_that_can_be_written(text, call):
    """Shapes as JAX writes them, with sizes, types, devices, names and values."""
    assert parse_call(text) == call


@pytest.mark.parametrize(
    "text",
    ["f32", "f32[", "f32[3", "f32[-1]", "f32[a]", "f32[3]x", "f32[3]@", "=f32[3]", "x=", "x:=", "x:={", ":=1x", "x=3",
     "x=f32[] f32[]", "x=f32[] x:=1", "3", "[f32[3]]", "F32[3]", ":=" + "[" * 5000],
)  # fmt: skip
def test_calls_that_cannot_be_written(text):
    """Anything else is one sentence that shows how to write it, and says where the rest is written."""
    with pytest.raises(SettingError, match=r"--shapes cannot be .*ejcache\.warm"):
        parse_call(text)


SHARDED = """
import sys
import jax, jax.numpy as jnp, numpy as np
import ejcache
from jax.sharding import NamedSharding, PartitionSpec as P
cache = ejcache.enable("cache", min_compile_seconds=0)
mesh = jax.make_mesh((2,), ("data",))
split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

def init(key):
    return {"w": jax.random.normal(key, (8, 4)), "step": 0}

@jax.jit
def step(state, x):
    return {"w": state["w"] + x.mean(), "step": state["step"] + 1}

key = jax.random.key(0)
if sys.argv[1] == "warm":
    shapes = jax.eval_shape(init, key)
    w = jax.ShapeDtypeStruct(shapes["w"].shape, shapes["w"].dtype, sharding=whole)
    x = jax.ShapeDtypeStruct((16,), jnp.float32, sharding=split)
    print(*ejcache.warm(init, key)[:2], *ejcache.warm(step, {"w": w, "step": 0}, x)[:2])
else:
    state = jax.jit(init)(key)
    state = {"w": jax.device_put(state["w"], whole), "step": 0}
    x = jax.device_put(np.ones(16, np.float32), split)
    with ejcache.forbid_compile():
        jax.clear_caches()
        jax.jit(init)(key)
        jax.block_until_ready(step(state, x))
    print("hits")
"""


def test_python_says_what_shapes_cannot(run_forked):
    """A PyTree with shapes from `eval_shape`, shardings over two devices and a random key: the run compiles nothing."""
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    assert run_forked(SHARDED, "warm", env=env).stdout == "jit_init compiled jit_step compiled\n"
    assert run_forked(SHARDED, "run", env=env).stdout == "hits\n"

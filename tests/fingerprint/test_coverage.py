# ruff: noqa: DTZ001, DTZ005, DTZ011, ICN001, NPY002, PLW0108, PTH109, PTH110, PTH118, PTH123, PTH207, PTH208
"""What a recording finds while a function runs: whose code ran, what was read, and what must not have happened."""

import copy
import datetime
import functools
import gc
import glob
import importlib
import io
import linecache
import logging
import os
import pathlib
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings

import numpy as np
import pytest
from helpers import python_command, run_program

from ejcache.fingerprint import coverage
from ejcache.fingerprint.coverage import Coverage

pytestmark = pytest.mark.skipif(not coverage.available(), reason="Python before 3.12 cannot report what runs")

SHARED = random.Random(3)
GENERATOR = np.random.default_rng(0)
LOGGER = logging.getLogger("traced")


class Config:
    pass


def recorded(function):
    with Coverage() as found:
        function()
    return found


def line_number():
    return sys._getframe().f_lineno


def environment_copied():
    return dict(os.environ)


def file_opened():
    with open(__file__):
        pass


def imported():
    import wave  # noqa: F401


def numpy_file():
    np.fromfile(__file__, dtype=np.uint8)


def thread_started():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def socket_made():
    socket.socket().close()


REFUSED = {
    "time.time": (lambda: time.time(), "calls time.time()"),
    "through partial": (lambda: functools.partial(time.time)(), "calls time.time()"),
    "perf_counter": (lambda: time.perf_counter(), "calls time.perf_counter()"),
    "datetime.now": (lambda: datetime.datetime.now(), "calls datetime.now()"),
    "date.today": (lambda: datetime.date.today(), "calls date.today()"),
    "datetime64": (lambda: np.datetime64("now"), "calls datetime64('now')"),
    "random": (lambda: random.random(), "random numbers of random"),
    "randint": (lambda: random.randint(1, 3), "uses Random.randint of random"),
    "random seeded": (lambda: random.seed(1), "uses Random.seed of random"),
    "generator seeded by the system": (lambda: random.Random(), "uses Random.seed of random"),
    "numpy's random": (lambda: np.random.normal(), "random numbers of numpy"),
    "numpy's random, seeded": (lambda: np.random.seed(0), "random numbers of numpy"),
    "numpy's generator": (lambda: np.random.default_rng(), "SystemRandom.getrandbits"),
    "urandom": (lambda: os.urandom(3), "calls os.urandom()"),
    "secrets": (lambda: secrets.token_hex(), "uses token_hex of secrets"),
    "uuid": (lambda: uuid.uuid4(), "uses uuid4 of uuid"),
    "open": (file_opened, "open"),
    "numpy's files": (numpy_file, "numpy_file opens …/test_coverage.py"),
    "read_text": (lambda: pathlib.Path(__file__).read_text(), "read_text of pathlib"),
    "Path.exists": (lambda: pathlib.Path("/etc").exists(), "exists of pathlib"),
    "os.path.exists": (lambda: os.path.exists("/etc"), "uses exists of genericpath"),
    "getmtime called by C": (lambda: [*map(os.path.getmtime, ["/etc"])], "uses getmtime of genericpath"),
    "working directory": (lambda: os.getcwd(), "calls os.getcwd()"),
    "listdir": (lambda: os.listdir("/"), "calls os.listdir()"),
    "glob": (lambda: glob.glob("*"), "uses glob of glob"),
    "temporary file": (lambda: tempfile.gettempdir(), "of tempfile"),
    "source": (lambda: linecache.getline(__file__, 1), "uses getline of linecache"),
    "stack": (lambda: traceback.extract_stack(), "uses extract_stack of traceback"),
    "socket": (socket_made, "socket"),
    "subprocess": (lambda: subprocess.run(["true"], check=False), "uses run of subprocess"),
    "thread": (thread_started, "uses Thread.start of threading"),
    "id": (lambda: id(3), "calls id()"),
    "eval": (lambda: eval("1+1"), "calls eval()"),
    "exec": (lambda: exec("x=1"), "calls exec()"),
    "globals": (lambda: globals(), "calls globals()"),
    "locals": (lambda: locals(), "calls locals()"),
    "vars": (lambda: vars(), "calls vars()"),
    "vars of a module": (lambda: vars(os), "calls vars() of a module"),
    "line number": (line_number, "line_number calls sys._getframe()"),
    "gc": (lambda: gc.get_objects(), "calls gc.get_objects()"),
    "import": (imported, "imported imports wave"),
    "import_module": (lambda: importlib.import_module("json"), "uses import_module of importlib"),
    "whole environment": (environment_copied, "environment_copied reads all environment variables"),
    "environment set": (lambda: os.environ.update(EJC_SET="1"), "changes the environment variable EJC_SET"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_content_describes_refuses(name, monkeypatch, restored_random):
    """Clocks, random numbers, files, frames, imports and side effects refuse, and the sentence names them."""
    monkeypatch.setenv("EJC_SET", "0")
    function, said = REFUSED[name]
    refusal = recorded(function).refusal
    assert refusal is not None
    assert said in refusal


class Temporary:
    """Its finalizer removes a file; it refers to itself, so only a garbage collection ends it."""

    def __init__(self, path, ended):
        self.itself, self.path, self.ended = self, path, ended

    def __del__(self):
        self.path.unlink()
        self.ended.append(self.path)


def test_a_finalizer_refuses(tmp_path):
    """A garbage collection during a trace may end any object of the program; what it runs counts as the trace's."""
    path, ended = tmp_path / "kept", []
    path.touch()
    Temporary(path, ended)

    def until_collected():
        kept = []
        while not ended:
            kept.append([kept])

    assert "removes a file" in str(recorded(until_collected).refusal)
    assert ended


class Watcher:
    """Reads a clock whenever garbage is collected, as that of Hypothesis does."""

    def __init__(self):
        self.seen = []

    def note(self, phase, _about):
        self.seen.append((phase, time.perf_counter()))

    __call__ = note


@pytest.fixture(params=["function", "method", "object"])
def watcher(request):
    watcher = Watcher()
    called = {"function": lambda phase, about: watcher.note(phase, about), "method": watcher.note, "object": watcher}
    # Those that were there before ours and those that come later are called at other times.
    callbacks = [called[request.param], *gc.callbacks, called[request.param]]
    before, gc.callbacks[:] = list(gc.callbacks), callbacks
    yield watcher
    gc.callbacks[:] = before


def test_who_watches_collections_is_not_counted(watcher):
    """What a program has called at each garbage collection is none of what is traced, before and after ours."""

    many = [[] for _ in range(10_000)]
    record = recorded(lambda: copy.deepcopy(many))
    assert len(watcher.seen) >= 4
    assert record.refusal is None
    assert [code.co_name for code in record.user.values()] == ["<lambda>"]
    assert Watcher.note.__code__ not in [each.code for each in record.library.values()]


@pytest.fixture
def restored_random():
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    sys.modules.pop("wave", None)


FINE = {
    "walked generator": lambda: (SHARED.random(), SHARED.randint(1, 4), GENERATOR.normal()),
    "seeded generator": lambda: (random.Random(3).choice([1, 2]), np.random.default_rng(3).normal()),
    "given uuid": lambda: uuid.UUID(int=3),
    "names of paths": lambda: (os.path.join("a", "b"), pathlib.Path("a") / "b", os.fspath("a")),
    "vars of an object": lambda: vars(Config()),
    "memory files": lambda: (io.StringIO("x").read(), io.BytesIO().write(b"x")),
    "sleep": lambda: time.sleep(0),
    "quiet logger": lambda: LOGGER.debug("nothing"),
    "known dates": lambda: datetime.datetime(2020, 1, 1),
}


@pytest.mark.parametrize("name", FINE)
def test_what_only_computes_is_fine(name):
    """Generators of the program, seeds, names of paths and files in memory are no reason to refuse."""
    found = recorded(FINE[name])
    assert found.refusal is None
    assert found.lost_output == []


def test_every_name_of_the_environment_is_noted(monkeypatch):
    """Each way to ask for one variable gives its name, also for the second and the hundredth name."""
    monkeypatch.setenv("EJC_A1", "1")

    def reads():
        os.environ.get("EJC_A1")
        os.getenv("EJC_A2")
        assert "EJC_A3" not in os.environ
        with pytest.raises(KeyError):
            os.environ["EJC_A4"]
        for number in range(5, 100):
            os.environ.get(f"EJC_A{number}", "")

    found = recorded(reads)
    assert found.variables == {f"EJC_A{number}" for number in range(1, 100)}
    assert found.refusal is None


OUTPUT = {
    "print": (lambda: print("x"), "prints"),
    "stdout": (lambda: sys.stdout.write("x"), "prints"),
    "warning": (lambda: warnings.warn("oh", stacklevel=1), "warns"),
    "log": (lambda: LOGGER.warning("oh"), "logs"),
    "log with a traceback": (lambda: LOGGER.warning("oh", stack_info=True), "logs"),
}


@pytest.mark.parametrize("name", OUTPUT)
@pytest.mark.filterwarnings("ignore:oh")
def test_output_is_noted_and_does_not_refuse(name):
    """What a function prints, logs or warns is lost when its trace is skipped: it is said, and is no refusal."""
    function, said = OUTPUT[name]
    found = recorded(function)
    assert found.refusal is None
    assert any(said in sentence for sentence in found.lost_output)


def helper():
    return len([1])


def test_code_that_ran_is_told_apart():
    """User code is under its own code objects, library code with the globals that it reads."""
    found = recorded(lambda: (helper(), functools.reduce(max, [1, 2]), textwrapped()))
    assert helper.__code__ in found.user.values()
    assert all(key == id(code) for key, code in found.user.items())
    ran = {each.code.co_qualname: each for each in found.library.values()}
    assert "TextWrapper.wrap" in ran
    assert ran["TextWrapper.wrap"].namespace["__name__"] == "textwrap"
    assert not any(each.code is helper.__code__ for each in found.library.values())


def textwrapped():
    import textwrap

    return textwrap.wrap("a b", 2)


def test_code_that_ran_before_is_seen_again():
    """Each recording reports all that runs in it, not only what no earlier one has seen."""
    import textwrap  # noqa: F401

    first, second = recorded(textwrapped), recorded(textwrapped)
    assert second.user.keys() >= {id(textwrapped.__code__)}
    assert {each.code.co_qualname for each in first.library.values()} == {
        each.code.co_qualname for each in second.library.values()
    }


def test_nothing_is_noted_in_a_pause():
    """A pause hides what runs, pauses nest, and what ran in a pause is noted when it runs again after it."""
    with Coverage() as found:
        found.pause()
        found.pause()
        helper()
        time.time()
        found.resume()
        os.urandom(1)
        found.resume()
        assert id(helper.__code__) not in found.user
        helper()
    assert id(helper.__code__) in found.user
    assert found.refusal is None


def test_listeners_to_events_of_jax_are_no_part_of_a_trace():
    """What the program's listeners to JAX's events do while a function is traced is not noted, and refuses nothing."""
    import jax

    def listener(event, **_):
        heard.append((event, time.monotonic(), id(event)))

    heard = []
    jax.monitoring.register_event_listener(listener)
    try:
        with Coverage() as coverage:
            jax.monitoring.record_event("/mine")
    finally:
        jax.monitoring.unregister_event_listener(listener)
    assert [event for event, *_ in heard] == ["/mine"]
    assert coverage.refusal is None
    assert listener.__code__ not in coverage.user.values()


def test_other_threads_are_not_counted():
    """Code of other threads is not attributed to the function, also if this thread runs it afterwards."""
    asked, answered = threading.Event(), threading.Event()

    def aside():
        asked.wait()
        other_work()
        time.time()
        answered.set()

    thread = threading.Thread(target=aside)
    thread.start()
    with Coverage() as found:
        found.pause()  # waiting itself is what the program may not do
        asked.set()
        answered.wait()
        found.resume()
        seen = id(other_work.__code__) in found.user
        other_work()
    thread.join()
    assert not seen
    assert id(other_work.__code__) in found.user
    assert found.refusal is None


def other_work():
    return 1


def test_two_recordings_at_once_refuse_the_second():
    """The second recording says that there is another, and the first one goes on."""
    with Coverage() as first, Coverage() as second:
        helper()
    assert first.refusal is None
    assert id(helper.__code__) in first.user
    assert second.refusal == "another function was recorded at the same time"


def test_tool_ids_are_given_back():
    """After a recording, an exception in it included, no tool id is in use and no code object reports calls."""

    def fails():
        raise KeyError

    with pytest.raises(KeyError):
        recorded(fails)
    assert [sys.monitoring.get_tool(each) for each in range(6)].count("ejcache") == 0
    assert recorded(helper).refusal is None
    sys.monitoring.use_tool_id(4, "next")
    try:
        assert sys.monitoring.get_local_events(4, helper.__code__) == 0
    finally:
        sys.monitoring.free_tool_id(4)


def test_no_free_tool_id_refuses():
    """Where other tools use every id, the recording says so, and takes none away from them."""
    for each in (3, 4, 5):
        sys.monitoring.use_tool_id(each, "other")
    try:
        found = recorded(helper)
    finally:
        for each in (3, 4, 5):
            sys.monitoring.free_tool_id(each)
    assert found.refusal == "other tools use every id of sys.monitoring"


LIBRARY = """
import importlib, os, time
def clock():
    return time.time()
def reads(path):
    with open(path) as file:
        return file.read()
def inspects(x):
    return id(x), vars(x), locals()
def lazily():
    from fakelib import later
    return later.K
def by_name(name):
    return importlib.import_module(name)
def exists(path):
    return os.path.exists(path)
def variable():
    return os.environ.get("EJC_LIBRARY")
"""

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from fakelib import code
from ejcache.fingerprint.coverage import Coverage
class C: pass
def report(function, *arguments):
    with Coverage() as found:
        function(*arguments)
    print(function.__name__, "|", found.refusal, "|", sorted(found.variables), "|", len(found.user))
report(code.clock)
report(code.reads, __file__)
report(code.inspects, C())
report(code.lazily)
report(code.by_name, "fakelib.later2")
report(code.exists, "/etc")
report(code.variable)
"""


def test_library_code(tmp_path):
    """A library may call id(), vars() and import its own parts; clocks, files and `exists` refuse, as in user code."""
    package = tmp_path / "site-packages" / "fakelib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "code.py").write_text(LIBRARY)
    (package / "later.py").write_text("K = 3\n")
    (package / "later2.py").write_text("K = 3\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_program(python_command(program, str(package.parent)))
    assert done.stdout.splitlines() == [
        "clock | clock calls time.time() | [] | 0",
        "reads | reads calls open() | [] | 0",
        "inspects | None | [] | 0",
        "lazily | None | [] | 0",
        "by_name | None | [] | 0",
        "exists | exists uses exists of genericpath | [] | 0",
        "variable | None | ['EJC_LIBRARY'] | 0",
    ]


def test_a_trace_of_jax_is_no_reason_to_refuse(tmp_path):
    """JAX traces and lowers a program for the first time in a process: nothing that it does itself refuses."""
    program = tmp_path / "program.py"
    program.write_text(
        "import jax, jax.numpy as jnp\n"
        "from ejcache.fingerprint.coverage import Coverage\n"
        "def loss(w, x):\n"
        "    return jnp.sum(jax.nn.softmax(jnp.einsum('ij,jk->ik', x, w)) ** 2) + jnp.linalg.norm(w)\n"
        "def step(w, x):\n"
        "    l, g = jax.value_and_grad(loss)(w, x)\n"
        "    w = jax.lax.fori_loop(0, 3, lambda i, w: w - 0.1 * g, w)\n"
        "    return w, l, jax.random.normal(jax.random.key(0), (3,))\n"
        "with Coverage() as found:\n"
        "    jax.jit(step).lower(jnp.ones((4, 4)), jnp.ones((2, 4)))\n"
        "print(found.refusal, found.lost_output, len(found.library) > 500)\n"
        "print(sorted(code.co_name for code in found.user.values()))\n"
    )
    lines = run_program(python_command(program), env={"JAX_PLATFORMS": "cpu"}).stdout.splitlines()
    assert lines == ["None [] True", "['<lambda>', 'loss', 'step']"]

"""Of the process outside of JAX, ejcache changes nothing: each program here runs with and without it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from forking import ForkedBeforeEjcache, ForkedBeforeEjcacheToTheEnd
from helpers import ROOT, run_program

if TYPE_CHECKING:
    from pathlib import Path

WAYS = ("EJCACHE=1", "run", "enable")
"""How a program comes to use the cache."""

FINALIZERS = """
import pathlib, sys, tempfile, weakref
kept = pathlib.Path(sys.argv[2])
tempfile.tempdir = str(kept)
if sys.argv[1] == "enable":
    import ejcache
    ejcache.enable(min_compile_seconds=0)
import jax

class Cycle:
    def __init__(self, *rest):
        self.me, self.rest = self, rest

class Imports(Cycle):
    def __del__(self):
        import colorsys
        (kept / "imports").write_text(str(colorsys.rgb_to_hsv(0, 0, 1)))

class Opens(Cycle):
    def __del__(self):
        for row in self.rest:
            with open(kept / "opens", "a") as file:
                file.write(f"{row}\\n")

class Dumps(Cycle):
    def __del__(self):
        import json
        with open(kept / "json", "w") as file:
            json.dump({"rest": self.rest}, file)

class Starts(Cycle):
    def __del__(self):
        import subprocess
        subprocess.run(["touch", str(kept / "subprocess")], check=True)

class Logs(Cycle):
    def __del__(self):
        import logging
        handler = logging.FileHandler(kept / "logging")
        logging.getLogger("guest").addHandler(handler)
        logging.getLogger("guest").error("ended")
        handler.close()

def generate(cycle):
    try:
        yield
    finally:
        with open(kept / "generator", "w") as file:
            file.write("ended")

def drop():
    "Each of these is garbage that only a collection finds, or is held until the interpreter ends."
    for kind in (Imports, Opens, Dumps, Starts, Logs):
        kind(1, 2, 3)
    cycle = []
    cycle.append(generate(cycle))
    next(cycle[0])
    Cycle(tempfile.TemporaryDirectory())

compute = jax.jit(lambda x: (x @ x).sum())
assert float(compute(jax.numpy.ones((8, 8)))) == 512
jax.clear_caches()
drop()
"""

STATE = """
import builtins, faulthandler, gc, json, locale, logging, multiprocessing, os, pathlib, random, resource, signal, socket
import sys, threading, warnings, weakref, atexit
import numpy as np

random.seed(0)
np.random.seed(0)
hooks = []
add = sys.addaudithook
sys.addaudithook = lambda hook: (hooks.append(hook), add(hook))

def named(thing):
    if isinstance(thing, (list, tuple)):
        return [named(each) for each in thing]
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"

def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask

def state():
    return {
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), named(gc.callbacks)],
        "objects": len(gc.get_objects()) > 10_000,
        "switch interval": sys.getswitchinterval(),
        "recursion limit": sys.getrecursionlimit(),
        "signals": {str(each): named(signal.getsignal(each)) for each in signal.valid_signals()},
        "hooks": named([sys.excepthook, sys.unraisablehook, sys.displayhook, sys.breakpointhook, sys.gettrace(),
                        sys.getprofile(), threading.excepthook, threading.gettrace(), threading.getprofile()]),
        "audit hooks": len(hooks),
        "tools": [sys.monitoring.get_tool(each) for each in range(6)] if hasattr(sys, "monitoring") else [],
        "imports": [named(sys.meta_path), named(sys.path_hooks), sys.path, sys.dont_write_bytecode],
        "environment": dict(os.environ),
        "warnings": [str(each) for each in warnings.filters],
        "showwarning": named([warnings.showwarning, warnings.formatwarning]),
        "logging": [logging.root.level, named(logging.root.handlers), logging.root.manager.disable,
                    named([logging.getLoggerClass(), logging.getLogRecordFactory(), logging.lastResort])],
        "locale": locale.setlocale(locale.LC_ALL),
        "files": [umask(), os.getcwd(), socket.getdefaulttimeout()],
        "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)],
        "threads": [threading.stack_size(), multiprocessing.get_start_method(allow_none=True)],
        "faulthandler": faulthandler.is_enabled(),
        "builtins": sorted(vars(builtins)),
        "random": [random.getstate(), np.random.get_state()[1].tolist()],
        "finalizers": weakref.finalize._registered_with_atexit,
    }

ours = sys.argv[1] == "enable"
gc.unfreeze()  # what the process that was forked has frozen
import jax
jax.devices()
first = atexit.register(print, "registered first")
states = [state()]
if ours:
    import ejcache
    ejcache.enable(sys.argv[2], min_compile_seconds=0)
states.append(state())
for number in range(6):
    assert jax.jit(lambda x: x * number + 1)(2) == 2 * number + 1
states.append(state())
if ours:
    assert ejcache.stats().misses >= 6, ejcache.stats()
    ejcache.disable()
states.append(state())

class Ends:
    def __init__(self, name):
        self.me, self.name = self, name
    def __del__(self):
        print("deleted", self.name)

held = Ends("held")
weakref.finalize(held, print, "finalized")
atexit.register(print, "registered last")
Ends("dropped")
print(json.dumps(states))
"""

DROPPED = """
import gc, sys, weakref
import jax, numpy as np
from jax import numpy as jnp

class Loader:
    def __init__(self):
        self.me, self.batch = self, np.empty(50_000_000)

class Config:
    pass

config = Config()
users = [{"config": config} for _ in range(3)]
gc.collect()
step = jax.jit(lambda p, x: (p + x, (p * x).sum()))
p = x = jnp.ones(4)
dead = weakref.ref(Loader())
freed = []
if sys.argv[1] == "enable":
    import ejcache
    ejcache.enable(sys.argv[2], min_compile_seconds=0)
freed.append(dead() is None)
made = []
for _ in range(200):
    p, loss = step(p, x)
    made.append([[] for _ in range(100)])
    freed.append(dead() is None)
referrers = [each for each in gc.get_referrers(config) if isinstance(each, dict) and each is not globals()]
print(freed.index(True) if True in freed else "never", len(referrers), len(gc.get_objects()) > 10_000)
"""

REPLACED = """
import inspect, json, sys
import jax
import jax.experimental.serialize_executable
import ejcache

def functions_of_jax():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("jax", "jaxlib"):
            continue
        for attribute, value in list(vars(module).items()):
            found[name, attribute] = value
            if inspect.isclass(value) and value.__module__ == name:
                found |= {(name, attribute, own): each for own, each in list(vars(value).items())}
    return {name: value for name, value in found.items() if callable(value) or inspect.ismodule(value)}

def replaced():
    now = functions_of_jax()
    return sorted({name[-1] for name, value in before.items() if name in now and now[name] is not value})

jax.jit(lambda x: x + 1)(2.0)
before = functions_of_jax()
ejcache.enable(sys.argv[1], min_compile_seconds=0)
jax.jit(lambda x: x + 3)(2.0)
while_enabled = replaced()
with ejcache.forbid_compile():
    pass
ejcache.disable()
print(json.dumps([while_enabled, replaced()]))
"""


def everything(place: Path) -> dict[str, str]:
    """The files below a directory and what they hold; of temporary directories only that they are there."""
    return {path.relative_to(place).as_posix(): path.read_text() if path.is_file() else "" for path in place.rglob("*")}


def written_by_finalizers(place: Path, way: str) -> dict[str, str]:
    place.mkdir()
    script = place.parent / "finalizers.py"
    script.write_text(FINALIZERS)
    command = [sys.executable, script, way, place]
    if way == "run":
        command[1:1] = ["-m", "ejcache", "run"]
    done = run_program(command, env={"EJCACHE": "1"} if way == "EJCACHE=1" else {})
    assert "Exception ignored" not in done.stderr, done.stderr
    return everything(place)


@pytest.mark.soak
def test_finalizers_at_exit_write_what_they_write_without_ejcache(tmp_path):
    """Cycles with `__del__`, a generator's `finally` and a temporary directory end as the interpreter ends them."""
    plain = written_by_finalizers(tmp_path / "plain", "plain")
    assert sorted(plain) == ["generator", "imports", "json", "logging", "opens", "subprocess"]
    for way in WAYS:
        assert written_by_finalizers(tmp_path / way, way) == plain, way


def test_the_process_is_as_without_ejcache(run_python, tmp_path):
    """Before and after `enable()`, after some programs, after `disable()`, and in the order of its exit."""
    plain, ours = (
        run_python(STATE, who, str(tmp_path / "cache"), start=ForkedBeforeEjcacheToTheEnd).stdout.splitlines()
        for who in ("plain", "enable")
    )
    for moment, without, with_it in zip(
        ("at first", "enabled", "after some programs", "disabled"),
        json.loads(plain[0]),
        json.loads(ours[0]),
        strict=True,
    ):
        differ = {name: (without[name], with_it[name]) for name in without if without[name] != with_it[name]}
        assert differ == {}, moment
    assert ours[1:] == plain[1:]
    assert len(plain) > 4


def test_the_page_about_jax_lists_what_is_replaced_and_what_stays(run_python, tmp_path):
    """A maintainer of JAX reads there which functions are not JAX's own, with the cache and after `disable()`."""
    done = run_python(REPLACED, str(tmp_path / "cache"), start=ForkedBeforeEjcache)
    while_enabled, stays = json.loads(done.stdout)
    page = (ROOT / "docs" / "jax.md").read_text(encoding="utf-8")
    replaced, _, after = page.partition("### What stays after disable")
    staying = after.partition("\n## ")[0]
    assert "compile_or_get_cached" in while_enabled
    passes = "register_xla_transform"  # the page names those by how they begin
    assert [name for name in while_enabled if name not in replaced + staying and not name.startswith(passes)] == []
    assert "persistent_id" in stays
    assert [name for name in stays if f"{name}`" not in staying] == []


@pytest.mark.soak
def test_dropped_memory_is_freed_as_early_as_without_ejcache(run_python, tmp_path):
    """A cycle that holds 400 MB, dropped before `enable()`; and a debugger finds who refers to an object."""
    plain, ours = (run_python(DROPPED, who, str(tmp_path / "cache")).stdout.split() for who in ("plain", "enable"))
    assert int(ours[0]) <= int(plain[0])
    assert ours[1:] == plain[1:] == ["3", "True"]

"""python hostile_worker.py: uses one hostile cache after the other, each in a child process with limits.

Reads one JSON object a line: cache (directory or URL), home, name (of the hostile entry), key, seconds, and variables.
Answers with one line: what went wrong, the memory that it took, and why the hostile entry was a miss.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from autotune_helpers import key as tuned_key
from cli_helpers import ejcache, key_text, load_command

from ejcache.autotune.records.store import AutotuneStore
from ejcache.cache.compilation_cache import CompilationCache
from ejcache.cache.opening import open_cache_store, open_single_flight
from ejcache.cache.reading import CacheReader
from ejcache.errors import EjcacheError
from ejcache.maintenance.eviction import run_pass
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.settings.resolve import resolve
from ejcache.stores.opening import open_store

GIB = 1 << 30
COMMANDS = (
    ["ls"],
    ["stats"],
    ["ls", "jit_train"],
    ["why", "jit_train"],
    ["verify"],
    ["verify", "--fix"],
    ["prune", "--max-size", "5GB"],
    ["config"],
)


def status(name: str) -> int:
    """Bytes of memory, by a name in /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def job(task: dict) -> list[str]:
    """Use the cache as programs and people do; what went wrong."""
    problems: list[str] = []
    if task["kind"] == "tuned":
        store = AutotuneStore(task["cache"])
        with contextlib.suppress(EjcacheError):
            store.find_all(tuned_key())
        commands = (["tuned", "ls"], ["tuned", "stats"], ["tuned", "prune", "--older-than", "1d", "-n"])
    elif task["kind"] == "archive":
        commands = (["pull", task["cache"]], ["ls"])
        task["cache"] = f"{task['home']}/imported"
    else:
        if task["kind"] == "cache":
            use(task, problems)
        copies = task["home"]
        commands = (
            *COMMANDS,
            ["push", f"{copies}/copy"],
            ["push", f"{copies}/copy.tar"],
            ["config", "set", "max_size=1GB"],
            ["stats", "--reset"],
            ["prune", "--all", "--yes"],
        )
    for command in commands:
        said = ejcache(*command, "--dir", task["cache"])
        if command == ["ls"] and task.get("listed") and task["listed"] not in said.out:
            problems.append(f"{task['listed']} is not listed: {said.out[-500:]}")
        text = said.out + said.err
        if "Traceback" in text or "unexpected" in text or said.status not in {0, 1, 2}:
            problems.append(f"{command}: {said.status} {text[-1500:]}")
        if any(not (c.isprintable() or c in "\n\t") for c in text):
            problems.append(f"{command} printed control characters: {text[:500]!r}")
        if not all(line.startswith(("ejcache: ", "  ")) for line in said.err.splitlines()):
            problems.append(f"{command} printed a line of nobody: {said.err[:500]!r}")
    return problems


def use(task: dict, problems: list[str]) -> None:
    """A program's lookups, one that is hostile and one that is not, and the pass that its exit may make."""
    url = task["cache"]
    reader = CacheReader(
        url,
        open_store=lambda: open_cache_store(url, resolve()),
        open_single_flight=lambda store: open_single_flight(url, store, resolve()),
    )
    cache = CompilationCache(reader)
    if cache.get(task["key"]) is None:
        # As a compile does: somebody else's lease may be waited for, but not for long.
        flight = reader.single_flight(resolve())
        options = {"lookup": lambda: None, "work": lambda: b"made", "deadline": 0.5, "missed_since": time.monotonic()}
        task["miss"] = next(iter(cache.stats().misses_by_reason))
        made = flight.run(task["key"], **options) if flight is not None else b"made"
        if made != b"made":
            problems.append("nothing was compiled")
    good = key_text("jit_good")
    cache.put(good, b"good", compile_seconds=5.0)
    if task.get("works") and cache.get(good) != b"good":
        problems.append("a good entry was not found again")
    cache.close()
    with contextlib.suppress(EjcacheError), open_store(task["cache"]) as store:
        run_pass(store, EvictionPolicy(max_size=5 * GIB), now=lambda: time.time() + 2 * 86_400)


def child(task: dict, write: int) -> None:
    os.environ.update({"HOME": task["home"], "XDG_CACHE_HOME": f"{task['home']}/.cache", **task["variables"]})
    Path("/proc/self/clear_refs").write_text("5")
    before, space, imported = status("VmRSS"), status("VmSize"), {*sys.modules}
    resource.setrlimit(resource.RLIMIT_AS, (space + 4 * GIB, space + 4 * GIB))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        problems = job(task)
    except BaseException:
        problems = [traceback.format_exc()]
    answer = {"problems": problems, "grown": status("VmHWM") - before, "miss": task.get("miss", "")}
    answer["imported"] = [name for name in sys.modules if name not in imported]
    os.write(write, json.dumps(answer).encode()[:60_000])


def run(task: dict) -> dict:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with contextlib.suppress(BaseException):
            child(task, write)
        os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], task["seconds"])
    data = os.read(read, 1 << 20) if ready else b""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read)
    if not ready:
        return {"problems": [f"not done after {task['seconds']} s"], "grown": 0}
    return json.loads(data) if data else {"problems": ["the process died"], "grown": 0}


def main() -> None:
    for name in {command for command, *_ in (*COMMANDS, ["pull"], ["push"], ["tuned"])}:
        load_command(name)
    for line in sys.stdin:
        gc.freeze()  # no child goes through what is here
        answer = run(json.loads(line))
        for name in answer.pop("imported", ()):  # once, and not in each child
            importlib.import_module(name)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

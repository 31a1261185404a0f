"""Leads cases through their phases, two at a time, each phase in a child of a server, which has its own hash seed."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from helpers import ROOT, SUPPORT, variables_to_clear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from direct_traps.trap import Trap

__all__ = ["MODES", "Phase", "run_traps"]


class Phase(NamedTuple):
    """One start of a program.

    Attributes:
        name: of the phase.
        version: which of the two versions runs.
        server: which server's child it is. Children of one server have one hash seed, which Python chooses: a seed that
            is fixed would be part of what a record is for.
        history: what the server has imported before.
        plain: it is plain `jax.jit`, not what is under test.
    """

    name: str
    version: int
    server: str
    history: str = "plain"
    plain: bool = False


_PLAIN: Final = (Phase("plain 1", 1, "third", plain=True), Phase("plain 2", 2, "fourth", plain=True))
_LAST: Final = (Phase("hit", 1, "third"), Phase("changed", 2, "fourth"))

MODES: Final = {
    "jit": (Phase("record", 1, "second", "other"), *_LAST),
    "direct": (Phase("record", 1, "first"), Phase("prove", 1, "second", "other"), *_LAST),
    "ejkernel": (Phase("record", 1, "first"), *_LAST),
}
"""The phases of a case, by mode, in order. Where the changed program was not traced, both versions run plainly, too."""


class _Server:
    """One process of `server.py`."""

    def __init__(self, phase: Phase, mode: str, options: Sequence[str], library: str, home: Path) -> None:
        env = {name: value for name, value in os.environ.items() if name not in variables_to_clear(os.environ)}
        env |= {
            "PYTHONHASHSEED": "random",
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), *filter(None, [env.get("PYTHONPATH")]), str(ROOT / "src")]),
            "JAX_PLATFORMS": "cpu",
            "HOME": str(home),
            "EASYDEL_CACHE_COMPILES": "1" if mode == "ejkernel" else "",
            # A forked child has none of its parent's threads; these would make some while NumPy is imported.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        with (home / f"{phase.server}-{threading.get_ident()}.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, *options, "-m", "direct_traps.server", mode, phase.history, *library.split()],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        started = self._read()
        if started.get("threads") != 1:
            raise RuntimeError(f"the server cannot fork: {started}")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Servers:
    """The servers of one worker, each started when it is first needed."""

    def __init__(self, mode: str, home: Path) -> None:
        self._mode, self._home = mode, home
        self._made: dict[tuple[str, tuple[str, ...], str], _Server] = {}

    def ask(self, phase: Phase, trap: Trap, home: Path) -> dict[str, Any]:
        options = trap.options if phase.version == 2 else ()
        key = (phase.server, options, trap.needs)
        if key not in self._made:
            self._made[key] = _Server(phase, self._mode, options, trap.needs, self._home)
        files, call, env = trap.version(phase.version)
        arguments = env.pop("ARGUMENTS", "").split()
        return self._made[key].ask(
            {
                "mode": "plain" if phase.plain else self._mode,
                "home": str(home),
                "files": files,
                "call": call,
                "env": env,
                "arguments": arguments,
            }
        )

    def close(self) -> None:
        for server in self._made.values():
            server.close()


def run_traps(
    traps: Sequence[Trap], *, mode: str, jobs: int = 2, say: Callable[[str], None] = lambda line: None
) -> Iterator[tuple[Trap, dict[str, dict[str, Any]]]]:
    """Each case with the answers of its phases, as they end. Cases whose library is absent are left out."""
    wanted: queue.SimpleQueue[Trap] = queue.SimpleQueue()
    here = [each for each in traps if not each.needs or find_spec(each.needs) is not None]
    for each in here:
        wanted.put(each)
    done: queue.SimpleQueue[tuple[Trap, dict[str, dict[str, Any]]] | BaseException] = queue.SimpleQueue()
    # In memory where that can be: hundreds of caches are made and removed.
    home = Path(tempfile.mkdtemp(prefix="direct-traps-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    workers = [
        threading.Thread(target=_work, args=(wanted, done, mode, home, number), daemon=True)
        for number in range(min(jobs, len(here)))
    ]
    try:
        for worker in workers:
            worker.start()
        for number in range(len(here)):
            found = done.get()
            if isinstance(found, BaseException):
                raise found
            say(f"{number + 1}/{len(here)} {found[0].name}")
            yield found
        for worker in workers:
            worker.join()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _work(wanted: Any, done: Any, mode: str, home: Path, worker: int) -> None:
    servers = _Servers(mode, home)
    try:
        while True:
            try:
                trap = wanted.get_nowait()
            except queue.Empty:
                return
            directory = Path(tempfile.mkdtemp(prefix=f"{worker}-", dir=home))
            answers = {phase.name: servers.ask(phase, trap, directory) for phase in MODES[mode]}
            if mode == "jit" or not answers["changed"].get("traced"):
                answers |= {phase.name: servers.ask(phase, trap, directory) for phase in _PLAIN}
            shutil.rmtree(directory, ignore_errors=True)
            done.put((trap, answers))
    except BaseException as exc:  # the main thread raises it
        done.put(exc)
    finally:
        servers.close()

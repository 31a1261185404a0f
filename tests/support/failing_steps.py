"""python failing_steps.py SITUATION PLACE: two programs in many processes, in each of which a step of ejcache fails.

SITUATION is `hit` or `miss`. A step is a request to the system that a frame of ejcache makes: to import a module, to
open, list, make, move or remove a file, to open a database. Each line of stdin, `NUMBER ERROR LASTING`, starts a
process in which the step of this number fails with that error, and with LASTING `1` each later one, too. No step has
number 0. Each process begins with a copy of the same cache and home, below PLACE. Its answer is a line: the results,
how often each program was compiled, how many steps there were up to the end of its exit, the first that failed, and its
exit status.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from forking import end_process
from jax._src import compiler as jax_compiler

STEPS = {"import", "open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "sqlite3.connect"}
"""Events of Python's audit hooks."""
PROGRAMS = {"double": lambda x: x * 2, "add": lambda x: x + 1}
OURS = f"{os.sep}ejcache{os.sep}"


class Faults:
    """An audit hook that counts the steps of ours, and lets some fail."""

    def __init__(self, number: int, error: str, *, lasting: bool) -> None:
        self.number, self.error, self.lasting = number, error, lasting
        self.count = 0
        self.failed = ""
        self.has_ended = False
        sys.addaudithook(self.look)

    def look(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in STEPS or self.has_ended:
            return
        frame = sys._getframe(1)
        while frame is not None and OURS not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is None:
            return
        self.count += 1
        if self.count == self.number or (self.lasting and self.count > self.number > 0):
            where = f"{frame.f_code.co_filename.rpartition(OURS)[2]}:{frame.f_lineno}"
            self.failed = self.failed or f"{event} {arguments[0]!r} in {where}"
            if self.error == "MemoryError":
                raise MemoryError
            number = getattr(errno, self.error)
            raise OSError(number, os.strerror(number))


def run_programs(place: Path, situation: str, own: Path, number: int, error: str, *, lasting: bool) -> None:
    """Run the programs in this new process, whose exit writes the answer."""
    cache = (own if own == place or situation == "hit" else own / "empty") / "cache"
    if own != place:
        shutil.copytree(place / "home", own / "home")
        shutil.copytree(place / "cache", own / "cache")
    os.environ.update(HOME=str(own / "home"), EJCACHE=f"{cache}/", EJCACHE_MIN_COMPILE_SECONDS="0")
    answer: dict[str, Any] = {"compiled": {}}
    compile_it = jax_compiler.backend_compile_and_load

    def counted(backend: Any, module: Any, *arguments: Any, **named: Any) -> Any:
        name = str(module.operation.attributes["sym_name"]).strip('"')
        answer["compiled"][name] = answer["compiled"].get(name, 0) + 1
        return compile_it(backend, module, *arguments, **named)

    jax_compiler.backend_compile_and_load = counted
    faults = Faults(number, error, lasting=lasting)

    def write() -> None:
        faults.has_ended = True
        (own / "answer").write_text(json.dumps({**answer, "steps": faults.count, "failed": faults.failed}))

    atexit.register(write)  # before ejcache registers, and so it runs after ejcache
    results = []
    for name, function in PROGRAMS.items():
        function.__name__ = name
        results.append(np.asarray(jax.jit(function)(np.arange(6, dtype=np.float32).reshape(2, 3))).tolist())
    answer.update(results=results, before_exit=faults.count)


def main() -> None:
    """Start one process after the other until stdin ends."""
    situation, place = sys.argv[1], Path(sys.argv[2])
    (place / "home").mkdir(parents=True)
    # The first two fill the cache and the home.
    for count, line in enumerate(itertools.chain(["0 - 0", "0 - 0"], sys.stdin)):
        number, error, lasting = line.split()
        own = place if count < 2 else place / str(count)
        own.mkdir(exist_ok=True)
        process = os.fork()
        if process == 0:
            run_programs(place, situation, own, int(number), error, lasting=lasting == "1")
            end_process(0)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if count >= 2:
            answer = own / "answer"
            found = json.loads(answer.read_text()) if answer.is_file() else {}
            print(json.dumps({**found, "status": status}), flush=True)
            shutil.rmtree(own)


if __name__ == "__main__":
    main()

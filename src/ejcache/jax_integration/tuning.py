"""What was compiled without its GPU is compiled again with it, behind the program that uses it.

XLA chooses among its kernels by running them. Without a device it takes the first that fits, and the executable is
stored as the variant `cross`. A process that has the device uses that at once. With the setting `tune_cross` it then
compiles the program as plain XLA would, when the program has had time to start, and the next process loads the result.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from ejcache.cache.counters import Miss
from ejcache.jax_integration.program import CompileTarget, LoweredProgram
from ejcache.jax_integration.seam import lowered
from ejcache.jax_integration.seam import patch as seam
from ejcache.jax_integration.seam.coordination import process_index
from ejcache.jax_integration.warm_start.state import is_forbidden
from ejcache.util.lifecycle import ExitPhase, at_exit
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from ejcache.jax_integration.compilation import Compilation
    from ejcache.jax_integration.publishing import Publisher

_DELAY_SECONDS: Final = 60.0
"""A program that has just loaded its executables compiles and loads others."""
_EXIT_SECONDS: Final = 600.0
"""How long a process that ends waits for XLA, which cannot be interrupted."""


class Tuning:
    """Compiles programs again, one after the other. Safe to use from several threads.

    A failure is logged; the program goes on with what it has.

    Args:
        publisher: stores the results.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._begun: set[str] = set()
        self._scheduler = Scheduler(threads=1, name="ejcache-tuning")
        at_exit(ExitPhase.WRITE, self.close)

    def begin(self, compilation: Compilation, target: CompileTarget) -> None:
        """Compile a program later, if the settings say so; of several processes, the lowest rank does."""
        if not compilation.settings.tune_cross:
            compilation.cache.warn(
                "cross",
                f"{compilation.key.name} was compiled without a GPU, so XLA has not tuned it; EJCACHE_TUNE_CROSS=1 has "
                "such programs compiled again behind this one",
            )
            return
        leads = process_index() == compilation.ranks[0]
        if not leads or compilation.text in self._begun or is_forbidden() or target.callbacks:
            return
        self._begun.add(compilation.text)
        data = lowered.module_bytes(compilation.module)
        # XLA would wait for the other ranks, which do not compile it.
        alone = {"xla_gpu_shard_autotuning": False} if compilation.is_multi_process else {}
        target = target._replace(options=lowered.with_overrides(target.options, alone))
        task = partial(self._compile, compilation, target, data)
        self._scheduler.later(_DELAY_SECONDS, lambda: self._scheduler.submit(task))

    def close(self) -> None:
        """Compile nothing more, and wait for what is being compiled."""
        self._scheduler.stop()
        self._scheduler.drain(patience=_EXIT_SECONDS, limit=_EXIT_SECONDS)

    def _compile(self, compilation: Compilation, target: CompileTarget, data: bytes) -> None:
        if is_forbidden() or compilation.cache.contains(compilation.text, compilation.settings):
            return
        name = compilation.key.name
        try:
            program = LoweredProgram(lowered.module_of(data), name, target)
            began = time.monotonic()
            executable = seam.compile_executable(program)
            seconds = time.monotonic() - began
            compilation.miss = Miss.CROSS
            self._publisher.publish(compilation, program, executable, compile_seconds=seconds)
        except Exception as exc:
            compilation.report_failure("compile a program on the GPU again", exc)
        else:
            log.info("ejcache: %s is tuned: %.2f s", name, seconds)

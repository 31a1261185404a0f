"""Watches compilations: calls a function before XLA compiles a program, also one for which no cache is asked.

`jax._src.compiler.backend_compile_and_load` is where JAX gives a module to XLA, with and without a cache;
`compile_or_get_cached` is where it looks for an executable, once it has lowered a function.

Read for this: jax 0.10.2 and 0.12.0.1, `compiler.py`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jax._src import compiler as jax_compiler

from ejcache.jax_integration.seam.patch import module_name
from ejcache.jax_integration.seam.tracebacks import without_our_frames
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable


def before_each_compilation(call: Callable[[str], None]) -> None:
    """Call `call` with the name of each program before XLA compiles it; what it raises, JAX raises.

    There is one such function in a process, and a second call with the same one does nothing. It stays: taking it out
    could take out what another library has put around it.
    """
    original = getattr(jax_compiler, "backend_compile_and_load", None)
    if original is None:
        warn_once(
            "no backend_compile_and_load",
            "ejcache: compilations without a cache cannot be forbidden, because this version of JAX compiles elsewhere",
        )
        return
    if call in _watching:
        return

    @functools.wraps(original)
    def compile_after_call(backend: Any, module: Any, *arguments: Any, **named: Any) -> Any:
        call(module_name(module))
        return original(backend, module, *arguments, **named)

    jax_compiler.backend_compile_and_load = without_our_frames(compile_after_call)
    _watching.append(call)  # afterwards: a thread that finds it there is watched


_watching: list[Callable[[str], None]] = []

"""Watches compilations: calls a function before XLA compiles a program, also one for which no cache is asked.

`jax._src.compiler.backend_compile_and_load` is where JAX gives a module to XLA, with and without a cache;
`compile_or_get_cached` is where it looks for an executable, once it has lowered a function.

Read for this: jax 0.10.2 and 0.12.0.1, `compiler.py`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from jaxlib.mlir import ir

from ejcache.jax_integration.seam.parts import Part
from ejcache.jax_integration.seam.tracebacks import without_our_frames
from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable


PART: Final = Part("blocks that forbid compilations for which no cache is asked", {"jax._src.compiler": ()})
jax_compiler = PART.module("jax._src.compiler")
_NAMES: Final = ("backend_compile_and_load", "backend_compile")
"""What JAX compiles with; the second one before JAX 0.6.2."""


def before_each_compilation(call: Callable[[str], None]) -> None:
    """Call `call` with the name of each program before XLA compiles it; what it raises, JAX raises.

    There is one such function in a process, and a second call with the same one does nothing. It stays: taking it out
    could take out what another library has put around it.
    """
    if call in _watching:
        return
    name = next((each for each in _NAMES if hasattr(jax_compiler, each)), "")
    if not name:
        warn_once("no compilation", "ejcache: this JAX does not give %s: %s are gone", PART.gives, " and ".join(_NAMES))
        return
    original = getattr(jax_compiler, name)

    @functools.wraps(original)
    def compile_after_call(backend: Any, module: Any, *arguments: Any, **named: Any) -> Any:
        call(str(ir.StringAttr(module.operation.attributes["sym_name"]).value))
        return original(backend, module, *arguments, **named)

    setattr(jax_compiler, name, without_our_frames(compile_after_call))
    _watching.append(call)  # afterwards: a thread that finds it there is watched


_watching: list[Callable[[str], None]] = []

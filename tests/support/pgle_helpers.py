"""PGLE on a CPU: JAX's own profiler, sessions and aggregation, except that a session's profile is made up.

A CPU gives an empty one, with which JAX never recompiles.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax._src.lib import _profiler as xla_profiler

__all__ = ["RUNS", "Seen", "Watch", "made_up_profile", "program", "watch"]

RUNS = 2
FIRST_PASS = ("xla_gpu_enable_command_buffer", "")


def made_up_profile(cost: float = 1.0) -> bytes:
    """A ProfiledInstructionsProto that says what one instruction costs: field 1 {1: name, 2: cost}."""
    inner = b"\x0a\x03add" + b"\x11" + struct.pack("<d", cost)
    return b"\x0a" + bytes([len(inner)]) + inner


@dataclass
class Seen:
    """What JAX did: a word for each compilation ("plain", "first pass" or "profile"), and how many runs it profiled."""

    compiled: list[str] = field(default_factory=list)
    profiled: int = 0
    profiles: list[bytes] = field(default_factory=list)


class Watch:
    """Sees what JAX does with a program, as a context manager."""

    def __init__(self, cost: float = 1.0) -> None:
        self.seen, self._cost = Seen(), cost

    def __enter__(self) -> Seen:
        self._profile, self._compile = xla_profiler.get_fdo_profile, compiler.backend_compile_and_load
        xla_profiler.get_fdo_profile = self._made_up
        compiler.backend_compile_and_load = self._watched
        return self.seen

    def __exit__(self, *exc: object) -> None:
        xla_profiler.get_fdo_profile, compiler.backend_compile_and_load = self._profile, self._compile

    def _made_up(self, space: Any) -> bytes:
        self._profile(space)
        self.seen.profiled += 1
        return made_up_profile(self._cost)

    def _watched(self, backend: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> Any:
        profile = bytes(options.executable_build_options.fdo_profile or b"")
        first_pass = FIRST_PASS in list(options.env_option_overrides)
        self.seen.compiled.append("profile" if profile else "first pass" if first_pass else "plain")
        if profile:
            self.seen.profiles.append(profile)
        return self._compile(backend, module, devices, options, callbacks)


watch = Watch


def program(*, calls: int, factor: float = 2.0) -> None:
    """Compile a program anew and call it; the values are checked."""

    def step(x):
        return jax.numpy.sin(x) * factor

    jax.clear_caches()
    jitted = jax.jit(step)
    x = np.arange(4.0, dtype=np.float32)
    for _ in range(calls):
        assert np.allclose(jitted(x), np.sin(x) * factor)

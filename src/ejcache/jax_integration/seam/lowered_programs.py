"""What is done with lowered programs and compile options besides what JAX asks for: a part of the seam.

Read for this: jax 0.10.2 and 0.12.0.1, `interpreters/pxla.py` (`MeshComputation.compile`, `_cached_compilation`) and
`interpreters/mlir.py`.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from jax._src import compiler, xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import _jax
from jaxlib.mlir import ir

from ejcache.jax_integration.program import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator


def ask_for_keys(lowered: Any) -> None:
    """Have JAX begin to compile a `jax.stages.Lowered`, whether or not it was compiled; the hook for keys raises."""
    lowering = copy.copy(lowered._lowering)
    # JAX remembers executables by this name, too.
    lowering._executable, lowering._name = None, f"the key of {lowering._name}"
    lowering.compile()


def with_overrides(options: Any, overrides: dict[str, bool]) -> Any:
    """A copy of compile options in which XLA's options of these names have these values; no key is made of it."""
    copied = copy.deepcopy(options)
    copied.env_option_overrides = [*copied.env_option_overrides, *overrides.items()]
    return copied


def autotune_directory(options: Any) -> str:
    """Return the directory of XLA's autotuning results that compile options name; empty if none."""
    return str(getattr(options.executable_build_options.debug_options, "xla_gpu_per_fusion_autotune_cache_dir", ""))


def default_placement() -> Placement:
    """Return the first device of this process, with the options that JAX makes for it."""
    backend = xla_bridge.get_backend()
    device = backend.local_devices()[0]
    options = compiler.get_compile_options(1, 1, device_assignment=np.array([[device.id]]), backend=backend)
    return Placement(backend, _jax.DeviceList((device,)), options)


@contextlib.contextmanager
def parsed_module(text: str) -> Iterator[Any]:
    """In this block, there is a module of this text, and its context is entered."""
    with mlir.make_ir_context(), ir.Location.unknown():
        yield ir.Module.parse(text)

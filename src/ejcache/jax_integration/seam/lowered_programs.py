"""What is done with lowered programs and compile options besides what JAX asks for: a part of the seam.

Read for this: jax 0.10.2 and 0.12.0.1, `interpreters/pxla.py` (`MeshComputation.compile`, `_cached_compilation`).
"""

from __future__ import annotations

import copy
from typing import Any


def ask_for_keys(lowered: Any) -> None:
    """Have JAX begin to compile a `jax.stages.Lowered`, whether or not it was compiled; the hook for keys raises."""
    lowering = copy.copy(lowered._lowering)
    # JAX remembers executables by this name, too.
    lowering._executable, lowering._name = None, f"the key of {lowering._name}"
    lowering.compile()


def with_overrides(options: Any, overrides: dict[str, bool]) -> Any:
    """Return a copy of compile options in which XLA's options of these names have these values; no key is made of
    it.
    """
    copied = copy.deepcopy(options)
    copied.env_option_overrides = [*copied.env_option_overrides, *overrides.items()]
    return copied


def autotune_directory(options: Any) -> str:
    """Return the directory of XLA's autotuning results that compile options name; empty if none."""
    return str(getattr(options.executable_build_options.debug_options, "xla_gpu_per_fusion_autotune_cache_dir", ""))

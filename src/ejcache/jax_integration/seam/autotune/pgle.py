"""Tells whether PGLE has compiled a function again, with a profile."""

from __future__ import annotations

from typing import Any


def has_pgle_profile(jaxpr: Any) -> bool:
    """True if PGLE has compiled this jaxpr again with a profile that names operations; an empty one is none.

    Read for this: jax 0.10.2 and 0.12.0.1, `_pjit_call_impl_python` in `pjit.py`. False if JAX has changed there.
    """
    from jax._src import pjit

    profiler = getattr(pjit, "_pgle_profiler_dict", {}).get(jaxpr)
    return bool(getattr(profiler, "collected_fdo", None))

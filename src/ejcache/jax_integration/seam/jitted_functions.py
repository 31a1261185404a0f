"""Looks into functions of `jax.jit`: of which function one is, and what `jax.jit` was given with it.

JAX keeps the options in `_jit_info` of its own C++ function. Where a version of JAX lacks it, nobody can say what such
a function holds, and it counts as an object of C. Read for this: jax 0.4.38, 0.8.3, 0.10.2 and 0.12.0.1, `pjit.py`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jax

_OF_SOURCE: Final = frozenset({"fun_sourceinfo", "fun_signature"})
"""What JAX notes of the function itself."""


class JittedParts(NamedTuple):
    """What a function of `jax.jit` is made of.

    Attributes:
        function: the function that is traced.
        options: what `jax.jit` was given, as JAX has it.
    """

    function: Any
    options: dict[str, Any]


_JITTED: Final = type(jax.jit(lambda: None))


def jit_options(jitted: Any) -> dict[str, Any] | None:
    """Return what `jax.jit` was given, without what concerns the function's source; None where JAX does not say it."""
    info = getattr(jitted, "_jit_info", None)
    if info is None:
        return None
    return {name: value for name, value in info._asdict().items() if name not in _OF_SOURCE}


def jitted_parts(value: object) -> JittedParts | None:
    """Return the parts of a function of `jax.jit`; None for everything else, and where JAX does not say them."""
    options = jit_options(value) if type(value) is _JITTED else None
    return None if options is None else JittedParts(value.__wrapped__, options)  # type: ignore[attr-defined]

"""Says what a compilation of a lowered program would look up, without compiling it: `key_of` and `would_hit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.jax_integration.activate import active, enable_by_default
from ejcache.jax_integration.candidates import own_keys
from ejcache.jax_integration.no_compile_blocks import AskedError, asking
from ejcache.jax_integration.seam.compiling import ask_for_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.compilation import Compilation


def key_of(lowered: Any) -> str | None:
    """Return the key under which the cache keeps the executable of a lowered program; None if it cannot keep it.

        lowered = jax.jit(train_step).lower(state_shapes, batch)
        ejcache.key_of(lowered)

    Nothing is compiled, read or counted. In a block of `ejcache.target`, the key is the one that the process with those
    devices will ask for. If the cache has another variant that JAX would load, such as one that was optimised with a
    profile, it is the key of that. The first call in a process enables the cache for the process as `@ejit` does.

    Args:
        lowered: what `jax.jit(function).lower(…)` returns, whether or not it was compiled.
    """
    asked = _candidate_requests(lowered)
    return next(_stored_keys(asked), asked[-1].text) if asked else None


def would_hit(lowered: Any) -> bool:
    """True if the cache has an executable of a lowered program, so that compiling it now would be a hit.

    The entry is not read, so a damaged one counts. Everything else is as in `key_of`.

    Args:
        lowered: what `jax.jit(function).lower(…)` returns.
    """
    return next(_stored_keys(_candidate_requests(lowered)), None) is not None


def _candidate_requests(lowered: Any) -> list[Compilation]:
    """Have JAX ask for the keys of a program, the best first; none if it would be compiled without the cache."""
    enable_by_default()
    if active() is None:
        return []
    with asking() as asked:
        try:
            ask_for_keys(getattr(lowered, "lowered", lowered))  # Equinox's holds JAX's
        except AskedError:
            return asked
    return []


def _stored_keys(asked: list[Compilation]) -> Iterator[str]:
    """Yield the keys of those that the cache has."""
    for compilation in asked:
        for text in own_keys(compilation):
            if compilation.cache.contains(text, compilation.settings):
                yield text

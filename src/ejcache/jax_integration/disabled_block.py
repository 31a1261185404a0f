"""`disabled`: a block in which no persistent cache is used."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import jax

from ejcache.jax_integration.activate import lock, session_in_use
from ejcache.settings.table import Origin, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENABLED: Final = "jax_enable_compilation_cache"


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Keep compilations of this process from using a persistent cache, for a block: neither ejcache's nor JAX's own.

    A function that was compiled before is not compiled again. `enable` and `@ejit` may be called in the block; they
    have an effect after it. The state belongs to the process, not to a thread.
    """
    with lock:
        session = session_in_use()
        before = session.flags.save()[_ENABLED] if session is not None else None
        value = getattr(jax.config, _ENABLED)
        jax.config.update(_ENABLED, False)
        _forget_whether_jax_caches()
    try:
        yield
    finally:
        with lock:
            session = session_in_use()
            if session is None:
                jax.config.update(_ENABLED, value)
            else:
                session.flags.put_back(_ENABLED, before or Value(value, Origin.DEFAULT))
            _forget_whether_jax_caches()


def _forget_whether_jax_caches() -> None:
    """Make JAX read `jax_enable_compilation_cache` again, which it does once per process otherwise."""
    session = session_in_use()
    if session is None or session.compiler is None:
        from jax.experimental.compilation_cache import compilation_cache

        compilation_cache.reset_cache()

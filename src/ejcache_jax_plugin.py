"""Enables ejcache in every process that has `EJCACHE` set, child processes included.

JAX imports this module, an entry point of its `jax_plugins` group, in each process that makes a backend, before the
first compilation, and calls `initialize`. It is outside the package and imports `os` alone, so that a process without
`EJCACHE` pays for nothing else.
"""

from __future__ import annotations

import os

_OFF = {"", "0", "false", "no", "off"}

_called = False


def initialize() -> None:
    """Enable the cache if `EJCACHE` asks for it. Raises nothing: a failure is logged and JAX goes on without us."""
    global _called
    if _called or os.environ.get("EJCACHE", "").strip().lower() in _OFF:
        return
    _called = True  # JAX calls twice: it finds the entry point, and `jax_plugins.ejcache`
    try:
        from ejcache.jax_integration.activate import enable_from_environment

        enable_from_environment()
    except KeyboardInterrupt as exc:
        # JAX prints it with every frame from here on.
        raise exc.with_traceback(None) from None
    except Exception as exc:
        import logging

        logging.getLogger("ejcache").warning(
            "ejcache: EJCACHE is set, but the cache could not be enabled: %s: %s", type(exc).__name__, exc
        )

"""What the core calls of this wing: see `ejcache.wings`."""

from __future__ import annotations

from typing import Any

import jax

from ejcache.jax_integration.activate import current_settings
from ejcache.util.log import warn_once

__all__ = ["jit"]


def jit(fun: Any, options: dict[str, Any]) -> Any | None:
    """The direct function of `fun`, or None if it is to be plain. Takes the options of this wing out of `options`."""
    direct, reads, ignored = options.pop("direct", None), options.pop("reads", ()), options.pop("ignore", ())
    if not direct and (direct is not None or not current_settings().direct):
        return None
    try:
        from ejcache.direct.calls import direct_jit
    except (ImportError, AttributeError) as exc:
        # JAX no longer has a module or a name that direct mode uses.
        warn_once(
            "direct mode", "ejcache: direct mode is off: JAX %s is not built as expected: %s", jax.__version__, exc
        )
        return None
    return direct_jit(fun, options, reads=reads, ignored=ignored, always=bool(direct))

"""JAX's own cache, with the settings of `enable`, for a JAX with which neither form of ejcache is possible."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from ejcache.cache.compilation_cache import CompilationCache
from ejcache.cache.opening import open_cache
from ejcache.cache.policy import CachePolicy
from ejcache.jax_integration.saved_state import set_flags
from ejcache.settings.resolve import resolve
from ejcache.settings.table import FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.stores.location import Location


def leave_to_jax(values: Mapping[str, Any], place_of: Callable[[str], Location | str]) -> CompilationCache:
    """Have JAX's own cache go by these values of settings, and return the cache at its place, which JAX does not use.

    Args:
        values: by the names of the settings.
        place_of: returns the location of a URL.
    """
    flags = {FLAGS[name]: value for name, value in values.items() if name in FLAGS}
    before = {flag: getattr(jax.config, flag) for flag in flags}
    set_flags(flags)
    now = resolve(calls=values)
    place = place_of(str(now.dir))
    policy = CachePolicy(
        str(place),
        open_store=lambda: open_cache(place, now),
    )
    cache = CompilationCache(policy, settings=lambda: now)
    cache.when_left = functools.partial(set_flags, before)
    return cache

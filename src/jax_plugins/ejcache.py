"""Lets JAX find `ejcache_jax_plugin` where ejcache is on the path but not installed, without its entry point."""

from ejcache_jax_plugin import initialize

__all__ = ["initialize"]

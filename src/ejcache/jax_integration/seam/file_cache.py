"""Gives JAX our store where `patch` does not fit, by JAX's function `compilation_cache.get_file_cache(path)`.

JAX calls it once, when the first program asks its persistent cache, for the object that has the entries: a
`CacheInterface`, with `get` and `put`. Its signature and the interface were the same in JAX 0.4.38 to 0.12.0.1, one of
each minor version read. Everything else stays JAX's: the key, what is stored, who writes.

Nothing but this module is imported of JAX's internals, so that it works where they have changed.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Protocol

from jax._src import compilation_cache as jax_cache

from ejcache.util.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME: Final = "get_file_cache"
_METHODS: Final = frozenset({"get", "put"})


class FileCache(Protocol):
    """What JAX asks for the bytes of an executable."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes under JAX's key, or None."""

    def put(self, key: str, value: bytes) -> None:
        """Keep the bytes of an executable that JAX has compiled."""


def mismatches() -> list[str]:
    """List why this JAX takes no store of ours; empty if it does."""
    function = original()
    if function is None:
        return [f"jax._src.compilation_cache.{_NAME} is gone"]
    found = []
    try:
        signature = inspect.signature(function)
        signature.bind("path")
        if "tuple" not in str(signature.return_annotation):
            found.append(f"{_NAME} returns {signature.return_annotation}")
    except (TypeError, ValueError) as exc:
        found.append(f"{_NAME} takes something else: {exc}")
    interface = getattr(jax_cache, "CacheInterface", None)
    if interface is None:
        found.append("CacheInterface is gone")
    elif unknown := set(getattr(interface, "__abstractmethods__", ())) - _METHODS:
        found.append(f"a cache of this JAX has more methods: {', '.join(sorted(unknown))}")
    if not callable(getattr(jax_cache, "reset_cache", None)):
        found.append("reset_cache is gone")
    callers = (getattr(inspect.unwrap(each), "__code__", None) for each in vars(jax_cache).values() if callable(each))
    if not any(code is not None and _NAME in code.co_names for code in callers):
        found.append(f"nothing in jax._src.compilation_cache calls {_NAME}")
    return found


_replaced: list[Any] = []
"""JAX's own function, while ours is in its place."""


def install(open_cache: Callable[[str], FileCache]) -> None:
    """Have JAX keep its executables in what `open_cache` returns for a path; if that fails, in its own cache there."""
    uninstall()
    own = original()

    def get_file_cache(path: str, *arguments: Any, **named: Any) -> Any:
        try:
            return _behind_interface(open_cache(path), path), path
        except Exception as exc:
            warn_once("behind", "ejcache: JAX's own cache is used, because ours cannot be opened: %s", exc)
            return own(path, *arguments, **named)

    _replaced.append(own)
    setattr(jax_cache, _NAME, get_file_cache)
    jax_cache.reset_cache()


def uninstall() -> None:
    """Give JAX its own function back, with its cache not yet opened."""
    if _replaced:
        setattr(jax_cache, _NAME, _replaced.pop())
        jax_cache.reset_cache()


def original() -> Any:
    """Return JAX's own function, also while ours is in its place; None if it has none."""
    return _replaced[-1] if _replaced else getattr(jax_cache, _NAME, None)


def _behind_interface(cache: FileCache, path: str) -> Any:
    """Return `cache` as an object of this JAX's own type."""

    class StoreOfEjcache(jax_cache.CacheInterface):  # type: ignore[misc]  # mypy reads no types of jax._src
        _path = path  # JAX logs it
        get = staticmethod(cache.get)
        put = staticmethod(cache.put)

    return StoreOfEjcache()

"""The stores that are measured side by side: ours, and JAX's own `LRUCache` as it can be met."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import types
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from bench.outcome import OURS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JAX", "JAX_PLAIN", "JAX_UNBOUNDED", "Opened", "fill", "key_of", "open_contestant", "peers", "value_of"]

JAX = "JAX"
"""`jax._src.lru_cache.LRUCache` as it is in this environment."""
JAX_PLAIN = "JAX (no etils)"
"""The same code over pathlib, which it uses where etils is not installed."""
JAX_UNBOUNDED = "JAX (no limit)"
"""The same class without a size limit: it looks at no other entry, and never evicts."""


class Opened(Protocol):
    """What every contestant can do."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes, /) -> object: ...


def peers() -> list[str]:
    """JAX's cache with a limit, in each form that differs here."""
    from jax._src import path

    return [JAX, JAX_PLAIN] if path.epath_installed else [JAX]


def open_contestant(name: str, directory: pathlib.Path, *, max_size: int) -> Opened:
    """Contestant `name` over `directory`; `max_size` in bytes, which `JAX_UNBOUNDED` does not heed."""
    if name == OURS:
        from ejcache import open_store

        return open_store(directory, max_size=max_size)
    make = _plain_lru_cache() if name == JAX_PLAIN else _lru_cache()
    opened: Opened = make(str(directory), max_size=-1 if name == JAX_UNBOUNDED else max_size)
    return opened


def fill(name: str, directory: pathlib.Path, *, count: int, size: int, step: Callable[[int], object]) -> None:
    """Make `count` entries of `size` bytes, oldest first.

    JAX's are written as the files that its `put` would leave: going through it would take a time that grows with the
    square of their number.

    Args:
        step: called with the number made so far, every thousand.
    """
    if name == OURS:
        with _open_to_fill(directory) as store:
            for number in range(count):
                store.put(key_of(number), value_of(number, size))
                if number % 1000 == 0:
                    step(number)
        return
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        base = directory / key_of(number)
        base.with_name(f"{base.name}-cache").write_bytes(value_of(number, size))
        base.with_name(f"{base.name}-atime").write_bytes((number + 1).to_bytes(8, "little"))
        if number % 1000 == 0:
            step(number)


def key_of(number: int) -> str:
    """A key of the shape that JAX gives its own."""
    return f"jit_train_step-{hashlib.sha256(number.to_bytes(8)).hexdigest()}"


def value_of(number: int, size: int) -> bytes:
    """`size` bytes that do not compress and differ from those of every other number."""
    return number.to_bytes(8) + _noise(size)[8:]


@cache
def _noise(size: int) -> bytes:
    return os.urandom(size)


def _open_to_fill(directory: pathlib.Path) -> Any:
    from ejcache import open_store

    return open_store(directory)


def _lru_cache() -> Any:
    from jax._src import lru_cache

    return lru_cache.LRUCache


@cache
def _plain_lru_cache() -> Any:
    """`LRUCache` of a second copy of its module, which finds no etils."""
    from jax._src import lru_cache

    spec = importlib.util.spec_from_file_location("bench_lru_cache_without_etils", lru_cache.__file__)
    if spec is None or spec.loader is None:
        raise ImportError("JAX's LRUCache cannot be loaded a second time")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names: dict[str, Any] = vars(module)
    names["pathlib"] = types.SimpleNamespace(Path=pathlib.Path, epath_installed=False)
    return names["LRUCache"]

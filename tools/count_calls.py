"""Count the Python functions that run between JAX's request and the store's read of a local hit.

    python tools/count_calls.py [--rows N]

The count starts when JAX asks for a program's key and stops when the local store's `get` is entered; what JAX itself
does in between is left out. It also counts how often the settings are resolved. Run it with PYTHONPATH set to another
checkout's `src` to compare the two.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections import Counter
from typing import Any, Self

import jax
import numpy as np
from jax._src import compiler

import ejcache

WATCHED = ("get_compile_options", "_get_cache_key", "_cache_read")
"""The functions of JAX's compiler module that a hit goes through, in the order of their calls."""


def store_class() -> Any:
    """The local store's class, whose module moved once."""
    try:
        return importlib.import_module("ejcache.stores.local.store").LocalStore
    except ModuleNotFoundError:
        return importlib.import_module("ejcache.stores.local").LocalStore


def resolver() -> Any:
    """The function that resolves all settings, whose module moved once."""
    for name in ("ejcache.settings.resolve", "ejcache.settings"):
        found = getattr(sys.modules.get(name), "resolve", None)
        if callable(found):
            return found
    raise SystemExit("this ejcache resolves its settings somewhere else")


class Counting:
    """Counts the calls of Python functions while one of the watched functions runs, until the store is read."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.resolved = 0
        self.read = False
        self._store = store_class().get.__code__
        self._resolve = resolver().__code__
        self._originals = {name: getattr(compiler, name) for name in WATCHED}

    def __enter__(self) -> Self:
        for name, function in self._originals.items():
            setattr(compiler, name, self._watched(function))
        return self

    def __exit__(self, *exc: object) -> None:
        for name, function in self._originals.items():
            setattr(compiler, name, function)

    def _watched(self, function: Any) -> Any:
        def watched(*arguments: Any, **named: Any) -> Any:
            sys.setprofile(self._note)
            try:
                return function(*arguments, **named)
            finally:
                sys.setprofile(None)

        return watched

    def _note(self, frame: Any, event: str, _argument: Any) -> None:
        if event != "call":
            return
        self.resolved += frame.f_code is self._resolve
        if frame.f_code is self._store:
            self.read = True
        if self.read or "/jax/_src/" in frame.f_code.co_filename:
            return
        self.calls[f"{frame.f_code.co_filename.rpartition('/src/')[2]}:{frame.f_code.co_name}"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=0, help="also print the functions that are called most")
    rows = parser.parse_args().rows

    def program(x: Any) -> Any:
        return jax.numpy.sin(x) * 2 + 1

    x = np.arange(8, dtype=np.float32)
    with tempfile.TemporaryDirectory() as directory:
        cache = ejcache.enable(directory, min_compile_seconds=0)
        for _ in range(3):  # a miss, a hit that opens and imports what is needed, and a warm hit
            jax.clear_caches()
            jax.jit(program)(x)
        before = cache.stats().hits
        jax.clear_caches()
        with Counting() as counting:
            jax.jit(program)(x)
        hits = cache.stats().hits - before
        ejcache.disable()
    print(json.dumps({"calls": sum(counting.calls.values()), "resolved": counting.resolved, "hits": hits}))
    for name, number in counting.calls.most_common(rows):
        print(f"{number:6} {name}")


if __name__ == "__main__":
    main()

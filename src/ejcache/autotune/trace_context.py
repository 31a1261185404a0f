"""Touches JAX's trace context: a token for each policy, and labels that name operations in profiles."""

from __future__ import annotations

import contextlib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from ejcache.autotune.ejkernel_variables import label_of_calls, label_prefix
from ejcache.autotune.records.json_values import canonical_json, json_or_repr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.autotune.records.key import RecordKey

__all__ = ["changed_trace_settings", "evaluates_shapes", "labelled", "traced_apart", "watch_shape_evaluation"]


def changed_trace_settings() -> dict[str, str]:
    """JAX's settings that change programs and are not at their default, such as the matmul precision, by name.

    They are part of a key. Settings at their default are left out, so that keys from before they existed stay valid.
    """
    from ejcache.jax_integration.seam import trace_settings

    return trace_settings.changed_trace_settings()


def watch_shape_evaluation() -> None:
    """From now on `evaluates_shapes` is right, if JAX is imported."""
    if "jax" in sys.modules:
        from ejcache.jax_integration.seam import shape_evaluation

        shape_evaluation.watch_shape_evaluation()


def evaluates_shapes() -> bool:
    """Whether `jax.eval_shape` makes the call, so that its program is never run and nothing is worth measuring."""
    from ejcache.jax_integration.seam import shape_evaluation

    shape_evaluation.watch_shape_evaluation()
    return shape_evaluation.evaluates_shapes()


@cache
def _user_context() -> Any:
    import jax

    make = getattr(jax, "make_user_context", None)
    return None if make is None else make(None)


@contextlib.contextmanager
def traced_apart(token: str) -> Iterator[None]:
    """In this block `jax.jit` reuses only traces made under the same token."""
    context = _user_context()
    if context is None:
        yield
        return
    with context(token):
        yield


@contextlib.contextmanager
def labelled(key: RecordKey, configuration: Any) -> Iterator[None]:
    """Label the operations in this block `<prefix><operation>@v<version>:<digest>`, and the call if asked for."""
    import jax

    form = label_of_calls()
    label = f"{label_prefix()}{key.operation}@v{key.version}:{key.digest}"
    if form == "json":
        label += canonical_json({"call": dict(key.call), "configuration": json_or_repr(configuration)})
    with jax.named_scope(label) if form is not None else contextlib.nullcontext():
        yield

"""What JAX is told of a choice: functions traced under another policy are others, and labels for profiles."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any

from ejcache.autotune.plain import ConfigurationError, canonical_json, to_plain
from ejcache.settings import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.autotune.key import RecordKey

__all__ = ["labelled", "traced_apart"]


@cache
def _user_context() -> Any:
    import jax

    make = getattr(jax, "make_user_context", None)
    return None if make is None else make(None)


@contextlib.contextmanager
def traced_apart(token: str) -> Iterator[None]:
    """Within the block, `jax.jit` reuses only what it traced under the same token."""
    context = _user_context()
    if context is None:
        yield
        return
    with context(token):
        yield


@contextlib.contextmanager
def labelled(key: RecordKey, configuration: Any) -> Iterator[None]:
    """Operations in the block carry a label: `<prefix><operation>@v<version>:<digest>`, or the whole call as JSON."""
    import jax

    settings = resolve()
    label = f"{settings.autotune_prefix or ''}{key.operation}@v{key.version}:{key.digest}"
    if settings.autotune_stamp == "json":
        try:
            plain = to_plain(configuration)
        except ConfigurationError:
            plain = repr(configuration)
        label += canonical_json({"call": dict(key.call), "configuration": plain})
    with jax.named_scope(label) if settings.autotune_stamp != "none" else contextlib.nullcontext():
        yield

"""Policies decide what happens if no record is found; overlays replace the lookup. Both hold for a `with` block.

They live in context variables, so each thread and task has its own. A block changes JAX's trace context, so that
`jax.jit` traces a function again that it has traced under another policy or overlay.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from ejcache.autotune.measure.isolated import tries_candidate
from ejcache.autotune.records.json_values import canonical_json, json_or_repr
from ejcache.autotune.records.key import RecordKey
from ejcache.errors import SettingError
from ejcache.settings.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "OnMiss",
    "Policy",
    "altered",
    "current_policy",
    "forward_only",
    "overlaid",
    "overlay",
    "policy_override",
    "require",
]

OnMiss = Literal["autotune", "heuristics", "error"]
_ON_MISS: Final = ("autotune", "heuristics", "error")


@dataclass(frozen=True, slots=True)
class Policy:
    """What a call does if it has no tuned configuration.

    Attributes:
        on_miss: `autotune` measures the candidates, `heuristics` uses the operation's own guess, `error` fails.
        nearest: before guessing, use the configuration of the most similar call that was measured.
        forward_only: measure without the gradient, even if an operation asks for it.
        fixed: the operation decides `on_miss`, and the environment does not change it.
    """

    on_miss: OnMiss = "autotune"
    nearest: bool = False
    forward_only: bool = False
    fixed: bool = False


_overrides: Final[ContextVar[tuple[tuple[str, Any], ...]]] = ContextVar("ejcache_autotune_policy", default=())
_overlays: Final[ContextVar[tuple[dict[str, Any], ...]]] = ContextVar("ejcache_autotune_overlays", default=())


def current_policy(own: Policy | None = None) -> Policy:
    """The operation's `own` policy, changed by `EJCACHE_AUTOTUNE_POLICY` and then by each `policy_override`.

    A process that only tries a candidate for another one measures nothing else.
    """
    policy = own or Policy()
    from_environment = resolve().autotune_policy
    if from_environment is not None and not policy.fixed:
        policy = replace(policy, on_miss=from_environment)
    for name, value in _overrides.get():
        policy = replace(policy, **{name: value})
    return replace(policy, on_miss="heuristics") if tries_candidate() else policy


@contextlib.contextmanager
def policy_override(
    *, on_miss: OnMiss | None = None, nearest: bool | None = None, forward_only: bool | None = None
) -> Iterator[None]:
    """Change the policy of all operations in this block; arguments that are None change nothing.

    Raises:
        SettingError: `on_miss` is not `autotune`, `heuristics` or `error`.
    """
    if on_miss is not None and on_miss not in _ON_MISS:
        raise SettingError("on_miss", on_miss, ", ".join(_ON_MISS))
    given = {"on_miss": on_miss, "nearest": nearest, "forward_only": forward_only}
    changes = tuple((name, value) for name, value in given.items() if value is not None)
    token = _overrides.set((*_overrides.get(), *changes))
    try:
        with _retraced():
            yield
    finally:
        _overrides.reset(token)


def require() -> contextlib.AbstractContextManager[None]:
    """Raise `ConfigurationMissingError` in this block where no tuned configuration is found."""
    return policy_override(on_miss="error")


def forward_only() -> contextlib.AbstractContextManager[None]:
    """Measure without gradients in this block."""
    return policy_override(forward_only=True)


@contextlib.contextmanager
def overlay(configurations: Mapping[str | RecordKey, Any]) -> Iterator[None]:
    """Use these configurations in this block instead of stored ones. They are never stored.

    Args:
        configurations: by operation name, for all its calls, or by `RecordKey`, for one call.
    """
    mapping = {key.digest if isinstance(key, RecordKey) else key: value for key, value in configurations.items()}
    token = _overlays.set((*_overlays.get(), mapping))
    try:
        with _retraced():
            yield
    finally:
        _overlays.reset(token)


def altered() -> bool:
    """Whether a `policy_override` or an `overlay` is active here."""
    return bool(_overrides.get() or _overlays.get())


def overlaid(key: RecordKey) -> tuple[Any] | None:
    """The configuration that the innermost active `overlay` has for `key`, in a tuple because it may be None."""
    for mapping in reversed(_overlays.get()):
        for name in (key.digest, key.operation):
            if name in mapping:
                return (mapping[name],)
    return None


@contextlib.contextmanager
def _retraced() -> Iterator[None]:
    if "jax" not in sys.modules:
        yield
        return
    from ejcache.autotune.trace_context import traced_apart

    # The token is made of the content, so that a second, equal block reuses the traces of the first.
    with traced_apart(_fingerprint()):
        yield


def _fingerprint() -> str:
    overlays = [[name, json_or_repr(value)] for mapping in _overlays.get() for name, value in sorted(mapping.items())]
    text = canonical_json([[list(change) for change in _overrides.get()], overlays])
    return hashlib.sha256(text.encode()).hexdigest()

"""Changes, in a `with` block, what calls do without a record (policies), or which configurations they get (overlays).

Policies decide what happens if no record is found; overlays replace the lookup. They live in context variables, so each
thread and task has its own. A block changes JAX's trace context, so that `jax.jit` traces a function again that it has
traced under another policy or overlay.
"""

from __future__ import annotations

import contextlib
import sys
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ejcache.autotune.records.json_values import json_digest, json_or_repr
from ejcache.autotune.records.record import Record
from ejcache.autotune.records.record_key import RecordKey
from ejcache.errors import SettingError
from ejcache.settings.resolve import settings_in_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@cache
def _user_context() -> Any:
    from ejcache.jax_integration.seam.autotune.tracing import user_context  # JAX itself

    return user_context(None)


def traced_apart(token: str) -> contextlib.AbstractContextManager[Any]:
    """Let `jax.jit` reuse, in this block, only traces made under the same token."""
    return _user_context()(token)  # type: ignore[no-any-return]  # JAX's class has no name


OnMiss = Literal["autotune", "heuristics", "error"]


@dataclass(frozen=True, slots=True)
class TuningPolicy:
    """What a call does if it has no tuned configuration.

    Attributes:
        on_miss: `autotune` measures the candidates, `heuristics` uses the operation's own guess, `error` fails.
        forward_only: measure without the gradient, even if an operation asks for it.
        fixed: the operation decides `on_miss`, and the environment does not change it.
    """

    on_miss: OnMiss = "autotune"
    forward_only: bool = False
    fixed: bool = False


_overrides: Final[ContextVar[tuple[tuple[str, Any], ...]]] = ContextVar("ejcache_autotune_policy", default=())

_overlays: Final[ContextVar[tuple[dict[str, Any], ...]]] = ContextVar("ejcache_autotune_overlays", default=())


def current_policy(own: TuningPolicy | None = None) -> TuningPolicy:
    """Return the operation's `own` policy, changed by `EJCACHE_AUTOTUNE_POLICY` and then by each `policy_override`."""
    policy = own or TuningPolicy()
    from_environment = settings_in_use().autotune_policy
    if from_environment is not None and not policy.fixed:
        policy = replace(policy, on_miss=from_environment)
    for name, value in _overrides.get():
        policy = replace(policy, **{name: value})
    return policy


@contextlib.contextmanager
def policy_override(*, on_miss: OnMiss | None = None, forward_only: bool | None = None) -> Iterator[None]:
    """Change the policy of all operations in this block; arguments that are None change nothing.

    Raises:
        SettingError: `on_miss` is not `autotune`, `heuristics` or `error`.
    """
    if on_miss is not None and on_miss not in get_args(OnMiss):
        raise SettingError("on_miss", on_miss, ", ".join(get_args(OnMiss)))
    given = {"on_miss": on_miss, "forward_only": forward_only}
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
        configurations: by operation name, for all its calls, or by `RecordKey`, for one call. A record stands for its
            configuration.
    """
    mapping = {key.digest if isinstance(key, RecordKey) else key: value for key, value in configurations.items()}
    token = _overlays.set((*_overlays.get(), mapping))
    try:
        with _retraced():
            yield
    finally:
        _overlays.reset(token)


def altered() -> bool:
    """True if a `policy_override` or an `overlay` is active here."""
    return bool(_overrides.get() or _overlays.get())


def overlaid(key: RecordKey) -> tuple[Any] | None:
    """Return the configuration that the innermost active `overlay` has for `key`, in a tuple because it may be None."""
    for mapping in reversed(_overlays.get()):
        for name in (key.digest, key.operation):
            if name in mapping:
                return (mapping[name],)
    return None


def _retraced() -> contextlib.AbstractContextManager[Any]:
    # The token is made of the content, so that a second, equal block reuses the traces of the first.
    return traced_apart(_fingerprint()) if "jax" in sys.modules else contextlib.nullcontext()


def _fingerprint() -> str:
    overlays = [[name, _shown(value)] for mapping in _overlays.get() for name, value in sorted(mapping.items())]
    return json_digest([[list(change) for change in _overrides.get()], overlays])


def _shown(value: Any) -> Any:
    return json_or_repr(value.configuration if isinstance(value, Record) else value)

"""What a call gets, and the policies and overlays that change it for a `with` block.

Policies decide what happens if no record is found; overlays replace the lookup. They live in context variables, so each
thread and task has its own. A block changes JAX's trace context, so that `jax.jit` traces a function again that it has
traced under another policy or overlay.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ejcache.autotune.ejkernel_variables import label_prefix
from ejcache.autotune.records.json_values import canonical_json, json_or_repr
from ejcache.autotune.records.record import Record, Source
from ejcache.autotune.records.record_key import RecordKey, differences
from ejcache.errors import EjcacheError, SettingError
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


def labelled(key: RecordKey, configuration: Any, *, as_json: bool) -> contextlib.AbstractContextManager[Any]:
    """Label the operations in this block `<prefix><operation>@v<version>:<digest>`, and the call if that is wanted."""
    import jax

    label = f"{label_prefix()}{key.operation}@v{key.version}:{key.digest}"
    if as_json:
        label += canonical_json({"call": dict(key.call), "configuration": json_or_repr(configuration)})
    return jax.named_scope(label)  # type: ignore[no-any-return]  # the seam of JAX has no types


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
    text = canonical_json([[list(change) for change in _overrides.get()], overlays])
    return hashlib.sha256(text.encode()).hexdigest()


def _shown(value: Any) -> Any:
    return json_or_repr(value.configuration if isinstance(value, Record) else value)


class ConfigurationMissingError(EjcacheError, LookupError):
    """A kernel without a tuned configuration was called, and the tuning policy `error` forbids the default one.

    Attributes:
        key: decides which tuned record the call uses, such as by the shapes and data types of its arrays.
        nearest: the most similar tuning key that has a record, or None.
        reason: why ejcache did not measure the call, or an empty text.
        differences: the parts in which `key` and `nearest` differ: the name of each part, with both values.
    """

    def __init__(self, key: RecordKey, nearest: RecordKey | None, reason: str = "") -> None:
        super().__init__(key, nearest, reason)
        self.key = key
        self.nearest = nearest
        self.reason = reason
        self.differences = {} if nearest is None else differences(key, nearest)

    def __str__(self) -> str:
        lines = [f"no tuned configuration for {self.key.text}" + (f": {self.reason}" if self.reason else "")]
        if self.nearest is None:
            lines.append("  no other call of this operation has one")
        else:
            lines.append(f"  the nearest is      {self.nearest.text}")
            lines += [f"  {name}: {here!r} here, {there!r} there" for name, (here, there) in self.differences.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and the reason for it.

    Attributes:
        configuration: as the operation takes it.
        source: its origin.
        key: of the call.
        layer: the layer of the record, `memory` if this process measured it, or `pod` if a job agreed on it.
        record: the record, if there is one.
    """

    configuration: Any
    source: Source
    key: RecordKey
    layer: str = ""
    record: Record | None = None

    def __repr__(self) -> str:
        origin = f"{self.source.value}, {self.layer}" if self.layer else self.source.value
        return f"<Choice {self.key.operation}:{self.key.digest} {json_or_repr(self.configuration)} ({origin})>"


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a choice.

    Attributes:
        name: `chosen`, `miss`, `tuning`, `tuned`, `unusable`, `ambiguous`, `unhashable` or `error`.
        key: of the call.
        source: of the configuration, for `chosen`.
        detail: one line.
    """

    name: str
    key: RecordKey
    source: Source | None = None
    detail: str = ""

"""What a lookup that finds nothing does, and what stands in for a lookup, for the length of a `with` block.

All of it lives in context variables, so that threads and tasks do not see each other's, and each block tells JAX of
itself, so that a function that was traced in another one is traced again.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from ejcache.autotune.key import RecordKey
from ejcache.autotune.plain import ConfigurationError, canonical_json, to_plain
from ejcache.errors import SettingError
from ejcache.settings import resolve

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
    """What to do without a tuned configuration.

    Attributes:
        on_miss: measure the candidates, take the operation's own guess, or fail.
        nearest: before guessing, take the configuration of the most similar call that was measured.
        forward_only: measure without the gradient, also where an operation asks for both.
        fixed: `on_miss` is the operation's decision, which the environment does not change.
    """

    on_miss: OnMiss = "autotune"
    nearest: bool = False
    forward_only: bool = False
    fixed: bool = False


_overrides: Final[ContextVar[tuple[tuple[str, Any], ...]]] = ContextVar("ejcache_autotune_policy", default=())
_overlays: Final[ContextVar[tuple[dict[str, Any], ...]]] = ContextVar("ejcache_autotune_overlays", default=())


def current_policy(own: Policy | None = None) -> Policy:
    """The policy now: of the innermost `policy_override`, else `EJKERNEL_AUTOTUNE_POLICY`, else the operation's own."""
    policy = own or Policy()
    from_environment = resolve().autotune_policy
    if from_environment is not None and not policy.fixed:
        policy = replace(policy, on_miss=from_environment)
    for name, value in _overrides.get():
        policy = replace(policy, **{name: value})
    return policy


@contextlib.contextmanager
def policy_override(
    *, on_miss: OnMiss | None = None, nearest: bool | None = None, forward_only: bool | None = None
) -> Iterator[None]:
    """Change the policy of every operation in this context; what is not given stays as it is.

    Raises:
        SettingError: `on_miss` is none of `autotune`, `heuristics` and `error`.
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
    """Fail where no tuned configuration is found, with the nearest one there is and what differs."""
    return policy_override(on_miss="error")


def forward_only() -> contextlib.AbstractContextManager[None]:
    """Measure without gradients."""
    return policy_override(forward_only=True)


@contextlib.contextmanager
def overlay(configurations: Mapping[str | RecordKey, Any]) -> Iterator[None]:
    """Use these configurations, whatever is stored, and store none of them.

    Args:
        configurations: by operation, for all its calls, or by `RecordKey`, for one.
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
    """The configuration that an active `overlay` has for `key`, in a tuple because it may be None; the innermost's."""
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
    from ejcache.autotune.measure_context import traced_apart

    # By content, not by identity: entering an equal block again finds what was traced in the first.
    with traced_apart(_fingerprint()):
        yield


def _fingerprint() -> str:
    overlays = []
    for mapping in _overlays.get():
        for name, value in sorted(mapping.items()):
            try:
                overlays.append([name, to_plain(value)])
            except ConfigurationError:
                overlays.append([name, repr(value)])
    text = canonical_json([[list(change) for change in _overrides.get()], overlays])
    return hashlib.sha256(text.encode()).hexdigest()

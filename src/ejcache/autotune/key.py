"""What a tuned configuration is for: the operation, its version, the device, the environment and the call.

A record's path is made of it, so that looking one up is one read and no search:

    autotune/<operation>/<device>/<20 hex of operation, version, device and call>-<8 hex of the environment>.json

The same call in another environment has the same beginning, which is how `why` finds it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.plain import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ROOT", "RecordKey", "differences", "slug"]

ROOT: Final = "autotune"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def slug(text: str) -> str:
    """`text` as one component of a path; several texts may share one, because the digest tells them apart."""
    return (_UNSAFE.sub("_", text).lstrip(".").rstrip(". ") or "_")[:100].lower()


@dataclass(frozen=True, eq=False)
class RecordKey:
    """One tuned call.

    Attributes:
        operation: the name that its author gave it.
        version: changes when old measurements say nothing about the operation any more.
        device: the device kind as JAX names it, such as `NVIDIA H200`.
        environment: what else decides which configuration is best: names and texts.
        call: shapes, data types and static values; any JSON object.
    """

    operation: str
    version: str
    device: str
    environment: Mapping[str, str] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def call_digest(self) -> str:
        """20 hexadecimal digits for everything but the environment."""
        parts = [self.operation, self.version, self.device, self.call]
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:20]

    @cached_property
    def environment_digest(self) -> str:
        """8 hexadecimal digits for the environment."""
        return hashlib.sha256(canonical_json(dict(self.environment)).encode()).hexdigest()[:8]

    @cached_property
    def digest(self) -> str:
        """What tells this key from every other one."""
        return f"{self.call_digest}-{self.environment_digest}"

    @property
    def shelf(self) -> str:
        """The directory of the operation on the device."""
        return f"{ROOT}/{slug(self.operation)}/{slug(self.device)}/"

    @cached_property
    def path(self) -> str:
        """Where the record is."""
        return f"{self.shelf}{self.digest}.json"

    @cached_property
    def text(self) -> str:
        """The key as people read it."""
        environment = " ".join(f"{name}={value}" for name, value in sorted(self.environment.items()))
        parts = [f"{self.operation}@{self.version}", self.device, _call_text(self.call), environment]
        return " | ".join(part for part in parts if part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordKey) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return self.text


def differences(one: RecordKey, other: RecordKey) -> dict[str, tuple[Any, Any]]:
    """Name by name, where two keys differ: `{"call.arguments.x": ("float32[8]", "float32[16]")}`."""
    left, right = _flattened(one), _flattened(other)
    return {
        name: (left.get(name), right.get(name))
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    }


def _flattened(key: RecordKey) -> dict[str, Any]:
    flat: dict[str, Any] = {"operation": key.operation, "version": key.version, "device": key.device}
    _flatten("environment", dict(key.environment), flat)
    _flatten("call", dict(key.call), flat)
    return flat


def _flatten(name: str, value: Any, into: dict[str, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _flatten(f"{name}.{key}", item, into)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for i, item in enumerate(value):
            _flatten(f"{name}.{i}", item, into)
    else:
        into[name] = value


def _call_text(call: Mapping[str, Any]) -> str:
    words = []
    for name, value in call.items():
        if name == "arguments" and isinstance(value, dict):
            words += [f"{key}={_value_text(item)}" for key, item in value.items()]
        else:
            words.append(f"{name}={_value_text(value)}")
    return " ".join(words)


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)

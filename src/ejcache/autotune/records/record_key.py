"""Keys the record of a tuned call, and says how near two keys are."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.records.json_values import canonical_json, json_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = "autotune"
"""The path prefix of all records."""

_VERSIONS: Final = frozenset({"jaxlib", "toolkit"})
"""Facts of the environment under which an older record still says something."""
_MILD: Final = _VERSIONS | {"cores"}
"""Facts of the environment that seldom change which configuration is best."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def slug(text: str) -> str:
    """Return `text` as one component of a path. Several texts may share a component: the digest tells their records
    apart.
    """
    return (_UNSAFE.sub("_", text).lstrip(".").rstrip(". ") or "_")[:100].lower()


@dataclass(frozen=True, eq=False)
class RecordKey:
    """One tuned call.

    Attributes:
        operation: the name that its author gave it.
        version: its author changes it when old measurements no longer hold.
        device: the device kind as JAX names it, such as `NVIDIA H200`.
        environment: other facts that decide which configuration is best, such as the platform: names and texts.
        call: shapes, data types and static values; any JSON object.
    """

    operation: str
    version: str
    device: str
    environment: Mapping[str, str] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def call_digest(self) -> str:
        """20 hexadecimal digits of the call: of everything but the device and the environment."""
        parts = [self.operation, self.version, self.call]
        return json_digest(parts)[:20]

    @cached_property
    def versionless_digest(self) -> str:
        """20 hexadecimal digits of everything but the versions of jaxlib and of the toolkit."""
        rest = {name: value for name, value in self.environment.items() if name not in _VERSIONS}
        return json_digest([self.call_digest, self.device, rest])[:20]

    @cached_property
    def environment_digest(self) -> str:
        """8 hexadecimal digits of the device and the environment."""
        return json_digest([self.device, dict(self.environment)])[:8]

    @cached_property
    def digest(self) -> str:
        """Two keys are equal if these texts are."""
        return f"{self.call_digest}-{self.environment_digest}"

    @property
    def directory(self) -> str:
        """The path prefix of all records of the call, of any device and environment."""
        return f"{ROOT}/{slug(self.operation)}/{self.call_digest}/"

    @cached_property
    def path(self) -> str:
        """The path of the record."""
        return f"{self.directory}{slug(self.device)}-{self.environment_digest}.json"

    @cached_property
    def text(self) -> str:
        """The key for people."""
        environment = " ".join(f"{name}={value}" for name, value in sorted(self.environment.items()))
        parts = [f"{self.operation}@{self.version}", self.device, _call_text(self.call), environment]
        return " | ".join(part for part in parts if part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordKey) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return self.text


def is_similar(one: RecordKey, other: RecordKey) -> bool:
    """True if a record of one key says what is probably best for the other: the same call on the same device.

    The number of cores, and the versions of jaxlib and of the toolkit, may differ. Other flags make other programs.
    """
    if (one.call_digest, one.device) != (other.call_digest, other.device) or one == other:
        return False
    left, right = ({name: each.environment[name] for name in each.environment.keys() - _MILD} for each in (one, other))
    return left == right


def differences(one: RecordKey, other: RecordKey) -> dict[str, tuple[Any, Any]]:
    """Return the parts in which two keys differ, by name: `{"call.arguments.x": ("float32[8]", "float32[16]")}`."""
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


_ARRAY: Final = re.compile(r"([A-Za-z0-9_]+)\[([0-9,]*)\]")


def only_sizes_differ(one: RecordKey, other: RecordKey) -> bool:
    """True if two keys are of calls with arrays of other sizes, and of nothing else that differs."""
    return all(_doublings(here, there) is not None for here, there in differences(one, other).values())


def distance(one: RecordKey, other: RecordKey) -> float:
    """Return doublings between the sizes of arrays, plus a hundred for each other difference."""
    doublings = [_doublings(here, there) for here, there in differences(one, other).values()]
    return sum(100.0 if doubled is None else doubled for doubled in doublings)


def _doublings(here: Any, there: Any) -> float | None:
    left = _ARRAY.fullmatch(here) if isinstance(here, str) else None
    right = _ARRAY.fullmatch(there) if isinstance(there, str) else None
    if left is None or right is None or left[1] != right[1]:
        return None
    sizes = [[int(size) for size in match[2].split(",") if size] for match in (left, right)]
    if len(sizes[0]) != len(sizes[1]) or 0 in (*sizes[0], *sizes[1]):
        return None
    return sum(abs(math.log2(a / b)) for a, b in zip(*sizes, strict=True))

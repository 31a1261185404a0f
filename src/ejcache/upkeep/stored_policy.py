"""What may stay in a shared store, kept with it: one object that goes before every job's own limit.

    v1/policy.json := a JSON object: format, version, and the limits that are set: max_size (bytes), max_entries,
                      older_than and unused_for (seconds)

Version 1 is the first; unknown fields are kept by whoever changes the others. A policy that cannot be read, because it
is damaged or of a later version, removes nothing.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import EntryCorruptError, EntryError, EntryVersionError, SettingError, StoreBusyError
from ejcache.stores.objects import ABSENT
from ejcache.units import parse_age, parse_size, whole_number
from ejcache.upkeep.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.stores.objects import ConditionalObjects

__all__ = [
    "LIMITS",
    "POLICY",
    "VERSION",
    "EffectivePolicy",
    "change_limits",
    "decode",
    "encode",
    "parse_limit",
    "policy_of",
    "read_limits",
]

log = logging.getLogger("ejcache")

POLICY: Final = "v1/policy.json"
VERSION: Final = 1

_FORMAT: Final = "ejcache-policy"
_TRIES: Final = 5
_HOLDS_SECONDS: Final = 600.0
_NONE: Final = frozenset({"", "none", "-1"})


def _count(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise SettingError("max_entries", text, LIMITS["max_entries"][1])
    return number


LIMITS: Final[Mapping[str, tuple[Callable[[str], float], str]]] = {
    "max_size": (lambda text: parse_size(text, setting="max_size"), "a number of bytes, or 10GB or 10GiB, or none"),
    "max_entries": (_count, "a whole number, or none"),
    "older_than": (lambda text: parse_age(text, setting="older_than"), "an age such as 90d, or none"),
    "unused_for": (lambda text: parse_age(text, setting="unused_for"), "an age such as 30d, or none"),
}
"""What can be limited: how its text is read, and what is accepted."""


def parse_limit(name: str, text: str) -> float | None:
    """The value of a limit that a person wrote; None for none.

    Raises:
        SettingError: there is no such limit, or it cannot have that value.
    """
    if name not in LIMITS:
        raise SettingError("a limit of a shared cache", name, ", ".join(LIMITS))
    return None if text.strip().lower() in _NONE else LIMITS[name][0](text.strip())


def encode(limits: Mapping[str, Any]) -> bytes:
    """The policy with these limits, and fields that this version does not know, as bytes."""
    fields = {name: value for name, value in limits.items() if value is not None}
    return (json.dumps({**fields, "format": _FORMAT, "version": VERSION}, indent=1, sort_keys=True) + "\n").encode()


def decode(data: bytes) -> dict[str, Any]:
    """The limits in `data`, and fields that this version does not know.

    Raises:
        EntryCorruptError: this is no policy, or a limit in it is not one.
        EntryVersionError: it is of a later version.
    """
    try:
        fields = json.loads(data)
        if fields.pop("format") != _FORMAT:
            raise EntryCorruptError("this is no policy of a cache")
        version = fields.pop("version")
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise EntryCorruptError("this is no policy of a cache") from exc
    if version != VERSION:
        raise EntryVersionError(f"a policy of version {version!r}, and this reads {VERSION}")
    for name in LIMITS:
        value = fields.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise EntryCorruptError(f"the policy's {name} is {value!r}")
    return dict(fields)


def read_limits(objects: ConditionalObjects) -> dict[str, Any] | None:
    """The limits that are stored, or None if none ever were.

    Raises:
        EntryError: there is a policy that this version cannot read.
        StoreError: the storage failed.
    """
    blob = objects.read(POLICY)
    return None if blob is None else decode(blob.data)


def change_limits(objects: ConditionalObjects, changes: Mapping[str, float | None]) -> dict[str, Any]:
    """Store `changes`, None removing a limit, and leave the other limits as they are; what is stored now.

    Raises:
        EntryVersionError: the policy that is there is of a later version; it is left alone. A damaged one is replaced.
        StoreBusyError: others kept changing it.
        StoreError: the storage failed.
    """
    for _ in range(_TRIES):
        blob = objects.read(POLICY)
        try:
            current = {} if blob is None else decode(blob.data)
        except EntryCorruptError:
            current = {}
        limits = {name: value for name, value in {**current, **changes}.items() if value is not None}
        if objects.write(POLICY, encode(limits), version=ABSENT if blob is None else blob.version) is not None:
            return limits
    raise StoreBusyError("others kept changing the policy")


def policy_of(limits: Mapping[str, Any]) -> Policy:
    """The rules that `limits` stand for."""
    return Policy(
        max_size=limits.get("max_size"),
        max_entries=limits.get("max_entries"),
        older_than=limits.get("older_than"),
        unused_for=limits.get("unused_for"),
    )


class EffectivePolicy:
    """What upkeep goes by when called: the stored policy, or, without one, a job's own limit; None to remove nothing.

    Args:
        objects: the store's.
        max_size: the job's limit; -1 for none.
        seconds: for which an answer holds, so that a pod's processes do not all ask every minute.
        clock: monotonic seconds.

    Calling it raises StoreError if the storage fails.
    """

    def __init__(
        self,
        objects: ConditionalObjects,
        *,
        max_size: int,
        seconds: float = _HOLDS_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._own = Policy(max_size=max_size) if max_size > 0 else None
        self._seconds = seconds
        self._clock = clock
        self._read_at = float("-inf")
        self._policy: Policy | None = None

    def __call__(self) -> Policy | None:
        if self._clock() - self._read_at > self._seconds:
            self._policy = self._read()
            self._read_at = self._clock()
        return self._policy

    def _read(self) -> Policy | None:
        try:
            limits = read_limits(self._objects)
        except EntryError as exc:
            log.warning("ejcache: nothing is evicted, because the stored policy cannot be read: %s", exc)
            return None
        return self._own if limits is None or not policy_of(limits).has_criterion else policy_of(limits)

"""Reads and changes the policy that is stored with a cache: its limits, switch, recalls and epoch.

It takes precedence over the limits of the jobs that use the cache.

    v1/policy.json := a JSON object: format, version, and the limits that are set: max_size (bytes), max_entries,
                      older_than and unused_for (seconds); evict, "lru" or "cost", the order of eviction; shared,
                      "group" or "everybody", of a directory that other users may write to (`util.directory_access`);
                      enabled, true or false: whether programs use the cache, with switched_by, a text, and switched_at
                      (seconds since 1970), if it is false; recalled, the entries that nobody loads any more
                      (`maintenance.recalls`); epoch and former, where the entries are and were (`stores.epochs`)

Version 1 is the first. A writer keeps the fields that it does not know, and sends nothing that its own reader refuses.
A policy that cannot be read, because it is damaged or of a later version, removes nothing and is not changed:
what it said of the switch and of recalls would be lost. `--replace` of `ejcache config set` and of `ejcache recall`
writes another one in the place of a damaged one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import (
    EntryCorruptError,
    EntryError,
    PolicyDamagedError,
    SettingError,
    UsageError,
)
from ejcache.maintenance.eviction_plan import EvictionPolicy
from ejcache.maintenance.recalls import Recalls, Rule, decode_recalls, encode_recalls
from ejcache.settings.table import eviction_order
from ejcache.stores.epochs import (
    FORMAT,
    VERSION,
    Epochs,
    decode_epochs,
    encode_epochs,
    policy_fields,
)
from ejcache.stores.epochs import MAX_BYTES as MAX_BYTES  # noqa: PLC0414 (others import it from here)
from ejcache.util.directory_access import POLICY as POLICY  # noqa: PLC0414 (others import it from here)
from ejcache.util.files import read_regular
from ejcache.util.printable import printable
from ejcache.util.units import parse_age, parse_size, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ejcache.bucket.base import Bucket
    from ejcache.stores.location import Location

log = logging.getLogger("ejcache")

_CACHED_SECONDS: Final = 600.0
"""How long an answer is kept, so that a pod's processes do not all ask every minute."""
_LARGEST: Final = 1 << 62
_SHOWN: Final = 100
_NONE: Final = frozenset({"", "none", "-1"})


def _count(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise SettingError("max_entries", text, LIMITS["max_entries"][1])
    return number


def _order(text: str) -> str:
    try:
        return eviction_order(text)
    except ValueError as exc:
        raise SettingError("evict", text, LIMITS["evict"][1]) from exc


LIMITS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "max_size": (lambda text: parse_size(text, setting="max_size"), "a number of bytes, or 10GB or 10GiB, or none"),
    "max_entries": (_count, "a whole number, or none"),
    "older_than": (lambda text: parse_age(text, setting="older_than"), "an age such as 90d, or none"),
    "unused_for": (lambda text: parse_age(text, setting="unused_for"), "an age such as 30d, or none"),
    "evict": (_order, "lru or cost, or none"),
}
"""The limits, and the order in which they are kept: how the text of each is parsed, and which texts are accepted."""


def switch_of(*, enabled: bool, by: str, at: float) -> dict[str, Any]:
    """Return what `change_policy` stores to turn a cache off or on."""
    if enabled:
        return {"enabled": True, "switched_by": None, "switched_at": None}
    return {"enabled": False, "switched_by": by, "switched_at": at}


def who_turned_off(limits: Mapping[str, Any]) -> str:
    """Return who turned the cache off, and when, in words; nothing if it is on."""
    if limits.get("enabled", True):
        return ""
    by, at = limits.get("switched_by"), limits.get("switched_at")
    when = ""
    with contextlib.suppress(OSError, OverflowError, TypeError, ValueError):
        when = time.strftime(", %Y-%m-%d %H:%M UTC", time.gmtime(at)) if at is not None else ""
    return f"by {printable(str(by))[:_SHOWN] if by else 'somebody'}{when}"


def parse_limit(name: str, text: str) -> Any:
    """Return the value of a limit as a person writes it; None for no limit.

    Raises:
        SettingError: there is no limit of this name, or it cannot have this value.
    """
    if name not in LIMITS:
        raise SettingError("a limit of a shared cache", name, ", ".join(LIMITS))
    return None if text.strip().lower() in _NONE else LIMITS[name][0](text.strip())


def encode_policy(limits: Mapping[str, Any]) -> bytes:
    """Return the bytes of a policy with these limits, and with fields that this version does not know."""
    fields = {name: value for name, value in limits.items() if value is not None}
    whole = {"enabled": True, **fields, "format": FORMAT, "version": VERSION}
    return (json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def decode_policy(data: bytes) -> dict[str, Any]:
    """Return the limits in `data`, and the fields that this version does not know.

    Raises:
        EntryCorruptError: `data` is not a policy, or one of its limits is not a limit.
        EntryVersionError: the policy is of a later version.
    """
    fields = policy_fields(data)
    if fields.get("evict", "lru") not in ("lru", "cost"):
        raise EntryCorruptError("the policy's evict is neither lru nor cost")
    if not isinstance(fields.get("enabled", True), bool):
        raise EntryCorruptError("the policy's enabled is neither true nor false")
    decode_recalls(fields.get("recalled"))
    decode_epochs(fields)
    for name in LIMITS.keys() - {"evict"}:
        value = fields.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
            raise EntryCorruptError(f"the policy's {name} is not a number from 0 to 2**62")
    return fields


def read_limits(objects: Bucket) -> dict[str, Any] | None:
    """Return the limits that are stored with a cache, or None if there is no stored policy.

    Raises:
        EntryError: this version cannot read the stored policy.
        StoreError: the storage failed.
    """
    blob = objects.read(POLICY, length=MAX_BYTES + 1)
    return None if blob is None else decode_policy(blob.data)


def change_policy(
    objects: Bucket, changes: Mapping[str, float | str | None], *, replace_damaged: bool = False, shared: bool = True
) -> dict[str, Any]:
    """Store `changes` (None removes a limit), leave the other limits as they are, and return all of them.

    If several processes change the policy at once, every change is stored.

    Args:
        objects: of the cache.
        changes: by the names of the fields.
        replace_damaged: write another policy in the place of a damaged one. What that one has recalled is not known any
            more, so a cache that hosts share begins an epoch then.
        shared: hosts share the cache.

    Raises:
        PolicyDamagedError: the stored policy is damaged; it is not changed.
        EntryVersionError: the stored policy is of a later version; it is not changed.
        UsageError: the policy would be larger than its readers take.
        StoreBusyError: other processes kept changing it.
        StoreError: the storage failed.
    """
    return _change(objects, lambda current: {**current, **changes}, replace_damaged=replace_damaged, shared=shared)


def change_recalls(
    objects: Bucket, change: Callable[[Recalls], Recalls], *, replace_damaged: bool = False, shared: bool = True
) -> Recalls:
    """Store what `change` makes of what is recalled, and return it; raises and competes as `change_policy`."""

    def changed(current: dict[str, Any]) -> dict[str, Any]:
        return current | {"recalled": encode_recalls(change(recalls_of(current)))}

    return recalls_of(_change(objects, changed, replace_damaged=replace_damaged, shared=shared))


def begin_epoch(objects: Bucket, rule: Rule, *, replace_damaged: bool = False) -> Epochs:
    """Recall everything: store the rule, and that the cache is in another epoch; raises and competes as
    `change_policy`.
    """

    def changed(current: dict[str, Any]) -> dict[str, Any]:
        recalled = encode_recalls(recalls_of(current).with_rule(rule))
        return current | encode_epochs(decode_epochs(current).ended(rule.at)) | {"recalled": recalled}

    made = _change(objects, changed, replace_damaged=replace_damaged, shared=False)
    return decode_epochs(made)


def recalls_of(policy: Mapping[str, Any]) -> Recalls:
    """Return what a policy recalls, of fields that `decode_policy` has returned."""
    return decode_recalls(policy.get("recalled"))


def epochs_of(policy: Mapping[str, Any]) -> Epochs:
    """Return where the entries are and were, of fields that `decode_policy` has returned."""
    return decode_epochs(dict(policy))


def _change(
    objects: Bucket,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    replace_damaged: bool,
    shared: bool,
) -> dict[str, Any]:
    limits: dict[str, Any] = {}

    def changed(data: bytes | None) -> bytes | None:
        try:
            current = {} if data is None else decode_policy(data)
        except EntryCorruptError as exc:
            if not replace_damaged:
                raise PolicyDamagedError(
                    f"{objects.url}/{POLICY} is damaged ({exc}). It may have turned the cache off or recalled entries, "
                    "so it is not changed; --replace writes another one"
                ) from exc
            current = encode_epochs(Epochs().ended(time.time())) if shared else {}
        made = encode_policy(change(current))
        try:
            # What its readers refuse must not get there: they would go by the one that they knew, and say nothing.
            read = decode_policy(made)
        except EntryCorruptError as exc:
            raise UsageError(f"this would make {objects.url}/{POLICY} one that nobody reads: {exc}") from exc
        limits.clear()
        limits.update(read)
        return None if made == data else made

    objects.update(POLICY, changed)
    return limits


def policy_of(limits: Mapping[str, Any], *, evict: str) -> EvictionPolicy:
    """Return the rules of these limits; `evict` is the order where they name none."""
    known: dict[str, Any] = {name: limits.get(name) for name in LIMITS if name != "evict"}
    return EvictionPolicy(**known, by_cost=limits.get("evict", evict) == "cost")


class EffectiveEvictionPolicy:
    """Call it for the policy of a cache: the stored one, or, without one, this job's limit; None removes nothing.

    Args:
        objects: of the cache.
        max_size: this job's limit in bytes; -1 for none.
        evict: this job's order of eviction.
        clock: monotonic seconds.

    Calling it raises StoreError if the storage fails.
    """

    def __init__(
        self,
        objects: Bucket,
        *,
        max_size: int,
        evict: str = "lru",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._max_size = max_size
        self._evict = evict
        self._clock = clock
        self._read_at = float("-inf")
        self._policy: EvictionPolicy | None = None

    def __call__(self) -> EvictionPolicy | None:
        if self._clock() - self._read_at > _CACHED_SECONDS:
            self._policy = self._read()
            self._read_at = self._clock()
        return self._policy

    def _read(self) -> EvictionPolicy | None:
        try:
            limits = read_limits(self._objects)
        except EntryError as exc:
            log.warning("ejcache: nothing is evicted, because %s cannot be read: %s", POLICY, exc)
            return None
        stored = policy_of(limits or {}, evict=self._evict)
        if stored.has_criterion:
            return stored
        return replace(stored, max_size=self._max_size) if self._max_size > 0 else None


def read_limits_of_directory(location: Location) -> dict[str, Any]:
    """Return what is stored with the cache in a directory of this host; nothing if that cannot be opened.

    Raises:
        EntryError: this version cannot read it.
    """
    if location.kind != "directory":
        return {}
    try:
        data = read_regular(Path(location.path) / POLICY, max_size=MAX_BYTES)
    except OSError:
        return {}
    return decode_policy(data)

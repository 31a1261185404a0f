"""Which configuration a call runs with.

    override > overlay > memory > pinned > measured under PGLE > tuned > imported > shipped seed
             > tuned for this call in another environment > nearest shape (only if asked) > heuristic > error

What is below `tuned` in this chain is used only where tuning is not allowed or gave nothing.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter, deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.key import differences
from ejcache.autotune.layer import warn_once
from ejcache.autotune.plain import ConfigurationError, canonical_json, to_plain
from ejcache.autotune.policy import current_policy, overlaid
from ejcache.autotune.recording import note, recording
from ejcache.autotune.records import Source
from ejcache.autotune.store import Found
from ejcache.errors import EjcacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.policy import Policy
    from ejcache.autotune.records import Record
    from ejcache.autotune.store import AutotuneStore

__all__ = ["ABSENT", "Agreement", "Choice", "Chooser", "ConfigurationMissingError", "Event", "Request", "nearest"]

ABSENT: Final = object()
"""No configuration was given; None may be one."""

_KEPT_EVENTS: Final = 1000
_LONGEST_WAIT: Final = 60.0
_being_tuned: Final[ContextVar[frozenset[str]]] = ContextVar("ejcache_autotune_being_tuned", default=frozenset())
_ARRAY: Final = re.compile(r"([A-Za-z0-9_]+)\[([0-9,]*)\]")


class ConfigurationMissingError(EjcacheError, LookupError):
    """A tuned configuration was required, and there is none.

    Attributes:
        key: of the call.
        nearest: the most similar key that has one, or None.
        differences: what differs from it, by name: (here, there).
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
            lines.append("  and none for any other call of this operation")
        else:
            lines.append(f"  the nearest is      {self.nearest.text}")
            lines += [f"  {name}: {here!r} here, {there!r} there" for name, (here, there) in self.differences.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and why it is this one.

    Attributes:
        configuration: as the operation takes it.
        source: the link of the chain that it came from.
        key: of the call.
        layer: where the record was, if there is one.
        record: the record, if there is one.
    """

    configuration: Any
    source: Source
    key: RecordKey
    layer: str = ""
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on the way to a configuration.

    Attributes:
        name: `chosen`, `miss`, `tuning`, `tuned`, `unusable`, `ambiguous`, `opaque`, `agreed` or `error`.
        key: of the call.
        source: of the configuration, for `chosen`.
        detail: one line.
    """

    name: str
    key: RecordKey
    source: Source | None = None
    detail: str = ""


class Agreement:
    """One answer for all processes of a job; the base class is for a job of one process.

    `ejcache.autotune.pod` has the other one.
    """

    def settle(self, key: RecordKey, propose: Callable[[], Choice], request: Request) -> Choice:  # noqa: ARG002
        """The choice that all processes make, which is what one of them proposed."""
        return propose()


@dataclass(frozen=True)
class Request:
    """One call that needs a configuration.

    Attributes:
        key: what a record of it is filed under.
        restore: (stored configuration, its source) → the operation's own; raises `ConfigurationError` if it does not
            fit.
        heuristic: the operation's own guess, or None if it has none.
        candidates: what may be measured.
        tune: measures: (a record that is there already or None, the default) → a record, or None if all failed.
        override: the configuration that the call itself gave.
        legacy: another source of a found configuration, asked after the layers.
        policy: the operation's own.
        describe: gives the call as `calls.py` writes it, to be recorded; raises `UnrecordableError`.
        opaque: why this call has no key that is its own; then nothing is looked up, measured or remembered.
    """

    key: RecordKey
    restore: Callable[[Any, Source], Any] = lambda plain, _: plain
    heuristic: Callable[[], Any] | None = None
    candidates: Callable[[], Sequence[Any]] = tuple
    tune: Callable[[Record | None, Any], Record | None] | None = None
    override: Any = ABSENT
    legacy: Callable[[], Found | None] | None = None
    policy: Policy | None = None
    opaque: Sequence[str] = ()
    describe: Callable[[], dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class _Guess:
    choice: Choice
    policy: Policy
    wait: float
    until: float


class Chooser:
    """Chooses configurations from a store. Safe for threads: of several that miss one key, one tunes.

    Args:
        store: where records are.
        on_event: called with every `Event`; what it raises is counted and dropped.
        agreement: how the processes of a job come to one answer.
    """

    def __init__(
        self,
        store: AutotuneStore,
        *,
        on_event: Callable[[Event], None] | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        self.store = store
        self.on_event = on_event
        self.agreement = agreement or Agreement()
        self.counters: Counter[str] = Counter()
        self.events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self._generation = store.generation
        self._memory: dict[str, Choice] = {}
        self._guesses: dict[str, _Guess] = {}
        self._in_vain: set[str] = set()
        self._turns: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def choose(self, request: Request) -> Choice:
        """The configuration for the call.

        Raises:
            ConfigurationMissingError: there is none, or none is tuned and the policy is to fail then.
        """
        key = request.key
        if request.describe is not None and recording():
            note(key, request.describe, self.store)
        if request.override is not ABSENT:
            return self._chosen(Choice(request.override, Source.OVERRIDE, key))
        if (found := overlaid(key)) is not None:
            return self._chosen(Choice(found[0], Source.OVERLAY, key))
        if request.opaque:
            return self._chosen(self._unkeyed(request))
        self._follow_reloads()
        held = self._memory.get(key.digest)
        if held is not None:
            self.counters["memory"] += 1
            return held
        policy = current_policy(request.policy)
        guess = self._guesses.get(key.digest)
        if guess is not None and guess.policy == policy and time.monotonic() < guess.until:
            self.counters["memory"] += 1
            return guess.choice
        if key.digest in _being_tuned.get():
            # A candidate that calls the operation that is being tuned, in the same way: it must not wait for itself.
            return self._second_best(request, policy)
        with self._turn(key.digest):
            held = self._memory.get(key.digest)
            if held is not None:
                return held
            choice = self.agreement.settle(key, lambda: self._resolve(request, policy), request)
            self._keep(choice, policy)
        return self._chosen(choice)

    def forget(self) -> None:
        """Choose anew, from what the layers have now."""
        self.store.reload()
        self._follow_reloads()

    def _follow_reloads(self) -> None:
        if self._generation == self.store.generation:
            return
        with self._lock:
            self._generation = self.store.generation
            self._memory.clear()
            self._guesses.clear()
            self._in_vain.clear()

    def emit(self, name: str, key: RecordKey, *, source: Source | None = None, detail: str = "") -> None:
        """Count an event and tell the listener."""
        event = Event(name, key, source, detail)
        self.counters[name if source is None else f"{name}_{source.value}"] += 1
        self.events.append(event)
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception as exc:
                self.counters["listener_errors"] += 1
                warn_once("autotune listener", "the listener of autotune events failed: %r", exc)

    def _chosen(self, choice: Choice) -> Choice:
        self.emit("chosen", choice.key, source=choice.source, detail=choice.layer)
        return choice

    def _keep(self, choice: Choice, policy: Policy) -> None:
        with self._lock:
            if choice.source.rank <= Source.SEED.rank or choice.layer == "pod":
                self._memory[choice.key.digest] = choice
                self._guesses.pop(choice.key.digest, None)
            else:
                # Only for a while: another process may publish something better.
                held = self._guesses.get(choice.key.digest)
                wait = self.store.refresh_seconds if held is None else min(2 * held.wait, _LONGEST_WAIT)
                self._guesses[choice.key.digest] = _Guess(choice, policy, wait, time.monotonic() + wait)

    def _turn(self, digest: str) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(digest, threading.Lock())

    def _unkeyed(self, request: Request) -> Choice:
        """The operation's own guess for this very call; anything remembered under its key may be another call's."""
        self.emit("opaque", request.key, detail="; ".join(request.opaque))
        warn_once(
            f"opaque {request.key.operation}",
            "%s is not tuned for some calls, which have no key of their own: %s",
            request.key.operation,
            request.opaque[0],
        )
        if current_policy(request.policy).on_miss == "error":
            raise self._missing(request, f"it has no key of its own, because {request.opaque[0]}")
        return self._guess(request)

    def _resolve(self, request: Request, policy: Policy) -> Choice:
        choice = self._stored(request, policy)
        if choice is not None:
            return choice
        self.emit("miss", request.key)
        if policy.on_miss == "autotune":
            choice = self._tuned(request, None)
            if choice is not None:
                return choice
        elif policy.on_miss == "error":
            raise self._missing(request, "tuning is not allowed here")
        return self._second_best(request, policy)

    def _stored(self, request: Request, policy: Policy) -> Choice | None:
        for found in self._found(request):
            try:
                configuration = request.restore(found.record.configuration, found.source)
            except ConfigurationError as exc:
                self.emit("unusable", request.key, detail=f"{found.layer}: {exc}")
                if found.source is Source.PINNED:
                    warn_once(
                        f"pin {request.key.digest}", "what is pinned for %s is not used: %s", request.key.text, exc
                    )
                if policy.on_miss == "autotune" and found.source in {Source.PINNED, Source.PGLE, Source.TUNED}:
                    # Its other candidates are still known: only the choice among them is to be made again.
                    choice = self._tuned(request, found.record)
                    if choice is not None:
                        return choice
                continue
            if policy.on_miss == "autotune" and self._has_news(request, found):
                choice = self._tuned(request, found.record)
                if choice is not None:
                    return choice
            return Choice(configuration, found.source, request.key, found.layer, found.record)
        return None

    def _found(self, request: Request) -> list[Found]:
        found = list(self.store.find_all(request.key))
        if request.legacy is not None and all(item.source.rank > Source.IMPORTED.rank for item in found):
            legacy = request.legacy()
            if legacy is not None:
                found.insert(0, legacy)
        return found

    def _has_news(self, request: Request, found: Found) -> bool:
        """Whether there are candidates that the record's tuner did not know."""
        if request.tune is None or found.source not in {Source.PGLE, Source.TUNED} or not found.record.candidates:
            return False
        known = {candidate.digest for candidate in found.record.candidates}
        return any(canonical_json(to_plain(candidate)) not in known for candidate in request.candidates())

    def _tuned(self, request: Request, known: Record | None) -> Choice | None:
        digest = request.key.digest
        if request.tune is None or digest in self._in_vain:
            return None
        self.emit("tuning", request.key)
        token = _being_tuned.set(_being_tuned.get() | {digest})
        try:
            default = request.heuristic() if request.heuristic is not None else ABSENT
            record = request.tune(known, default)
            configuration = None if record is None else request.restore(record.configuration, record.source)
        except Exception as exc:
            # Whatever measuring did, the program goes on with a configuration that needs no measuring.
            record, reason = None, repr(exc)
        else:
            reason = "every candidate failed"
        finally:
            _being_tuned.reset(token)
        if record is None:
            self._in_vain.add(digest)
            self.emit("error", request.key, detail=reason)
            warn_once(f"tuning {request.key.operation}", "%s could not be tuned: %s", request.key.text, reason)
            return None
        self.emit("tuned", request.key)
        try:
            self.store.publish(record)
        except EjcacheError as exc:
            self.emit("error", request.key, detail=repr(exc))
            warn_once(f"publishing {request.key.operation}", "%s is not kept: %s", request.key.text, exc)
        return Choice(configuration, record.source, request.key, "memory", record)

    def _second_best(self, request: Request, policy: Policy) -> Choice:
        for found in self.store.elsewhere(request.key):
            choice = self._usable(request, found)
            if choice is not None:
                return choice
        if policy.nearest:
            for found in nearest(self.store, request.key):
                choice = self._usable(request, found)
                if choice is not None:
                    return choice
        return self._guess(request)

    def _guess(self, request: Request) -> Choice:
        if request.heuristic is None:
            raise self._missing(request, "and the operation has no heuristic")
        return Choice(request.heuristic(), Source.HEURISTIC, request.key)

    def _usable(self, request: Request, found: Found) -> Choice | None:
        try:
            configuration = request.restore(found.record.configuration, found.source)
        except ConfigurationError as exc:
            self.emit("unusable", request.key, detail=f"{found.layer}: {exc}")
            return None
        return Choice(configuration, found.source, request.key, found.layer, found.record)

    def _missing(self, request: Request, reason: str) -> ConfigurationMissingError:
        found = nearest(self.store, request.key, same_environment=False)
        return ConfigurationMissingError(request.key, found[0].record.key if found else None, reason)


def nearest(store: AutotuneStore, key: RecordKey, *, same_environment: bool = True) -> list[Found]:
    """Records of similar calls of the same operation on the same device, most similar first.

    Args:
        store: what to search; every record of the operation on the device is read.
        key: of the call.
        same_environment: only calls that differ in the sizes of their arrays and in nothing else, and only records of
            this environment and version; otherwise any record, ordered by how much differs.
    """
    scored = []
    for found in store.records(operation=key.operation, device=None if not same_environment else key.device):
        if found.record.key == key:
            continue
        distance = _distance(key, found.record.key, strict=same_environment)
        if distance is not None:
            scored.append((distance, -found.record.created, found))
    scored.sort(key=lambda item: item[:2])
    return [Found(found.record, found.layer, Source.NEAREST) for _, _, found in scored]


def _distance(one: RecordKey, other: RecordKey, *, strict: bool) -> float | None:
    """Doublings between the sizes, plus a hundred for every other difference; None if `strict` rules it out."""
    total = 0.0
    for here, there in differences(one, other).values():
        sizes = _doublings(here, there)
        if sizes is None and strict:
            return None
        total += 100.0 if sizes is None else sizes
    return total


def _doublings(here: Any, there: Any) -> float | None:
    left = _ARRAY.fullmatch(here) if isinstance(here, str) else None
    right = _ARRAY.fullmatch(there) if isinstance(there, str) else None
    if left is None or right is None or left[1] != right[1]:
        return None
    sizes = [[int(size) for size in match[2].split(",") if size] for match in (left, right)]
    if len(sizes[0]) != len(sizes[1]) or 0 in (*sizes[0], *sizes[1]):
        return None
    return sum(abs(math.log2(a / b)) for a, b in zip(*sizes, strict=True))

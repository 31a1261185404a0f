"""Which configuration a call runs with.

    override > overlay > memory > pinned > measured under PGLE > tuned > imported > shipped seed
             > tuned for this call in another environment > nearest shape (only if asked) > heuristic > error

The links below `tuned` are used only where the policy forbids tuning or tuning failed.
"""

from __future__ import annotations

import math
import re
import sys
import threading
import time
from collections import Counter, deque
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from ejcache.autotune.call_key import CODE_DIGITS
from ejcache.autotune.choice import Choice, ConfigurationMissingError, Event, current_policy, evaluates_shapes, overlaid
from ejcache.autotune.log import warn_once
from ejcache.autotune.pod import POD, PodAgreement
from ejcache.autotune.recording import collected, note, recording
from ejcache.autotune.records.json_values import ConfigurationError, to_json
from ejcache.autotune.records.record import CODE, NO_CONFIGURATION, Source, differences
from ejcache.autotune.records.store import Found, default_store
from ejcache.errors import EjcacheError
from ejcache.jax_integration.compile_modes import is_forbidden, refuse_tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.autotune.choice import ChoiceRequest, Policy
    from ejcache.autotune.records.record import Record, RecordKey
    from ejcache.autotune.records.store import AutotuneStore


_KEPT_EVENTS: Final = 1000
_REMEMBERED_KEYS: Final = 10_000
_LONGEST_WAIT: Final = 60.0
_FEW_NUMBERS: Final = 3
_MEASURED: Final = frozenset({Source.PGLE, Source.TUNED})
_being_tuned: Final[ContextVar[frozenset[str]]] = ContextVar("ejcache_autotune_being_tuned", default=frozenset())
_ARRAY: Final = re.compile(r"([A-Za-z0-9_]+)\[([0-9,]*)\]")


@dataclass(eq=False)
class _KeyState:
    """What a chooser knows of one key.

    Attributes:
        lock: held by the thread that resolves the key.
        choice: the last one.
        policy: under which a guess was made.
        until: monotonic seconds at which a guess is made again; infinite for any other choice.
        wait: seconds for which the last guess was kept.
        failed: tuning failed in this process and is not tried again.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    choice: Choice | None = None
    policy: Policy | None = None
    until: float = -math.inf
    wait: float = 0.0
    failed: bool = False

    def current(self, policy: Policy) -> Choice | None:
        """The choice, if it still counts under `policy`."""
        if self.until == math.inf or (self.policy == policy and time.monotonic() < self.until):
            return self.choice
        return None


class Chooser:
    """Chooses configurations from a store. Threads may share it: if several miss one key, one of them tunes.

    Args:
        store: the records.
        on_event: called with each `Event`. An exception that it raises is counted, logged once and dropped.
        agreement: how the processes of a job agree on one choice.
    """

    def __init__(
        self,
        store: AutotuneStore,
        *,
        on_event: Callable[[Event], None] | None = None,
        agreement: PodAgreement | None = None,
    ) -> None:
        self.store = store
        self.on_event = on_event
        self.agreement = agreement or PodAgreement()
        self.counters: Counter[str] = Counter()
        self.events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self._generation = store.generation
        self._keys: dict[str, _KeyState] = {}
        self._measured: dict[str, deque[RecordKey]] = {}
        self._lock = threading.Lock()

    def choose(self, request: ChoiceRequest) -> Choice:
        """The configuration for the call.

        Raises:
            ConfigurationMissingError: no configuration was found, or none that is tuned where the policy requires one.
            CompileForbiddenError: the operation would be tuned where `forbid_compile` forbids compilations.
        """
        key = request.key
        if request.describe is not None and recording():
            note(key, request.describe, self.store)
        if request.override is not NO_CONFIGURATION:
            return self._chosen(Choice(request.override, Source.OVERRIDE, key))
        if (found := overlaid(key)) is not None:
            return self._chosen(Choice(found[0], Source.OVERLAY, key))
        if collected(request, self.store, self.measured):
            return self._chosen(self._unmeasured(request))
        if request.unhashable:
            return self._chosen(self._without_key(request))
        state = self._state(key.digest)
        if state.choice is not None and state.until == math.inf:
            self.counters["memory"] += 1
            return state.choice
        policy = current_policy(request.policy)
        if (held := state.current(policy)) is not None:
            self.counters["memory"] += 1
            return held
        if key.digest in _being_tuned.get():
            # A candidate makes the call for which it is being measured. It must not wait for itself.
            return self._second_best(request, policy)
        if policy.on_miss == "autotune" and evaluates_shapes():
            # Nothing runs, and the other processes of a job may not ask. So this choice is neither kept nor agreed on.
            return self._chosen(self._resolve(request, replace(policy, on_miss="heuristics"), state))
        with state.lock:
            if (held := state.current(policy)) is not None:
                return held
            choice = self.agreement.settle(request, lambda: self._resolve(request, policy, state))
            self._keep(state, choice, policy)
        return self._chosen(choice)

    def measured(self, request: ChoiceRequest, known: Record | None = None) -> Record:
        """Measure the call, and do not publish the result. If all candidates fail, it does not work.

        Args:
            request: the call, which has a `tune`.
            known: an earlier record. Its candidates are not measured again.
        """
        assert request.tune is not None  # noqa: S101 (for the type checker)
        token = _being_tuned.set(_being_tuned.get() | {request.key.digest})
        try:
            return request.tune(known, request.heuristic() if request.heuristic is not None else NO_CONFIGURATION)
        finally:
            _being_tuned.reset(token)

    def forget(self) -> None:
        """Choose again for each key, from the records that the layers have then."""
        self.store.reload()

    def emit(self, name: str, key: RecordKey, *, source: Source | None = None, detail: str = "") -> None:
        """Count an event and pass it to the listener."""
        event = Event(name, key, source, detail)
        self.counters[name if source is None else f"{name}_{source.value}"] += 1
        self.events.append(event)
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception as exc:
                self.counters["listener_errors"] += 1
                warn_once("autotune listener", "the listener of autotune events failed: %r", exc)

    def _state(self, digest: str) -> _KeyState:
        with self._lock:
            if self._generation != self.store.generation:
                self._generation = self.store.generation
                self._keys.clear()
            state = self._keys.get(digest)
            if state is None:
                if len(self._keys) >= _REMEMBERED_KEYS:
                    del self._keys[next(iter(self._keys))]
                state = self._keys[digest] = _KeyState()
            return state

    def _keep(self, state: _KeyState, choice: Choice, policy: Policy) -> None:
        state.choice, state.policy = choice, policy
        if choice.source.rank <= Source.SEED.rank or choice.layer == POD:
            state.until = math.inf
        else:
            # A guess is kept for a while only: another process may publish a better configuration.
            state.wait = min(2 * state.wait, _LONGEST_WAIT) if state.wait else self.store.refresh_seconds
            state.until = time.monotonic() + state.wait

    def _chosen(self, choice: Choice) -> Choice:
        self.emit("chosen", choice.key, source=choice.source, detail=choice.layer)
        return choice

    def _without_key(self, request: ChoiceRequest) -> Choice:
        """The operation's own guess for this call. A record under its key could be of another call."""
        self.emit("unhashable", request.key, detail="; ".join(request.unhashable))
        warn_once(
            f"unhashable {request.key.operation}",
            "some calls of %s are not tuned, because they have no key of their own: %s",
            request.key.operation,
            request.unhashable[0],
        )
        if current_policy(request.policy).on_miss == "error":
            raise self._missing(request, f"it has no key of its own, because {request.unhashable[0]}")
        return self._guess(request)

    def _resolve(self, request: ChoiceRequest, policy: Policy, state: _KeyState) -> Choice:
        choice = self._stored(request, policy, state)
        if choice is not None:
            return choice
        self.emit("miss", request.key)
        if policy.on_miss == "autotune":
            choice = self._tuned(request, None, state)
            if choice is not None:
                return choice
        elif policy.on_miss == "error":
            raise self._missing(request, "the policy forbids tuning")
        return self._second_best(request, policy)

    def _stored(self, request: ChoiceRequest, policy: Policy, state: _KeyState) -> Choice | None:
        for found in self._found(request):
            failed = found.source in _MEASURED and found.record.failed
            choice = self._usable(request, found) if found.record.works or found.source not in _MEASURED else None
            unusable = choice is None and not failed and found.source in _MEASURED | {Source.PINNED}
            # The record still has the times of its other candidates, so only the choice or new candidates are missing.
            retune = policy.on_miss == "autotune" and (
                unusable or ((choice is not None or failed) and self._has_new_candidates(request, found))
            )
            if choice is not None and is_forbidden():
                return choice  # new candidates are measured another time
            tuned = self._tuned(request, found.record, state) if retune else None
            if tuned is not None or choice is not None:
                return tuned or choice
            if failed and not retune:
                # Measured before, by this or another process. Each start would compile all candidates again.
                state.failed = True
                self._report_failure(request.key, found.record)
        return None

    def _found(self, request: ChoiceRequest) -> list[Found]:
        found = list(self.store.find_all(request.key))
        if request.legacy is not None and all(item.source.rank > Source.IMPORTED.rank for item in found):
            legacy = request.legacy()
            if legacy is not None:
                found.insert(0, legacy)
        return found

    @staticmethod
    def _has_new_candidates(request: ChoiceRequest, found: Found) -> bool:
        record = found.record
        if request.tune is None or found.source not in _MEASURED or not record.candidates:
            return False
        now = time.time()
        if record.measurement.get("interrupted") or any(candidate.expired(now) for candidate in record.candidates):
            return True
        stored = [to_json(candidate) for candidate in request.candidates()]
        if request.heuristic is not None:
            stored.append(to_json(request.heuristic()))
        if record.covers(stored):
            # The same configurations as then. Those without a time were left out: the search or the budget ended.
            return False
        return any(record.candidate(candidate) is None for candidate in stored)

    def _tuned(self, request: ChoiceRequest, known: Record | None, state: _KeyState) -> Choice | None:
        key = request.key
        if request.tune is None or state.failed:
            return None
        refuse_tuning(key.operation)
        self.emit("tuning", key)
        try:
            record = self.measured(request, known)
            configuration = request.restore(record.configuration, record.source) if record.works else None
        except Exception as exc:
            # A failed measurement must not end the program, which can run with a configuration that is not measured.
            state.failed = True
            self._report(f"tuning {key.operation}", "%s could not be tuned: %s", key, repr(exc))
            return None
        try:
            self.store.publish(record)
        except EjcacheError as exc:
            self._report(f"publishing {key.operation}", "the configuration of %s is not kept: %s", key, str(exc))
        if not record.works:
            state.failed = True
            self._report_failure(key, record)
            return None
        self.emit("tuned", key)
        self._warn_of_numbers(key)
        return Choice(configuration, record.source, key, "memory", record)

    def _warn_of_numbers(self, key: RecordKey) -> None:
        """Say so if calls that differ only in a number, such as the step of the training, are measured one by one."""
        before = self._measured.setdefault(key.operation, deque(maxlen=_FEW_NUMBERS))
        names = [_number_in_which(key, other) for other in before]
        before.append(key)
        if len(names) == _FEW_NUMBERS and names[0] is not None and len(set(names)) == 1:
            warn_once(
                f"numbers {key.operation}",
                "%s is measured again for each value of the number %s. Pass it as an array, or leave it out of the key "
                "with key=",
                key.operation,
                names[0],
            )

    def _report_failure(self, key: RecordKey, record: Record) -> None:
        reason = f"every candidate failed: {record.failures()}"
        self._report(f"tuning {key.operation}", "%s could not be tuned: %s", key, reason)

    def _report(self, subject: str, message: str, key: RecordKey, reason: str) -> None:
        self.emit("error", key, detail=reason)
        warn_once(subject, message, key.text, reason)

    def _second_best(self, request: ChoiceRequest, policy: Policy) -> Choice:
        for found in self._substitutes(request.key, policy):
            choice = self._usable(request, found)
            if choice is not None:
                return choice
        return self._guess(request)

    def _substitutes(self, key: RecordKey, policy: Policy) -> Iterator[Found]:
        yield from self.store.other_environments(key)
        if policy.nearest:
            yield from nearest(self.store, key)

    def _unmeasured(self, request: ChoiceRequest) -> Choice:
        """A choice for a program that is only traced: not measured, not agreed on, and not remembered."""
        policy = replace(current_policy(request.policy), on_miss="heuristics")
        found = None if request.unhashable else self._stored(request, policy, _KeyState())
        return found or self._guess(request)

    def _guess(self, request: ChoiceRequest) -> Choice:
        if request.heuristic is None:
            raise self._missing(request, "the operation has no heuristic")
        return Choice(request.heuristic(), Source.HEURISTIC, request.key)

    def _usable(self, request: ChoiceRequest, found: Found) -> Choice | None:
        try:
            configuration = request.restore(found.record.configuration, found.source)
        except ConfigurationError as exc:
            key = request.key
            self.emit("unusable", key, detail=f"{found.layer}: {exc}")
            if found.source is Source.PINNED:
                warn_once(f"pin {key.digest}", "the pinned configuration of %s is not used: %s", key.text, exc)
            return None
        _warn_of_other_code(request, found)
        return Choice(configuration, found.source, request.key, found.layer, found.record)

    def _missing(self, request: ChoiceRequest, reason: str) -> ConfigurationMissingError:
        found = nearest(self.store, request.key, same_environment=False)
        return ConfigurationMissingError(request.key, found[0].record.key if found else None, reason)


_choosers: Final[WeakValueDictionary[int, Chooser]] = WeakValueDictionary()
"""By the identities of their stores. A chooser keeps its store alive, so no other store can have this identity."""
_choosers_lock: Final = threading.Lock()
_default: Chooser | None = None


def chooser_for(store: AutotuneStore) -> Chooser:
    """The chooser of this process for `store`. It exists as long as an operation uses it or the caller keeps it."""
    with _choosers_lock:
        chooser = _choosers.get(id(store))
        if chooser is None:
            chooser = _choosers[id(store)] = Chooser(store)
        return chooser


def default_chooser() -> Chooser:
    """The chooser for `default_store()`, which all operations without a store of their own use."""
    global _default
    store, chooser = default_store(), _default
    if chooser is None or chooser.store is not store:
        chooser = _default = chooser_for(store)
    return chooser


def _warn_of_other_code(request: ChoiceRequest, found: Found) -> None:
    """Say so if the operation's code is not the code that was measured."""
    about = found.record.provenance
    python = ".".join(str(part) for part in sys.version_info[:2])
    if len(str(about.get(CODE, ""))) != CODE_DIGITS or not str(about.get("python", "")).startswith(f"{python}."):
        return
    if (code := request.code()) and code != about[CODE]:
        warn_once(
            f"code {request.key.operation}",
            "the code of %s is not that for which %s was measured. Change version= if the measurement no longer holds, "
            "and name= if two functions share it",
            request.key.operation,
            request.key.text,
        )


def _number_in_which(one: RecordKey, other: RecordKey) -> str | None:
    """The only argument in which two keys differ, if it is a number."""
    found = differences(one, other)
    numbers = [
        name.removeprefix("call.arguments.")
        for name, pair in found.items()
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in pair)
    ]
    return numbers[0] if len(found) == len(numbers) == 1 else None


def similar_configurations(store: AutotuneStore, key: RecordKey) -> list[Any]:
    """The configurations, JSON values, of the three most similar calls."""
    return [found.record.configuration for found in nearest(store, key)[:3] if found.record.works]


def nearest(store: AutotuneStore, key: RecordKey, *, same_environment: bool = True) -> list[Found]:
    """Records of similar calls of the same operation, most similar first.

    Args:
        store: the records; each one of the operation is read.
        key: of the call.
        same_environment: only records of this device, environment and version whose calls differ in the sizes of
            arrays alone. Otherwise any record of the operation.
    """
    device = key.device if same_environment else None
    others = [found for found in store.records(operation=key.operation, device=device) if found.record.key != key]
    scored = [
        (distance, -found.record.created, found)
        for found in others
        if (distance := _distance(key, found.record.key, sizes_only=same_environment)) is not None
    ]
    scored.sort(key=lambda item: item[:2])
    return [Found(found.record, found.layer, Source.NEAREST) for _, _, found in scored]


def _distance(one: RecordKey, other: RecordKey, *, sizes_only: bool) -> float | None:
    """Doublings between the sizes, plus a hundred for each other difference, for which `sizes_only` returns None."""
    doublings = [_doublings(here, there) for here, there in differences(one, other).values()]
    if sizes_only and None in doublings:
        return None
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

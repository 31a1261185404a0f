"""Chooses the configuration that a call runs with.

    override > overlay > memory > pinned > tuned > imported > similar > heuristic > error

What stands below "imported" is used only where the policy forbids tuning or tuning failed, but for a similar record
that a package ships: who installs the package measures nothing.

`Chooser.choose` is the page to read: what decides before anything is looked up, and then the sources, in the order in
which they stand below it.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from ejcache.autotune.call import DIFFERENTIATED
from ejcache.autotune.calls_ahead import tell_ahead
from ejcache.autotune.choice import Choice, ConfigurationMissingError, Event
from ejcache.autotune.log import warn_once
from ejcache.autotune.measuring_lock import one_of_a_host
from ejcache.autotune.pod import POD, PodAgreement
from ejcache.autotune.recording import note, recording
from ejcache.autotune.records.json_values import ConfigurationError, canonical_json, to_json
from ejcache.autotune.records.record import CODE, Record, Source
from ejcache.autotune.records.record_key import differences
from ejcache.autotune.records.store import default_store
from ejcache.autotune.tuning_blocks import current_policy, overlaid
from ejcache.errors import EjcacheError
from ejcache.jax_integration.no_compile_blocks import is_forbidden, refuse_tuning
from ejcache.jax_integration.seam.autotune import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ejcache.autotune.call import Call
    from ejcache.autotune.records.record_key import RecordKey
    from ejcache.autotune.records.store import AutotuneStore, Found
    from ejcache.autotune.tuning_blocks import TuningPolicy

    _ChoiceSource = Callable[["_Asked"], Choice | None]


_KEPT_EVENTS: Final = 1000
_REMEMBERED_KEYS: Final = 10_000
_FEW_NUMBERS: Final = 3


@dataclass(eq=False)
class _KeyState:
    """What a chooser knows of one key.

    Attributes:
        lock: held by the thread that resolves the key. It is reentrant: a signal handler may make the call.
        resolves: the holder of the lock resolves the key.
        choice: the last one.
        policy: under which a guess was made.
        until: monotonic seconds at which a guess is made again; infinite for any other choice.
        failed: tuning failed in this process and is not tried again.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    resolves: bool = False
    choice: Choice | None = None
    policy: TuningPolicy | None = None
    until: float = -math.inf
    failed: bool = False

    def current(self, policy: TuningPolicy) -> Choice | None:
        """Return the choice, if it still counts under `policy`."""
        if self.until == math.inf or (self.policy == policy and time.monotonic() < self.until):
            return self.choice
        return None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the sources of a choice are asked with.

    Attributes:
        call: the call.
        policy: under which it is made.
        state: what is known of its key.
    """

    call: Call
    policy: TuningPolicy
    state: _KeyState

    @classmethod
    def unmeasured(cls, call: Call, state: _KeyState) -> _Asked:
        """Ask without measuring."""
        return cls(call, replace(current_policy(call.policy), on_miss="heuristics"), state)

    @property
    def may_measure(self) -> bool:
        return self.policy.on_miss == "autotune"


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
        self._keys: OrderedDict[str, _KeyState] = OrderedDict()
        self._measured: dict[str, deque[RecordKey]] = {}
        self._compared: dict[tuple[str, str, str], bool] = {}
        self._lock = threading.RLock()

    def choose(self, call: Call) -> Choice:
        """Return the configuration for the call.

        Raises:
            ConfigurationMissingError: no configuration was found, or none that is tuned where the policy requires one.
            CompileForbiddenError: the operation would be tuned where `forbid_compile` forbids compilations.
        """
        if recording():
            note(call)
        if (given := overlaid(call.key)) is not None:
            return self._chosen(_overlaid(call, given[0]))
        if tell_ahead(call):
            # The program is only traced. This choice is neither agreed on nor remembered.
            known = [] if call.unhashable else [self._recorded]
            return self._chosen(self._first(_Asked.unmeasured(call, _KeyState()), [*known, self._guessed]))
        if call.unhashable:
            return self._chosen(self._without_key(call))
        state = self._state(call.key.digest + call.part)
        if state.choice is not None and state.until == math.inf:
            self.counters["memory"] += 1
            return state.choice
        asked = _Asked(call, current_policy(call.policy), state)
        if call.is_being_measured:
            # A candidate makes the call for which it is being measured. It must not wait for itself.
            return self._first(asked, self._not_measured_here)
        if asked.policy.on_miss == "autotune" and _evaluates_shapes():
            # Nothing runs, and the other processes of a job may not ask. So this choice is neither kept nor agreed on.
            return self._chosen(self._first(_Asked.unmeasured(call, state), self._sources))
        with state.lock:
            if state.resolves:
                # A signal handler makes the call that it has interrupted, and must not wait for its answer.
                return self._chosen(self._first(_Asked.unmeasured(call, state), self._sources))
            try:
                state.resolves = True
                if (held := state.current(asked.policy)) is not None:
                    self.counters["memory"] += 1
                    return held
                choice = self.agreement.settle(call, lambda: self._first(asked, self._sources))
                self._keep(state, choice, asked.policy)
            finally:
                state.resolves = False
        return self._chosen(choice)

    def _first(self, asked: _Asked, sources: Iterable[_ChoiceSource]) -> Choice:
        """Return the configuration of the first source that has one."""
        return next(choice for source in sources if (choice := source(asked)) is not None)

    @property
    def _sources(self) -> tuple[_ChoiceSource, ...]:
        return (self._recorded, self._shipped, self._measured_now, *self._not_measured_here)

    @property
    def _not_measured_here(self) -> tuple[_ChoiceSource, ...]:
        return (self._similar, self._guessed)

    # The sources, strongest first. Each returns None if it has no configuration, and the last one always has one.

    def _recorded(self, asked: _Asked) -> Choice | None:
        """Return a record of the call: pinned, measured, imported or shipped; measured again if it has no end."""
        for found in self._found(asked.call):
            ask = self._of_measured if found.source is Source.TUNED else self._of_given
            if (choice := ask(asked, found)) is not None:
                return choice
        return None

    def _shipped(self, asked: _Asked) -> Choice | None:
        """Return a record of a package, of the call on a like device: who installs it measures nothing."""
        return self._of_similar(asked, shipped=True)

    def _measured_now(self, asked: _Asked) -> Choice | None:
        """Return a measurement; none where the policy forbids it, or if it fails.

        Raises:
            ConfigurationMissingError: the policy requires what is tuned, and forbids tuning.
        """
        self.emit("miss", asked.call.key)
        if asked.policy.on_miss == "error":
            raise self._missing(asked.call, "the policy forbids tuning")
        return self._tuned(asked, None) if asked.may_measure else None

    def _similar(self, asked: _Asked) -> Choice | None:
        """Return a record of the call on a like device, with other cores or versions."""
        return self._of_similar(asked, shipped=False)

    def _guessed(self, asked: _Asked) -> Choice:
        """Return the operation's own guess."""
        if not asked.call.unhashable:
            self._say_elsewhere(asked.call.key)
        return self._guess(asked.call)

    # What the sources ask.

    def _of_given(self, asked: _Asked, found: Found) -> Choice | None:
        """Choose by a record that a person or a package made. A pin of no use is measured instead."""
        choice = self._usable(asked.call, found)
        if choice is None and found.source is Source.PINNED and asked.may_measure:
            return self._tuned(asked, found.record)
        return choice

    def _of_measured(self, asked: _Asked, found: Found) -> Choice | None:
        """Choose by a measurement of this or another process, which is continued if it is of no use, or has no end."""
        call, record = asked.call, found.record
        choice = self._usable(call, found) if record.works else None
        if asked.may_measure and _is_continued(call, record, choice):
            if (tuned := self._tuned(asked, record)) is not None:
                return tuned
        elif record.failed and choice is None:
            # Each start would compile all candidates again.
            asked.state.failed = True
            self._report_failure(call.key, record)
        if record.failed:
            return choice
        if choice is None:
            # The other calls of the key use the record, so it is not measured anew for this one.
            return self._guess(call) if call.shares_key and call.may_guess else None
        return self._if_right(asked, found, choice) if call.part else choice

    def _if_right(self, asked: _Asked, found: Found, choice: Choice) -> Choice:
        """Return the choice of a record of several calls, or the guess if it, or its gradient, is wrong for this one.

        Where measuring is allowed, it is compared with the default first: a gradient once, and the call of a key that
        other calls share once in a process.
        """
        call, record = asked.call, found.record
        place = (call.key.digest, call.part, canonical_json(record.configuration))
        right = self._compared.get(place, record.gradient_agrees if call.part == DIFFERENTIATED else None)
        if right is None and asked.may_measure and not is_forbidden():
            try:
                right = self._compared[place] = call.agrees(record.configuration)
                if call.part == DIFFERENTIATED:
                    self.store.publish(record.with_gradient(agrees=right))
            except Exception as exc:
                # The program can run with its own guess.
                self._report(f"comparing {call.key.operation}", "%s could not be compared: %s", call.key, repr(exc))
                right = False
        return self._guess(call) if right is False and call.may_guess else choice

    def _of_similar(self, asked: _Asked, *, shipped: bool) -> Choice | None:
        """Choose by a record of this call from elsewhere; with `shipped`, by a package's."""
        for found in self.store.near(asked.call.key, same_call=True):
            usable = found.source is Source.SIMILAR and found.record.works and (found.shipped or not shipped)
            if usable and (choice := self._usable(asked.call, found)) is not None:
                return choice
        return None

    def _found(self, call: Call) -> list[Found]:
        found = self.store.find_all(call.key)
        if all(item.shipped for item in found) and (legacy := call.legacy()) is not None:
            return [legacy, *found]
        return found

    def _tuned(self, asked: _Asked, known: Record | None) -> Choice | None:
        call, key, state = asked.call, asked.call.key, asked.state
        if state.failed:
            return None
        refuse_tuning(key.operation)
        tuner = call.tuner()
        with one_of_a_host(key, self.store.url, seconds=tuner.budget + tuner.compile_budget) as waited:
            # Another process has measured the call meanwhile.
            held = self._measured_meanwhile(call, known) if waited else None
            return held or self._measure(call, known, state)

    def _measured_meanwhile(self, call: Call, known: Record | None) -> Choice | None:
        for found in self.store.look_again(call.key):
            is_new = known is None or found.record.created > known.created
            if found.source is Source.TUNED and found.record.works and not found.record.interrupted and is_new:
                return self._usable(call, found)
        return None

    def _measure(self, call: Call, known: Record | None, state: _KeyState) -> Choice | None:
        key = call.key
        self.emit("tuning", key)
        try:
            record = call.measured(known)
            configuration = call.restored(record.configuration, record.source) if record.works else None
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
        self._compared[key.digest, call.part, canonical_json(record.configuration)] = True
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
                    self._keys.popitem(last=False)
                state = self._keys.setdefault(digest, _KeyState())
            return state

    def _keep(self, state: _KeyState, choice: Choice, policy: TuningPolicy) -> None:
        state.choice, state.policy = choice, policy
        shipped = choice.source is Source.SIMILAR and policy.on_miss == "autotune"
        if choice.source.rank <= Source.IMPORTED.rank or choice.layer == POD or shipped:
            state.until = math.inf
        else:
            # A guess is kept for a while only: another process may publish a better configuration.
            state.until = time.monotonic() + self.store.refresh_seconds

    def _chosen(self, choice: Choice) -> Choice:
        self.emit("chosen", choice.key, source=choice.source, detail=choice.layer)
        return choice

    def _without_key(self, call: Call) -> Choice:
        """Return the operation's own guess for this call. A record under its key could be of another call."""
        self.emit("unhashable", call.key, detail="; ".join(call.unhashable))
        warn_once(
            f"unhashable {call.key.operation}",
            "some calls of %s are not tuned, because they have no key of their own: %s",
            call.key.operation,
            call.unhashable[0],
        )
        if current_policy(call.policy).on_miss == "error":
            raise self._missing(call, f"it has no key of its own, because {call.unhashable[0]}")
        return self._guess(call)

    def _say_elsewhere(self, key: RecordKey) -> None:
        """Say so if the call was measured on other devices only, which says nothing of this one."""
        devices = {found.record.key.device for found in self.store.near(key, same_call=True)}
        if devices and key.device not in devices:
            warn_once(
                f"elsewhere {key.operation}",
                "%s was tuned for %s only, and not for %s: it runs with its own guess",
                key.operation,
                ", ".join(sorted(devices)),
                key.device,
            )

    def _guess(self, call: Call) -> Choice:
        if not call.may_guess:
            raise self._missing(call, "the operation has no heuristic")
        return Choice(call.default(), Source.HEURISTIC, call.key)

    def _usable(self, call: Call, found: Found) -> Choice | None:
        try:
            configuration = call.restored(found.record.configuration, found.source)
        except ConfigurationError as exc:
            key = call.key
            self.emit("unusable", key, detail=f"{found.layer}: {exc}")
            if found.source is Source.PINNED:
                warn_once(f"pin {key.digest}", "the pinned configuration of %s is not used: %s", key.text, exc)
            return None
        _warn_of_other_code(call, found)
        return Choice(configuration, found.source, call.key, found.layer, found.record)

    def _missing(self, call: Call, reason: str) -> ConfigurationMissingError:
        nearest = next((found.record.key for found in self.store.near(call.key) if found.record.works), None)
        return ConfigurationMissingError(call.key, nearest, reason)


def _overlaid(call: Call, given: Any) -> Choice:
    if not isinstance(given, Record):
        return Choice(given, Source.OVERLAY, call.key)
    return Choice(call.restored(given.configuration, Source.OVERLAY), Source.OVERLAY, call.key, record=given)


def _evaluates_shapes() -> bool:
    """True if `jax.eval_shape` makes the call, so that its program is never run and nothing is worth measuring."""
    tracing.watch_shape_evaluation()
    return tracing.evaluates_shapes()


def _is_continued(call: Call, record: Record, choice: Choice | None) -> bool:
    """True if a measurement is of no use for a call, or has no end, and may be continued."""
    if (choice is not None and is_forbidden()) or (call.shares_key and not record.failed):
        return False
    # A record without a usable choice still has the times of its other candidates.
    return (choice is None and not record.failed) or _has_new_candidates(call, record)


def _has_new_candidates(call: Call, record: Record) -> bool:
    if not record.candidates:
        return False
    now = time.time()
    if record.interrupted or any(candidate.expired(now) for candidate in record.candidates):
        return True
    if call.space() is not None:
        return False
    stored = [to_json(candidate) for candidate in call.candidates()]
    if call.may_guess:
        stored.append(to_json(call.default()))
    # The same configurations as then: those without a time were left out, because the search or the budget ended.
    return not record.covers(stored) and any(record.candidate(candidate) is None for candidate in stored)


_choosers: Final[WeakValueDictionary[int, Chooser]] = WeakValueDictionary()
"""By the identities of their stores. A chooser keeps its store alive, so no other store can have this identity."""
_choosers_lock: Final = threading.RLock()
_default: Chooser | None = None


def chooser_for(store: AutotuneStore) -> Chooser:
    """Return this process's chooser for `store`. It exists as long as an operation uses it or the caller keeps it."""
    with _choosers_lock:
        chooser = _choosers.get(id(store))
        if chooser is None:
            chooser = _choosers.setdefault(id(store), Chooser(store))
        return chooser


def default_chooser() -> Chooser:
    """Return the chooser for `default_store()`, which all operations without a store of their own use."""
    global _default
    store, chooser = default_store(), _default
    if chooser is None or chooser.store is not store:
        chooser = _default = chooser_for(store)
    return chooser


def _warn_of_other_code(call: Call, found: Found) -> None:
    """Say so if the operation's code is not the code that was measured."""
    about = found.record.provenance
    python = ".".join(str(part) for part in sys.version_info[:2])
    if not about.get(CODE) or not str(about.get("python", "")).startswith(f"{python}."):
        return
    if (code := call.code()) and code != about[CODE]:
        warn_once(
            f"code {call.key.operation}",
            "the code of %s is not that for which %s was measured. Change version= if the measurement no longer holds, "
            "and name= if two functions share it",
            call.key.operation,
            call.key.text,
        )


def _number_in_which(one: RecordKey, other: RecordKey) -> str | None:
    """Return the only argument in which two keys differ, if it is a number."""
    found = differences(one, other)
    numbers = [
        name.removeprefix("call.arguments.")
        for name, pair in found.items()
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in pair)
    ]
    return numbers[0] if len(found) == len(numbers) == 1 else None

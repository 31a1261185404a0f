"""Recorded calls, tuned. What is tuned already is passed over, so that an interrupted run can be resumed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ejcache.autotune.calls import imported
from ejcache.autotune.decorator import Autotuned
from ejcache.autotune.plain import canonical_json
from ejcache.autotune.policy import forward_only
from ejcache.autotune.records import Source
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.recording import Recorded
    from ejcache.autotune.records import Record
    from ejcache.autotune.store import AutotuneStore

__all__ = ["Outcome", "Replayed", "replay", "tunable"]


class Outcome(StrEnum):
    """What became of a recorded call."""

    TUNED = "tuned"
    ALREADY = "already tuned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One recorded call, replayed.

    Attributes:
        path: of its document.
        operation: its name.
        outcome: what became of it.
        record: of the call, where there is one.
        problem: why it failed.
    """

    path: str
    operation: str
    outcome: Outcome
    record: Record | None = None
    problem: str = ""


def replay(recorded: Recorded, store: AutotuneStore, *, force: bool = False) -> Replayed:
    """Tune one recorded call on this machine and publish the record.

    Imports the modules that the call names.

    Args:
        recorded: the call.
        store: where to publish.
        force: measure it although a tuned record is there.
    """
    if recorded.call is None:
        return Replayed(recorded.path, "", Outcome.FAILED, problem=recorded.problem)
    operation = recorded.call["operation"]
    try:
        with _mode_of(recorded.call):
            return _replayed(recorded.path, recorded.call, store, force=force)
    except Exception as exc:
        # One call that cannot be replayed must not end the tuning of all others.
        return Replayed(recorded.path, operation, Outcome.FAILED, problem=f"{type(exc).__name__}: {exc}")


def _replayed(path: str, call: dict[str, Any], store: AutotuneStore, *, force: bool) -> Replayed:
    operation = call["operation"]
    again = tunable(call)
    _check_same(again.key, call)
    found = store.find(again.key)
    if found is not None and found.source.rank <= Source.TUNED.rank and not force:
        return Replayed(path, operation, Outcome.ALREADY, found.record)
    record = again.measured()
    if record is None:
        return Replayed(path, operation, Outcome.FAILED, problem="every candidate failed")
    if not store.publish(record):
        return Replayed(path, operation, Outcome.FAILED, record, "it could not be stored")
    return Replayed(path, operation, Outcome.TUNED, record)


def _mode_of(call: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Where the call is what it was when it was recorded: without the gradient, if that was to be left out."""
    described = call.get("call")
    recorded_forward = isinstance(described, dict) and described.get("mode") == "forward"
    return forward_only() if recorded_forward else contextlib.nullcontext()


def _check_same(key: RecordKey, call: dict[str, Any]) -> None:
    """Raise `UsageError` if a record of `key` would not be found by the program that recorded the call."""
    described = call.get("call", key.call)
    if key.operation != call["operation"] or canonical_json(dict(key.call)) != canonical_json(described):
        raise UsageError(f"what was recorded as {call.get('key', call['operation'])} is now {key.text}")


def tunable(call: dict[str, Any]) -> Any:
    """The call with its operation: `key`, `measured()` and `attempt(configuration)`.

    Raises:
        UsageError: what it names cannot be imported, or is something else now.
        EntryCorruptError: it is malformed.
    """
    from ejcache.autotune.measure_calls import arguments_of

    how = call["how"]
    args, kwargs = arguments_of(call)
    if how.get("kind") == "autotuned":
        held = imported(how["object"])
        if not isinstance(held, Autotuned):
            raise UsageError(f"{how['object']} is not autotuned any more")
        return held.bound(args, kwargs)
    if how.get("kind") == "ejkernel":
        from ejcache.autotune.ejkernel_chain import call_again

        return call_again(how, args, kwargs)
    raise UsageError(f"a call of kind {how.get('kind')!r} cannot be replayed")

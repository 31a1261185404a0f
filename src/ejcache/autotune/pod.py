"""Makes all processes of a job run a call with one configuration.

All processes of a job must run the same program, and a configuration is part of it. So no process may decide by what
it finds in its own store or measures by itself. The first process that needs a configuration claims the key on JAX's
coordination service, finds or measures the configuration, and publishes it there. The others wait and use that one.

A process that waited until the deadline publishes the operation's own guess. The first published answer wins, also for
a process that finishes later. So no process depends on the others to ask, or on the claiming process to stay alive.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.choice import Choice, ConfigurationMissingError
from ejcache.autotune.log import warn_once
from ejcache.autotune.records.json_values import ConfigurationError, json_digest, to_json
from ejcache.autotune.records.record import Source, decode_record, encode_record
from ejcache.errors import EjcacheError, EntryError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.autotune.call import Call
    from ejcache.jax_integration.seam.coordination_service import CoordinationClient


POD: Final = "pod"
"""The layer of a choice on which the processes of a job have agreed."""

_DEADLINE_SECONDS: Final = 600.0
_GRACE_SECONDS: Final = 30.0


class DisagreementError(EjcacheError):
    """The processes of a job run different code and cannot use one configuration."""


def _find_coordination() -> CoordinationClient | None:
    if "jax" not in sys.modules:
        return None
    from ejcache.jax_integration.seam.coordination_service import coordination_client  # JAX itself

    return coordination_client()


class PodAgreement:
    """Makes one choice for each key in the whole job. In a job of one process it has no effect.

    Args:
        find_coordination: returns the client of the job's coordination service, or None in a job of one process.
        deadline: seconds that the other processes wait for the one that measures.
    """

    def __init__(
        self,
        find_coordination: Callable[[], CoordinationClient | None] = _find_coordination,
        *,
        deadline: float = _DEADLINE_SECONDS,
    ) -> None:
        self._find_coordination = find_coordination
        self.deadline = deadline

    def settle(self, call: Call, propose: Callable[[], Choice]) -> Choice:
        """Return the choice of all processes. The first process that asks calls `propose`.

        Raises:
            ConfigurationMissingError: raised in all processes if `propose` raises it.
            DisagreementError: this process cannot use the configuration that the others use.
        """
        coordination = self._find_coordination()
        if coordination is None:
            return propose()
        try:
            return self._settle(coordination, call, propose)
        except StoreError as exc:
            # A record may be in the store of this process only, so every process uses the operation's own guess.
            warn_once("pod coordination", "JAX's coordination service failed, so each process guesses: %s", exc)
            return _guessed(call)

    def _settle(self, coordination: CoordinationClient, call: Call, propose: Callable[[], Choice]) -> Choice:
        name = f"ejcache/autotune/{call.key.digest}{call.part}"

        def publish(**answer: Any) -> bool:
            return coordination.set_once(name, json.dumps(answer | {"process": coordination.process}).encode())

        if coordination.set_once(f"{name}/claim", str(coordination.process).encode()):
            try:
                choice = propose()
                mine = publish(**_answer(choice))
            except ConfigurationMissingError as exc:
                publish(error=exc.reason)
                raise
            except ConfigurationError as exc:
                choice = _guessed(call)
                mine = publish(guess=str(exc))
            if mine:
                return replace(choice, layer=POD)
        else:
            chooser = "the first process of the job that came to it, which chooses the configuration of"
            answer = coordination.get(name, timeout=self.deadline, what=f"{chooser} {call.key.operation}")
            if answer is not None:
                return _decoded(answer, call)
            warn_once("pod deadline", "no process of the job chose a configuration for %s in time", call.key.text)
            choice = _guessed(call)
            if publish(**_answer(choice)):
                return choice
        answer = coordination.get(name, timeout=_GRACE_SECONDS)
        if answer is None:
            raise DisagreementError(f"another process published a configuration for {call.key.text}, unreadable here")
        return _decoded(answer, call)


def _guessed(call: Call) -> Choice:
    if not call.may_guess:
        reason = "no process of the job chose one in time, and the operation has no heuristic"
        raise ConfigurationMissingError(call.key, None, reason)
    return Choice(call.default(), Source.HEURISTIC, call.key, POD)


def _answer(choice: Choice) -> dict[str, Any]:
    stored = to_json(choice.configuration)
    record = {} if choice.record is None else {"record": encode_record(choice.record).decode()}
    return {"configuration": stored, "digest": json_digest(stored), "source": choice.source.value, **record}


def _decoded(answer: bytes, call: Call) -> Choice:
    key, body = call.key, json.loads(answer)
    if "error" in body:
        raise ConfigurationMissingError(key, None, f"process {body['process']} found none: {body['error']}")
    if "guess" in body:
        return _guessed(call)
    source, stored = Source(body["source"]), body["configuration"]
    try:
        configuration = call.restored(stored, source)
        differs = "" if json_digest(to_json(configuration)) == body["digest"] else "it differs here"
    except ConfigurationError as exc:
        differs = str(exc)
    if differs:
        raise DisagreementError(f"process {body['process']} runs {key.text} with {stored}: {differs}")
    # The other process may be of a version whose records this one does not read.
    with contextlib.suppress(EntryError, KeyError):
        return Choice(configuration, source, key, POD, decode_record(body["record"].encode()))
    return Choice(configuration, source, key, POD)

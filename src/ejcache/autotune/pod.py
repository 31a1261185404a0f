"""One answer for all processes of a job.

A program that spans processes must be the same program in all of them, and a configuration is part of it. What one
process finds in its own store, or measures, must therefore not decide for it alone: whoever needs a configuration
first claims the question, answers it from its store or by measuring, and posts the answer where all can read it; the
others wait, and all use what is posted, that is also the one who answered too late.

Nothing depends on who comes first, on all processes asking, or on the one who claimed the question being alive: after
a deadline any of them posts the operation's own guess, and the first post stands.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.choice import Agreement, Choice, ConfigurationMissingError
from ejcache.autotune.layer import warn_once
from ejcache.autotune.plain import ConfigurationError, canonical_json, to_plain
from ejcache.autotune.records import Source, decode_record, encode_record
from ejcache.errors import EjcacheError, EntryError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.autotune.choice import Request
    from ejcache.autotune.key import RecordKey
    from ejcache.jaxside.seam_board import Board

__all__ = ["POD", "DisagreementError", "PodAgreement", "job_agreement"]

POD: Final = "pod"
"""The layer of a choice that the processes of a job have agreed on."""

_DEADLINE_SECONDS: Final = 600.0
_GRACE_SECONDS: Final = 30.0


class DisagreementError(EjcacheError):
    """The processes of a job cannot run with one configuration, because they do not run the same code."""


class PodAgreement(Agreement):
    """Settles each key once for the whole job.

    Args:
        find_board: gives the job's notice board, or None while this is a program of one process.
        deadline: seconds that the others wait for the one who measures.
    """

    def __init__(self, find_board: Callable[[], Board | None], *, deadline: float = _DEADLINE_SECONDS) -> None:
        self._find_board = find_board
        self.deadline = deadline

    def settle(self, key: RecordKey, propose: Callable[[], Choice], request: Request) -> Choice:
        """The choice that all processes make.

        Raises:
            ConfigurationMissingError: in all of them, if it is raised in the one that answers.
            DisagreementError: this process cannot use what was agreed.
        """
        board = self._find_board()
        if board is None:
            return propose()
        try:
            return self._settle(board, key, propose, request)
        except StoreError as exc:
            # Not what this process alone has stored: the operation's guess depends on the call and on nothing else.
            warn_once("pod board", "processes cannot agree on configurations, and each one guesses: %s", exc)
            return _guessed(key, request)

    def _settle(self, board: Board, key: RecordKey, propose: Callable[[], Choice], request: Request) -> Choice:
        name = f"ejcache/autotune/{key.digest}"
        if board.post(f"{name}/claim", str(board.process)):
            try:
                choice = propose()
                text = _posted(choice, board.process)
            except ConfigurationMissingError as exc:
                board.post(name, json.dumps({"error": exc.reason, "process": board.process}))
                raise
            except ConfigurationError as exc:
                choice = _guessed(key, request)
                text = json.dumps({"guess": str(exc), "process": board.process})
            if board.post(name, text):
                return _agreed(choice)
        else:
            answer = board.read(name, timeout=self.deadline)
            if answer is not None:
                return _read(answer, key, request)
            warn_once("pod deadline", "no process of the job has chosen a configuration for %s in time", key.text)
            guess = _guessed(key, request)
            if board.post(name, _posted(guess, board.process)):
                return _agreed(guess)
        answer = board.read(name, timeout=_GRACE_SECONDS)
        if answer is None:
            raise DisagreementError(f"an answer for {key.text} was posted and cannot be read")
        return _read(answer, key, request)


def _guessed(key: RecordKey, request: Request) -> Choice:
    if request.heuristic is None:
        raise ConfigurationMissingError(key, None, "the job has no answer in time, and the operation has no heuristic")
    return Choice(request.heuristic(), Source.HEURISTIC, key, POD)


def _agreed(choice: Choice) -> Choice:
    return Choice(choice.configuration, choice.source, choice.key, POD, choice.record)


def _posted(choice: Choice, process: int) -> str:
    plain = to_plain(choice.configuration)
    body: dict[str, Any] = {"configuration": plain, "digest": _digest(plain), "process": process}
    body["source"] = choice.source.value
    if choice.record is not None:
        body["record"] = encode_record(choice.record).decode()
    return json.dumps(body)


def _read(answer: str, key: RecordKey, request: Request) -> Choice:
    body = json.loads(answer)
    if "error" in body:
        raise ConfigurationMissingError(key, None, f"process {body['process']} found none: {body['error']}")
    if "guess" in body:
        return _guessed(key, request)
    source = Source(body["source"])
    plain = body["configuration"]
    try:
        configuration = request.restore(plain, source)
        here = _digest(to_plain(configuration))
    except ConfigurationError as exc:
        raise DisagreementError(f"process {body['process']} runs {key.text} with {plain}: {exc}") from exc
    if here != body["digest"]:
        raise DisagreementError(f"process {body['process']} runs {key.text} with {plain}, which here is something else")
    record = None
    if "record" in body:
        try:
            record = decode_record(body["record"].encode())
        except EntryError as exc:
            warn_once("pod record", "the evidence for %s is lost: %s", key.text, exc)
    return Choice(configuration, source, key, POD, record)


def _digest(plain: Any) -> str:
    return hashlib.sha256(canonical_json(plain).encode()).hexdigest()


def _find_board() -> Board | None:
    if "jax" not in sys.modules:
        return None
    from ejcache.jaxside.seam_board import job_board

    return job_board()


def job_agreement() -> Agreement:
    """How the processes of this job come to one answer; for a program of one process that is no question."""
    return PodAgreement(_find_board)

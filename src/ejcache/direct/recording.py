"""Tracing a call as usual, under observation, and what is learnt from it: a record, a proof, or a reason for neither.

The function runs once, as without direct mode. What ran is observed (`fingerprint.coverage`) where a record is to be
made. The walk is repeated afterwards: if it differs, tracing changed what it reads, and a trace cannot be skipped.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

from ejcache._tuples import NamedTuple
from ejcache.fingerprint.coverage import Coverage
from ejcache.fingerprint.guards import current_values, make_guards, stepped
from ejcache.fingerprint.guards_format import encode_guards
from ejcache.fingerprint.library import is_library_code
from ejcache.fingerprint.refusal import RefusedError
from ejcache.fingerprint.walk import difference
from ejcache.jax_integration.direct.calls.generated import generator_of
from ejcache.jax_integration.direct.calls.question import walk_function
from ejcache.jax_integration.direct.calls.remembered import note_traces
from ejcache.jax_integration.direct.fastpath_format import difference_to_record, encode_fastpath
from ejcache.jax_integration.direct.made import Made, watch_made
from ejcache.jax_integration.direct.record_store import is_independent, witness
from ejcache.jax_integration.direct.records import DirectRecord, with_record, without_record
from ejcache.jax_integration.direct.verdicts import Verdict
from ejcache.jax_integration.seam.compilations import around_each_compilation
from ejcache.jax_integration.seam.direct.retracing import forget_traces
from ejcache.settings.environment import variable_digests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.jax_integration.direct.calls.answering import Chosen
    from ejcache.jax_integration.direct.calls.question import Question
    from ejcache.jax_integration.direct.records import DirectDocument

__all__ = ["Learnt", "Observed", "learn", "observed", "watch_compilations"]

_recording: Final = threading.Lock()
"""Python's monitoring sees every thread, so one trace at a time is recorded."""


class Observed:
    """What was seen while a call was traced.

    Attributes:
        coverage: what ran; None if nothing was recorded, because nobody asked or another thread was being recorded.
        made: the executables that JAX got.
    """

    def __init__(self) -> None:
        self.coverage: Coverage | None = None
        self.made: list[Made] = []


class Learnt(NamedTuple):
    """What follows from a trace.

    Attributes:
        verdict: for `why` and the counters.
        sentence: its reason.
        document: to be stored; None if nothing changed.
    """

    verdict: Verdict
    sentence: str
    document: DirectDocument | None = None


@contextlib.contextmanager
def observed(*, recording: bool) -> Iterator[Observed]:
    """Within the block a function is traced.

    Args:
        recording: also note what runs, for a new record.
    """
    found = Observed()
    with contextlib.ExitStack() as stack:
        found.made = stack.enter_context(watch_made())
        if recording and _recording.acquire(blocking=False):
            stack.callback(_recording.release)
            # A library's function that was called before would not run, and what it reads would not be seen.
            forget_traces(is_library_code)
            found.coverage = stack.enter_context(_recorded(Coverage()))
        yield found


@contextlib.contextmanager
def _recorded(coverage: Coverage) -> Iterator[Coverage]:
    """Record what runs in the block, except while JAX gets an executable."""
    global _current
    with coverage:
        _current = coverage
        try:
            yield coverage
        finally:
            _current = None


_current: Coverage | None = None
"""What is being recorded, in some thread."""


def watch_compilations() -> None:
    """Have recordings pause while JAX gets an executable. Called before the first record is checked: it patches JAX."""
    around_each_compilation(_paused)


@contextlib.contextmanager
def _paused() -> Iterator[None]:
    coverage = _current
    if coverage is None:
        yield
        return
    coverage.pause()
    try:
        yield
    finally:
        coverage.resume()


def learn(question: Question, chosen: Chosen, seen: Observed, result: Any, *, strict: bool) -> Learnt:
    """What follows from the trace of a call.

    Args:
        question: the call, as it was before the trace.
        chosen: the record of that state.
        seen: what was observed.
        result: of JAX's own miss: results, data for the C++ dispatch, and a function to rebuild it.
        strict: refuse what loses output.

    Raises:
        RefusedError: the function reads or does something that a record cannot describe.
    """
    fastpath = result[1]
    if fastpath is None:
        raise RefusedError("it has effects, host callbacks or references, or its results are no plain arrays")
    made = next((each for each in seen.made if each.executable is fastpath.xla_executable), None)
    if made is None:
        sentence = (
            "its executable is not in the cache: it compiled too quickly, was not stored, or JAX had it in memory"
        )
        return Learnt(Verdict.MISSED, sentence)
    after = walk_function(question.roots)
    if after.user_digest != question.walked.user_digest:
        # What a library's functions keep in their closures may change: a later start that does not trace finds it
        # unchanged, and the records of other functions name the state that they were traced in.
        changed = difference(question.walked.tokens, after.tokens)
        raise RefusedError(f"tracing changed what it reads: {changed or 'a value that has no name'}")
    inside = note_traces(after, seen.coverage, but=question.call.jitted.__wrapped__)
    if chosen.record is not None:
        return _compare(question, chosen.record, made, fastpath, gone=chosen.missed)
    if seen.coverage is not None:
        for each in inside:
            if each is None:
                sentence = (
                    f"{chosen.missed}; JAX remembered traces of functions that it calls, so this was not recorded"
                )
                return Learnt(Verdict.MISSED, sentence)
            seen.coverage.include(each)
    return _record(question, chosen, seen, made, fastpath, after, strict=strict)


def _compare(question: Question, record: DirectRecord, made: Made, fastpath: Any, *, gone: str) -> Learnt:
    """A record of this state exists: the key and the structure of the results must be those that it names."""
    wrong = ""
    if made.key != record.entry:
        wrong = f"tracing gave {made.key}, and the record of the same state {record.entry}"
    else:
        different = difference_to_record(record.fastpath, fastpath, made.target, question.call, question.devices)
        if different is not None:
            wrong = f"tracing gave the program of its record, but {different}"
    if wrong:
        why = f"{wrong}; the record is deleted, and direct mode is off for this function with these arguments"
        return Learnt(Verdict.WRONG, why, without_record(question.document, record, why=why))
    if gone:
        return Learnt(Verdict.MISSED, gone)
    if record.proven is not None:
        return Learnt(Verdict.CHECKED, "it was traced to check its record, and the record was right")
    if not is_independent(record.recorded):
        return Learnt(
            Verdict.UNPROVEN,
            "a process with another hash seed must trace it before its record is used, as this one has",
        )
    proven = record._replace(proven=witness(), guards={**record.guards, "base_seen": True})
    sentence = "this process has traced it again and found the same program; the next one will not trace"
    return Learnt(Verdict.UNPROVEN, sentence, with_record(question.document, proven))


def _record(
    question: Question, chosen: Chosen, seen: Observed, made: Made, fastpath: Any, after: Any, *, strict: bool
) -> Learnt:
    """Record this state, or extend a record of which only the guards differ."""
    coverage = seen.coverage
    if coverage is None:
        return Learnt(Verdict.MISSED, f"{chosen.missed}; another thread was being recorded, so this was not")
    if coverage.refusal:
        raise RefusedError(coverage.refusal)
    if strict and coverage.lost_output:
        raise RefusedError(coverage.lost_output[0])
    library = list(coverage.library.values())
    for code in coverage.user.values():
        if code not in after.codes:
            generator = generator_of(code, after.codes)
            if generator is None:
                where = f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"
                raise RefusedError(f"{where} ran, and nothing that was read leads to it")
            library.append(generator)
    extended = _extended(question, chosen, made, fastpath)
    if extended is not None:
        return extended
    record = DirectRecord(
        walk=question.walked.digest,
        tokens=question.walked.tokens,
        guards=encode_guards(make_guards(library, coverage.asked)),
        variables=variable_digests(coverage.variables),
        entry=made.key,
        fastpath=encode_fastpath(fastpath, made.target, question.call, question.devices),
        recorded=witness(),
    )
    return Learnt(Verdict.MISSED, chosen.missed, with_record(question.document, record))


def _extended(question: Question, chosen: Chosen, made: Made, fastpath: Any) -> Learnt | None:
    """A library had set something up for itself: the state before this trace led to the same program.

    What a library makes when it is first used (tables, memos) was there when the record was written, after a trace,
    and is not there before one. The state after this trace is the one of the record, so the state before it leads to
    the record's program, as this process has just found.
    """
    if chosen.nearly is None:
        return None
    record, guards, before = chosen.nearly
    if record.entry != made.key or isinstance(guards.match(current_values(guards)), str):
        return None
    if difference_to_record(record.fastpath, fastpath, made.target, question.call, question.devices) is not None:
        return None
    goes_on = stepped(before)
    if goes_on:
        raise RefusedError(goes_on)
    extended = guards.with_variant(before) if before else guards._replace(base_seen=True)
    if extended is guards or not is_independent(record.recorded):
        return None
    proven = record._replace(guards=encode_guards(extended), proven=witness())
    sentence = f"{chosen.missed}; tracing from there gave the recorded program, so the next process will not trace"
    return Learnt(Verdict.UNPROVEN, sentence, with_record(question.document, proven))

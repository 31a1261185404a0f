"""What is learnt from a trace (a record, a proof, or a reason for neither), and how a proven record answers a call.

The function runs once, as without direct mode. What it opens is recorded where a record is to be made. It is described
again afterwards: if tracing has changed what it reads, a trace cannot be skipped.
Before a record answers a call, its executable is loaded and checked against what the record says of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ejcache.cache.counters import Verdict
from ejcache.direct.call.fastpath_format import decode_fastpath, difference_to_record, encode_fastpath
from ejcache.direct.describing.graph import ARROW
from ejcache.direct.describing.walk import difference
from ejcache.direct.files.manifest import make_manifest, manifest_difference
from ejcache.direct.question import contexts_of
from ejcache.direct.records import DirectRecord, is_independent, with_record, without_record, witness
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.seam.backends import target_of
from ejcache.jax_integration.seam.direct.executables import (
    difference_to_executable,
    prepare_kernels,
    program_text,
    unknown_kernel,
)
from ejcache.jax_integration.seam.direct.refusal import RefusedError
from ejcache.util.log import log
from ejcache.util.tuples import NamedTuple

if TYPE_CHECKING:
    from ejcache.cache.policy import CachePolicy
    from ejcache.direct.files.manifest import Opened
    from ejcache.direct.question import Question
    from ejcache.direct.records import DirectDocument
    from ejcache.jax_integration.compiling import Compiler
    from ejcache.jax_integration.program import Made
    from ejcache.settings.table import Settings


__all__ = ["Learnt", "learn", "load"]

_MOST_STATES: Final = 3
"""So many states that gave one program, and what differs between them is said to change at each start."""


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


def learn(question: Question, opened: Opened | None, made: list[Made], result: Any, *, missed: str) -> Learnt:
    """What follows from the trace of a call.

    Args:
        question: the call, as it was before the trace.
        opened: what the trace opened; None if that was not recorded.
        made: the executables that JAX got.
        result: of JAX's own miss: results, data for the C++ dispatch, and a function to rebuild it.
        missed: why the call was not answered.

    Raises:
        RefusedError: the function reads or does something that a record cannot describe.
    """
    fastpath = result[1]
    if fastpath is None:
        raise RefusedError("it has effects, host callbacks or references, or its results are no plain arrays")
    mine = next((each for each in made if each.executable is fastpath.xla_executable), None)
    if mine is None:
        return Learnt(
            Verdict.MISSED,
            "its executable is not in the cache: it compiled too quickly, was not stored, or JAX had it in memory",
        )
    after = question.look()
    if after.lasting != question.state.lasting:
        changed = difference(question.state.tokens, after.tokens)
        raise RefusedError(f"tracing changed what it reads: {changed or 'a value that has no name'}")
    if question.fitting is not None:
        return _compare(question, question.fitting, mine, fastpath, missed=missed)
    if opened is None:
        return Learnt(Verdict.MISSED, f"{missed}; another trace was being recorded, so this was not")
    owners = question.subject.owners
    found = [name for name in opened.unpickled if name == "__main__" or owners.is_project_module(name)]
    if opened.refusal or found:
        raise RefusedError(opened.refusal or f"tracing unpickles what the module {found[0]} defines")
    return _record(question, opened, mine, fastpath, missed=missed)


def _compare(question: Question, record: DirectRecord, made: Made, fastpath: Any, *, missed: str) -> Learnt:
    """A record of this state exists: the key and the structure of the results must be those that it names."""
    wrong = ""
    if made.key != record.entry:
        wrong = f"tracing gave {made.key}, and the record of the same state {record.entry}"
    else:
        fresh = encode_fastpath(fastpath, made.target, question.call, question.devices)
        different = difference_to_record(record.fastpath, fresh)
        if different is not None:
            wrong = f"tracing gave the program of its record, but {different}"
    if wrong:
        why = f"{wrong}; the record is deleted, and direct mode is off for this function with these arguments"
        return Learnt(Verdict.WRONG, why, without_record(question.document, record, why=why))
    if missed:
        return Learnt(Verdict.MISSED, missed)
    if record.proven is not None:
        return Learnt(Verdict.CHECKED, "it was traced to check its record, and the record was right")
    if not is_independent(record.recorded):
        return Learnt(
            Verdict.UNPROVEN,
            "a process with another hash seed must trace it before its record is used, as this one has",
        )
    proven = record._replace(proven=witness())
    sentence = "this process has traced it again and found the same program; the next one will not trace"
    return Learnt(Verdict.UNPROVEN, sentence, with_record(question.document, proven))


def _record(question: Question, opened: Opened, made: Made, fastpath: Any, *, missed: str) -> Learnt:
    """Record this state, unless the program is the same in ever new states."""
    document = question.document
    same = [each for each in document.records if each.entry == made.key]
    if document.changing and _is_edited(question):
        document = document._replace(changing="")
    elif len(same) >= _MOST_STATES - 1 and not document.changing:
        leaf = question.missed
        why = f"{leaf}, and so it did at each start, but the program stayed the same; {_advice(question)}"
        document = document._replace(changing=why)
    if document.changing:
        return Learnt(Verdict.REFUSED, document.changing, document if document is not question.document else None)
    record = DirectRecord(
        state=question.state.digest,
        tokens=question.state.tokens,
        contexts={**contexts_of(question.subject), **question.contexts},
        manifest=make_manifest(question.subject.owners, opened, question.subject.root),
        entry=made.key,
        fastpath=encode_fastpath(fastpath, made.target, question.call, question.devices),
        recorded=witness(),
    )
    return Learnt(Verdict.MISSED, missed, with_record(document, record))


def _is_edited(question: Question) -> bool:
    """Whether a file of the program is another one than when recording stopped."""
    records = question.document.records
    manifest = {**records[0].manifest, "files": {}, "distributions": {}} if records else {}
    return not records or manifest_difference(manifest, question.subject.root) is not None


def _advice(question: Question) -> str:
    """What the user can do about what changes at each start."""
    if any(record.state == question.state.digest for record in question.document.records):
        return "keep what differs between starts out of the files of the program, and out of what it sets in libraries"
    path = question.missed.rpartition(" ")[0].removesuffix(" is").replace(ARROW, ".")
    return f'ignore=["{path}"] leaves that out of the comparison'


def load(
    record: DirectRecord,
    question: Question,
    compiler: Compiler,
    policy: CachePolicy,
    settings: Settings,
    *,
    known: dict[str, Any],
) -> tuple[Any, Any] | str:
    """The executable of a record, and what C++ needs besides it; or why the record is of no use.

    XLA believes what it is given. So nothing is run before the executable itself has confirmed the record.

    Args:
        record: a proven one of this question.
        question: the call.
        compiler: loads it.
        policy: of the cache.
        settings: the current ones.
        known: executables that this function has loaded before, by the keys of their entries; gets this one.
    """
    try:
        found = decode_fastpath(record.fastpath, question.call, question.devices)
        target = target_of(question.devices.backend, found.options, found.devices)
    except (EntryCorruptError, RefusedError) as exc:
        log.debug("ejcache: the record for %s cannot be used: %s", record.entry, exc)
        return f"its record is of no use: {exc}"
    if target is None:
        return "its record is of no use: its compile options cannot be read"
    executable = known.get(record.entry)
    if executable is None:
        loaded = compiler.load(record.entry, target, policy, settings)
        if loaded is None:
            return "its record is of no use: its entry is not in the cache"
        executable = loaded.executable
    try:
        text = program_text(executable)
        different = difference_to_executable(executable, text, found.parts, question.call.leaves)
        if different is None and unknown_kernel(text) is not None:
            different = f"the kernel {unknown_kernel(text)}"
    except Exception as exc:
        different = f"what cannot be compared: {exc}"
    if different is not None:
        return f"its record is of no use: its executable has others: {different}"
    # Some libraries of kernels are imported for that, as JAX does when it lowers a call of one.
    prepare_kernels(text)
    known[record.entry] = executable
    return executable, found.parts

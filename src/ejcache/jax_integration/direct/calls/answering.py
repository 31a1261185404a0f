"""Answering a call from a record: the guards on libraries are checked while the executable loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache._tuples import NamedTuple
from ejcache.errors import EntryCorruptError
from ejcache.fingerprint.guards import current_values
from ejcache.fingerprint.guards_format import decode_guards
from ejcache.fingerprint.refusal import RefusedError
from ejcache.jax_integration.direct.fastpath_format import decode_fastpath
from ejcache.jax_integration.seam.backends import target_of
from ejcache.jax_integration.seam.direct.fastpath import difference_to_executable
from ejcache.jax_integration.seam.direct.kernels import prepare_kernels
from ejcache.util.log import log
from ejcache.util.threads import submit

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ejcache.cache.policy import CachePolicy
    from ejcache.fingerprint.guards import Guards, Vector
    from ejcache.jax_integration.compiling import Compiler
    from ejcache.jax_integration.direct.calls.question import Question
    from ejcache.jax_integration.direct.records import DirectRecord
    from ejcache.jax_integration.seam.direct.fastpath import FastpathParts
    from ejcache.settings.resolve import Settings

__all__ = ["Chosen", "Loading", "choose", "start_loading"]


class Chosen(NamedTuple):
    """The record of this state, or the reason why there is none.

    Attributes:
        record: whose guards hold; None if there is no such record.
        missed: why not, in words; or why the record is of no use.
        nearly: a record of which all but the guards fits, its guards, and what differs from them.
    """

    record: DirectRecord | None
    missed: str = ""
    nearly: tuple[DirectRecord, Guards, Vector] | None = None


class Loading(NamedTuple):
    """The executable of a record, being loaded in another thread.

    Attributes:
        record: that names the entry.
        parts: what C++ needs besides the executable, decoded for this call.
        executable: a future of it; of None if the entry is gone, or XLA refuses it.
    """

    record: DirectRecord
    parts: FastpathParts
    executable: Future[Any]


def start_loading(
    question: Question, compiler: Compiler, policy: CachePolicy, settings: Settings, *, known: dict[str, Any]
) -> Loading | None:
    """Begin to load what the first proven record leads to, as if its guards held; None if there is none.

    Args:
        question: the call.
        compiler: loads it.
        policy: of the cache.
        settings: the current ones.
        known: executables that this function has loaded before, by the keys of their entries; gets this one.
    """
    record = next((each for each in question.fitting if each.proven is not None), None)
    if record is None:
        return None
    try:
        found = decode_fastpath(record.fastpath, question.call, question.devices)
        target = target_of(question.devices.backend, found.options, found.devices)
    except (EntryCorruptError, RefusedError) as exc:
        log.debug("ejcache: the record for %s cannot be used: %s", record.entry, exc)
        return None
    if target is None:
        return None

    def load() -> Any:
        executable = known.get(record.entry)
        if executable is None:
            loaded = compiler.load(record.entry, target, policy, settings)
            if loaded is not None and not _is_about(record, loaded.executable, found.parts, question):
                return None
            executable = known[record.entry] = loaded.executable if loaded is not None else None
            # Some libraries of kernels are imported for that, as JAX does when it lowers a call of one.
            prepare_kernels(found.parts.kernels)
        return executable

    return Loading(record, found.parts, submit(load))


def _is_about(record: DirectRecord, executable: Any, parts: FastpathParts, question: Question) -> bool:
    """Whether a record says of its executable what the executable says of itself."""
    try:
        different = difference_to_executable(executable, parts, question.call.leaves)
    except Exception as exc:
        different = f"that cannot be compared: {exc}"
    if different is not None:
        log.debug("ejcache: the record for %s cannot be used: its executable has others: %s", record.entry, different)
    return different is None


def choose(question: Question) -> Chosen:
    """The record whose guards hold now."""
    missed, nearly = question.missed, None
    for record in question.fitting:
        try:
            guards = decode_guards(record.guards)
        except EntryCorruptError as exc:
            log.debug("ejcache: the record for %s cannot be used: %s", record.entry, exc)
            missed = missed or "its record is damaged"
            continue
        current = current_values(guards)
        outcome = guards.match(current)
        if outcome == 0 and record.proven is not None and not guards.base_seen:
            # It was proven from the state before a trace, in which a library had not set itself up yet.
            outcome = "no trace has begun in this state of its libraries yet"
        if not isinstance(outcome, str):
            return Chosen(record)
        missed = missed or outcome
        nearly = nearly or (record, guards, current)
    return Chosen(None, missed, nearly)

"""Answering a call from a proven record: its executable is loaded, and checked against what the record says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.direct.call.fastpath_format import decode_fastpath
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

if TYPE_CHECKING:
    from ejcache.cache.policy import CachePolicy
    from ejcache.direct.question import Question
    from ejcache.direct.records import DirectRecord
    from ejcache.jax_integration.compiling import Compiler
    from ejcache.settings.table import Settings

__all__ = ["load"]


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

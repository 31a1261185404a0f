"""Stores what was compiled, unless it compiled too quickly or a setting forbids it, and logs the miss.

`program_details` collects what `ejcache why` compares besides the key.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import jax

from ejcache import entry
from ejcache.cache.reasons import Skip
from ejcache.cache.stats import count_miss, count_skip
from ejcache.cache.writing import EntryWriter, WriteResult
from ejcache.history.causes import why_not_stored
from ejcache.history.host_log import record_miss, remember_program
from ejcache.history.program_text import rename_arguments
from ejcache.history.why import cause_in
from ejcache.jax_integration.lowering.key import alternative_key
from ejcache.jax_integration.pgle import write_beside
from ejcache.jax_integration.program_details import located_text, notes, rename_details, shorten_details
from ejcache.jax_integration.seam import compiling, key_parts
from ejcache.jax_integration.seam.called_function import facts_of_call, names_by_caller
from ejcache.jax_integration.seam.calling_line import caller
from ejcache.jax_integration.watched_programs import tell_watchers
from ejcache.journal.appended_log import write_later
from ejcache.journal.line import STORED, ProgramRecord
from ejcache.journal.recorder import recorder
from ejcache.util.log import log
from ejcache.util.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.cache.reading import CacheReader
    from ejcache.jax_integration.compilation import Compilation
    from ejcache.settings.table import Settings


TEXT_SECONDS: Final = 0.1
"""The text of a program that compiles faster is only in the log of this user on this host: to print it and to store it
takes as long as to store the executable."""
_SUCCESSION_SECONDS: Final = 30.0
"""After this long the next rank checks whether the rank before it has stored the entry."""


class Publisher:
    """Stores what was compiled. Safe to use from several threads."""

    def __init__(self) -> None:
        self._scheduler = Scheduler(threads=1, name="ejcache-publisher")

    def publish(
        self,
        compilation: Compilation,
        executable: Any,
        *,
        compile_seconds: float,
        raw: bytes | None = None,
    ) -> Skip | None:
        """Store an executable if the settings allow it, and log the miss; why it was not stored, or None if it was.

        Args:
            compilation: which missed.
            executable: the result.
            compile_seconds: what it took.
            raw: the serialised executable where it was received from another process.

        Raises:
            Warning: JAX's warning about a write under `expect_pgle`, if the program makes warnings errors.
        """
        cache, settings = compilation.cache, compilation.settings
        writer = EntryWriter(cache)
        record = _record(compilation, reason=compilation.miss, seconds=compile_seconds)
        skip = writer.why_not_stored(compile_seconds, settings)
        if skip is not None:
            writer.leave_out(_stored_key(compilation), skip, compile_seconds, settings)
        else:
            began = time.monotonic()
            try:
                raw = compiling.serialize_executable(executable) if raw is None else raw
                compilation.serialized_size = len(raw)
                if compile_seconds >= max(TEXT_SECONDS, settings.floors.publish):
                    # The text goes first: nothing may be written after the entry that could evict it.
                    text = compiling.module_text(compilation.module)
                    record = record._replace(module=writer.write_text(text, settings, program=compilation.name))
                skip, size = self._write(writer, compilation, record, raw)
                record = record._replace(size=size)
            except Exception as exc:
                # A failure of ours must not take the executable from the program.
                compilation.report_failure("write an entry", exc)
                skip = Skip.ERROR
            compilation.spent("lost" if skip is Skip.ERROR else "stored", began)
        record = record._replace(outcome=skip if skip is not None else STORED)
        _log(cache, settings, record, compilation, compilation.seconds)
        if skip is None:
            compiling.log_write(compilation.name, compilation.text)
            if settings.expect_pgle:
                warnings.warn(
                    f"PERSISTENT CACHE WRITE with key {compilation.text}, this is unexpected because "
                    "JAX_COMPILATION_CACHE_EXPECT_PGLE is set. The execution that populated the cache may lack "
                    "coverage",
                    stacklevel=2,
                )
        return skip

    def skip(self, compilation: Compilation, reason: Skip, compile_seconds: float) -> None:
        """Count and log a compilation that cannot be stored."""
        count_skip(compilation.cache, reason)
        record = _record(compilation, outcome=reason, seconds=compile_seconds)
        _log(compilation.cache, compilation.settings, record, compilation, compilation.seconds)

    def count_refused(self, compilation: Compilation) -> None:
        """Count a miss that is not compiled, because that is forbidden."""
        count_miss(compilation.cache, compilation.miss)
        count_skip(compilation.cache, Skip.FORBIDDEN)

    def log_refused(self, compilation: Compilation) -> ProgramRecord:
        """Log a miss that is not compiled, because that is forbidden; return what is logged."""
        record = _record(compilation, reason=compilation.miss, outcome=Skip.FORBIDDEN)
        _log(compilation.cache, compilation.settings, record, compilation, compilation.seconds)
        return record

    def log_without_key(
        self, cache: CacheReader, settings: Settings, name: str, reason: Skip, seconds: Mapping[str, float]
    ) -> None:
        """Log a program of which no key can be made, once it is compiled."""
        record = ProgramRecord(name, url=cache.url, outcome=reason, compile_seconds=seconds["compiled"])
        _log(cache, settings, record, None, seconds)

    def _write(self, writer: EntryWriter, compilation: Compilation, record: ProgramRecord, raw: bytes) -> WriteResult:
        cache, settings, profile = compilation.cache, compilation.settings, compilation.profile
        backend = compilation.placement.backend
        where = _stored_key(compilation)
        extra: dict[str, Any] = {
            "details": shorten_details(record.details),
            "signature": record.signature,
            "module": record.module,
        }
        if profile is not None:
            extra["profile"] = profile.fields()
            if not profile.from_store:
                write_beside(compilation, profile)
        header = entry.Header(
            key=where,
            name=record.name,
            compile_seconds=record.compile_seconds,
            platform=str(backend.platform),
            jax=jax.__version__,
            jaxlib=key_parts.jaxlib_version(),
            variant=compilation.key.variant,
            logical_key=compilation.key.logical,
            profile_digest=profile.digest if profile is not None else "",
            components=dict(record.components),
            extra=extra,
        )
        # Each host of the program needs one of its own; also in place of a copy that ends processes.
        stays = compilation.stays_here = cache.is_local_only(record.compile_seconds, settings)
        if compilation.publisher == 0 or compilation.is_suspected or stays:
            is_useless = where in compilation.unloadable or compilation.is_suspected
            return writer.store(header, raw, settings, local_only=stays, replacing=is_useless)
        if compilation.publisher == 1:

            def publish() -> None:
                if not cache.contains(header.key, settings):
                    writer.write(header, raw, settings)

            self._scheduler.later(_SUCCESSION_SECONDS, publish)
        count_skip(cache, Skip.OTHER_RANK)
        return WriteResult(Skip.OTHER_RANK)


def _log(
    cache: CacheReader,
    settings: Settings,
    record: ProgramRecord,
    compilation: Compilation | None,
    seconds: Mapping[str, float],
) -> None:
    """Write the miss down, and with `jax_explain_cache_misses` say why it was one."""
    record = record._replace(time=time.time(), seconds=dict(seconds), thread=threading.current_thread().name)
    text = ""
    try:
        record = record._replace(caller=caller())
        names = names_by_caller()
        record = record._replace(details=rename_details(record.details, names))
        if compilation is not None and record.components:
            # Here, and not in the thread that writes: the next lowering may be in the same MLIR context, and a dialect
            # that it loads while another thread prints a module ends the process (SIGSEGV). This thread has lowered the
            # program, unless the program calls `lower()` and `compile()` in two threads. Then JAX and XLA read the
            # module in this one, too.
            text = rename_arguments(located_text(compilation.module), names)
    except Exception as exc:
        cache.report_failure("log a miss", exc, settings, program=record.name)
    write = partial(_write_log, cache, settings, record, text)
    if settings.explain_misses or settings.raise_errors or log.isEnabledFor(logging.DEBUG):
        # Whether it is said or raised, it is where and when the program compiles.
        write()
    else:
        write_later(write)
    if recorder.watchers:
        tell_watchers(record, cache, settings)


def _write_log(
    cache: CacheReader,
    settings: Settings,
    record: ProgramRecord,
    text: str,
) -> None:
    try:
        record_miss(record)
        if text:
            remember_program(record.components.get("computation", ""), text)
        kept = "stored" if record.outcome == STORED else f"not stored: {why_not_stored(record.outcome)}"
        found = cause_in(cache, record, settings) if settings.explain_misses else None
        if found is not None:
            log.warning("ejcache: %s (%.2f s; %s)", found.text, record.compile_seconds, kept)
        else:
            log.debug("ejcache: %s: %.2f s; %s; key %r", record.name, record.compile_seconds, kept, record.key)
    except Exception as exc:
        cache.report_failure("log a miss", exc, settings, program=record.name)


def _stored_key(compilation: Compilation) -> str:
    """Choose the key to store the result under: the program's own, or one beside it for hosts like this one."""
    if compilation.text in compilation.unloadable:
        # Hosts that cannot load each other's entries would replace them for ever, so ours goes beside the other.
        return alternative_key(compilation.text, compilation.placement.backend)
    return compilation.text


def _record(
    compilation: Compilation,
    *,
    reason: str = "",
    outcome: str = "",
    seconds: float = 0.0,
) -> ProgramRecord:
    """Make the program record of a compilation."""
    key = compilation.key
    details, signature = dict(key.details), ""
    try:
        details |= notes(compilation) | facts_of_call()
        signature = compiling.signature(compilation.module)
    except Exception as exc:
        # The program is compiled; a detail of the log must not take it away.
        compilation.report_failure("log a miss", exc)
    return ProgramRecord(
        name=compilation.name,
        time=time.time(),
        url=compilation.cache.url,
        reason=str(reason),
        outcome=str(outcome),
        compile_seconds=seconds,
        key=compilation.text,
        components=dict(key.components),
        details=details,
        signature=signature,
    )

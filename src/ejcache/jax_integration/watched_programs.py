"""Tells the watchers of this process which function they see: of a loaded program, only the stack says that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.jax_integration.seam.called_function import facts_of_call
from ejcache.journal.recorder import recorder

if TYPE_CHECKING:
    from ejcache.cache.reading import CacheReader
    from ejcache.journal.line import ProgramRecord
    from ejcache.settings.table import Settings


def tell_watchers(program: ProgramRecord, cache: CacheReader, settings: Settings) -> None:
    """Call the watchers with a program that this thread compiles or loads, and with what the stack says of it."""
    if not program.details:
        try:
            program = program._replace(details=facts_of_call())
        except Exception as exc:
            cache.report_failure("tell which function is loaded", exc, settings, program=program.name)
    for watcher in recorder.watchers:
        watcher(program)

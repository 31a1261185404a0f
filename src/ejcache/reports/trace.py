"""Writes start records as a trace for https://ui.perfetto.dev, in the Trace Event Format of Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ejcache.journal.line import PHASES
from ejcache.journal.start_records import beginning_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.journal.start_records import StartRecord


def trace(records: Iterable[StartRecord]) -> dict[str, Any]:
    """Return an object with a process for each record, a thread for each of its threads, and a slice for each phase."""
    events: list[dict[str, Any]] = []
    for number, record in enumerate(records, start=1):
        process, threads = record.process, dict[str, int]()
        label = f"{process.program} rank {process.rank} pid {process.pid} on {process.host}"
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": label}})
        for program in record.programs:
            thread = threads.setdefault(program.thread, len(threads) + 1)
            common = {"ph": "X", "pid": number, "tid": thread}
            about = {"outcome": program.outcome, "reason": program.reason, "preloaded": program.preloaded}
            about |= {"key": program.key, "called from": program.caller}
            at = beginning_of(program) * 1e6
            length = sum(program.seconds.values()) * 1e6
            events.append({**common, "name": program.name, "ts": at, "dur": length, "cat": "program", "args": about})
            for phase in PHASES:
                if took := program.seconds.get(phase, 0.0) * 1e6:
                    events.append({**common, "name": phase, "ts": at, "dur": took, "cat": "phase"})
                    at += took
        for name, thread in threads.items():
            events.append({"ph": "M", "name": "thread_name", "pid": number, "tid": thread, "args": {"name": name}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}

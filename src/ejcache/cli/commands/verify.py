"""`ejcache verify`: checks that every entry is intact."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from ejcache.cli import output
from ejcache.cli.chosen_cache import open_cache
from ejcache.cli.listing import Totals
from ejcache.cli.options import Dir, Json, flag
from ejcache.maintenance.audit import Audit, audit, audit_structure, take_back
from ejcache.util.threads import THREADS
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.cli.chosen_cache import OpenCache


def verify(
    directory: Dir = None,
    fix: Annotated[
        bool, flag("--fix", "Quarantine damaged entries, and take intact ones back in from quarantine.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Read and decode every entry, and check the cache's own files.

    Exits with 1 if anything is damaged or cannot be read; with --fix, only if something could not be repaired or read.
    In quarantine, a cache keeps copies of entries that no program loads. With --fix, a cache in a local directory takes
    intact entries back from quarantine.
    """
    with open_cache(directory, write=fix) as cache, output.progress("verifying", None, quiet=as_json) as advance:
        restored = _take_back(cache) if fix else 0
        audits = list(_audits(cache, fix=fix, advance=advance))
    _report_audits(cache.url, audits, restored, as_json=as_json)
    return int(not all(one.clean for one in audits))


def _take_back(cache: OpenCache) -> int:
    return 0 if cache.store is None else take_back(cache.store)


def _report_audits(url: str, audits: list[Audit], restored: int, *, as_json: bool) -> None:
    own = audits[0]
    totals = Totals(own.entries, own.size, own.side_objects, own.side_size)
    unread = sum(one.unreadable for one in audits)
    findings = [finding for one in audits for finding in one.findings]
    unknown = sum(one.unknown_versions for one in audits)
    if as_json:
        fields = {"url": url, **asdict(totals), "unknown_versions": unknown, "clean": all(one.clean for one in audits)}
        fields["restored_entries"] = restored
        output.print_json({**fields, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            subject = f"{finding.key}: " if finding.key else ""
            output.say(f"{finding.problem}: {subject}{finding.detail}{' (repaired)' if finding.repaired else ''}")
        if restored:
            output.say(f"{plural(restored, 'entry', 'entries')} that quarantine had kept intact came back in")
        if unknown:
            output.say(f"left {plural(unknown, 'entry', 'entries')} of another format version alone")
        if unread:
            output.say(f"{plural(unread, 'entry', 'entries')} could not be read")
        result = plural(len(findings), "problem") if findings else "all intact"
        output.say(f"verified {totals.words()} in {url}: {result}")


def _audits(cache: OpenCache, *, fix: bool, advance: Callable[[], None]) -> Iterator[Audit]:
    """Yield the audits of the entries, and of its structures."""
    threads = THREADS if cache.shared else 1
    options: Any = {"fix": fix, "threads": threads, "advance": advance}
    if cache.store is None:
        yield from (Audit(), Audit())
    else:
        yield audit(cache.store, cache.store.entries(), **options)
        yield audit_structure(cache.store, fix=fix)

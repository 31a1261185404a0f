"""`ejcache verify` and `doctor`: whether entries are intact, and whether a place can hold them."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cli import output
from ejcache.cli.commands.run import BEFORE_A_PROGRAM
from ejcache.cli.listing import Totals, command_settings, open_target
from ejcache.cli.options import Dir, Json, argument, flag
from ejcache.cli.programs.verify_reuse import verify_reuse
from ejcache.errors import UsageError
from ejcache.util.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.cli.listing import Target
    from ejcache.maintenance.audit import Audit
    from ejcache.maintenance.doctor import Check
    from ejcache.settings.table import Settings


REGISTRATION: Final = {"verify": BEFORE_A_PROGRAM}
"""How the application registers commands, by their names."""


def verify(
    program: Annotated[
        list[str] | None,
        argument("[PROGRAM ARGS]", "With --reuse: a script, -m MODULE, or a command, as after `ejcache run`."),
    ] = None,
    directory: Dir = None,
    fix: Annotated[bool, flag("--fix", "Quarantine damaged entries. The next compilation replaces them.")] = False,
    reuse: Annotated[
        bool, flag("--reuse", "Run PROGRAM three times, with three hash seeds, and compare what it traces.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Read and decode every entry, and check the store's own files.

    Exits with 1 if anything is damaged; with --fix, only if something could not be repaired. Entries of plain JAX have
    no checksum: only those that are cut off or cannot be decompressed are found. --fix deletes them.

    With --reuse, no entry is read. PROGRAM runs three times with reuse_lowering, its output on stderr, and traces
    everything. Exits with 1 if two traces of a function with the same inputs differ, or if the program fails.
    """
    if reuse:
        if fix:
            raise UsageError("--fix repairs entries, and --reuse reads none: give one of them")
        return verify_reuse(program or [], directory, as_json=as_json)
    if program:
        raise UsageError(f"{program[0]} is for verify --reuse, which runs a program")
    with open_target(directory, write=fix) as target, output.progress("verifying", None, quiet=as_json) as advance:
        audits = list(_audits(target, fix=fix, advance=advance))
    _report_audits(target.url, audits, as_json=as_json)
    return int(not all(one.clean for one in audits))


def _report_audits(url: str, audits: list[Audit], *, as_json: bool) -> None:
    own, jax = audits[0], audits[-1]
    totals = Totals(own.entries, own.size, own.side_objects, own.side_size, jax.entries, jax.size)
    unread = sum(one.unreadable for one in audits)
    findings = [finding for one in audits for finding in one.findings]
    unknown = sum(one.unknown_versions for one in audits)
    if as_json:
        fields = {"url": url, **asdict(totals), "unknown_versions": unknown, "clean": all(one.clean for one in audits)}
        output.print_json({**fields, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            subject = f"{finding.key}: " if finding.key else ""
            output.say(f"{finding.problem}: {subject}{finding.detail}{' (repaired)' if finding.repaired else ''}")
        if unknown:
            output.say(f"{plural(unknown, 'entry', 'entries')} of another format version were left alone")
        if unread:
            output.say(f"{plural(unread, 'entry', 'entries')} could not be read")
        verdict = plural(len(findings), "problem") if findings else "all intact"
        output.say(f"verified {totals.words()} in {url}: {verdict}")


def _audits(target: Target, *, fix: bool, advance: Callable[[], None]) -> Iterator[Audit]:
    """The audits of the entries of ejcache, of its structures, and of the entries of plain JAX."""
    from ejcache.maintenance.audit import Audit, audit, audit_jax_directory, audit_structure
    from ejcache.util.threads import THREADS

    threads = THREADS if target.shared else 1
    options: Any = {"fix": fix, "threads": threads, "advance": advance}
    if target.store is None:
        yield from (Audit(), Audit())
    else:
        yield audit(target.store, target.store.entries(), **options)
        yield audit_structure(target.store, fix=fix)
    yield Audit() if target.jax is None else audit_jax_directory(target.jax, target.jax.entries(), **options)


_NAME_WIDTH: Final = 12
_VERDICT_WIDTH: Final = 7


def doctor(
    url: Annotated[str | None, argument("[URL]", "A directory or a URL. Default: the cache.")] = None,
    directory: Dir = None,
    as_json: Json = False,
) -> int:
    """Try what a cache needs of its storage and of JAX, and advise on what does not work.

    Of a bucket: reading, creating an object on a condition, the clock, latency and deleting. Of a directory:
    permissions, who else could have put code there, and an entry that is created, read and deleted. Of JAX: that it can
    be imported, and is built as expected. It answers within ten seconds, and leaves nothing behind. Exits with 1 if a
    check failed. The page of messages, docs/troubleshooting.md, has more about each.
    """
    if url is not None and directory is not None:
        raise UsageError("give the URL once: as an argument or as --dir")
    settings = command_settings(url if url is not None else directory)
    place = str(settings.cache_dir)
    checks = []
    for check in _checks(place, settings):
        checks.append(check)
        if not as_json:
            output.say_columns([(check.name, _NAME_WIDTH), (check.verdict, _VERDICT_WIDTH)], check.detail)
            sys.stdout.flush()
    healthy = all(check.verdict != "failed" for check in checks)
    if as_json:
        output.print_json({"url": place, "healthy": healthy, "checks": [asdict(check) for check in checks]})
    else:
        _print_advice(place, checks, healthy=healthy)
    return int(not healthy)


def _checks(url: str, settings: Settings) -> Iterator[Check]:
    from ejcache.maintenance import doctor
    from ejcache.stores.location import Location, LocationKind, detect_shared_storage
    from ejcache.stores.opening import open_bucket

    end = time.monotonic() + doctor.SECONDS
    location = Location.parse(url)
    shared = detect_shared_storage(location)
    with closing(doctor.JaxCheck()) as jax:
        if location.kind is LocationKind.MEMORY:
            yield doctor.fine("memory", "each process keeps its own entries; they are gone when it ends")
        elif location.kind is LocationKind.DIRECTORY:
            yield from doctor.check_directory(
                Path(location.path), read_only=settings.read_only, trusted=settings.trust_dir, local=not shared
            )
        if shared:
            with open_bucket(location, settings=settings) as bucket:
                yield from doctor.check_bucket(bucket, end=end - 1, read_only=settings.read_only)
        yield jax.result(end=end)


def _print_advice(url: str, checks: list[Check], *, healthy: bool) -> None:
    advised: dict[str, list[str]] = {}
    for check in checks:
        if check.advice:
            advised.setdefault(check.advice, []).append(check.name)
    if advised:
        output.say("\nWhat to do:")
        for advice, names in advised.items():
            output.say_columns([(f"  {', '.join(names)}:", 0)], advice)
    output.say(f"\n{url} {'can' if healthy else 'cannot'} hold a cache as it is")

"""`ejcache verify`: every entry read as a program would read it; with --direct, records compared with traces."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ejcache.cli import output
from ejcache.cli.listing import Totals
from ejcache.cli.options import Dir, Json  # noqa: TC001 (typer reads the annotations)
from ejcache.cli.run import REGISTRATION
from ejcache.cli.target import open_target
from ejcache.errors import UsageError
from ejcache.wings import hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.cli.target import Target
    from ejcache.maintenance.audit import Audit

__all__ = ["REGISTRATION", "verify"]


def verify(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROGRAM ARGS]",
            help="With --direct: a script, -m MODULE, -c CODE or - (stdin), as after `python`; or a command.",
            show_default=False,
        ),
    ] = None,
    directory: Dir = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Quarantine damaged entries. The next compilation replaces them.")
    ] = False,
    direct: Annotated[
        bool,
        typer.Option("--direct", help="Run PROGRAM, and compare the records of direct mode with what it traces."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="With --direct, also exit with 1 if a function was refused or nothing compared."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Read and decode every entry, and check the store's own files.

    Exits with 1 if anything is damaged; with --fix, only if something could not be repaired. Entries of plain JAX have
    no checksum: only those that are cut off or cannot be decompressed are found. --fix deletes them.

    With --direct, no entry is read. PROGRAM runs as by `ejcache run`, with its output on stderr. Every direct function
    is traced at its first call, and what the trace gives is compared with the record. Exits with 1 if a record was
    wrong or the program failed.
    """
    if direct:
        if fix:
            raise UsageError("--fix repairs entries, and --direct reads none: give one of them")
        compare = hooks("verify").get("direct")
        if compare is None:
            raise UsageError("this installation has no direct mode")
        raise typer.Exit(compare(program or [], directory, strict=strict, as_json=as_json))
    if program or strict:
        raise UsageError(f"{program[0] if program else '--strict'} is for verify --direct, which runs a program")
    with open_target(directory, write=fix) as target, output.progress("verifying", None, quiet=as_json) as advance:
        audits = list(_audits(target, fix=fix, advance=advance))
    own, jax = audits[0], audits[-1]
    totals = Totals(own.entries, own.size, own.side_objects, own.side_size, jax.entries, jax.size)
    unread = sum(one.unreadable for one in audits)
    findings = [finding for one in audits for finding in one.findings]
    unknown = sum(one.unknown_versions for one in audits)
    clean = all(one.clean for one in audits)
    if as_json:
        fields: dict[str, Any] = {"url": target.url, **asdict(totals), "unknown_versions": unknown, "clean": clean}
        fields["findings"] = [asdict(finding) for finding in findings]
        output.print_json(fields)
    else:
        for finding in findings:
            subject = f"{finding.key}: " if finding.key else ""
            output.say(f"{finding.problem}: {subject}{finding.detail}{' (repaired)' if finding.repaired else ''}")
        if unknown:
            output.say(f"{output.plural(unknown, 'entry', 'entries')} of another format version were left alone")
        if unread:
            output.say(f"{output.plural(unread, 'entry', 'entries')} could not be read")
        verdict = output.plural(len(findings), "problem") if findings else "all intact"
        output.say(f"verified {totals.words()} in {target.url}: {verdict}")
    if not clean:
        raise typer.Exit(1)


def _audits(target: Target, *, fix: bool, advance: Callable[[], None]) -> Iterator[Audit]:
    """The audits of the entries of ejcache, of its structures, and of the entries of plain JAX."""
    from ejcache.maintenance.audit import Audit, audit, audit_jax_directory, audit_structure
    from ejcache.util.parallel import THREADS

    threads = THREADS if target.shared else 1
    options: Any = {"fix": fix, "threads": threads, "advance": advance}
    if target.store is None:
        yield from (Audit(), Audit())
    else:
        yield audit(target.store, target.store.entries(), **options)
        yield audit_structure(target.store, fix=fix)
    yield Audit() if target.jax is None else audit_jax_directory(target.jax, target.jax.entries(), **options)

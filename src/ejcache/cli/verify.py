"""`ejcache verify`: every entry read as a program would read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ejcache.cli import output
from ejcache.cli.opened import opened_place
from ejcache.cli.options import Dir, Json  # noqa: TC001 (typer reads the annotations)
from ejcache.units import format_size

if TYPE_CHECKING:
    from ejcache.upkeep.audit import Audit

__all__ = ["verify"]


def verify(
    directory: Dir = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Set damaged entries aside; the next compilation replaces them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read and decode every entry, and check the store's own structures.

    Exits with 1 if anything is wrong; with --fix, only if something could not be repaired. Entries of plain JAX carry
    no checksum: of those, only what is cut off or cannot be decompressed is found, and --fix removes it.
    """
    from ejcache.upkeep.audit import audit, audit_jax_directory, audit_structure
    from ejcache.upkeep.parallel import THREADS

    with opened_place(directory, write=fix) as place:
        ours = list(place.store.entries()) if place.store is not None else []
        theirs = list(place.jax.entries()) if place.jax is not None else []
        with output.progress("verifying", len(ours) + len(theirs), quiet=as_json) as advance:
            audits: list[Audit] = []
            threads = THREADS if place.shared else 1
            if place.store is not None:
                audits.append(audit(place.store, ours, fix=fix, threads=threads, advance=advance))
                audits.append(audit_structure(place.store, fix=fix))
            if place.jax is not None:
                audits.append(audit_jax_directory(place.jax, theirs, fix=fix, threads=threads, advance=advance))
    findings = [finding for one in audits for finding in one.findings]
    entries, total = sum(one.entries for one in audits), sum(one.size for one in audits)
    unknown = sum(one.unknown_versions for one in audits)
    clean = all(finding.repaired for finding in findings)
    if as_json:
        output.print_json(
            {
                "url": place.url,
                "entries": entries,
                "size": total,
                "unknown_versions": unknown,
                "clean": clean,
                "findings": [
                    {
                        "key": finding.key,
                        "size": finding.size,
                        "problem": str(finding.problem),
                        "detail": finding.detail,
                        "repaired": finding.repaired,
                    }
                    for finding in findings
                ],
            }
        )
    else:
        for finding in findings:
            repaired = " (repaired)" if finding.repaired else ""
            subject = f"{finding.key}: " if finding.key else ""
            output.say(f"{finding.problem}: {subject}{finding.detail}{repaired}")
        if unknown:
            output.say(f"{output.plural(unknown, 'entry', 'entries')} of another format version, left alone")
        count = output.plural(entries, "entry", "entries")
        verdict = output.plural(len(findings), "problem") if findings else "all intact"
        output.say(f"verified {count} ({format_size(total)}) in {place.url}: {verdict}")
    if not clean:
        raise typer.Exit(1)

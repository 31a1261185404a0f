"""`ejcache doctor`: whether a directory or bucket can hold a cache, and what to do if it cannot."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ejcache.cli import output
from ejcache.cli.options import Dir, Json  # noqa: TC001 (typer reads the annotations)
from ejcache.cli.target import command_settings
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.maintenance.doctor.checkup import Check
    from ejcache.maintenance.doctor.credentials import Credentials
    from ejcache.settings.resolve import Settings

__all__ = ["doctor"]

_NAME_WIDTH: Final = 18
_VERDICT_WIDTH: Final = 7


def doctor(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="A directory or a URL. Default: the cache.")
    ] = None,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Try everything that a cache needs of its storage and of this installation, and advise on what does not work.

    First: JAX's version and internals, its plug-ins, variables that are misspelt, and the limit of open files. For
    a bucket: credentials, creating, reading and deleting an object, conditional writes (which leases need), the
    clock, listing and latency. For a directory: permissions, file system, free space, locks, and times in the
    future. It takes at most ten seconds for the storage, and leaves nothing behind. Exits with 1 if a check failed.
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
    if not healthy:
        raise typer.Exit(1)


def _checks(url: str, settings: Settings) -> Iterator[Check]:
    from ejcache.maintenance.doctor.checkup import fine
    from ejcache.maintenance.doctor.directory import check_local_directory, check_shared_directory, check_tier
    from ejcache.maintenance.doctor.installation import check_installation
    from ejcache.stores.filesystems import detect_shared_storage
    from ejcache.stores.local.layout import Layout
    from ejcache.stores.location import Location, LocationKind

    location = Location.parse(url)
    yield from check_installation(settings)
    if not detect_shared_storage(location):
        if location.kind is LocationKind.MEMORY:
            yield fine("memory", "each process keeps its own entries; they are gone when it ends")
            return
        own = Layout(Path(location.path)).limit() if settings.chosen_max_size is None else settings.chosen_max_size
        yield from check_local_directory(
            Path(location.path),
            max_size=-1 if own is None else own,
            read_only=settings.read_only,
            trusted=settings.trust_dir,
        )
        return
    from ejcache.maintenance.doctor.bucket import check_bucket
    from ejcache.stores.local_tier import find_local_tier
    from ejcache.stores.opening import open_bucket

    if location.kind is LocationKind.DIRECTORY:
        yield from check_shared_directory(Path(location.path))
    bucket = open_bucket(location, settings=settings)
    try:
        credentials = _google() if location.kind is LocationKind.GCS else None
        yield from check_bucket(bucket, credentials=credentials, read_only=settings.read_only)
    finally:
        bucket.close()
    tier = find_local_tier(location, settings)
    yield from check_tier(None if tier is None else tier.directory, max_size=settings.local_max_size)


def _google() -> Credentials:
    from ejcache.maintenance.doctor.credentials import Credentials
    from ejcache.settings.environment import environment_variable
    from ejcache.stores.location import display_url

    endpoint = environment_variable("STORAGE_EMULATOR_HOST") or ""
    shown = display_url(endpoint if "://" in endpoint else f"http://{endpoint}")
    at = f", at {shown} (STORAGE_EMULATOR_HOST)" if endpoint else ""
    for source in ("EASYDEL_GCS_CLIENT", *([] if endpoint else ["GOOGLE_APPLICATION_CREDENTIALS"])):
        if file := environment_variable(source):
            return Credentials(f"{file} ({source}){at}", file, source)
    return Credentials(("none" if at else "the default credentials that Google's libraries find") + at)


def _print_advice(url: str, checks: list[Check], *, healthy: bool) -> None:
    advised = [check for check in checks if check.advice]
    if advised:
        output.say("\nWhat to do:")
        for check in advised:
            output.say_columns([(f"  {check.name}:", 0)], check.advice)
    output.say(f"\n{url} {'can' if healthy else 'cannot'} hold a cache as it is")

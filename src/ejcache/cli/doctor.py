"""`ejcache doctor`: whether a place can hold a cache, and what to do if not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ejcache.cli import output
from ejcache.cli.opened import chosen_settings
from ejcache.cli.options import Dir, Json  # noqa: TC001 (typer reads the annotations)
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.settings import Settings
    from ejcache.upkeep.checkup import Check

__all__ = ["doctor"]


def doctor(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="A directory or a URL; by default the cache.")
    ] = None,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Try everything that a cache needs of its place, and say what to do about what does not work.

    Of a bucket: credentials, creating, reading and removing an object, conditional writes (which leases and
    first-come-first-served need), the clock, listing and latency. Of a directory: permissions, file system, room and
    locks. It answers within ten seconds, leaves nothing behind, and exits with 1 if anything failed.
    """
    if url is not None and directory is not None:
        raise UsageError("give the URL once: as an argument or as --dir")
    settings = chosen_settings(url if url is not None else directory)
    place = str(settings.cache_dir)
    checks = list(_checks(place, settings))
    healthy = all(check.verdict != "failed" for check in checks)
    if as_json:
        output.print_json(
            {
                "url": place,
                "healthy": healthy,
                "checks": [
                    {
                        "name": check.name,
                        "verdict": str(check.verdict),
                        "detail": check.detail,
                        "advice": check.advice,
                    }
                    for check in checks
                ],
            }
        )
    else:
        _print(place, checks, healthy=healthy)
    if not healthy:
        raise typer.Exit(1)


def _checks(url: str, settings: Settings) -> Iterator[Check]:
    from ejcache.stores.opening import check_url, is_shared, local_path
    from ejcache.upkeep.checkup import fine
    from ejcache.upkeep.checkup_directory import check_local_directory, check_shared_directory, check_tier

    text = check_url(url)
    path = local_path(text)
    if not is_shared(text):
        if path is None:
            yield fine("memory", "entries are kept in each process for itself, and end with it")
            return
        yield from check_local_directory(Path(path), max_size=settings.max_size, read_only=settings.read_only)
        return
    from ejcache.stores.nearby import nearby
    from ejcache.stores.opening import open_bucket_at
    from ejcache.upkeep.checkup_shared import check_bucket

    if path is not None:
        yield from check_shared_directory(Path(path))
    elif text.startswith("gs:"):
        yield fine("credentials", _google(settings))
    bucket = open_bucket_at(text, settings=settings)
    try:
        yield from check_bucket(bucket, read_only=settings.read_only)
    finally:
        bucket.close()
    place = nearby(url, settings)
    yield from check_tier(None if place is None else place.directory, max_size=settings.local_max_size)


def _google(settings: Settings) -> str:
    if settings.gcs_credentials:
        who = f"{settings.gcs_credentials} ({settings['gcs_credentials'].source})"
    elif settings.gcs_endpoint:
        who = "none"
    else:
        who = "those that Google's libraries find"
    return who + (f", at {settings.gcs_endpoint} (STORAGE_EMULATOR_HOST)" if settings.gcs_endpoint else "")


def _print(url: str, checks: list[Check], *, healthy: bool) -> None:
    output.print_table(
        ["check", "result", "what was seen"],
        [[check.name, str(check.verdict), check.detail] for check in checks],
        shrink=("what was seen",),
    )
    advised = [check for check in checks if check.advice]
    if advised:
        output.say("\nWhat to do:")
        for check in advised:
            if check.verdict == "failed":
                # The table cuts it where the terminal is narrow.
                output.say(f"  {check.name}: {check.detail}")
            output.say(f"  {check.name}: {check.advice}")
    output.say(f"\n{url} {'can' if healthy else 'cannot'} hold a cache as it is")

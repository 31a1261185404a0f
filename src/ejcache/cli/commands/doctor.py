"""`ejcache doctor`: prints the checks of `maintenance.doctor`, and adds the switch and the recalls of the cache."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from ejcache.cli import output
from ejcache.cli.chosen_cache import command_settings
from ejcache.cli.options import Dir, Json, argument
from ejcache.errors import EntryError, StoreError, UsageError
from ejcache.maintenance import doctor as checkup
from ejcache.maintenance.recalls import recalls_in_words
from ejcache.maintenance.stored_policy import POLICY, read_limits, read_limits_of_directory, recalls_of, who_turned_off
from ejcache.stores.location import Location
from ejcache.stores.opening import open_bucket
from ejcache.stores.sharing_detection import detect_shared_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ejcache.maintenance.doctor import Check
    from ejcache.settings.table import Settings


_NAME_WIDTH: Final = 12
_VERDICT_WIDTH: Final = 7


def doctor(
    url: Annotated[
        str | None, argument("[URL]", "A directory or a URL. Default: the cache of --dir or of the settings.")
    ] = None,
    directory: Dir = None,
    as_json: Json = False,
) -> int:
    """Check what a cache needs of its storage and of JAX, and advise on what does not work.

    In a bucket, `doctor` checks reading, atomic creation, deleting, the clock and the latency. In a directory, it
    checks the permissions and who else could have put code there, and creates, reads and deletes an entry. With
    EJCACHE_READ_ONLY=1, it creates and deletes nothing. Of JAX, it checks that JAX can be imported, and that ejcache
    fits this version. It ends within ten seconds, and leaves nothing behind. Exits with 1 if a check failed.
    `ejcache help messages` explains frequent messages.
    """
    if url is not None and directory is not None:
        raise UsageError("give the URL once: as an argument or as --dir")
    settings = command_settings(url if url is not None else directory)
    place = str(settings.dir)
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
    end = time.monotonic() + checkup.SECONDS
    location = Location.parse(url)
    shared = detect_shared_storage(location)
    with closing(checkup.JaxCheck()) as jax:
        if location.kind == "memory":
            yield checkup.fine("memory", "each process keeps its own entries; they are gone when it ends")
        elif location.kind == "directory":
            yield from checkup.check_directory(
                Path(location.path), read_only=settings.read_only, trusted=settings.trust_dir, local=not shared
            )
            if not shared:
                yield from _policy(partial(read_limits_of_directory, location), url)
        if shared:
            with open_bucket(location, settings=settings) as bucket:
                only_reads = settings.read_only or location.anonymous
                yield from checkup.check_bucket(bucket, end=end - 1, read_only=only_reads)
                if time.monotonic() < end - 1:
                    yield from _policy(partial(read_limits, bucket), url)
        yield jax.result(end=end)


def _policy(read: Callable[[], Mapping[str, Any] | None], url: str) -> Iterator[Check]:
    """Say what is stored with the cache of its use: by whom it was turned off, and what is recalled."""
    try:
        policy = read() or {}
    except StoreError:
        return
    except EntryError as exc:
        advice = (
            f"`ejcache recall --all --replace --dir {url}` stores another one, and begins anew; else use one version "
            "of ejcache"
        )
        yield checkup.failed(
            "policy", f"{POLICY} cannot be read, and hosts keep to the one that they know: {exc}", advice
        )
        return
    if off := who_turned_off(policy):
        advice = f"`ejcache config set --dir {url} enabled=true` turns it on"
        yield checkup.warning("switch", f"turned off {off}: no program reads or stores entries there", advice)
    if recalled := recalls_in_words(recalls_of(policy)):
        yield checkup.fine("recalls", recalled)


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

"""Completes on the command line what a person has begun to type: settings, keys, and tuned records."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Final

import typer  # noqa: TC002 (typer evaluates the annotations of a completion)

from ejcache.settings.described import SETTINGS
from ejcache.stores.location import Location
from ejcache.util.threads import call_with_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_SECONDS: Final = 1.0
"""A person waits for this after pressing Tab; a cache that answers later is not completed."""


_MOST: Final = 200


def settings_beginning(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the settings whose name begins so; for `config set` with the `=` behind."""
    end = "=" if ctx.command_path.endswith(" set") else ""
    return [f"{setting.name}{end}" for setting in SETTINGS if setting.name.startswith(incomplete)]


def keys_beginning(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names, and beginnings of keys, of what the local cache of the command holds. Never fails."""
    return _complete(incomplete, _entries, ctx.params.get("directory"))


def records_beginning(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names, and beginnings of keys, of the tuned records of the command. Never fails."""
    return _complete(incomplete, _records, ctx.params.get("directory"))


def _complete(incomplete: str, find: Callable[[str | None], Iterable[str]], directory: str | None) -> list[str]:
    """Return those texts of `find`, which may fail or take long, that begin so. Never fails."""
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        found = call_with_timeout("completion", lambda: find(directory), _SECONDS)
        return sorted(text for text in found if text.startswith(incomplete))[:_MOST]
    return []


def _entries(directory: str | None) -> set[str]:
    from ejcache.cli.chosen_cache import command_settings, open_cache  # the door to completion
    from ejcache.cli.listing import list_entries  # the door to completion

    if Location.parse(command_settings(directory).dir).kind != "directory":
        return set()
    with open_cache(directory) as target:
        return {text for row in list_entries(target) for text in (row.parts.name, row.short)}


def _records(directory: str | None) -> set[str]:
    from ejcache.cli.tuned.records import names_of_records  # the door to completion

    return names_of_records(directory)

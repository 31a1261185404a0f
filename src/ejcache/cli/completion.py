"""Shell completion: `ejcache completion`, and what the shell is told about keys, names and settings."""

from __future__ import annotations

import contextlib
import io
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer._completion_shared import get_completion_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["complete", "completion", "keys_beginning", "settings_beginning"]

_SECONDS: Final = 1.0
"""A person waits for this after pressing Tab; a cache that answers later is not completed."""
_MOST: Final = 200


class Shell(StrEnum):
    """The shells that are known."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")]) -> None:
    """Print a script that completes commands, options, settings, and keys and names of a local cache.

    For one session of bash or zsh: eval "$(ejcache completion bash)". For all of them, put that line at the end of
    ~/.bashrc or ~/.zshrc. For fish: ejcache completion fish > ~/.config/fish/completions/ejcache.fish.
    """
    typer.echo(get_completion_script(prog_name="ejcache", complete_var="_EJCACHE_COMPLETE", shell=shell.value))


def settings_beginning(ctx: typer.Context, incomplete: str) -> list[str]:
    """The settings whose name begins so; for `config set` with the `=` behind."""
    from ejcache.settings.table import SETTINGS

    end = "=" if ctx.command_path.endswith(" set") else ""
    return [f"{setting.name}{end}" for setting in SETTINGS if setting.name.startswith(incomplete)]


def keys_beginning(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names, and beginnings of keys, of what the local cache of the command holds. Never fails."""
    return complete(incomplete, lambda: _entries(ctx.params.get("directory")))


def complete(incomplete: str, find: Callable[[], Iterable[str]]) -> list[str]:
    """Those texts of `find`, which may fail or take long, that begin so. Never fails."""
    from ejcache.util.threads import call_with_timeout

    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        found = call_with_timeout("completion", find, _SECONDS)
        return sorted(text for text in found if text.startswith(incomplete))[:_MOST]
    return []


def _entries(directory: str | None) -> set[str]:
    from ejcache.cli.listing import list_entries
    from ejcache.cli.target import command_settings, open_target
    from ejcache.stores.location import Location, LocationKind

    if Location.parse(command_settings(directory).cache_dir).kind is not LocationKind.DIRECTORY:
        return set()
    with open_target(directory) as target:
        return {text for row in list_entries(target) for text in (row.parts.name, row.short)}

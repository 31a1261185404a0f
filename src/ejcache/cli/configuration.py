"""`ejcache config`: every setting, its value, and where it came from; and the limits kept with a shared cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ejcache.cli import output
from ejcache.cli.opened import chosen_settings
from ejcache.cli.options import Dir, Json  # noqa: TC001 (typer reads the annotations)
from ejcache.errors import EntryError, StoreError, UsageError
from ejcache.units import format_age, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.settings import Settings

__all__ = ["app", "config", "set_limits"]

_PATIENCE: Final = 3.0
"""Seconds to wait for a shared cache to say its limits; the settings are known without it."""

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def config(context: typer.Context, directory: Dir = None, as_json: Json = False) -> None:
    """Show every setting, its value and where it came from, and the limits that are stored with a shared cache.

    Exits with 1 if a value in the environment cannot be used; the next source's value is used instead, but where JAX
    itself refuses to be imported with it.
    """
    if context.invoked_subcommand is not None:
        context.obj = _Given(directory, as_json)
        return
    settings = chosen_settings(directory)
    problems = [str(problem) for problem in settings.problems]
    limits = None
    try:
        limits = _stored_limits(settings)
    except UsageError as exc:
        problem = f"{settings['cache_dir'].source}: {exc}"
        if directory is not None:
            raise UsageError(problem) from exc
        output.warn(problem)
        problems.append(problem)
    if as_json:
        output.print_json(
            {
                "disabled_reason": settings.disabled_reason,
                "problems": problems,
                "stored_limits": limits,
                "settings": [
                    {
                        "name": setting.name,
                        "value": value.value,
                        "origin": str(value.origin),
                        "source": value.source,
                        "default": setting.default,
                        "accepted": setting.accepted,
                        "flag": setting.flag,
                        "variables": list(setting.variables),
                        "help": setting.doc,
                    }
                    for setting, value in settings.items()
                ],
            }
        )
    else:
        output.print_table(
            ["setting", "value", "from", "what it is"],
            [
                [setting.name, _worded(setting.name, value.value), value.source, setting.doc]
                for setting, value in settings.items()
            ],
            shrink=("value",),
            drop_last=True,
        )
        if settings.disabled_reason:
            output.say(f"\nnothing is cached: {settings.disabled_reason}")
        if limits:
            output.say(f"\nstored with {settings.cache_dir}, and before any job's own limit: {_limits_text(limits)}")
    if problems:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Given:
    """Options that stand before the subcommand, and are meant for it."""

    directory: str | None
    as_json: bool


@app.command("set", short_help="Store limits with a shared cache.")
def set_limits(
    context: typer.Context,
    assignments: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE", help="max_size=100GB, max_entries=N, older_than=90d, unused_for=30d."),
    ],
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Store limits with a bucket, or another cache that hosts share, where they go before any job's own limit.

    The jobs that use the cache keep them, and so does `ejcache prune` without rules. A limit is removed by NAME=none;
    those that are not named stay as they are.
    """
    from ejcache.stores.opening import is_shared, open_bucket_at
    from ejcache.upkeep.stored_policy import change_limits, parse_limit

    before: _Given = context.obj
    directory = directory if directory is not None else before.directory
    as_json = as_json or before.as_json
    settings = chosen_settings(directory)
    url = str(settings.cache_dir)
    changes = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"{assignment!r} sets nothing: give NAME=VALUE, such as max_size=100GB")
        changes[name.strip()] = parse_limit(name.strip(), text)
    if not is_shared(url):
        raise UsageError(
            f"{url} is a cache of this host alone, with which no limits are stored: "
            "set JAX_COMPILATION_CACHE_MAX_SIZE (bytes, without a unit) where it is used"
        )
    bucket = open_bucket_at(url, settings=settings)
    try:
        limits = change_limits(bucket, changes)
    finally:
        bucket.close()
    if as_json:
        output.print_json({"url": url, "stored_limits": limits})
    else:
        output.say(f"stored with {url}: {_limits_text(limits)}")


def _stored_limits(settings: Settings) -> dict[str, Any] | None:
    """What is stored with the cache, if it is one with which limits are stored, and says so soon.

    Raises:
        UsageError: it is no URL of a cache.
    """
    from ejcache.stores.opening import is_shared, open_bucket_at
    from ejcache.upkeep.stored_policy import read_limits

    url = str(settings.cache_dir)
    try:
        if not is_shared(url):
            return None
        bucket = open_bucket_at(url, settings=settings, deadline=_PATIENCE)
        try:
            return read_limits(bucket)
        finally:
            bucket.close()
    except (EntryError, StoreError) as exc:
        output.warn(f"limits that may be stored with {url} are not known: {exc}")
        return None


def _limits_text(limits: Mapping[str, Any]) -> str:
    words = {
        "max_size": lambda value: format_size(int(value)),
        "older_than": format_age,
        "unused_for": format_age,
    }
    return ", ".join(f"{name} {words.get(name, str)(value)}" for name, value in sorted(limits.items())) or "no limits"


def _worded(name: str, value: Any) -> str:
    if value is None or value in ("", ()):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if name in ("max_size", "local_max_size"):
        return format_size(value) if value else "0 (no caching)" if name == "max_size" else "0 (none)"
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)

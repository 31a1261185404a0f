"""`ejcache config`: shows and changes settings, a shared cache's limits and switch, and who shares a directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ejcache.bucket.files import FileBucket
from ejcache.cli import output
from ejcache.cli.chosen_cache import check_directory, command_settings, is_wrong_value
from ejcache.cli.completion import settings_beginning
from ejcache.cli.options import Dir, Json, Replace, argument, examples, option, warn_of_bytes
from ejcache.errors import EntryError, SettingError, StoreError, UsageError
from ejcache.maintenance.recalls import recalls_in_words
from ejcache.maintenance.sharing import share_directory, why_out_of_reach
from ejcache.maintenance.stored_policy import (
    LIMITS,
    change_policy,
    parse_limit,
    read_limits,
    read_limits_of_directory,
    recalls_of,
    switch_of,
    who_turned_off,
)
from ejcache.settings.config_files import change_file
from ejcache.settings.described import SETTINGS, setting_in_file, setting_named
from ejcache.settings.directories import HOST_FILE, user_file
from ejcache.settings.resolve import parse
from ejcache.settings.table import Floors
from ejcache.stores.local.layout import Layout
from ejcache.stores.location import Location, display_value
from ejcache.stores.opening import open_bucket
from ejcache.stores.sharing_detection import detect_shared_storage
from ejcache.util.directory_access import SHARED, audience_of, refusal
from ejcache.util.units import format_age, format_size
from ejcache.util.writer import user_and_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ejcache.settings.table import Settings, Value

_SWITCH: Final = "enabled"
_NO_LIMITS: Final = frozenset({_SWITCH, "switched_by", "switched_at", "recalled", "epoch", "former"})
LIMITS_SECONDS: Final = 3.0
"""How long the limits that are stored with a shared cache are waited for."""
"""Seconds to wait for the limits of a shared cache; the settings are shown without them."""

_SETTING: Final = argument("NAME", "The name of a setting, such as dir.", autocompletion=settings_beginning)

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def config(context: typer.Context, directory: Dir = None, as_json: Json = False) -> int:
    """Show every setting, its value and its source, and the limits that are stored with a shared cache.

    Exits with 2 if a setting has a value that it cannot have. Exits with 1 if something else cannot be used, such as a
    variable with a mistyped name. Instead of a wrong value, programs use the value of the next source, unless JAX
    itself cannot be imported with the wrong value.
    """
    if context.invoked_subcommand is not None:
        return 0

    settings = command_settings(directory, lenient=True)
    problems = [str(problem) for problem in settings.problems]
    failed = 2 if any(map(is_wrong_value, settings.problems)) else 1
    limits, own_limit, untrusted, audience, off = None, None, "", "", ""
    try:
        location, shared = _location(settings)
    except UsageError as exc:
        problem = f"{settings['dir'].source}: {exc}"
        if directory is not None:
            raise UsageError(problem) from exc
        output.warn(problem)
        problems.append(problem)
    else:
        if shared:
            limits = _stored_limits(location, settings)
        elif location.kind == "directory":
            layout = Layout(Path(location.path), trusted=settings.trust_dir, writing=not settings.read_only)
            access = layout.access
            untrusted, audience = refusal(access.why, access.mend), "" if access.why else audience_of(access.mode)
            off = _of_directory(location)
            own_limit = layout.limit() if settings.chosen_max_size is None else None
            own_limit = None if own_limit == -1 else own_limit
    floors = settings.floors
    if as_json:
        output.print_json(
            {
                "disabled_reason": settings.disabled_reason,
                "untrusted_directory": untrusted or None,
                "shared": audience or None,
                "turned_off": off or who_turned_off(limits or {}) or None,
                "problems": problems,
                "stored_limits": limits,
                "own_limit": own_limit,
                "floors": {"keep_seconds": floors.keep, "publish_seconds": floors.publish},
                "settings": _fields_of_all(settings),
            }
        )
        return failed if problems else 0
    _print_settings(settings, floors, own_limit)
    if settings.disabled_reason:
        output.say(f"\nnothing is cached: {settings.disabled_reason}")
    if off:
        output.say(f"\n{settings.dir} is turned off {off}")
    if untrusted:
        output.say(f"\nprograms use a directory of their own: {untrusted}")
    if audience in ("readers", "group", "everybody"):
        output.say(f"\n{settings.dir} is {AUDIENCE[audience]}")
    if limits:
        output.say(f"\nstored with {settings.dir}, and used instead of a job's own: {_limits_text(limits)}")
    return failed if problems else 0


def _fields_of_all(settings: Settings) -> list[dict[str, object]]:
    return [
        output.fields_of(setting, "name", "default", "accepted", "flag")
        | {"variables": list(setting.variables), "help": setting.doc}
        | _value_fields(settings[setting.name])
        for setting in SETTINGS
    ]


def _print_settings(settings: Settings, floors: Floors, own_limit: int | None) -> None:
    shown = {"min_compile_seconds": str(floors)}
    if own_limit is not None:
        shown["max_size"] = f"{format_size(own_limit)} (this cache's own)"
    rows = [
        [
            setting.name,
            _describe_limit(setting.name, shown.get(setting.name, settings[setting.name].value)),
            settings[setting.name].source,
            setting.doc,
        ]
        for setting in SETTINGS
    ]
    # Meanings in a narrow column cannot be read, and a table of a hundred lines cannot be looked at.
    count = 3 if output.is_narrow() else 4
    output.print_table(
        ["setting", "value", "source", "meaning"][:count], [row[:count] for row in rows], whole=("setting",)
    )
    if count < len(rows[0]):
        output.say("`ejcache help settings` says what each means")


_To = Annotated[
    str | None,
    option(
        "--to",
        "user|host|cache",
        "What to change: the user's file, the host's file, or the cache. Default: a shared cache for limits, "
        "the cache of --dir for enabled, else the user's file.",
    ),
]


@app.command(
    "set",
    short_help="Write settings into the configuration file, or limits into a shared cache.",
    epilog=examples("config set max_size=10GB", "config set min_compile_seconds=0.1 max_size=50GB"),
)
def set_values(
    context: typer.Context,
    assignments: Annotated[
        list[str],
        argument(
            "NAME=VALUE",
            "A setting or a limit, such as max_size=100GB.",
            autocompletion=settings_beginning,
        ),
    ],
    to: _To = None,
    directory: Dir = None,
    replace: Replace = False,
    as_json: Json = False,
) -> None:
    """Write settings into the user's configuration file. The environment and programs overrule this file.

    Limits of a cache that hosts share, such as a bucket, are stored with the cache: max_size=100GB, max_entries=N,
    older_than=90d, unused_for=30d, and evict=cost for the order in which entries are removed. Jobs use these limits
    instead of their own, and `ejcache prune` without rules applies them, too. NAME=none removes a limit.

    With --dir, enabled=false turns a cache off for every program that uses it. Within a minute, the programs no longer
    read or store entries, and go on without the cache. enabled=true turns the cache on again.

    The policy is the file of a cache that contains its limits, whether it is turned off, and what is recalled. A
    damaged policy is not changed, unless --replace is given.

    For a cache in a directory, shared=readers lets every user of the host read the cache. shared=group lets the group
    of the directory write to it, shared=everybody lets every user write to it, and shared=none takes this back. A user
    who can write to a cache can run code in the programs that read it. So a user who reads what others write must also
    set EJCACHE_TRUST_DIR=1.
    """
    changes = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"{assignment!r} is not an assignment: give NAME=VALUE, such as max_size=100GB")
        changes[name.strip()] = text.strip()
    _change(context, changes, to, directory, replace=replace, as_json=as_json)


@app.command(
    "unset",
    short_help="Remove settings from the configuration file, or limits from a shared cache.",
    epilog=examples("config unset max_size"),
)
def unset_values(
    context: typer.Context,
    names: Annotated[
        list[str], argument("NAME", "Names of settings or limits, such as max_size.", autocompletion=settings_beginning)
    ],
    to: _To = None,
    directory: Dir = None,
    replace: Replace = False,
    as_json: Json = False,
) -> None:
    """Remove settings from the user's configuration file, or limits from a shared cache."""
    _change(context, dict.fromkeys(names), to, directory, replace=replace, as_json=as_json)


@app.command("get", short_help="Print the value of one setting.", epilog=examples("config get dir"))
def get_value(
    context: typer.Context,
    name: Annotated[str, _SETTING],
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Print the value of a setting; with --json also where the value comes from."""
    directory, as_json = _given_options(context, directory, as_json=as_json)
    setting = setting_named(name)
    value = command_settings(directory)[setting.name]
    if as_json:
        output.print_json({"name": setting.name, **_value_fields(value)})
    else:
        shown = display_value(value.value)
        text = ",".join(map(str, shown)) if isinstance(shown, list) else "" if shown is None else str(shown)
        output.say(text.lower() if isinstance(shown, bool) else text, wrap=False)


def _given_options(context: typer.Context, directory: str | None, *, as_json: bool) -> tuple[str | None, bool]:
    """Return `--dir` and `--json`, which may also be before the subcommand."""
    before: Mapping[str, Any] = context.parent.params if context.parent is not None else {}
    return directory if directory is not None else before.get("directory"), as_json or bool(before.get("as_json"))


def _value_fields(value: Value) -> dict[str, Any]:
    return {"value": display_value(value.value)} | output.fields_of(value, "origin", "source")


def _change(
    context: typer.Context,
    changes: Mapping[str, str | None],
    to: str | None,
    directory: str | None,
    *,
    replace: bool,
    as_json: bool,
) -> None:
    if to not in (None, "user", "host", "cache"):
        raise SettingError("--to", to, "user, host or cache")
    directory, as_json = _given_options(context, directory, as_json=as_json)
    settings = command_settings(directory, lenient=True)
    with_whom = changes.get("shared", "none") or "none"
    is_shared = "shared" in changes and to in (None, "cache")
    changes = {name: text for name, text in changes.items() if name != "shared" or not is_shared}
    limits_to_cache = to is None and not changes.keys().isdisjoint(LIMITS) and _location(settings)[1]
    of_cache = {_SWITCH} if directory is not None and to is None else set()
    of_cache |= LIMITS.keys() if limits_to_cache else set()
    with_cache = {name: text for name, text in changes.items() if to == "cache" or name in of_cache}
    in_file = {name: text for name, text in changes.items() if name not in with_cache}
    if in_file and directory is not None:
        names = ", ".join(setting_in_file(name).name for name in in_file)
        raise UsageError(
            f"{names} would be written into the configuration file, for all caches, and --dir names one: leave out "
            "--dir; the limits of a shared cache are stored with it"
        )
    # Nothing is changed before all values are known to be right.
    values, parsed = _values_of_file(in_file), _parsed_limits(with_cache)
    if is_shared:
        share_cache(settings, with_whom)
        if not as_json:
            output.say(f"{settings.dir} is {AUDIENCE[with_whom]}")
        if not changes:
            if as_json:
                output.print_json({"url": str(settings.dir), "shared": with_whom})
            return
    # What another host, a network or a damaged document may refuse comes first, so that nothing is changed then.
    limits = _change_limits(parsed, settings, replace=replace) if with_cache else None
    written = _change_file(values, Path(HOST_FILE) if to == "host" else user_file()) if in_file else None
    if as_json:
        output.print_json({"url": str(settings.dir), "stored_limits": limits, "file": written and str(written)})
        return
    if written is not None:
        output.say(f"{'changed' if None in in_file.values() else 'written to'} {written}: {', '.join(in_file)}")
    if limits is not None:
        output.say(f"stored with {settings.dir}: {_limits_text(limits)}")


AUDIENCE: Final = {
    "none": "this user's alone",
    "readers": "readable for everybody",
    "group": "shared with its group",
    "everybody": "shared with everybody on this host",
}


def share_cache(settings: Settings, how: str) -> None:
    """Share the cache of the settings with those that a key of `SHARED` names, if it is in a directory.

    Raises:
        SettingError: there is no such way to share.
        UsageError: the cache is in a bucket.
        StoreError: the directory cannot be changed.
    """
    if how not in SHARED:
        raise SettingError("shared", how, ", ".join(SHARED))
    location, _ = _location(settings)
    if location.kind != "directory":
        raise UsageError(f"{settings.dir} is not a directory: its storage decides who may use it")
    failed = share_directory(location, how)
    if how != "none" and (why := why_out_of_reach(Path(location.path))):
        output.warn(why)
    if failed:
        output.warn(
            f"{failed} files and directories of other users in {location} stay as they are: let them do it, too"
        )


def _values_of_file(changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what the file gets for these changes.

    Raises:
        UsageError: there is no such setting, or it cannot have this value.
    """
    values: dict[str, Any] = {}
    for name, text in changes.items():
        setting = setting_in_file(name)
        if setting.name == "max_size":
            warn_of_bytes(name, text)
        if text is None:
            values |= dict.fromkeys((setting.name, name))
            continue
        parsed = parse(setting.name, text)
        # A size stays as the person has written it: 50GB reads better than 50000000000.
        exact = isinstance(parsed, bool) or not isinstance(parsed, int) or str(parsed) == text
        values[setting.name] = list(parsed) if isinstance(parsed, tuple) else parsed if exact else text
    return values


def _change_file(values: Mapping[str, Any], path: Path) -> Path:
    change_file(path, values)
    return path


def _parsed_limits(changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what the policy of a cache gets for these changes.

    Raises:
        UsageError: there is no such limit, or it cannot have this value.
    """
    parsed = {name: parse_limit(name, text or "none") for name, text in changes.items() if name != _SWITCH}
    return parsed | (_switch(changes[_SWITCH]) if _SWITCH in changes else {})


def _change_limits(parsed: Mapping[str, Any], settings: Settings, *, replace: bool) -> dict[str, Any]:
    location, shared = _location(settings)
    if not shared and parsed.keys().isdisjoint(LIMITS) and location.kind == "directory":
        check_directory(location.url, "there is no cache at")
        with FileBucket(location.path, local=True, documents=True) as files:
            return change_policy(files, parsed, replace_damaged=replace, shared=False)
    if not shared:
        raise UsageError(
            f"{settings.dir} is used by this host alone, and limits are stored with shared caches only: "
            "without --dir and --to cache, max_size is written into the user's configuration file"
        )
    with open_bucket(location, settings=settings) as bucket:
        return change_policy(bucket, parsed, replace_damaged=replace)


def _switch(text: str | None) -> dict[str, Any]:
    words = {"false": False, "0": False, "no": False, "true": True, "1": True, "yes": True, "none": True}
    enabled = words.get((text or "none").lower())
    if enabled is None:
        raise SettingError(_SWITCH, text, "true or false")
    return switch_of(enabled=enabled, by=user_and_host(), at=time.time())


def _location(settings: Settings) -> tuple[Location, bool]:
    """Parse the location of the cache, and find whether hosts share it.

    Raises:
        UsageError: the URL is not one of a cache.
    """
    location = Location.parse(str(settings.dir))
    return location, detect_shared_storage(location)


def _stored_limits(location: Location, settings: Settings) -> dict[str, Any] | None:
    """Return the limits that are stored with a shared cache; None if it does not answer in time."""
    try:
        with open_bucket(location, settings=settings, deadline=LIMITS_SECONDS) as bucket:
            return read_limits(bucket)
    except (EntryError, StoreError) as exc:
        output.warn(f"the limits that are stored with {location} could not be read: {exc}")
        return None


def _of_directory(location: Location) -> str:
    """Return who has turned off the cache in a directory of this host, and when, in words; empty if it is on."""
    try:
        return who_turned_off(read_limits_of_directory(location))
    except EntryError as exc:
        output.warn(f"the limits that are stored with {location} cannot be read: {exc}")
        return ""


def _limits_text(limits: Mapping[str, Any]) -> str:
    words = {
        "max_size": lambda value: format_size(int(value)),
        "older_than": format_age,
        "unused_for": format_age,
    }
    shown = {name: value for name, value in limits.items() if name not in _NO_LIMITS}
    parts = [f"{name} {words.get(name, str)(value)}" for name, value in sorted(shown.items())] or ["no limits"]
    if off := who_turned_off(limits):
        parts.insert(0, f"turned off {off}")
    if recalled := recalls_in_words(recalls_of(limits)):
        parts.append(recalled)
    return ", ".join(parts)


def _describe_limit(name: str, value: Any) -> str:
    if value is None or value in ("", ()):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if name in ("max_size", "local_max_size") and isinstance(value, int):
        return format_size(value) if value else "0 (no caching)" if name == "max_size" else "0 (none)"
    shown = display_value(value)
    return ", ".join(map(str, shown)) if isinstance(shown, list) else str(shown)

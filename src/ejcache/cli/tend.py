"""`ejcache prune`, `clear`, `pin` and `unpin`: what stays in the cache and what goes."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ejcache.cli import output
from ejcache.cli.catalog import OURS, Row, check_wanted, match_rows, rows_of, warn_of_several
from ejcache.cli.opened import Opened, opened_place
from ejcache.cli.options import Dir, Json, Yes, age, count, size
from ejcache.errors import UsageError
from ejcache.keys.key import is_side_key
from ejcache.units import format_size
from ejcache.upkeep.abilities import Pinnable, pinned_keys, used_lately
from ejcache.upkeep.names import describe_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.upkeep.execute import Deletable, Outcome
    from ejcache.upkeep.plan import Deletion, Plan

__all__ = ["clear", "pin", "prune", "unpin"]

_CRITERIA = "--max-size, --max-entries, --older-than, --unused-for, --name or --old-versions"
_SHOWN: Final = 200
"""Rows of a table that a person, or the log of a cron job, is given."""
_COPIES_STAY: Final = (
    "hosts go on using their own copies: to disown what was stored, set EJCACHE_NAMESPACE to another text in every "
    "job, or remove EJCACHE_LOCAL_DIR on every host"
)
_Key = Annotated[str, typer.Argument(metavar="KEY|PREFIX|NAME", help="A key, what `ls` shows of it, or a name.")]


def prune(
    directory: Dir = None,
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Bytes that may stay, such as 10GB or 10GiB.")
    ] = None,
    max_entries: Annotated[
        str | None, typer.Option("--max-entries", metavar="N", help="Number of entries that may stay.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Remove what was made longer ago, such as 14d.")
    ] = None,
    unused_for: Annotated[
        str | None, typer.Option("--unused-for", metavar="AGE", help="Remove what was last used longer ago.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="GLOB", help="Look at entries of this name only; alone, remove them all ('jit_eval*')."
        ),
    ] = None,
    old_versions: Annotated[
        bool,
        typer.Option(
            "--old-versions", help="Remove what another JAX, jaxlib or host compiled than the newest of its platform."
        ),
    ] = False,
    keep_pgle: Annotated[
        bool, typer.Option("--keep-pgle", help="Let what PGLE made stay: optimised entries, and profiles.")
    ] = False,
    jax: Annotated[
        bool, typer.Option("--jax", help="Prune the files of plain JAX in the directory, not our entries.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be removed; remove nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove entries: those that a rule names, and the least recently used beyond a limit.

    Each rule removes by itself; --name narrows all of them. A plain entry goes before its PGLE sibling, pinned entries
    stay. In a directory with files of plain JAX only, those are meant.

    A bucket may be pruned while jobs use it: what was made or used in the last five minutes stays. Without rules, the
    policy that `config set` stored with it is applied.
    """
    from ejcache.upkeep.execute import execute
    from ejcache.upkeep.plan import plan
    from ejcache.upkeep.policy import Policy
    from ejcache.upkeep.stored_policy import policy_of

    limits: dict[str, Any] = {
        "max_size": size(max_size, option="--max-size"),
        "max_entries": count(max_entries, option="--max-entries"),
        "older_than": age(older_than, option="--older-than"),
        "unused_for": age(unused_for, option="--unused-for"),
        "name_glob": name,
        "old_versions": old_versions,
        "keep_pgle": keep_pgle,
    }
    asked = Policy(**limits)
    with opened_place(directory, write=not dry_run) as place:
        policy = asked if asked.has_criterion else policy_of(place.limits or {})
        if not policy.has_criterion:
            raise UsageError(f"prune removes nothing without being told what: give {_CRITERIA}")
        if jax and place.jax is None:
            raise UsageError(f"--jax: {place.url} holds no entries of plain JAX")
        store = place.jax if jax or place.store is None else place.store
        if store is None:
            raise UsageError(f"{place.url} holds no entries that could be pruned")
        entries = store.entries()  # which in a shared store says what is pinned, too
        policy = replace(policy, keep=pinned_keys(store), keep_used_since=used_lately(store), keep_pgle=keep_pgle)
        with plan(entries, now=time.time(), policy=policy) as planned:
            outcome = None
            if not dry_run:
                with output.progress("removing", planned.count, quiet=as_json) as advance:
                    outcome = execute(store, planned, advance=advance)
            if as_json:
                fields = _fields(place, outcome, left=planned.left, left_size=planned.left_size)
                said = {"dry_run": dry_run and planned.count > 0, "planned": _planned(planned)}
                output.print_json(fields | said | {"in_use_entries": planned.protected})
            else:
                _print_pruned(place, planned, outcome)
    if outcome is not None and outcome.failed:
        raise typer.Exit(1)


def clear(directory: Dir = None, yes: Yes = False, as_json: Json = False) -> None:
    """Remove all entries of ours, pinned ones too. Files of plain JAX, and everything else, stay.

    Asks first, unless --yes is given. Of a cache that hosts share, each keeps its own copies and goes on using them: to
    disown what was stored, set EJCACHE_NAMESPACE to another text, or remove EJCACHE_LOCAL_DIR on every host.
    """
    from ejcache.upkeep.execute import execute
    from ejcache.upkeep.plan import Deletion
    from ejcache.upkeep.policy import Reason

    with opened_place(directory, write=True) as place:
        entries = list(place.store.entries()) if place.store is not None else []
        what = _counted(sum(not is_side_key(entry.key) for entry in entries), sum(entry.size for entry in entries))
        if entries and not yes:
            if not sys.stdin.isatty() or as_json:
                raise UsageError("clear asks before it removes anything: give --yes where nobody can answer")
            if not typer.confirm(f"Remove {what} from {place.url}?", err=True):
                output.warn("nothing was removed")
                raise typer.Exit(1)
        deletions = [Deletion(entry, Reason.ALL) for entry in entries]
        with output.progress("removing", len(deletions), quiet=as_json) as advance:
            outcome = execute(_deletable(place), deletions, advance=advance) if deletions else None
    if as_json:
        said = {"dry_run": False, "planned": _planned(deletions)}
        output.print_json(_fields(place, outcome, left=0, left_size=0) | said)
    elif outcome is None:
        output.say(f"nothing to remove: {place.url} holds no entry of ours")
    else:
        output.say(f"removed {_counted(outcome.removed, outcome.freed)} from {place.url}")
        if place.shared:
            output.say(_COPIES_STAY)
        _print_failures(outcome)
    if outcome is not None and outcome.failed:
        raise typer.Exit(1)


def pin(key: _Key, directory: Dir = None, as_json: Json = False) -> None:
    """Keep an entry, or all entries of a name: they are never evicted, only `clear` removes them.

    A beginning of the keys of several programs pins none of them, and is an exit status of 1.
    """
    _pin(key, directory, as_json, pinned=True)


def unpin(key: _Key, directory: Dir = None, as_json: Json = False) -> None:
    """Let pinned entries be evicted again."""
    _pin(key, directory, as_json, pinned=False)


def _pin(wanted: str, directory: str | None, as_json: bool, *, pinned: bool) -> None:
    check_wanted(wanted)
    with opened_place(directory, write=True) as place:
        store: object = place.store
        if not isinstance(store, Pinnable):
            raise UsageError(f"{place.url} is a cache whose entries cannot be pinned")
        match = match_rows(rows_of(place.store, None), wanted)
        keys = [row.info.key for row in match.rows]
        if not pinned and wanted in store.pinned():
            keys = [wanted]  # pinned, and not there: one that was removed, or is yet to come
        elif match.ambiguous and not match.exact:
            warn_of_several(match, wanted)
            raise typer.Exit(1)
        if not keys:
            output.warn(f"no entry of {place.url} has a key or name like {wanted!r}")
            raise typer.Exit(1)
        changed = [key for key in keys if (store.pin(key) if pinned else store.unpin(key))]
    if as_json:
        output.print_json({"url": place.url, "pinned": pinned, "keys": keys, "changed": changed})
        return
    for key in keys:
        already = "" if key in changed else " already"
        output.say(f"{key} is {'' if pinned else 'not '}pinned{already}")


def _deletable(place: Opened) -> Deletable:
    if place.store is None:
        raise UsageError(f"{place.url} holds no entry of ours")
    return place.store


def _counted(number: int, total: int) -> str:
    return f"{output.plural(number, 'entry', 'entries')} ({format_size(total)})"


def _planned(deletions: Iterable[Deletion]) -> list[dict[str, Any]]:
    return [
        {
            "key": deletion.entry.key,
            "size": deletion.entry.size,
            "last_used": deletion.entry.last_used,
            "reason": str(deletion.reason),
        }
        for deletion in deletions
    ]


def _fields(place: Opened, outcome: Outcome | None, *, left: int, left_size: int) -> dict[str, Any]:
    failed = outcome.failed if outcome is not None else []
    return {
        "url": place.url,
        "removed_entries": outcome.removed if outcome is not None else 0,
        "removed_size": outcome.freed if outcome is not None else 0,
        "failed": [{"key": deletion.entry.key, "problem": problem} for deletion, problem in failed],
        "left_entries": left + len(failed),
        "left_size": left_size + sum(deletion.entry.size for deletion, _ in failed),
    }


def _print_pruned(place: Opened, planned: Plan, outcome: Outcome | None) -> None:
    now = time.time()
    shown = list(islice(planned, _SHOWN))
    rows = [Row(deletion.entry, describe_key(deletion.entry.key), OURS) for deletion in shown]
    if shown:
        output.print_table(
            ["name", "size", "made", "last used", "rule", "key"],
            [
                [
                    row.parts.name,
                    format_size(deletion.entry.size),
                    output.ago(deletion.entry.created, now=now),
                    output.ago(deletion.entry.last_used, now=now),
                    deletion.reason.replace("_", " "),
                    row.short,
                ]
                for deletion, row in zip(shown, rows, strict=True)
            ],
            right=("size", "made", "last used"),
            shrink=("name",),
        )
        if len(shown) < planned.count:
            output.say(f"and {planned.count - len(shown):,} more; --json has them all")
    if outcome is None:
        did, what = "would remove", _counted(planned.entries, planned.size)
    else:
        did, what = "removed", _counted(outcome.removed, outcome.freed)
    stays = "stays" if planned.left == 1 else "stay"
    output.say(f"{did} {what} from {place.url}; {_counted(planned.left, planned.left_size)} {stays}")
    if outcome is not None:
        _print_failures(outcome)
    if planned.protected:
        output.say(f"{output.plural(planned.protected, 'entry', 'entries')} in use, made or used within five minutes")


def _print_failures(outcome: Outcome) -> None:
    for deletion, problem in outcome.failed:
        output.warn(f"{deletion.entry.key} could not be removed: {problem}")

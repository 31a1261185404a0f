"""Writes docs/cli.md from the help of every command; with --check, says whether it is up to date (exit 1 if not)."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import typer

from ejcache.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 100

HEAD = """\
# The command line

This page is made by `python tools/cli_reference.py` from `--help`; a test keeps it up to date.

Every command takes `--dir URL` and `--json`. Without `--dir`, the cache is the one that `ejcache config` shows as
`cache_dir`. Results go to stdout, everything else to stderr; `NO_COLOR` is honoured.

| exit status | meaning |
|---|---|
| 0 | fine |
| 1 | something was found (`verify`), failed, or is not there: a directory without a cache, no such entry |
| 2 | bad usage: an unknown option, a value that an option or a setting cannot have, a URL that names no cache |

`ejcache run` exits with the program's own status.

Sizes are `500000`, `10GB` (decimal) or `10GiB` (binary); ages are `90s`, `15m`, `36h` or `14d`.

Looking (`stats`, `ls`, `show`, `verify`, `prune --dry-run`) makes nothing, changes nothing, and is no use of an entry.

## What `prune` removes

1. `--name` narrows everything below to entries of matching names. Alone, it removes them.
2. `--old-versions`, `--older-than` and `--unused-for` each judge one entry at a time; what any of them names goes.
3. `--max-entries` and `--max-size` are limits on what is left: the least recently used go first, but a plain entry goes
   before its PGLE sibling.

An old version is an entry whose key names another environment (versions, native libraries, host) than the most recently
created entry of its platform. Where several kinds of hosts share a cache, all kinds but one count as old.

Pinned entries stay, and count for the limits. Without a criterion nothing is removed. Files of plain JAX in the
directory are left alone unless `--jax` is given, or nothing else is there.

## What `verify` exits with

0: nothing is wrong, or `--fix` repaired all of it. 1: something is wrong, or could not be repaired. Intact entries of
a format that this version does not read are counted and left alone.
"""


def help_of(*path: str) -> str:
    """What `ejcache PATH --help` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        typer.main.get_command(app).main(
            [*path, "--help"],
            prog_name="ejcache",
            standalone_mode=False,
            terminal_width=WIDTH,
            max_content_width=WIDTH,
        )
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def command_paths() -> list[tuple[str, ...]]:
    """Every command, in the order of the help; a group's commands after the group."""
    return _paths(typer.main.get_command(app), ())


def _paths(group: Any, above: tuple[str, ...]) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        found.append((*above, name))
        if hasattr(command, "commands"):
            found += _paths(command, (*above, name))
    return found


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"## ejcache\n\n```text\n{help_of()}\n```\n"]
    parts += [f"## ejcache {' '.join(path)}\n\n```text\n{help_of(*path)}\n```\n" for path in command_paths()]
    return "\n".join(parts)


def main() -> int:
    wanted = page()
    if "--check" in sys.argv[1:]:
        fine = PAGE.exists() and PAGE.read_text() == wanted
        if not fine:
            print(f"{PAGE} is out of date: run python tools/cli_reference.py", file=sys.stderr)
        return 0 if fine else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())

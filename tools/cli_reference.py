"""Prints the page about the command line, from the help of every command."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import typer

from ejcache.cli.main import COMMANDS, build, load_command

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH = 100

HEAD = """\
# The command line

`ejcache` works on a cache of compiled programs and on a store of tuned configurations, with the same words:

| command | entries | tuned records, with `--tuned` |
|---|---|---|
| `ls`, `show`, `stats` | look at entries | look at records |
| `why` | why a program was compiled | why a call runs with its configuration |
| `prune` | remove entries by rules | remove records by rules |
| `clear` | remove all entries, or named ones | remove all records, or named ones |
| `push`, `pull` | copy entries to or from another cache | copy records; `--format ejkernel`: ejkernel's files |
| `push FILE.tar`, `pull FILE.tar` | entries and records in one file | the records alone |
| `pin`, `unpin` | | keep a configuration from being changed |

`show`, `why` and `clear` also take a tuned record without `--tuned`, if no entry has the name that is given.

Every command has `--dir URL` and `--json`. Without `--dir`, commands use the cache that `ejcache config` shows as
`dir`, and tuned records are in `autotune_dir`, or else in the same place. Results go to stdout; messages and
progress bars go to stderr. A table that goes to a file or a pipe has a tab between its cells. `NO_COLOR` and
`FORCE_COLOR` are honoured. `ejcache help COMMAND` prints the help of a command.

KEY is a key, the beginning of one as `ls` shows it (at least six characters of a digest), or a name. A function `train`
is found as `train` and as `jit_train`.

| exit status | meaning |
|---|---|
| 0 | fine |
| 1 | something was found (`verify`), failed or does not exist: no cache, no such entry, KEY matches several |
| 3 | `push --if-changed` has written nothing, because the file has everything |
| 2 | bad usage: an unknown option, a value that an option or setting cannot have, a URL that cannot name a cache |

`ejcache run` exits with the status of the program, and dies of the signal that killed it. With a report it stays as the
parent of the program: signals that it gets reach the program, and on Linux the program is killed if it is killed. With
`--quiet`, the program takes its place.

Sizes are `500000`, `10GB` (decimal) or `10GiB` (binary); ages are `90s`, `15m`, `36h` or `14d`.

`stats`, `ls`, `show`, `why`, `verify` and all commands with `--dry-run` change nothing, not even when an entry was last
used.

## Entries and sizes

Every command counts in the same way. The number of entries is the number of executables. Beside entries, a cache keeps
program texts for `why` and PGLE profiles. They belong to no single entry and are not
counted as entries, but the size of a cache includes them, because size limits do. With `--name`, only matching entries
are counted. Entries of plain JAX in the same directory or bucket are not counted.

## What `prune` removes

1. `--name` restricts all rules to entries of matching names. Alone, it removes them.
2. `--old-versions`, `--older-than` and `--unused-for` judge each entry by itself. An entry that any of them names is
   removed.
3. `--max-entries` and `--max-size` limit what is left. The least recently used entries are removed first, or with
   `EJCACHE_EVICT=cost` those that save the fewest seconds for their bytes and uses; but a plain entry is removed before
   the one of its program that was compiled with a PGLE profile. `--dry-run` shows both orders.

An entry is of an old version if its key names another environment (versions, native libraries, host) than the most
recently created entry of its platform. If several kinds of hosts share a cache, all kinds but one count as old.

Entries whose names match `--keep` stay, but they count for the limits. Without a rule nothing is removed. Entries of
plain JAX in the same directory stay.

## Exit status of `verify`

0: nothing is damaged, or `--fix` repaired all of it. 1: something is damaged, or could not be repaired. Intact entries
of a format that this version does not read are counted and left alone.
"""


def help_of(*path: str) -> str:
    """The output of `ejcache PATH --help`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        typer.main.get_command(build()).main(
            [*path, "--help"],
            prog_name="ejcache",
            standalone_mode=False,
            terminal_width=WIDTH,
            max_content_width=WIDTH,
        )
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def command_paths() -> list[tuple[str, ...]]:
    """Every command in the order of the help. The commands of a group follow the group."""
    return _paths({name: load_command(name) for name in COMMANDS}, ())


def _paths(commands: Mapping[str, Any], above: tuple[str, ...]) -> list[tuple[str, ...]]:
    found = []
    for name, command in commands.items():
        found.append((*above, name))
        if hasattr(command, "commands"):
            found += _paths(command.commands, (*above, name))
    return found


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, f"## ejcache\n\n```text\n{help_of()}\n```\n"]
    parts += [f"## ejcache {' '.join(path)}\n\n```text\n{help_of(*path)}\n```\n" for path in command_paths()]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")

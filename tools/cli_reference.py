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

`ejcache` works on a cache of compiled programs, and `ejcache tuned` on stored configurations of kernels (*tuned
records*). An *entry* is one compiled program in the cache. Most commands of the two have the same names:

| command | entries: `ejcache …` | tuned records: `ejcache tuned …` |
|---|---|---|
| `ls`, `stats` | List and count entries. `ls KEY` shows one entry. | List and count records. `show KEY` shows one. |
| `why` | Prints why a program was compiled. | Prints why a call runs with its configuration. |
| `prune` | Removes entries by rules, or all entries. | Removes records by rules. `rm` removes named records, or all. |
| `verify` | Checks the entries. | Checks the records. |
| `push`, `pull` | Copy entries to or from another cache. | Copy records to or from another place, also to or from \
ejkernel's files (`--format ejkernel`). |
| `push FILE.tar`, `pull FILE.tar` | Copy entries and records to or from one file. | Copy only the records. |
| `pin`, `unpin` | There is no such command. | Fix the configuration of a call, and undo this. |
| `tune` | There is no such command. | Measures calls. |

Nearly all commands have `--dir URL` and `--json`. Without `--dir`, most commands use the cache that `ejcache config`
shows as `dir`. Tuned records are in the place that the setting `autotune_dir` names, or else in the cache. Commands
print results to stdout, and messages and progress bars to stderr. If stdout is a file or a pipe, commands print a tab
between the cells of a table. The environment variable `NO_COLOR` turns colours off, and `FORCE_COLOR` turns them on.
`ejcache help COMMAND` prints the help of a command. `ejcache help TOPIC` prints a page of this documentation, such as
`shared`, or the part about a kind of finding, such as `shape_varies`.

KEY is a cache key, the beginning of one, or the name of a function. KEY can also be the text in the column `key` of
`ejcache ls`, or at least its first six characters. The function `train` is found by the names `train` and `jit_train`.

| exit status | meaning |
|---|---|
| 0 | The command succeeded. |
| 1 | The command failed, the cache or the entry does not exist, KEY is the beginning of the keys of several programs, \
or a check found something, for example damage (`verify`) or a finding (`advise`). |
| 2 | The command line or a setting is wrong. Examples are an unknown option, a value that an option or setting cannot \
have, and a URL that cannot name a cache. |
| 3 | `push --if-changed` wrote nothing, because the file has everything already. |
| 130 | Ctrl-C interrupted the command. |

`ejcache run` exits with the status of the program. With `--compare`, it exits with 1 if the program succeeded and the
comparison found that the cache returned a wrong compiled program. If a signal killed the program, `ejcache run` dies of
the same signal. To print a report at the end, `ejcache run` starts the program as a child process, and passes on the
signals that other processes send to it. On Linux, the program is killed if `ejcache run` is killed. With `--quiet` and
without `--compare`, `ejcache run` prints no report, and its process becomes the program.

Examples of sizes are `500000`, `10GB` (decimal) and `10GiB` (binary). Examples of ages are `90s`, `15m`, `36h` and
`14d`.

`stats` without `--reset`, `verify` without `--fix`, `ls`, `why`, and commands with `--dry-run` do not change a cache.
They do not change the time at which an entry was last used, either.

## Entries and sizes

The number of entries that a command prints is the number of compiled programs. A cache also contains other objects: the
StableHLO texts of programs (for `ejcache why`), PGLE profiles, and records that make the next start faster. These
objects do not count as entries, but they are part of the size of the cache, because the size limit applies to them,
too. Entries of JAX's own cache in the same directory or bucket do not count.

## What `prune` removes

1. `--name` restricts the other rules to entries whose names match. `--name` without another rule removes all entries
   whose names match.
2. `--old-versions`, `--older-than` and `--unused-for` each select entries. `prune` removes an entry that at least one
   of these options selects.
3. `--max-entries` and `--max-size` limit the entries that are left after steps 1 and 2. By default, `prune` removes the
   least recently used entries first. If `evict` is `cost`, `prune` first removes the entries that save the fewest
   seconds of compiling for each byte. It removes entries later that were used often or a short time ago. If an `evict`
   is stored with the cache, the setting `evict` does not count. If a program has an entry that was compiled with a PGLE
   profile and an entry that was compiled without one, `prune` removes the entry without the profile first. With one of
   these two limits, `--dry-run` also prints for `evict=lru` and for `evict=cost` how many entries would be removed,
   their size, and how long they would take to compile again.

`--old-versions` compares the versions, the native libraries and the namespace in an entry's key with those of the
newest entry of the same platform. An entry that differs in one of them counts as old. If hosts with different
versions share a cache, `--old-versions` therefore removes, for each platform, the entries of all versions except those
of the newest entry.

`--all` removes every entry. With KEY, it removes the entries that KEY names. `--all` cannot be combined with another
option that selects entries.

Entries whose names match `--keep` are not removed, but they count for `--max-entries` and `--max-size`. `prune` without
rules applies the limits that are stored with the cache. If there are none, it removes nothing and exits with 2. In a
cache that hosts share, `prune` without `--all` removes no entry that was created or used in the last five minutes.
`prune` does not remove entries of JAX's own cache in the same directory.

## Exit status of `verify`

`ejcache verify` exits with 0 if it finds no damage, or if `--fix` has repaired all damage. It exits with 1 if damage is
left, or if the storage did not return an entry. If another version of ejcache wrote an entry in a format that this
version cannot read, `verify` counts the entry and does not change it.
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

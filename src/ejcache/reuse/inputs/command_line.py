"""The command line: the words behind the interpreter, its switches, and the files that words name."""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import TYPE_CHECKING, Final

from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse.inputs.files import content, is_younger
from ejcache.settings.start import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_VALUE_BEHIND: Final = "-"
_PARTS: Final = re.compile("[=:@,]")
_SHORT: Final = re.compile("-[A-Za-z]")
_LONGEST: Final = 4096
"""Letters of a word in which names of files are looked for."""


def command_line(main: str, ignored: Iterable[str] = ()) -> tuple[list[str], str]:
    """Return the words of the command line that count, and a file of them that changed since this process began.

    The first are the words that count, then switches and the directory in which the process was started, then the
    content of the files that words name. The second is empty if there is no such file.

    Args:
        main: the file of the main module.
        ignored: arguments that do not count, such as "--run-name".

    Raises:
        RefusedError: a word names a pipe, which can be read only once.
    """
    words = list(_without(sys.orig_argv[1:], [each for each in ignored if each.startswith("-")]))
    named: list[str] = []
    changed = ""
    for word in words:
        for path, status in _files(word):
            if not _is_same(path, main):
                named.append(f"{word}: {content(path, status)}")
                changed = changed or (path if is_younger(status) else "")
    shown = [os.path.basename(word) if _is_same(word, main) else word for word in words]  # noqa: PTH119
    where = os.path.relpath(DIRECTORY or os.getcwd(), os.path.dirname(main))  # noqa: PTH109, PTH120
    return [*shown, f"switches {sys.flags}", f"in {where}", *named], changed


def _files(word: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files that a word names: itself, between any of `=`, `:`, `@` and `,`, or right behind a short option."""
    parts = [word]
    if len(word) <= _LONGEST:
        parts += [*_PARTS.split(word), *(word[found.end() :] for found in _PARTS.finditer(word))]
    if _SHORT.match(word):
        parts.append(word[2:])
    # The program may have gone to another directory since.
    places = dict.fromkeys((DIRECTORY, ""))
    for part in dict.fromkeys(filter(None, parts)):
        for path in dict.fromkeys(os.path.join(place, os.path.expanduser(part)) for place in places):  # noqa: PTH111, PTH118
            try:
                status = os.stat(path)  # noqa: PTH116
            except (OSError, ValueError):
                continue
            if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
                raise RefusedError(f"the argument {word!r} names a pipe")
            if stat.S_ISREG(status.st_mode):
                yield path, status
                break


def _is_same(path: str, main: str) -> bool:
    return path == main or os.path.realpath(os.path.join(DIRECTORY, path)) == os.path.realpath(main)  # noqa: PTH118


def _without(words: Sequence[str], ignored: Iterable[str]) -> Iterable[str]:
    """The words without ignored arguments: `--run-name x`, `--run-name=x`, `-run_name=x`, `run_name=x`, `+run_name=x`.

    Where no `=` follows the name, the next word is its value, unless that begins with a dash.
    """
    names = {_bare(each) for each in ignored}
    is_value = False
    for word in words:
        if is_value and not word.startswith(_VALUE_BEHIND):
            is_value = False
            continue
        head, equals, _ = word.partition("=")
        is_named = bool(names) and _bare(head) in names and (bool(equals) or word.startswith(_VALUE_BEHIND))
        is_value = is_named and not equals
        if not is_named:
            yield word


def _bare(name: str) -> str:
    return name.lstrip("-+~").replace("-", "_")

"""The command line: the words behind the interpreter, its switches, and the files that words name."""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import TYPE_CHECKING, Final

from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse.inputs.files import content, is_younger
from ejcache.reuse.inputs.project import is_new_way
from ejcache.settings.start import DIRECTORY, variables_at_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_VALUE_BEHIND: Final = "-"
_SWITCHES: Final = "switches "
_PARTS: Final = re.compile("[=:@,]")
_SHORT: Final = re.compile("-([A-Za-z]{1,8})")
_MANY_PARTS: Final = 16
_PARTS_OF_A_NAME: Final = 4
"""So many parts a name can have in a word of many parts, such as a list of files."""


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
        for path, status in _files(word, os.path.dirname(main)):  # noqa: PTH120
            if not _is_same(path, main):
                named.append(f"{word}: {content(path, status)}")
                changed = changed or (path if is_younger(status) or is_new_way(path) else "")
    # Where the project lies does not count.
    is_where = [os.path.isabs(word) and _is_same(word, main) for word in words]  # noqa: PTH117
    shown = [os.sep + os.path.basename(word) if cut else word for word, cut in zip(words, is_where, strict=True)]  # noqa: PTH119
    where = os.path.relpath(DIRECTORY or os.getcwd(), os.path.dirname(main))  # noqa: PTH109, PTH120
    return [*shown, f"{_SWITCHES}{sys.flags}", f"in {where}", *named], changed


def command_difference(before: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """Say what differs between two command lines, and which argument would have to be ignored; empty if none helps.

    Args:
        before: from `command_line`, of an earlier process.
        now: the same of this one.
    """
    (old, old_rest), (new, new_rest) = _split(before), _split(now)
    if old != new:
        return _word_difference(old, new)
    if old_rest[0] != new_rest[0]:
        return "Python's switches changed", ""
    if old_rest[1] != new_rest[1]:
        return "the directory changed in which the process was started", ""
    changed = [each.rpartition(": ")[0] for each in (*new_rest, *old_rest) if (each in new_rest) != (each in old_rest)]
    return f"a file changed that the argument {changed[0]!r} names", _option(new, new.index(changed[0]))


def _split(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command line, and what follows them: switches, the directory, and the content of files."""
    words = next(number for number, each in enumerate(command) if each.startswith(f"{_SWITCHES}sys.flags("))
    return list(command[:words]), list(command[words:])


def _word_difference(old: list[str], new: list[str]) -> tuple[str, str]:
    pairs = enumerate(zip(old, new, strict=False))
    index = next((number for number, (one, other) in pairs if one != other), min(len(old), len(new)))
    one, other = set(old[index : index + 1]), set(new[index : index + 1])
    is_gone = bool(one) and one.isdisjoint(new) and other.issubset(old)
    is_new = bool(other) and other.isdisjoint(old) and one.issubset(new)
    words = new if other and not is_gone else old
    option = _option(words, index)
    name, equals, _ = words[index].partition("=")
    shown = name if equals or name.startswith(_VALUE_BEHIND) else option or name
    how = "is gone" if is_gone else "is new" if is_new else "changed"
    return f"the argument {shown!r} {how}", option


def _option(words: Sequence[str], index: int) -> str:
    """The option to which a word belongs: it says its name, or is behind it. Empty if it belongs to none."""
    name, equals, _ = words[index].partition("=")
    if not equals and not name.startswith(_VALUE_BEHIND):
        name = words[index - 1] if index and words[index - 1].startswith(_VALUE_BEHIND) else ""
        return "" if "=" in name else name
    return name if name.startswith(_VALUE_BEHIND) else f"--{name.lstrip('+~')}"


def _files(word: str, base: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files that a word names, from any of the directories from which a program may open them.

    They are that of the start, that of now, that of the shell, and the main file's.
    """
    places = dict.fromkeys((DIRECTORY, "", variables_at_start().get("PWD", ""), base))
    seen: set[tuple[int, int]] = set()
    for part in dict.fromkeys(filter(None, _parts(word))):
        for path in dict.fromkeys(os.path.join(place, os.path.expanduser(part)) for place in places):  # noqa: PTH111, PTH118
            try:
                status = os.stat(path)  # noqa: PTH116
            except (OSError, ValueError):
                continue
            if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
                raise RefusedError(f"the argument {word!r} names a pipe")
            if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield path, status


def _parts(word: str) -> Iterator[str]:
    """Yield the texts that may name a file: between any two of `=`, `:`, `@` and `,`, or behind short options."""
    found = list(_PARTS.finditer(word))
    starts = [0, *(each.end() for each in found)]
    ends = [*(each.start() for each in found), len(word)]
    longest = len(ends) if len(ends) <= _MANY_PARTS else _PARTS_OF_A_NAME
    for number, start in enumerate(starts):
        for end in ends[number : number + longest]:
            yield word[start:end]
    short = _SHORT.match(word)
    if short is not None:
        yield from (word[end:] for end in range(2, short.end() + 1))


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

"""The command line: the words behind the interpreter, its switches, and the files that words name."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from ejcache.reuse.inputs.files import content

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_VALUE_BEHIND: Final = "-"


def command_line(main: str, ignored: Iterable[str] = ()) -> list[str]:
    """The words that count, then switches and the working directory, then the content of the files that words name.

    Args:
        main: the file of the main module.
        ignored: arguments that do not count, such as "--run-name".
    """
    words = list(_without(sys.orig_argv[1:], [each for each in ignored if each.startswith("-")]))
    named = [f"{word}: {content(path)}" for word in words for path in _files(word) if not _is_same(path, main)]
    shown = [os.path.basename(main) if _is_same(word, main) else word for word in words]  # noqa: PTH119
    where = os.path.relpath(os.getcwd(), os.path.dirname(main))  # noqa: PTH109, PTH120
    return [*shown, f"switches {sys.flags}", f"in {where}", *named]


def _files(word: str) -> list[str]:
    """The files that a word names: itself, behind `=`, or behind `@`."""
    candidates = dict.fromkeys((word, word.partition("=")[2], word.removeprefix("@")))
    return [each for each in candidates if each and os.path.isfile(each)]  # noqa: PTH113


def _is_same(path: str, main: str) -> bool:
    return path == main or os.path.realpath(path) == os.path.realpath(main)


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

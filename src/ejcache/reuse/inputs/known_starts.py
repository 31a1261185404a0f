"""How this process was started, and whether its inputs are known: a script, a module or a project's own command.

The inputs of a notebook are what a person types, and those of a worker are what another process sends. So they are not
known there, nor where the main module belongs to an installed distribution, such as pytest's or a server's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Final

from ejcache.reuse.inputs.packages import distribution_of, installed, is_in_library
from ejcache.settings import start as noted
from ejcache.settings.start import identity, is_fork, main_file


def _identities(path: str) -> tuple[tuple[int, int] | None, ...]:
    return (identity(path), identity(os.path.dirname(path))) if path else ()  # noqa: PTH120


MAIN_AS_GIVEN: Final = main_file()
_IS_NOTED: Final = MAIN_AS_GIVEN == noted.MAIN_AS_GIVEN
"""False where a launcher has imported ejcache, and then runs the program as its main module."""
MAIN: Final = noted.MAIN if _IS_NOTED else os.path.realpath(MAIN_AS_GIVEN)
"""The file of the main module, without links; empty without one."""
_IDENTITIES: Final = noted.IDENTITIES if _IS_NOTED else _identities(MAIN)
_OURS: Final = "ejcache"
_WITH_VALUE: Final = "cmWX"
"""Python's short options behind which a value follows."""
_OF_COMMANDS: Final = frozenset({"console_scripts", "gui_scripts"})


def why_unknown() -> str:
    """Say why the inputs of this process are not known, as the end of a sentence; empty if they are."""
    if not MAIN or hasattr(sys, "ps1") or sys.flags.interactive or sys.flags.inspect:
        return "this is a console, a notebook, or code from the command line or from standard input"
    if is_fork():
        return "this process was forked"
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return "this process was started by multiprocessing"
    if is_in_library(MAIN):
        return "its main module belongs to Python's library"
    owner = distribution_of(MAIN)
    if owner is not None and not owner.is_project:
        return f"its main module belongs to {owner.name}"
    command = _owner_of_command()
    return f"its command belongs to {command}" if command else ""


def why_moved() -> str:
    """Say why the files of this process may be others than those that it loaded; empty if they are not."""
    if (
        _identities(MAIN) != _IDENTITIES
        or main_file() != MAIN_AS_GIVEN
        or (MAIN and os.path.realpath(main_file()) != MAIN)
    ):
        return "the main file or its directory was replaced while the process ran"
    return ""


@functools.cache
def _owner_of_command() -> str:
    """Return the distribution, not the project's, whose command was started, or Python's library; empty for none.

    The command may have put another program in the place of the main module, as debuggers and profilers do.
    """
    started, is_module = _started()
    if is_module:
        return _owner_of_module(started.partition(".")[0])
    name = os.path.basename(started or MAIN)  # noqa: PTH119
    if name.endswith((".py", ".pyc", ".pyz")):
        return ""
    for each in installed():
        is_other = not each.is_project and each.name != _OURS
        if is_other and (f"/bin/{name}," in _text(each.directory, "RECORD") or name in _commands(each.directory)):
            return each.name
    return ""


def _started() -> tuple[str, bool]:
    """Return what Python was told to run, and True if that is a module (`-m`) and no file; empty if it was neither."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            return word, False
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(words, "")
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in _WITH_VALUE:
                value = word[place:] or next(words, "")
                if letter == "m":
                    return value, True
                break
    return "", False


def _owner_of_module(name: str) -> str:
    """Return what else than the project, and ejcache, which starts others' programs, a module belongs to."""
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if not isinstance(path, str):
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
            path = spec.origin if spec is not None else None
    if not isinstance(path, str):
        return ""
    if is_in_library(path):
        return "Python's library"
    owner = distribution_of(path)
    return "" if owner is None or owner.is_project or owner.name == _OURS else owner.name


def _commands(directory: str) -> set[str]:
    """Return the commands that a distribution declares."""
    found: set[str] = set()
    group = ""
    for line in _text(directory, "entry_points.txt").splitlines():
        if line.startswith("["):
            group = line.strip("[] ")
        elif group in _OF_COMMANDS:
            found.add(re.split(r"\s*=", line.strip(), maxsplit=1)[0])
    return found


def _text(directory: str, name: str) -> str:
    try:
        return Path(directory, name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""

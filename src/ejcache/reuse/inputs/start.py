"""How this process was started, and whether its inputs are known: a script, a module or a project's own command.

The inputs of a notebook are what a person types, and those of a worker are what another process sends. So they are not
known there, nor where the main module belongs to an installed distribution, such as pytest's or a server's.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

from ejcache.reuse.inputs.packages import distribution_of, installed


def _main_file() -> str:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.realpath(path) if isinstance(path, str) else ""


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino


MAIN: Final = _main_file()
"""The file of the main module, without links, as it was when the first function asked for reuse; empty without one."""
_INODES: Final = (_identity(MAIN), _identity(os.path.dirname(MAIN))) if MAIN else ()  # noqa: PTH120
_PID: Final = os.getpid()


def why_unknown() -> str:
    """Why the inputs of this process are not known, as the end of a sentence; empty if they are."""
    if not MAIN:
        return "this is a console, a notebook, or code from the command line or from standard input"
    if os.getpid() != _PID:
        return "this process was forked"
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return "this process was started by multiprocessing"
    owner = distribution_of(MAIN)
    if owner is not None and not owner.is_project:
        return f"its main module belongs to {owner.name}"
    command = _owner_of_command()
    return f"its command belongs to {command}" if command else ""


def why_moved() -> str:
    """Why the files of this process may be others than those that it loaded; empty if they are not."""
    now = (_identity(MAIN), _identity(os.path.dirname(MAIN))) if MAIN else ()  # noqa: PTH120
    if now != _INODES or _main_file() != MAIN:
        return "the main file or its directory was replaced while the process ran"
    return ""


def _owner_of_command() -> str:
    """The distribution, not the project's, whose command was started; empty if there is none."""
    if os.path.dirname(MAIN) != os.path.realpath(sysconfig.get_path("scripts")):  # noqa: PTH120
        return ""
    name = os.path.basename(MAIN)  # noqa: PTH119
    for each in installed():
        try:
            listed = Path(each.directory, "RECORD").read_text(encoding="utf-8")
        except OSError:
            continue
        if f"/bin/{name}," in listed:
            return "" if each.is_project else each.name
    return ""

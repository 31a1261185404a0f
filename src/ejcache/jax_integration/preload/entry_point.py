"""What tells the program of this process from other programs: the name of its run profile."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

__all__ = ["entry_point"]


def entry_point() -> tuple[str, ...]:
    """What was started: a script by its path, a module by its name, a `-c` text by its digest.

    What is installed with the interpreter (console scripts, `-m pytest`, `-m ipykernel`) and what has no file runs many
    programs, which the working directory tells apart. A child process of `multiprocessing` is a program of its own:
    it runs a part of what its parent does.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    child = "child" if _is_multiprocessing_child() else ""
    if isinstance(file, str) and file:
        path = Path(file).absolute()
        module = str(getattr(spec, "name", None) or "")
        return "file", str(path), module, child, _directory() if _is_installed(path) else ""
    return "text", _digest_of_text(), "", child, _directory()


def _is_installed(path: Path) -> bool:
    prefixes = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    return "site-packages" in path.parts or any(path.is_relative_to(prefix) for prefix in prefixes)


def _is_multiprocessing_child() -> bool:
    # Not imported for this: each child of multiprocessing has imported it.
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _digest_of_text() -> str:
    arguments = list(getattr(sys, "orig_argv", ()))
    for place, argument in enumerate(arguments[:-1]):
        if argument == "-c":
            return hashlib.sha256(arguments[place + 1].encode("utf-8", "surrogateescape")).hexdigest()
    return ""


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""

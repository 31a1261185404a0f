"""Programs of another user of this host, for tests that run as root."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
from capabilities import require

_OPEN_HOME = """
set -e
aside=$(mktemp -d)
mount --bind "$1" "$aside"
mount -t tmpfs -o mode=755 tmpfs "$0"
mkdir -p "$1"
mount --move "$aside" "$1"
shift
exec "$@"
"""
"""In a namespace of mounts of its own: of the closed directory $0 only $1 is there, and every user can reach it."""


def command_of(uid: int) -> list[str]:
    """What to write before a command so that this user runs it; skips the test where that cannot be."""
    require("root", "setpriv")
    found = _found(uid)
    if found is None:
        pytest.skip(f"another user can neither run {sys.executable} nor be given a view in which it can")
    return found


@functools.cache
def _found(uid: int) -> list[str] | None:
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    interpreter = Path(sys.executable).resolve()
    closed = [path for path in reversed(interpreter.parents) if not path.stat().st_mode & 0o001]
    below = [closed[0] / interpreter.relative_to(closed[0]).parts[0]] if closed else []
    view = ["unshare", "-m", "sh", "-c", _OPEN_HOME, str(closed[0]), str(below[0])] if closed else []
    try:
        subprocess.run([*view, *become, sys.executable, "-c", "import ejcache"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return [*view, *become]

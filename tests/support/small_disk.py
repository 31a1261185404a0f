"""A file system of 12 MB in memory, which only one program sees and which is gone with it."""

from __future__ import annotations

import os
import subprocess
import sys

from helpers import ROOT

__all__ = ["on_small_disk"]

_MOUNT = 'mount -t tmpfs -o size=12m tmpfs "$1" && cd "$1" && shift && exec "$@"'


def on_small_disk(directory, script: str, *arguments: str) -> str:
    """Run a script in `directory`, onto which the file system is mounted; what it printed."""
    python = f"import sys; sys.path.insert(0, {str(ROOT / 'tests' / 'support')!r})\n{script}"
    done = _run(str(directory), sys.executable, "-c", python, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _run(directory: str, *command: str) -> subprocess.CompletedProcess[str]:
    # A user who is not root may mount where it has a name space of its own.
    name_space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    return subprocess.run(
        [*name_space, "sh", "-c", _MOUNT, "sh", directory, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

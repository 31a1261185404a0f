"""The interpreters that there are, on PATH or of pyenv."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def interpreter(version: str) -> str | None:
    """Return the program of a version of Python, such as "3.12"; None if none can make environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for place in (shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))):
        # A shim of pyenv exists for versions that are not selected, and then only says so.
        if place and not subprocess.run([place, "-c", "import ssl, venv"], capture_output=True, check=False).returncode:
            return place
    return None

"""What mypy, and so an editor, knows about the public API."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers import ROOT, run_program


def test_public_api_is_typed():
    """The file that uses every public name has exactly the types, and the errors, that it says it has."""
    done = run_program(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--warn-unused-ignores",
            f"--config-file={ROOT / 'pyproject.toml'}",
            f"--cache-dir={ROOT / '.mypy_cache'}",
            Path(__file__).with_name("public_api.py"),
        ],
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done

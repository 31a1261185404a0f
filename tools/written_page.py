"""Writes the pages that the tools make, or says which of them are out of date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["write_pages"]


def write_pages(pages: Mapping[Path, str]) -> int:
    """Write each page to its file; with `--check` on the command line, only compare. Returns an exit status."""
    if "--check" not in sys.argv[1:]:
        for path, text in pages.items():
            path.write_text(text)
        return 0
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path} is out of date: run python tools/{Path(sys.argv[0]).name}", file=sys.stderr)
    return 1 if stale else 0

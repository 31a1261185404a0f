"""Writes the pages of docs/ that are made from the code: settings, commands and exceptions.

python tools/write_references.py [--check]     with --check, nothing is written, and a page that is old is named
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import cli_reference
import errors_reference
import settings_reference

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGES: Final = {
    "cli.md": cli_reference.page,
    "errors.md": errors_reference.page,
    "settings.md": settings_reference.page,
}
_MARK: Final = "\n<!-- Made by `python tools/write_references.py`: change the code that it is made of. -->\n"


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {name: page() + _MARK for name, page in PAGES.items()}


def main() -> int:
    old = [name for name, text in pages().items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text]
    if "--check" not in sys.argv:
        for name in old:
            (DOCS / name).write_text(pages()[name], encoding="utf-8")
    print(*(f"docs/{name}" for name in old), sep="\n", end="\n" if old else "")
    return 1 if old and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the table of causes in `docs/causes.md`, which is made of `history/causes.py`.

python tools/causes_table.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ejcache.history.causes import table

PAGE: Final = Path(__file__).parents[1] / "docs" / "causes.md"
_PART: Final = re.compile(r"(<!-- made of [^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)


def with_table(page: str) -> str:
    """The text of the page, with the table as it has to be."""
    rows = ["| cause | what it is | what to do |", "|---|---|---|"]
    rows += [f"| `{kind}` | {what} | {what_to_do or 'nothing'} |" for kind, what, what_to_do in table()]
    lines = "\n".join(rows)
    return _PART.sub(lambda found: f"{found[1]}{lines}\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))

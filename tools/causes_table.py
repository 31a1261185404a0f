"""Write the two tables of `docs/causes.md`, causes and outcomes, which are made of `history/causes.py`.

python tools/causes_table.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ejcache.history.causes import CAUSES, OUTCOMES, table

PAGE: Final = Path(__file__).parents[1] / "docs" / "causes.md"
_TABLES: Final = {"CAUSES": CAUSES, "OUTCOMES": OUTCOMES}
_BECAUSE: Final = {
    "CAUSES": "the program was compiled because",
    "OUTCOMES": "the program was compiled, or was not stored, because",
}
_PART: Final = re.compile(r"(<!-- made of [^\n]*: (CAUSES|OUTCOMES) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_table(page: str) -> str:
    """The text of the page, with the tables as they have to be."""
    return _PART.sub(lambda found: f"{found[1]}{_table(found[2])}\n{found[3]}", page)


def _table(name: str) -> str:
    rows = [f"| {name.lower().rstrip('s')} | {_BECAUSE[name]} | what to do |", "|---|---|---|"]
    rows += [f"| `{kind}` | {what} | {what_to_do} |" for kind, what, what_to_do in table(_TABLES[name])]
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))

"""`bench/RESULTS.md`: one section per case, each from the last run that measured it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["HEADER", "merge_results", "write_results"]

HEADER = """\
# Results of the last runs

Written by `python -m bench --write`; every number is there, those that we lose too. Contestants take turns on one
machine, so the ratios are worth more than the times. The bars are those of the project's promises; "NO" is one that was
missed. p95 is the sample that 95 % do not exceed; the worst of a rate is the lowest.
"""

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def merge_results(text: str, sections: Mapping[str, str], *, order: Sequence[str]) -> str:
    """`text` with the sections of the cases that were measured, in `order`; sections of cases that are gone go too."""
    kept = {}
    starts = list(_SECTION.finditer(text))
    for number, start in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        kept[start[1]] = text[start.start() : end].rstrip() + "\n"
    kept.update(sections)
    return "\n".join([HEADER, *(kept[name] for name in order if name in kept)])


def write_results(path: Path, sections: Mapping[str, str], *, order: Sequence[str]) -> None:
    """Bring `path` up to date; what was measured by other runs stays."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(merge_results(before, sections, order=order), encoding="utf-8")

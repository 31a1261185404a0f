"""What changed between the last two programs of the functions that still compile, by their texts.

Only pairs that `causes` found are compared, and of these the costliest: a page of ten thousand programs takes little
longer for them. `ejcache why` compares with all that its cache has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.misses.explanation import difference_of
from ejcache.misses.log import identity_of
from ejcache.misses.program_text import SourceFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ejcache.journal.line import ProgramRecord, StartRecord
    from ejcache.misses.explanation import Explanation
    from ejcache.reports.causes import Cause, Pair

SHOWN: Final = 8
"""Functions of a cause that a page shows."""
_PAIRS: Final = 24
_LARGEST: Final = 300_000
"""Characters of a text that is compared; to align larger ones takes seconds."""
_BUDGET: Final = 2_000_000
"""Characters of all texts."""


def compare_pairs(
    causes: Iterable[Cause], records: Iterable[StartRecord], fetch: Callable[[Collection[str]], Mapping[str, str]]
) -> dict[Pair, Explanation]:
    """Explain the changes within the pairs of these causes; `fetch` returns texts by digests of computations."""
    every = (cause.pairs[name] for cause in causes for name in cause.ranked[:SHOWN] if name in cause.pairs)
    pairs = list(dict.fromkeys(pair for pair in every if all(pair)))[:_PAIRS]
    wanted = {key for pair in pairs for key in pair}
    programs = {
        each.key: each for record in records for each in record.programs if each.key in wanted and each.components
    }
    digests = {key: each.components.get("computation", "") for key, each in programs.items()}
    found = fetch(set(digests.values()) - {""}) if pairs else {}
    left = _BUDGET
    differences: dict[Pair, Explanation] = {}
    for before, after in pairs:
        if not {before, after} <= programs.keys():
            continue
        texts = {key: found[digests[key]] for key in (before, after) if digests[key] in found}
        length = sum(map(len, texts.values()))
        if max(map(len, texts.values()), default=0) > _LARGEST or length > left:
            texts = {}
        left -= sum(map(len, texts.values()))
        differences[before, after] = _difference(programs[before], programs[after], texts)
    return differences


def _difference(before: ProgramRecord, after: ProgramRecord, texts: Mapping[str, str]) -> Explanation:
    return difference_of(identity_of(before), identity_of(after), texts, SourceFiles(until=after.time))

"""What reuse did with a question of a function, as a start record has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_DID: Final = {
    "recorded": "traced and recorded",
    "proven": "traced and proven",
    "compared": "traced and compared",
    "plain": "traced, and is not recorded",
    "wrong": "traced, and nothing is reused any more",
}


class ReuseNote(NamedTuple):
    """What reuse did with one question of a function.

    Attributes:
        function: module and qualified name.
        did: `recorded`, `proven`, `compared`, `reused`, `traced`, `plain` or `wrong`.
        sentence: why, for a person.
        parts: of what was asked, by what a person calls them: a short digest of each.
        url: the cache.
        process: its number.
        time: seconds since the epoch.
    """

    function: str = ""
    did: str = ""
    sentence: str = ""
    parts: Mapping[str, str] = {}
    url: str = ""
    process: int = 0
    time: float = 0.0

    @property
    def words(self) -> str:
        """`traced and recorded, because nothing was recorded for this word, code and call`."""
        return f"{_DID.get(self.did, self.did)}, because {self.sentence}"

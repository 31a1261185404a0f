"""Fetches the texts of programs that are known, and reads them, each once."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Final

from ejcache.errors import StoreError
from ejcache.history.definitions import definition_of, qualified_name
from ejcache.history.host_log import recall_programs
from ejcache.history.known_entries import stored_text
from ejcache.history.program_text import read_text
from ejcache.history.recorded_program import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    Fetch = Callable[[Collection[str]], Mapping[str, str]]
    """Returns the texts that are known of these digests."""

    from ejcache.history.definitions import Definition
    from ejcache.history.program_text import ProgramText
    from ejcache.journal.line import ProgramRecord
    from ejcache.stores.base import Store

_MOST: Final = 240
"""Texts that are fetched at once."""

BUDGET: Final = 4_000_000
"""Characters of all texts that are read for one page of findings or of a report."""

_LARGEST: Final = 8_000_000
"""Characters of a text that is read."""


class Texts:
    """The texts of programs by the digests of their computations; each is fetched and read once.

    Args:
        fetch: returns those that this host has.
        budget: characters of all texts that are read; reading 8 million takes one to two seconds.
    """

    def __init__(self, fetch: Fetch = recall_programs, *, budget: float = float("inf")) -> None:
        self._fetch = fetch
        self._left = budget
        self._raw: dict[str, str] = {}
        self._read: dict[str, ProgramText] = {}
        self._names: dict[tuple[str, Definition], str] = {}
        self._asked: set[str] = set()
        self._is_complete = False

    @classmethod
    def none(cls) -> Texts:
        """Make what knows no text."""
        texts = cls()
        texts._is_complete = True
        return texts

    def load(self, programs: Iterable[ProgramRecord], store: Store | None = None) -> None:
        """Fetch the texts of these programs, as far as they are known, those that this host lacks from a store."""
        if self._is_complete:
            return
        wanted = {digest_of(each): each for each in programs if digest_of(each) not in self._asked}
        wanted.pop("", None)
        found = self._fetch(list(wanted)) if wanted else {}
        for digest, program in wanted.items():
            text = found.get(digest)
            if text is None and store is not None and program.module:
                with contextlib.suppress(StoreError):
                    text = stored_text(store, program.module)
            self._asked.add(digest)
            if text and len(text) <= min(_LARGEST, self._left):
                self._left -= len(text)
                self._raw[digest] = text

    @contextlib.contextmanager
    def loaded(self, programs: Iterable[ProgramRecord]) -> Iterator[None]:
        """Fetch the texts of these programs at once; in this block, nothing more is fetched."""
        distinct = {digest_of(each): each for each in programs}
        self.load(itertools.islice(distinct.values(), _MOST))
        self._is_complete = True
        try:
            yield
        finally:
            self._is_complete = False

    def raw(self, program: ProgramRecord) -> str:
        """Return the text of a program; empty if it is not known."""
        return self._raw.get(digest_of(program), "")

    def read(self, program: ProgramRecord) -> ProgramText | None:
        """Read the text of a program; None if it is not known."""
        digest = digest_of(program)
        raw = self._raw.get(digest)
        if raw is None:
            return None
        if digest not in self._read:
            self._read[digest] = read_text(raw)
        return self._read[digest]

    def argument_names(self, program: ProgramRecord) -> list[str]:
        """Return the paths of a program's arguments; empty if they are not known."""
        text = self.read(program)
        return [each.name for each in text.arguments] if text is not None and text.is_named else []

    def qualified_name(self, program: ProgramRecord) -> str:
        """Return the name of the program's function with those around it; empty if it is not known."""
        asked = digest_of(program), definition_of(program.details)
        if asked not in self._names:
            self._names[asked] = qualified_name(self.raw(program), asked[1])
        return self._names[asked]

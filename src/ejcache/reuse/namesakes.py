"""Functions with the same name and code, which only their words tell apart.

They are counted when they are made. Before one of them is reused, the words of the others are asked, too: where two
words are equal, or one cannot be had, none of them is reused. Those that hold nothing are one function.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from ejcache.util.locks import ForkLock
from ejcache.util.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.reuse.functions import KnownFunction
    from ejcache.reuse.word import Word

_lock: Final = ForkLock()
_groups: Final[dict[tuple[str, str], _Group]] = {}
"""By name and code."""


class _Group:
    """All functions of one name and code that were made in this process."""

    def __init__(self) -> None:
        self.members: list[weakref.ref[Namesake]] = []
        self.count = 0
        self.answers: dict[str, int] = {}  # digest of a word → the number of the function that has answered with it
        self.reused: dict[str, list[Callable[[str], None]]] = {}  # the same digest → what withdraws each reuse
        self.conflict = ""


class Namesake:
    """One function among those of its name and code. Safe for threads.

    Args:
        known: the function.
        fun: the same, as it was given to `ejit`.
        word: its word.
    """

    def __init__(self, known: KnownFunction, fun: Any, word: Word) -> None:
        self.word = word
        self._name = known.name
        self._fun = fun
        with _lock:
            self._group = group = _groups.setdefault((known.name, known.code), _Group())
            before = [each for each in self._others() if _is_same(each.fun, fun)]
            if known.is_bare or before:
                self._number = before[0].number if before else 0
            else:
                group.count += 1
                self._number = group.count
            group.members = [member for member in group.members if member() is not None] + [weakref.ref(self)]
            is_late = bool(group.reused)
        if is_late:
            self._ask_late()

    @property
    def fun(self) -> Any:
        """The function."""
        return self._fun

    @property
    def number(self) -> int:
        """Equal for those that are one function."""
        return self._number

    def why_trace(self, word: str) -> str:
        """Say why this function is not reused with this word, as a sentence without a full stop; empty if it may be.

        Args:
            word: digest of its word, as it is now.
        """
        group = self._group
        with _lock:
            answered = group.answers.setdefault(word, self._number)
            others = [each for each in self._others() if each.number != self._number]
        why = "" if answered == self._number else "have the same word"
        for each in others if not group.conflict and not why else ():
            try:
                if each.word.ask() == word:
                    why = "have the same word"
            except Exception as exc:
                log.debug("ejcache: the word of another %s could not be had: %s", self._name, exc)
                why = "have the same code, and the word of another one could not be had"
        if why:
            self._refuse(word, f"several functions of the name {self._name} {why}")
        return group.conflict

    def note_reuse(self, word: str, withdraw: Callable[[str], None]) -> None:
        """Remember that this function was reused with this word; `withdraw` is called if that was wrong, with why."""
        with _lock:
            self._group.reused.setdefault(word, []).append(withdraw)

    def _ask_late(self) -> None:
        """Ask the word of a function that was made after another one was reused."""
        try:
            word = self.word.ask()
        except Exception as exc:
            log.debug("ejcache: the word of %s is not known yet: %s", self._name, exc)
            return
        with _lock:
            is_taken = self._group.answers.get(word, self._number) != self._number
        if is_taken:
            self._refuse(word, f"several functions of the name {self._name} have the same word")

    def _refuse(self, word: str, why: str) -> None:
        with _lock:
            self._group.conflict = f"{why}: give each another word, such as its phase of training"
            wrong = self._group.reused.pop(word, [])
        for withdraw in wrong:
            withdraw(f"{why}, and one of them was reused before")

    def _others(self) -> list[Namesake]:
        return [each for each in (member() for member in self._group.members) if each is not None]


def _is_same(one: Any, other: Any) -> bool:
    """True if two functions are one object; a bound method is made anew wherever it is read."""
    return one is other or (
        hasattr(one, "__func__")
        and getattr(one, "__func__", one) is getattr(other, "__func__", other)
        and getattr(one, "__self__", one) is getattr(other, "__self__", other)
    )

"""Functions whose answers are remembered, for the modules of a hit.

`functools.lru_cache` keeps six objects around each function, which bring a full collection of garbage nearer; this one
keeps one. It takes arguments by position only, and forgets the oldest answer where it may keep no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cache as remembered
    from functools import lru_cache as recent
else:
    _MISSING = object()

    class remembered:  # noqa: N801  # it is used as a decorator
        """All answers of a function."""

        __slots__ = ("__wrapped__", "_answers", "_most")

        def __init__(self, function: Any, most: float = float("inf")) -> None:
            self.__wrapped__ = function
            self._most = most
            self._answers: dict[tuple[Any, ...], Any] = {}

        def __call__(self, *arguments: Any) -> Any:
            answer = self._answers.get(arguments, _MISSING)
            if answer is _MISSING:
                answer = self.__wrapped__(*arguments)
                while len(self._answers) >= self._most:
                    self._answers.pop(next(iter(list(self._answers))), None)
                self._answers[arguments] = answer
            return answer

        def cache_clear(self) -> None:
            """Forget all answers."""
            self._answers.clear()

    def recent(maxsize: int) -> Any:
        """Remember so many answers of a function."""
        return lambda function: remembered(function, maxsize)


__all__ = ["recent", "remembered"]

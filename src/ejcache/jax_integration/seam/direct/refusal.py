"""Why a function has no fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ejcache.errors import EjcacheError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RefusedError", "path_text"]


class RefusedError(EjcacheError):
    """The function reads something that cannot be described by its content, so its trace cannot be skipped.

    Args:
        reason: the sentence that `why` shows, with the path that leads to the value:
            "step → cfg.log is an _io.TextIOWrapper".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def path_text(path: Sequence[str]) -> str:
    """The way from the function to a value that it reads, as messages show it."""
    return " → ".join(path)

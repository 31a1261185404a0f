"""Closed sets of words, and of numbers: enumerations for type checkers, plain texts and numbers when the program runs.

`enum` takes a tenth of a millisecond for a class, and makes each member an object that the garbage collector goes
through. Nothing here asks a member for its class, its name or its order, so `Miss.ABSENT` is `"absent"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enum import IntEnum as Numbers
    from enum import StrEnum as Words
else:

    class Words:
        """Base of a set of words; a type checker takes it for `enum.StrEnum`."""

    Numbers = Words


__all__ = ["Numbers", "Words"]

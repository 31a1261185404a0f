"""The normal form of the flags of libtpu, which reads them as Abseil does, wherever they stand."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from ejcache.keys.flags import ContentDigest, canonical_flags

if TYPE_CHECKING:
    from collections.abc import Iterable


@functools.lru_cache(maxsize=64)
def split_words(text: str) -> tuple[str, ...]:
    """Split flags text for a reader that is not known (libtpu): at white space, unless it has quotes.

    Nobody can say whether that reader treats quotes specially, so text with quotes or backslashes is one token.
    """
    return (text,) if any(mark in text for mark in "'\"\\") else tuple(text.split())


def canonical_words(words: Iterable[str], *, content: ContentDigest | None = None) -> tuple[str, ...]:
    """Return the normal form of the words of libtpu, which reads flags as Abseil does, wherever they stand.

    `--flag` and `--flag=true` are one. A word that is no flag (`TPU_MEGACORE=MEGACORE_DENSE`) stays verbatim, behind
    the flags, and does not make their order count. One that follows a flag without a value may be that value, so both
    stay together.

    Args:
        words: as `split_words` gives them.
        content: as in `canonical_flags`.
    """
    given = list(words)
    if "--" in given:
        return tuple(given)  # it ends the flags
    flags: list[str] = []
    others: list[str] = []
    before = ""
    for word in given:
        if word.startswith("-"):
            flags.append(word)
        elif flags and flags[-1] == before and "=" not in before:
            flags[-1] = f"{before} {word}"
        else:
            others.append(word)
        before = word
    return (*canonical_flags(map(_explicit, flags), content=content), *others)


def _explicit(flag: str) -> str:
    return f"{flag}=true" if re.fullmatch(r"--(?!no)\w+", flag) else flag

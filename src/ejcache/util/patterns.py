"""Matches shell patterns, by which people choose entries and tuned records."""

from __future__ import annotations

import fnmatch


def fits(text: str, pattern: str | None) -> bool:
    """True if a case-sensitive shell pattern matches the text; every text fits None."""
    return pattern is None or fnmatch.fnmatchcase(text, pattern)

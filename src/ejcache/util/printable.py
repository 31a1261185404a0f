"""Makes texts of others safe to print on a terminal."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Replace every character that a terminal could interpret, but those of `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)

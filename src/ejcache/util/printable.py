"""Text of others, made safe to print: a terminal finds no control characters in it."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Replace every character that a terminal could interpret, but those of `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def encodable(text: str) -> str:
    r"""Spell out what UTF-8 cannot encode: `\udcff` for a byte of an environment variable that is no text."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()

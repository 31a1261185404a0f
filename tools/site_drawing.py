"""Boxes, arrows and bars as SVG, in colours of the page (`docs/theme.css`), so that they follow light and dark."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE: Final = 18
"""Pixels from one line of text to the next."""


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "middle") -> str:
    """One or more lines of text, centred vertically at `y`."""
    lines = words.split("\n")
    top = y - (len(lines) - 1) * LINE / 2 + 5
    spans = "".join(f'<tspan x="{x}" y="{top + n * LINE:g}">{escape(line)}</tspan>' for n, line in enumerate(lines))
    return f'<text class="{kind}" text-anchor="{anchor}">{spans}</text>'


def box(x: float, y: float, width: float, height: float, words: str, *, kind: str = "plain") -> str:
    """A box with text in its middle. Kinds: plain, good, bad, store."""
    shape = f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
    return shape + text(x + width / 2, y + height / 2, words)


def arrow(*points: tuple[float, float], words: str = "", at: tuple[float, float] | None = None, kind: str = "") -> str:
    """A line through the points with a head at its end, and words beside it."""
    path = " ".join(f"{'L' if n else 'M'}{x} {y}" for n, (x, y) in enumerate(points))
    label = text(*at, words, kind="label") if at is not None else ""
    return f'<path class="arrow {kind}" d="{path}" marker-end="url(#head)"/>{label}'


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """The SVG; `title` is what a reader hears who does not see it."""
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    return (
        f'<figure class="picture"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        f'style="max-width: {width}px">{head}{"".join(parts)}</svg></figure>'
    )

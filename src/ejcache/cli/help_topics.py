"""Prints a part of the documentation, which the package has: `ejcache help TOPIC`.

A topic is a page (`shared`), a heading of one (`"a shape varies"`, or `a-shape-varies`), or a kind of cause or finding
(`shape_varies`), as `why`, `report` and `advise` name them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ejcache
from ejcache.cli import output
from ejcache.errors import UsageError
from ejcache.history.causes import CAUSES, kind_of
from ejcache.history.findings import KINDS as FINDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKED: Final = Path(ejcache.__file__).parent / "docs"
_CHECKOUT: Final = Path(ejcache.__file__).parents[2] / "docs"
_HEADING: Final = re.compile(r"^(#+) (.*)$")
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)#]*?)(?:\.md)?(?:#([^)]*))?\)")


def print_topic(topic: str) -> int:
    """Print the part of the documentation about a topic. Raises UsageError if there is none."""
    text = _found(topic)
    if text is None:
        raise UsageError(f"help {topic}: there is no such command or topic; topics are {', '.join(_pages())}")
    output.print_lines(_LINK.sub(_told, text).splitlines())
    return 0


def _found(topic: str) -> str | None:
    pages = _pages()
    if topic in pages:
        return pages[topic].read_text(encoding="utf-8")
    named = FINDINGS.get(topic, "")
    for wanted in (named, topic) if named else (topic,):
        for page in pages.values():
            for heading, part in _parts(page.read_text(encoding="utf-8")):
                if _slug(wanted) == _slug(heading):
                    return part
    row = next((line for line in pages["causes"].read_text().splitlines() if line.startswith(f"| `{topic}` |")), None)
    if row is None or kind_of(topic) is None:
        return None
    name, reason, what_to_do = row.strip("| ").split(" | ")
    what = "was compiled" if topic in CAUSES else "was compiled, or was not stored,"
    return f"{name}: the program {what} because {reason}. What to do: {what_to_do}"


def _pages() -> dict[str, Path]:
    folder = _PACKED if _PACKED.is_dir() else _CHECKOUT
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield each heading of a page, and what stands below it until the next one of its level."""
    lines = text.splitlines()
    code = False
    headings: list[tuple[int, int, str]] = []
    for number, line in enumerate(lines):
        code ^= line.startswith("```")
        if not code and (match := _HEADING.match(line)):
            headings.append((number, len(match[1]), match[2]))
    for place, (number, level, title) in enumerate(headings):
        ends = (other for other, depth, _ in headings[place + 1 :] if depth <= level)
        yield title, "\n".join(lines[number : next(ends, len(lines))]).rstrip()


def _slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _told(link: re.Match[str]) -> str:
    """Return a link as words, with the command that prints where it leads."""
    text, page, heading = link[1], link[2], link[3]
    if "://" in page or page.startswith("..") or not (page or heading):
        return text
    return f"{text} (ejcache help {heading or page})"

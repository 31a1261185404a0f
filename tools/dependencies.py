"""Prints the distributions that a plain install of ejcache brings, as a table: why each is there.

The environment must have ejcache. What this Python and this platform do not need is left out.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent


def reasons() -> dict[str, str]:
    """The reason of each direct dependency, as pyproject.toml has it behind the requirement."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.search(r"^dependencies = \[\n(.*?)^\]", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r'^  "([^"]+)",\s*# (.*)$', lines[1] if lines else "", flags=re.MULTILINE)
    named: dict[str, str] = {canonicalize_name(Requirement(text).name): why for text, why in found}
    declared = {canonicalize_name(Requirement(each).name) for each in tomllib.loads(text)["project"]["dependencies"]}
    if set(named) != declared:
        raise SystemExit(f"no reason behind {sorted(declared - set(named))} in pyproject.toml")
    return named


def needed_by(name: str, extras: frozenset[str] = frozenset()) -> dict[str, frozenset[str]]:
    """What a distribution requires on this platform, with the extras that it wants of each."""
    found: dict[str, frozenset[str]] = {}
    for text in requires(name) or ():
        wanted = Requirement(text)
        marker = wanted.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            other = canonicalize_name(wanted.name)
            found[other] = found.get(other, frozenset()) | frozenset(wanted.extras)
    return found


def closure() -> dict[str, set[str]]:
    """Every distribution of a plain install, and the ones that require it."""
    users: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [("ejcache", frozenset[str]())]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for other, wanted in needed_by(name, extras).items():
            users.setdefault(other, set()).add(name)
            waiting.append((other, wanted))
    return users


def table() -> str:
    """The page's table: direct dependencies with their reasons first, then what they bring."""
    direct, users = reasons(), closure()
    why = {name: f"required by {', '.join(sorted(users[name]))}" for name in sorted(set(users) - set(direct))}
    rows = [f"| `{name}` | {metadata(name)['Version']} | {reason} |" for name, reason in (direct | why).items()]
    head = "| distribution | version here | why |\n|---|---|---|\n"
    return f"{len(users)} distributions, {len(direct)} of them direct.\n\n{head}" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    try:
        print(table(), end="")
    except PackageNotFoundError as exc:
        sys.exit(f"{exc}: install ejcache first (pip install .)")

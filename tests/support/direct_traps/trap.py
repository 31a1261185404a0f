"""The traps as text: what one line or block of `cases/*.txt` says, and how it becomes the two versions of a program.

    NAME :: MARKS :: PROGRAM            a trap in one line; `; ` separates its statements
    NAME :: MARKS                       a trap with its program below, indented by two spaces
      K = «2|3»                         the text of the first version, and of the second
      => x * K                          f, decorated with `ejit`, returns this of its argument x
      (x, k) => x * k                   the same with other arguments; a bare `def f(` is decorated as well
      --- conf.py                       the rest is another file of the project (`--- conf.py: K = 2` in one line)
      ---                               the rest is the installed package `fakelib`; there `=>` defines h, which f calls

Marks, separated by `; `: `call EXPRESSION`, `env NAME=VALUE`, `args WORDS`, `options WORDS` (of the interpreter, second
version), `needs MODULE`, `from ORIGIN` of the installed package (PEP 610), and what is expected. Without a word of that
a trap is *compared*: unchanged, its third start hits, and changed, it is not stale. `refused`, `plain`, `miss`:
unchanged, it does not hit, and that is why it is not stale. `same`: both versions are one program. `apart KIND`: of the
closed list of `docs/direct.md`, so a hit may be stale. `varies`: each start gives another result. `seed`: the versions
differ in Python's hash seed only. `traced`: the program itself traces f before it calls it. `in place`: the installed
package is edited, and its RECORD is the old one. `V` is 2 in the first version and 3 in the second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["APART", "CASES", "Trap", "all_traps", "parse"]

CASES: Final = Path(__file__).with_name("cases")
LIBRARY: Final = "site-packages/fakelib.py"
PROGRAM: Final = "program.py"
PRELUDE: Final = (
    "import collections, dataclasses, enum, functools, logging, operator, os, sys, threading, types, typing, weakref\n"
    "import jax\nimport jax.numpy as jnp\nimport numpy as np\nfrom functools import partial\nfrom jax import lax\n"
    "from under_test import V, ejit\n"
)
APART: Final = (
    "library state", "clock", "random", "network", "output", "stat", "getstate", "inner jit",
)  # fmt: skip
"""Kinds that direct mode does not compare, as `docs/direct.md` lists them."""

_EXPECTED: Final = ("refused", "plain", "miss")
_FLAGS: Final = (*_EXPECTED, "same", "varies", "seed", "traced", "in place")
# «first version|second version»; the first has no bar in it.
_ALTERNATIVES: Final = re.compile(r"«([^«»|]*)\|([^«»]*)»")
_RETURNS: Final = re.compile(r"^(?:\((.*?)\) )?=> ", re.MULTILINE)
_STATEMENTS: Final = re.compile(r"^(\([^()]*\) => .*?)(?= ---|$)| (?==> |---)")
_DEFINES: Final = re.compile(r"(?m)^(@.*\n)?def f\(")


@dataclass
class Trap:
    """One trap.

    Attributes:
        files: by name, with `«v1|v2»` alternatives; `site-packages/…` is installed code.
        call: an expression that calls the function, evaluated twice in the program.
        env: environment variables, with alternatives; an empty value means that the variable is unset.
        flags: the words of its marks.
        apart: its kind, of those that are not compared.
    """

    name: str
    group: str
    files: dict[str, str]
    call: str = "f(jnp.arange(4.0))"
    env: dict[str, str] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    apart: str = ""
    needs: str = ""
    args: str = ""
    origin: str = "index"
    options: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """What an unchanged third start does."""
        return next((word for word in _EXPECTED if word in self.flags), "hit")

    def version(self, number: int) -> dict[str, Any]:
        """What the child needs to start version 1 or 2."""
        files, first = ({_chosen(name, n): _chosen(text, n) for name, text in self.files.items()} for n in (number, 1))
        recorded = first if "in place" in self.flags else files
        return {
            "program": {"files": files, "recorded": recorded, "origin": self.origin, "value": number + 1},
            "call": _chosen(self.call, number),
            "env": {name: _chosen(value, number) for name, value in self.env.items()},
            "arguments": _chosen(self.args, number).split(),
        }


def _chosen(text: str, number: int) -> str:
    return _ALTERNATIVES.sub(lambda found: found[number], text)


def all_traps() -> list[Trap]:
    """Every trap of every file in `cases/`, in order.

    Raises:
        ValueError: a trap cannot be read, or two have one name.
    """
    found: dict[str, Trap] = {}
    for path in sorted(CASES.glob("*.txt")):
        for each in parse(path.read_text(encoding="utf-8"), path.stem):
            if each.name in found:
                raise ValueError(f"two traps have the name {each.name}")
            found[each.name] = each
    return list(found.values())


def parse(text: str, group: str) -> list[Trap]:
    """The traps of one file.

    Raises:
        ValueError: a mark is unknown.
    """
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("  "):
            blocks[-1].append(line[2:])
        elif line and not line.startswith("#"):
            blocks.append([line])
    return [_trap(head, body, group) for head, *body in blocks]


def _trap(head: str, body: list[str], group: str) -> Trap:
    name, marks, row = [*re.split(" ?::(?: |$)", head, maxsplit=2), "", ""][:3]
    body[:0] = [line for each in row.split("; ") for line in _statements(each)]
    files: dict[str, list[str]] = {PROGRAM: []}
    lines = files[PROGRAM]
    for line in body:
        if line.startswith("---"):
            path, _, only = line[3:].partition(": ")
            lines = files.setdefault(path.strip(" :") or LIBRARY, [])
            lines += _statements(only)
        else:
            lines.append(line)
    texts = {path: "".join(f"{line}\n" for line in lines) for path, lines in files.items()}
    trap = Trap(name.strip(), group, {path: _code(path, text) for path, text in texts.items()})
    if LIBRARY in texts and not re.search(r"^f = |def f\(", trap.files[PROGRAM], re.MULTILINE):
        used = "" if "import fakelib" in texts[PROGRAM] else "import fakelib\n"
        trap.files[PROGRAM] = used + trap.files[PROGRAM] + "@ejit\ndef f(x):\n    return fakelib.h(x)\n"
    trap.files[PROGRAM] = PRELUDE + trap.files[PROGRAM]
    for mark in filter(None, marks.strip().split("; ")):
        _mark(trap, mark)
    return trap


def _statements(text: str) -> list[str]:
    """`K = 2 => x * K --- conf.py: A = 1` has three."""
    return [line for line in _STATEMENTS.split(text) if line and line.strip()]


def _code(path: str, text: str) -> str:
    decorator, name = ("@ejit\n", "f") if path == PROGRAM else ("", "h")
    text = _RETURNS.sub(lambda found: f"{decorator}def {name}({found[1] or 'x'}):\n    return ", text)
    if path == PROGRAM:
        text = _DEFINES.sub(lambda found: found[0] if found[1] else f"@ejit\n{found[0]}", text)
    return text


def _mark(trap: Trap, mark: str) -> None:
    word, _, rest = mark.partition(" ")
    if mark in _FLAGS:
        trap.flags |= {mark}
    elif word == "apart" and rest in APART:
        trap.apart = rest
    elif word == "env":
        name, _, value = rest.partition("=")
        trap.env[name] = value
    elif word == "from":
        trap.origin = rest
    elif word == "options":
        trap.options = tuple(rest.split())
    elif word in {"call", "needs", "args"}:
        setattr(trap, word, rest)
    else:
        raise ValueError(f"{trap.name}: an unknown mark: {mark}")

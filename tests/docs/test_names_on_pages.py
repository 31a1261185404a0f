"""What pages name exists: variables, commands with their options, and tests."""

from __future__ import annotations

import re
from functools import cache

import pytest
from cli_helpers import every_command
from helpers import ROOT

from ejcache.cli.main import COMMANDS
from ejcache.settings.described import SETTINGS

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SHARED = {"--help", "-h", "--dir", "--json", "-q", "--quiet", "-v", "--verbose", "--version", "-V"}
"""Options before or after every command."""
OF_JAX = ("docs/jax.md", "## JAX's own tests of its cache")
"""The section that names tests of JAX."""


BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```", flags=re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[$;|&] |\bsrun )(?:[A-Z_]+=\S+ )*ejcache (?!= )((?:(?! #| \|).)*)")


def spans(text):
    """What stands in code: each line of a block, and each pair of backquotes."""
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    return [*lines, *re.findall(r"`([^`]+)`", BLOCK.sub("", text))]


def variables():
    """Those of settings."""
    return {name for setting in SETTINGS for name in setting.variables}


@cache
def source():
    """The package, which names the variables that are no settings."""
    return "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


@cache
def options():
    """Command → its options."""
    return {name: {opt for each in command.params for opt in each.opts} for name, command in every_command().items()}


def unknown_commands(text):
    """The commands in a text that do not exist, or have not one of the options that it passes to them."""
    found = []
    for span in spans(text):
        for line in re.findall(
            r"(?:^|[$;|&] |\bsrun )(?:[A-Z_]+=\S+ )*ejcache (?!= )((?:(?! #| \|).)*)", " ".join(span.split())
        ):
            words = line.split()
            names = [" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in options()]
            if not names:
                if words and words[0] not in (*COMMANDS, "help", "…", "COMMAND") and not words[0].startswith("-"):
                    found.append(span)
                continue
            rest = words[len(names[0].split()) :]
            if names[0] in ("run", "bench", "advise", "warm", "tuned tune"):  # what follows a program is the program's
                own = next((at for at, word in enumerate(rest) if re.search(r"\.py$|^-m$|^-c$|^--$", word)), len(rest))
                rest = rest[:own]
            passed = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
            if passed - options()[names[0]] - SHARED:
                found.append(span)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_exist(page):
    text = page.read_text()
    named = set(re.findall(r"\b(?:EJCACHE|EJKERNEL|EASYDEL)(?:_[A-Z]+)+\b(?!_)", text))
    assert {name for name in named - variables() if f'"{name}"' not in source()} == set()
    assert unknown_commands(text) == []


def test_what_does_not_exist_is_found():
    text = "`ejcache show KEY`, `ejcache ls --tuned` and `ejcache tuned tune --spread 3`; `ejcache ls KEY`\n"
    assert unknown_commands(text) == ["ejcache show KEY", "ejcache ls --tuned", "ejcache tuned tune --spread 3"]
    assert unknown_commands("```sh\nA=1 ejcache demo\nejcache run --dir d a.py --mine  # ejcache ls --mine\n```\n") == [
        "A=1 ejcache demo"
    ]


def test_tests_that_pages_name_exist():
    """`test_name`, `file.py::test_name` and paths below `tests/`."""
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    missing = []
    for page in PAGES:
        text = page.read_text()
        if page.relative_to(ROOT).as_posix() == OF_JAX[0]:
            text = re.sub(rf"^{OF_JAX[1]}\n.*?^(?=## )", "", text, flags=re.MULTILINE | re.DOTALL)
        for path, name in re.findall(r"`((?:[\w/]+\.py)?)(?:::)?((?:test_\w+)?)`", text):
            where = "".join(source for file, source in sources.items() if file.endswith(path))
            if (path.startswith("tests/") and not (ROOT / path).exists()) or (name and f"def {name}(" not in where):
                missing.append((page.name, path, name))
    assert missing == []

"""The normal form of compiler flags: two lists of flags that mean the same to the compiler become equal.

Only flags of the table in `known_flags` have one. Everything else is kept: an unknown flag, a word that is not a flag,
and a known flag in a spelling whose meaning is not certain stay verbatim and in their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import PurePath
from typing import Final

from ejcache.keys.known_flags import KINDS, Kind

ContentDigest = Callable[[str], str | None]
"""Digest of the file or directory at a path, or None if it cannot be read."""

OverrideValue = str | bool | int | float

# A flag whose value is in quotes, which end with the text at the latest; or else what is between white space.
_WORD: Final = r"""(-[A-Za-z0-9_-]*=)(?:'([^']*)'?|"((?:\\[\s\S]|[^"\\]|\\\Z)*)"?)|[^ \t\r\n]+"""
_SPACES: Final = str.maketrans("\t\r\n", "   ")
_TRUE: Final = frozenset({"true", "True", "TRUE", "1"})
_FALSE: Final = frozenset({"false", "False", "FALSE", "0"})
# Abseil's own flags, which add flags or permit unknown ones: with one of them, the order of all flags matters.
_META: Final = frozenset({"flagfile", "fromenv", "tryfromenv", "undefok"})


@lru_cache(maxsize=64)
def split_flags(text: str) -> tuple[str, ...]:
    """Return the tokens of flags text, read as XLA reads `XLA_FLAGS`.

    Tokens are separated by white space. A value in quotes may contain white space; the quotes are removed, and in
    double quotes a backslash keeps the next character. XLA stops reading at the first word that does not start with a
    dash; such words are kept here verbatim, because other readers may use them.

    Source: `ParseArgvFromString` in xla/parse_flags_from_env.cc.
    """
    if "'" not in text and '"' not in text:
        return tuple(filter(None, text.translate(_SPACES).split(" ")))
    tokens = []
    for match in re.finditer(_WORD, text):
        name, single, double = match.groups()
        value = single if single is not None else re.sub(r"\\(.)", r"\1", double or "", flags=re.DOTALL)
        tokens.append(f"{name}{value}" if name else match[0])
    return tuple(tokens)


def canonical_flags(tokens: Iterable[str], *, content: ContentDigest | None = None) -> tuple[str, ...]:
    """Return the normal form of flag tokens of one source, idempotent.

    Known flags come first, by name, one token for each effective value; then the unknown ones, verbatim and in order.
    A word that is not a flag keeps its position, and no flag moves from one side of it to the other. Dump targets,
    logging and the paths of caches are dropped. Do not mix tokens of different sources (a variable, argv): the compiler
    decides which source wins.

    Args:
        tokens: as `split_flags` gives them, or argv.
        content: digest of the file (or directory) that a flag names. With it, such a file counts by its name and
            content; without it, or where it returns None, by its path.
    """
    given = list(tokens)
    if any(_loose_name(token) in _META for token in given):
        return tuple(given)
    # A known flag once written in a way whose meaning depends on the parser (`--noxla_x`, `-xla_x`, a value in the
    # next word) keeps all its tokens verbatim: which of two spellings wins is not certain.
    following = [*given, "-"][1:]
    doubtful = {
        name
        for token, after in zip(given, following, strict=True)
        if (name := _doubtful_name(token, after)) is not None
    }
    normal: list[str] = []
    segment: list[str] = []
    for token in given:
        if token.startswith("-"):
            segment.append(token)
            continue
        # XLA stops reading at a word that is not a flag; libtpu may take it as the value of the flag before it. So
        # nothing moves across it.
        normal += [*_canonical_segment(segment, doubtful, content), token]
        segment = []
    return (*normal, *_canonical_segment(segment, doubtful, content))


def canonical_overrides(
    overrides: Iterable[tuple[str, OverrideValue]], *, content: ContentDigest | None = None
) -> tuple[str, ...]:
    """Put `CompileOptions.env_option_overrides`, where flags appear a second time, into normal form.

    XLA applies them one after the other to the same fields. Overrides of scalar flags are independent, and the last one
    wins. What `canonical_flags` drops is dropped here, too; all others stay in order. The type of a value counts.
    """
    known: dict[str, str] = {}
    ordered: list[str] = []
    for name, value in overrides:
        kind = KINDS.get(name.lstrip("-"))
        if kind is Kind.DROPPED:
            continue
        text = _content_of(str(value), content) if kind is Kind.FILE else str(value)
        entry = f"{name.lstrip('-')}={type(value).__name__}:{text}"
        if kind in (Kind.BOOLEAN, Kind.SCALAR, Kind.FILE):
            known[name.lstrip("-")] = entry
        else:
            ordered.append(entry)
    return (*(known[name] for name in sorted(known)), *ordered)


def _loose_name(token: str) -> str | None:
    """Return the name of the flag that a lenient parser could read in `token`, or None."""
    if not token.startswith("-"):
        return None
    return token.lstrip("-").partition("=")[0].partition(" ")[0].replace("-", "_")


def _doubtful_name(token: str, after: str) -> str | None:
    """Return the known flag that `token` names in a spelling whose meaning depends on the parser, or None."""
    name = _loose_name(token)
    if name is None:
        return None
    if name.startswith("no") and name[2:] in KINDS and name not in KINDS:
        return name[2:]
    kind = KINDS.get(name)
    if kind is None:
        return None
    bare = token == f"--{name}" and kind in (Kind.BOOLEAN, Kind.DROPPED) and after.startswith("-")
    return None if bare or token.startswith(f"--{name}=") else name


def _canonical_segment(tokens: list[str], doubtful: set[str], content: ContentDigest | None) -> list[str]:
    known: dict[str, list[str]] = {}
    unknown: list[str] = []
    for token in tokens:
        name, separator, value = token.removeprefix("--").partition("=")
        kind = KINDS.get(name) if token.startswith("--") else None
        if kind is None or name in doubtful:
            unknown.append(token)
        elif kind is not Kind.DROPPED:
            known.setdefault(name, []).append(value if separator else "true")
    effective: list[str] = []
    for name in sorted(known):
        effective.extend(f"--{name}={value}" for value in _effective(KINDS[name], known[name], content))
    return [*effective, *unknown]


def _effective(kind: Kind, values: list[str], content: ContentDigest | None) -> list[str]:
    """Reduce the values that a flag was given, in their order, to those that the compiler uses."""
    match kind:
        case Kind.BOOLEAN:
            last = values[-1]
            return ["true" if last in _TRUE else "false" if last in _FALSE else last]
        case Kind.FILE:
            return [_content_of(values[-1], content)]
        case Kind.SET:
            return sorted({part for value in values for part in value.split(",")})
        case Kind.MAP:
            merged = {part.partition("=")[0]: part for value in values for part in value.split(",")}
            return [merged[name] for name in sorted(merged)]
        case Kind.LIST:
            return values
        case Kind.FILES:
            return [_content_of(value, content) for value in values]
        case _:
            return values[-1:]


def _content_of(path: str, content: ContentDigest | None) -> str:
    if content is None or not path:
        return path
    digest = content(path)
    # The name stays: XLA tells text from binary by the suffix, and finds a module's PTX by the file's name.
    return path if digest is None else f"{PurePath(path).name}@{digest}"

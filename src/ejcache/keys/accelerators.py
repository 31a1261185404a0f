"""Writes a GPU topology, libtpu's flags, and neuronx-cc's options and variables in the normal form that a key has.

Of GPUs, their topology in a fixed order (`xla_messages` has the numbers of its fields). Of libtpu, its flags, which it
reads as Abseil does, wherever they stand. Of neuronx-cc, the compiler of Neuron, its options and variables.
"""

from __future__ import annotations

import functools
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ejcache.keys.flags import ContentDigest, canonical_flags
from ejcache.keys.xla_messages import BYTES, REMEMBERED, TOPOLOGY, edit, join, split, topology_without

if TYPE_CHECKING:
    from collections.abc import Iterable

GPU: Final = (*TOPOLOGY, 8, 1)
"""Where a topology has the description of a GPU."""


@functools.lru_cache(maxsize=REMEMBERED)
def canonical_gpu_topology(serialized: bytes) -> bytes:
    """Return the GPUs that a topology describes and how they are grouped, without the host that the process runs on.

    Protobuf writes maps in no fixed order, and the description of a GPU has some: their entries are sorted, or each
    process would have keys of its own.

    Args:
        serialized: a `PjRtTopologyDescriptionProto`.

    Raises:
        ValueError: it is not such a message.
    """
    return edit(topology_without(serialized, field=9), GPU, _with_sorted_maps)


def _with_sorted_maps(message: bytes) -> bytes:
    return join(
        field._replace(value=_sorted_entries(field.value)) if field.kind == BYTES else field
        for field in sorted(split(message))
    )


def _sorted_entries(value: bytes) -> bytes:
    """Sort the entries of a message that has nothing but maps; anything else, such as a text, stays as it is."""
    try:
        entries = split(value)
    except ValueError:
        return value
    return join(sorted(entries)) if all(entry.kind == BYTES for entry in entries) else value


_QUOTES: Final = frozenset("'\"\\")


@functools.lru_cache(maxsize=64)
def split_words(text: str) -> tuple[str, ...]:
    """Split flags text for a reader that is not known (libtpu): at white space, unless it has quotes.

    Nobody can say whether that reader treats quotes specially, so text with quotes or backslashes is one token.
    """
    return tuple(text.split()) if _QUOTES.isdisjoint(text) else (text,)


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
    # A text with quotes is one word, which may begin with a flag that does not count and have others behind it.
    if "--" in given or not all(map(_QUOTES.isdisjoint, given)):  # "--" ends the flags
        return tuple(given)
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


IGNORED_VARIABLES: Final = """
    NEURON_COMPILE_CACHE_URL NEURON_DUMP_ NEURON_FORCE_PJRT_PLUGIN_REGISTRATION NEURON_FRAMEWORK_DEBUG NEURON_LOG_
    NEURON_NUM_RECENT_MODELS_TO_KEEP NEURON_PARALLEL_COMPILE_ NEURON_PJRT_PROCESS NEURON_PROFILE NEURON_RT_
"""
"""Beginnings of names: what matters at run time only, what differs between the processes of a job, and where files are
written."""


class _Kind(StrEnum):
    """How the occurrences of one option of neuronx-cc become its effect."""

    SCALAR = """
        --auto-cast --auto-cast-type --distribution-strategy --logical-nc-config --model-type --optlevel --target
    """  # takes a value, and the last one decides (argparse)
    SWITCH = """
        --enable-experimental-O1 --enable-fast-context-switch --enable-fast-loading-neuron-binaries
        --enable-mixed-precision-accumulation --enable-saturate-infinity
    """
    DROPPED = "--cache_dir --cache-dir --dump --logfile --logfile-verbose --verbose"  # takes a value: caches and logs
    DROPPED_SWITCH = "--retry_failed_compilation"


_KINDS: Final = {
    name: kind for kind in (_Kind.SCALAR, _Kind.SWITCH, _Kind.DROPPED, _Kind.DROPPED_SWITCH) for name in kind.split()
}

_SHORT: Final = {"-O": "--optlevel", "-lnc": "--logical-nc-config", "--lnc": "--logical-nc-config"}


def canonical_options(text: str) -> tuple[str, ...]:
    """Return options of neuronx-cc in one form: the known ones by name, then the unknown ones in their order.

    The last value of an option counts, and options of caches and logs are dropped. A text with quotes comes back as it
    is, and so do the words of one with an abbreviated name.
    """
    if not _QUOTES.isdisjoint(text):
        return (text,)
    words = text.split()
    known: dict[str, str] = {}
    unknown: list[str] = []
    at = 0
    while at < len(words):
        name, separator, value = words[at].partition("=")
        at += 1
        if name[:2] == "-O" and not separator and name[2:].isdigit():
            name, separator, value = "--optlevel", "=", name[2:]
        name = _SHORT.get(name, name)
        kind = _KINDS.get(name)
        takes_value = kind in (_Kind.SCALAR, _Kind.DROPPED)
        if takes_value and not separator and at < len(words) and not words[at].startswith("-"):
            separator, value = "=", words[at]
            at += 1
        if (kind is _Kind.DROPPED and separator) or kind is _Kind.DROPPED_SWITCH:
            continue
        if takes_value and separator:
            known[name] = f"{name}={value}"
        elif kind is _Kind.SWITCH and not separator:
            known[name] = name
        elif any(full.startswith(name) and full != name for full in _KINDS):
            # argparse accepts the beginning of an option's name, so the order of all of them may matter.
            return tuple(words)
        else:
            unknown.append(f"{name}{separator}{value}")
    return (*(known[name] for name in sorted(known)), *unknown)

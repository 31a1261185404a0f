"""The normal form of the options of neuronx-cc, the compiler of Neuron, and the variables that it does not read."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

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
    if any(mark in text for mark in "'\"\\"):
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

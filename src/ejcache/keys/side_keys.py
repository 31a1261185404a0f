"""The keys of side objects, which lie beside the entries: texts, profiles, run profiles, parts of reuse records."""

from __future__ import annotations

from typing import Final

from ejcache.keys.key import ENVIRONMENT_DIGITS, LOGICAL_DIGITS, CacheKey, digest_of, listed_name

_MODULE_TEXT: Final = "module_text-"
_PROFILE: Final = "pgle_profile-"
_RUN_PROFILE: Final = "run_profile-"
_REUSE_RECORD: Final = "reuse_record-"
_REUSE_MODULE: Final = "reuse_module-"


def module_text_key(digest: str) -> str:
    """Return the key of a module's text, which is stored beside the entries under its digest; no hit ever reads it."""
    return f"{_MODULE_TEXT}{digest}"


def profile_key(key: CacheKey) -> str:
    """Return the key of a program's profile, the same for every tool chain that may compile the program anew.

    The namespace counts, because a new one makes what was stored before unreachable; versions do not count.
    """
    salt = {"namespace": key.components.get("namespace", "")}
    return f"{_PROFILE}{key.logical}-{digest_of(salt, ENVIRONMENT_DIGITS)}"


def run_profile_key(*identity: str) -> str:
    """Return the key of a run profile, which names what a program uses.

    Args:
        identity: what tells the program and its tool chain from others.
    """
    return f"{_RUN_PROFILE}{digest_of({str(place): part for place, part in enumerate(identity)}, LOGICAL_DIGITS)}"


def reuse_record_key(name: str, digest: str) -> str:
    """Return the key of what restarts may reuse of a function.

    Args:
        name: of the function, for listings.
        digest: of what the record answers.
    """
    return f"{_REUSE_RECORD}{listed_name(name)}-{digest[:LOGICAL_DIGITS]}"


def reuse_module_key(digest: str) -> str:
    """Return the key of a lowered module that restarts reuse, by the digest of its bytes."""
    return f"{_REUSE_MODULE}{digest[:LOGICAL_DIGITS]}"


def is_side_key(key: str) -> bool:
    """True if `key` is that of a side object: a text, a profile, a run profile, or a part of a reuse record."""
    return key.startswith((_MODULE_TEXT, _PROFILE, _RUN_PROFILE, _REUSE_RECORD, _REUSE_MODULE))


def is_text_key(key: str) -> bool:
    """True if `key` is the key of a program's text."""
    return key.startswith(_MODULE_TEXT)


def is_profile_key(key: str) -> bool:
    """True if `key` is the key of a profile."""
    return key.startswith(_PROFILE)


def profiled_program(key: str) -> str:
    """Return the logical key of the program whose profile `key` is the key of; empty for any other key."""
    return key.removeprefix(_PROFILE).partition("-")[0] if is_profile_key(key) else ""

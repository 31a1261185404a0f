"""Makes and parses the keys of entries and of side objects.

A key has named components, each hashed alone, then together, and a text that people read in listings:

    text    := name "-" platform "-" variant "-" logical "-" environment
    name    := the module's name, of [A-Za-z0-9_.], at most 96 characters
    platform:= PJRT platform, of [a-z0-9_]
    variant := "plain" | "profiling" | "pgle" | "cross"
    logical := 40 hex digits: the program, its options and its devices
    environment := 24 hex digits: what compiles it (versions, native libraries, namespace)

An entry that is kept behind JAX's own cache has JAX's key, and no components:

    text := JAX's key "-behind-jax-" environment

where the environment is a digest of what JAX's key lacks. No text of one kind is one of the other.

Beside the entries lie side objects, under keys of their own: texts of programs, profiles, run profiles, and parts of
reuse records (`is_side_key`).

The variants of a program differ in `variant` alone. Entries that another version of the tool chain wrote differ
in `environment` alone, which is what `ejcache prune --old-versions` goes by.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ejcache.util.store_keys import is_key

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN: Final = "plain"
"""Compiled without a profile."""
PROFILING: Final = "profiling"
"""Compiled to be profiled: as plain, but without command buffers, which hide kernels from JAX's profiler."""
PGLE: Final = "pgle"
"""Compiled with a profile that PGLE collected."""
CROSS: Final = "cross"
"""Compiled without the devices on which XLA would have autotuned it; the plain one replaces it."""

ENVIRONMENT_COMPONENTS: Final = ("format", "namespace", "jaxlib", "platform_version", "native_libraries")
"""Components that describe the tool chain. All others describe the program, its options and its devices.

Flags and the host's CPU are not among them: an entry of another host, or of a job with other flags, is not outdated.
"""


LOGICAL_DIGITS: Final = 40
ENVIRONMENT_DIGITS: Final = 24

BEHIND_JAX: Final = "-behind-jax-"


class CacheKey(NamedTuple):
    """The identity of one compilation.

    Attributes:
        name: the module's name.
        platform: PJRT platform.
        components: digest (hex) of each named component.
        variant: `PLAIN`, `PROFILING`, `PGLE` or `CROSS`.
        details: a readable value of the components that are small, for the explanation of a miss.
        size: bytes of the program's canonical form.
    """

    name: str
    platform: str
    components: Mapping[str, str]
    variant: str = PLAIN
    details: Mapping[str, str] = {}
    size: int = 0

    @property
    def logical(self) -> str:
        """Digest of the program, its options and devices; the variants of a program share it."""
        # The readable text shortens and replaces characters, so the true names count here.
        group = {name: digest for name, digest in self.components.items() if name not in ENVIRONMENT_COMPONENTS}
        return _remember((*group.items(), ("name", self.name), ("platform", self.platform)), LOGICAL_DIGITS)

    @property
    def environment(self) -> str:
        """Digest of the tool chain."""
        group = {name: digest for name, digest in self.components.items() if name in ENVIRONMENT_COMPONENTS}
        return _remember(tuple(group.items()), ENVIRONMENT_DIGITS)

    @property
    def text(self) -> str:
        """The key in a store."""
        name = listed_name(self.name)
        platform = self.platform.lower()
        if not (platform.isascii() and platform.isalnum()):
            platform = re.sub(r"[^a-z0-9_]", "_", platform) or "_"
        return f"{name}-{platform}-{self.variant}-{self.logical}-{self.environment}"


def listed_name(name: str) -> str:
    """Return a module's name as the text of its key has it."""
    if not (name.isascii() and name.replace("_", "").replace(".", "").isalnum()):
        name = re.sub(r"[^A-Za-z0-9_.]", "_", name) or "_"
    return name[:96]


@functools.lru_cache(maxsize=32)
def _remember(group: tuple[tuple[str, str], ...], digits: int) -> str:
    # The programs of a process share their environment, and the steps of a compilation its logical key.
    return digest_of(dict(group), digits)


def digest_of(group: Mapping[str, str], digits: int) -> str:
    parts: list[bytes] = []
    for pair in sorted(group.items()):
        for part in pair:
            encoded = part.encode()
            # Lengths keep ("ab", "c") and ("a", "bc") apart.
            parts += len(encoded).to_bytes(8, "big"), encoded
    return hashlib.sha256(b"".join(parts)).hexdigest()[:digits]


_TEXT: Final = (
    rf"(?P<name>[A-Za-z0-9_.]{{1,96}})-(?P<platform>[a-z0-9_]+)-(?P<variant>{PLAIN}|{PROFILING}|{PGLE}|{CROSS})"
    rf"-(?P<logical>[0-9a-f]{{{LOGICAL_DIGITS}}})-(?P<environment>[0-9a-f]{{{ENVIRONMENT_DIGITS}}})"
)
_JAX_KEY: Final = rf"(?P<name>.+)-[0-9a-f]{{64}}(?:{BEHIND_JAX}[0-9a-f]{{{ENVIRONMENT_DIGITS}}})?"
"""The module's name and a SHA-256 digest: `jax._src.cache_key.get` in JAX 0.4.38 to 0.12."""


class KeyParts(NamedTuple):
    """The parts of a key's text."""

    name: str
    platform: str
    variant: str
    logical: str
    environment: str


def parse_key(text: str) -> KeyParts | None:
    """Parse the text of a key; None if it is not the text of a `CacheKey` (a caller's own key, say)."""
    match = re.fullmatch(_TEXT, text)
    return KeyParts(**match.groupdict()) if match else None


def parse_any_key(key: str) -> KeyParts:
    """Parse the text of any key, whether ejcache, JAX or a caller made it; parts that it does not say are empty.

    A `~` and what follows it tell hosts apart that cannot load each other's executables; they belong to no part. A key
    of plain JAX, or behind its cache, says only a name, and any other key is its own name.
    """
    own = parse_key(key.partition("~")[0])
    if own is not None:
        return own
    match = re.fullmatch(_JAX_KEY, key)
    return KeyParts(name=match["name"] if match else key, platform="", variant="", logical="", environment="")


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
        digest: of what the record answers, the setting `namespace` among it.
    """
    return f"{_REUSE_RECORD}{listed_name(name)}-{digest[:LOGICAL_DIGITS]}"


def reuse_module_key(digest: str, namespace: str) -> str:
    """Return the key of a lowered module that restarts reuse, by the digest of its bytes and the namespace."""
    return f"{_REUSE_MODULE}{digest_of({'module': digest, 'namespace': namespace}, LOGICAL_DIGITS)}"


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


_LONGEST_JAX_KEY: Final = 600
"""Bytes; a longer one, or one that no store can hold, is known by its digest."""


def key_behind_jax(jax_key: str, environment: str) -> str:
    """Return the text of the key of an entry that is kept behind JAX's own cache.

    Args:
        jax_key: what JAX asks for.
        environment: digest (hex) of what that lacks.
    """
    named = jax_key
    if len(jax_key.encode("utf-8", "surrogatepass")) > _LONGEST_JAX_KEY or not is_key(jax_key):
        digest = hashlib.sha256(jax_key.encode("utf-8", "surrogatepass")).hexdigest()
        named = f"{listed_name(jax_key)}-{digest}"
    return f"{named}{BEHIND_JAX}{environment[:ENVIRONMENT_DIGITS]}"


def is_key_behind_jax(key: str) -> bool:
    """True if an entry is kept under `key` behind JAX's own cache; such a key has no components."""
    return re.fullmatch(rf".+{BEHIND_JAX}[0-9a-f]{{{ENVIRONMENT_DIGITS}}}", key) is not None

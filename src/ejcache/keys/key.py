"""A key: named components, each hashed alone, then together, and the text that people read in listings.

    text    := name "-" platform "-" variant "-" logical "-" environment
    name    := the module's name, of [A-Za-z0-9_.], at most 96 characters
    platform:= PJRT platform, of [a-z0-9_]
    variant := "plain" | "profiling" | "pgle" | "cross"
    logical := 40 hex digits: the program, its options and its devices
    environment := 24 hex digits: what compiles it (versions, native libraries, namespace)

The thin form, which has JAX's key and no components, names an entry

    text := JAX's key "-thin-" environment

where the environment is a digest of what JAX's key lacks. No text of one form is one of the other.

The variants of a program differ in `variant` alone. Entries that another version of the tool chain wrote differ
in `environment` alone, which is what `ejcache prune --old-versions` goes by.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

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

"""Lists the installed distributions, by the names of their `.dist-info` directories.

`importlib.metadata` opens and parses a file of each distribution, which takes a start tenths of a second where hundreds
are installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_METADATA: Final = ".dist-info"
_SEPARATORS: Final = "[-_.]+"


class InstalledDistribution(NamedTuple):
    """What the name of a `.dist-info` directory says.

    Attributes:
        name: normalised, as in "ml-dtypes".
        version: empty if it says none.
        metadata: the directory's own name.
    """

    name: str
    version: str
    metadata: str


def normalised_name(name: str) -> str:
    """Return a distribution's name as all its spellings have it."""
    return re.sub(_SEPARATORS, "-", name).lower()


def distributions_in(directory: str) -> Iterator[InstalledDistribution]:
    """Yield the distributions that are installed in a directory, in the order of their names there."""
    with contextlib.suppress(OSError):
        for metadata in sorted(os.listdir(directory)):  # noqa: PTH208 (names are enough)
            if metadata.endswith(_METADATA):
                # Old installers leave a hyphen in a name, and none is in a version.
                name, _, version = metadata.removesuffix(_METADATA).rpartition("-")
                yield InstalledDistribution(normalised_name(name or version), version if name else "", metadata)


def installed_packages(beginnings: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and version of each installed distribution whose name begins with one of these.

    Args:
        beginnings: of names, in small letters and with hyphens.
    """
    for place in dict.fromkeys(sys.path):
        for each in distributions_in(place or "."):
            if each.name.startswith(beginnings):
                yield each.name, each.version

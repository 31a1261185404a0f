"""Everything that is removed from a key or brought into normal form, as pure functions; `docs/keys.md` is the table."""

from __future__ import annotations

import re

from ejcache.keys.canonical_flags import (
    ContentDigest,
    OverrideValue,
    canonical_flags,
    canonical_overrides,
    split_flags,
    split_words,
)
from ejcache.keys.canonical_variables import compile_variables, neuron_variables

__all__ = [
    "ContentDigest",
    "OverrideValue",
    "canonical_flags",
    "canonical_overrides",
    "canonical_source_file",
    "compile_variables",
    "neuron_variables",
    "split_flags",
    "split_words",
]


def canonical_source_file(name: str, pattern: str | None) -> str:
    """The source file `name` without what `jax_hlo_source_file_canonicalization_regex` matches, as JAX removes it.

    JAX applies it to the locations of the module (`jax._src.interpreters.mlir`) and nowhere else; with metadata in the
    key, `name` must be put through it wherever else it is hashed.

    Raises:
        re.error: `pattern` is no regular expression.
    """
    return re.sub(pattern, "", name) if pattern else name

"""Programs whose keys must stay as they are, and their keys without what depends on the machine.

    python tests/support/golden_keys.py    writes the keys of this JAX to tests/data/golden_keys

A key that changes makes every stored entry of its program unreachable. Write the file anew only for a change of the key
that is meant, and say so in docs/keys.md.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from helpers import ROOT  # noqa: E402
from key_measuring import Case, Process, Side, make_keys, side  # noqa: E402

from ejcache.keys.key import CacheKey  # noqa: E402

__all__ = ["SIDES", "golden_path", "keys_of"]

_OF_THE_MACHINE: Final = frozenset({"native_libraries", "cpu", "machine", "threads"})
_X64: Final = {"config": {"jax_enable_x64": True}}

SIDES: Final[dict[str, Side]] = {
    "plain": side(),
    "another type": side(dtype="bfloat16"),
    "sharded": side("sharded"),
    "on a permuted mesh": side("mapped", devices=(1, 0)),
    "donated": side("aliased", donate=(0,)),
    "static argument": side("static"),
    "random numbers": side("random_numbers"),
    "LAPACK": side("factored"),
    "LAPACK on two devices": side("factored", spread=True),
    "custom call": side("foreign"),
    "custom call with attributes": side("foreign", size=3),
    "Pallas kernel": side("kernel"),
    "loop": side("loop"),
    "private functions": side("helpers"),
    "remat": side("rematerialised"),
    "embedded constant": side("embedded", last=1.0),
    "compiler options": side(compiler_options={"xla_cpu_enable_fast_math": True}),
    "x64": side(process=_X64),
    "LAPACK with x64": side("factored", process=_X64),
    "a namespace": side(process={"settings": {"namespace": "second"}}),
    "flags": side(process={"flags": "--xla_cpu_enable_fast_math=true"}),
    "custom call on a GPU": side("foreign", process={"platform": "gpu"}),
    "sharded on a TPU": side("sharded", process={"platform": "tpu"}),
}


def golden_path(version: str) -> Path:
    """Where the keys of a version of JAX are."""
    return ROOT / "tests" / "data" / "golden_keys" / f"jax-{version}.json"


def keys_of(found: dict[tuple[Process, Case], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each program the text of its key and the digests of its components, of what was found for its side.

    The components that depend on the machine keep their names, and have an empty digest.
    """
    keys = {}
    for title, one in SIDES.items():
        made = found[one.process, one.case]
        components = {
            name: "" if name in _OF_THE_MACHINE else digest
            for name, digest in sorted(made["components"].items())
            if name != "threads"  # only if there are several
        }
        name, platform, variant, *_ = made["ours"].split("-")
        key = CacheKey(name=name, platform=platform, variant=variant, components=components)
        keys[title] = {"key": key.text, "components": components}
    return keys


if __name__ == "__main__":
    import jax

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    path = golden_path(jax.__version__)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(keys_of(make_keys(SIDES.values())), indent=1, sort_keys=True) + "\n")

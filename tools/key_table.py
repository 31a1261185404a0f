#!/usr/bin/env python3
"""Measure the pairs of tests/keys/key_pairs.toml with the installed JAX, and write tests/keys/key_pairs.md.

    python tools/key_table.py [--check | --count]

With `--check` nothing is written, and the exit status is 1 if the page is not what would be written. With `--count`
nothing is written either: a line of JSON says how many pairs have the keys that they must have, which do not, and which
this JAX cannot be asked for, and why.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests" / "keys" / "key_pairs.md"

HEAD = """\
# Which programs have one key

This page is made by `python tools/key_table.py` with JAX {jax}, jaxlib {jaxlib}, {libtpu}; the
pairs are those of `tests/keys/key_pairs.toml`. `tests/keys/test_key_pairs.py` measures them, and `tools/each_jax.py`
does so with one JAX of each minor version.

JAX is asked to compile both programs of a pair, each in the process that the pair describes. What JAX hands to its
cache gets two keys there: ejcache's, and that of JAX's own cache. A GPU, a TPU, Neuron and a plug-in are the CPU under
that name, which is what the keys go by.

| | pairs | ejcache | JAX |
|---|---:|---:|---:|
| the same program, the same key | {same} | {same_ours} | {same_theirs} |
| different programs, different keys | {different} | {different_ours} | {different_theirs} |
"""

SAME = """
## The same program

| pair | ejcache | JAX |
|---|---|---|
"""

DIFFERENT = """
## Different programs

The last column names the components of ejcache's key that differ.

| pair | ejcache | JAX | told apart by |
|---|---|---|---|
"""

KNOWN = """
## The same program, and two keys all the same

Nobody has shown that these may share an executable, or that it is worth the risk. They are counted, and not among the
pairs above.

| pair | ejcache | JAX | why |
|---|---|---|---|
"""


def libtpu() -> str:
    """libtpu and its version, or that it is not installed: it adds to what differs for a TPU."""
    try:
        return f"libtpu {version('libtpu')}"
    except PackageNotFoundError:
        return "without libtpu"


def page(measured: Sequence[Any]) -> str:
    """The page, from what `key_measuring.measure` found."""
    import jax
    import jaxlib.version

    same = [one for one in measured if one.pair.same and not one.pair.known]
    known = [one for one in measured if one.pair.known]
    different = [one for one in measured if not one.pair.same]
    head = HEAD.format(
        jax=jax.__version__,
        jaxlib=jaxlib.version.__version__,
        libtpu=libtpu(),
        same=len(same),
        same_ours=sum(one.ours for one in same),
        same_theirs=sum(one.theirs for one in same),
        different=len(different),
        different_ours=sum(not one.ours for one in different),
        different_theirs=sum(not one.theirs for one in different),
    )

    def row(one: Any, *further: str) -> str:
        cells = [one.pair.title, *(_word(one.pair.same, key) for key in (one.ours, one.theirs)), *further]
        return f"| {' | '.join(cells)} |\n"

    return "".join(
        [
            head,
            SAME,
            *(row(one) for one in same),
            DIFFERENT,
            *(row(one, ", ".join(f"`{name}`" for name in one.apart)) for one in different),
            KNOWN,
            *(row(one, one.pair.known) for one in known),
        ]
    )


def _word(same: bool, one_key: bool) -> str:
    text = "same" if one_key else "different"
    return text if same == one_key else f"**{text}**"


def count(measured: Sequence[Any]) -> dict[str, Any]:
    """How many pairs have the right keys, and which have not; those that are known are left out."""
    found: dict[str, Any] = {"same": 0, "different": 0, "wrong": []}
    for one in measured:
        if one.pair.known:
            continue
        if one.ours == one.pair.same and one.untouched:
            found["same" if one.pair.same else "different"] += 1
        else:
            found["wrong"].append(one.pair.title)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--check", action="store_true", help="write nothing, and compare with the page")
    ways.add_argument("--count", action="store_true", help="write nothing, and print how many are right")
    options = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    measuring = importlib.import_module("key_measuring")
    pairs = measuring.read_pairs()
    measured = measuring.measure(pairs)
    if options.count:
        left_out = {pair.title: pair.because for pair in pairs if not measuring.can_be_asked(pair)}
        print(json.dumps({**count(measured), "left_out": left_out}))
        return 0
    text = page(measured)
    if options.check:
        return int(not PAGE.exists() or PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

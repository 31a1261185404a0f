"""The same program has the same key, also in another version, and a different one has a different key, as measured."""

from __future__ import annotations

import functools
import json
import sys

import jax
import pytest
from golden_keys import SIDES, golden_path, keys_of
from helpers import ROOT, run_program
from key_measuring import compare, make_keys, measure, read_pairs, sides

PAIRS = read_pairs()
PAGE = ROOT / "tests" / "keys" / "key_pairs.md"
TOOL = ROOT / "tools" / "key_table.py"


FORKED = [
    pair
    for pair in PAIRS
    if not any(each.process.python or each.process.rank is not None for each in (pair.one, pair.other))
]
"""Pairs of processes that fork from one; the others start anew, or are ranks of a pod."""
FEW = FORKED[::12]


@functools.cache
def keys_in_forks():
    """The keys of some pairs and of the golden file, for which one process is forked."""
    return make_keys([*SIDES.values(), *sides(FEW)])


@pytest.fixture(scope="module", params=[FEW, pytest.param(PAIRS, marks=pytest.mark.soak)], ids=["few", "all"])
def measured(request):
    """`make test` measures some pairs, `make soak` all."""
    return compare(FEW, keys_in_forks()) if request.param is FEW else measure(PAIRS)


def test_keys_are_those_of_earlier_versions():
    """No program gets another key, and no component comes or goes, but those that depend on the machine."""
    path = golden_path(jax.__version__)
    if not path.is_file():
        pytest.skip(f"there are no golden keys of JAX {jax.__version__}")
    golden = json.loads(path.read_text())

    found = keys_of(keys_in_forks())

    assert set(golden) == set(SIDES)
    assert [title for title in golden if found[title]["components"] != golden[title]["components"]] == []
    assert [title for title in golden if found[title]["key"] != golden[title]["key"]] == []


def titles(found) -> list[str]:
    return [one.pair.title for one in found]


def test_the_same_program_has_the_same_key(measured):
    """Every pair that is the same program, but those that are named as known."""
    pairs = [one for one in measured if one.pair.same and not one.pair.known]

    assert len(pairs) >= len(measured) // 4
    assert titles(one for one in pairs if not one.ours) == []


def test_different_programs_have_different_keys(measured):
    """Every pair that is not the same program, and a component says why."""
    pairs = [one for one in measured if not one.pair.same]

    assert len(pairs) >= len(measured) // 4
    assert titles(one for one in pairs if one.ours) == []
    assert titles(one for one in pairs if not one.apart) == []


def test_what_has_two_keys_all_the_same_is_named_and_counted(measured):
    """Pairs that nobody has shown to be sound are misses; one that becomes a hit has to move to the others."""
    known = [one for one in measured if one.pair.known]

    # In JAX 0.12 the choice of XLA's own caches no longer sets a flag that counts, so there the two are the same.
    settled = {"all of XLA's own caches or none"} if jax.__version_info__ >= (0, 11) else set()
    assert {one.pair.title for one in known if one.ours} == settled & {one.pair.title for one in known}


def test_making_a_key_leaves_everything_as_it_was(measured):
    """Module, locations and options go to the compiler byte for byte as they came, in every pair."""
    assert titles(one for one in measured if not one.untouched) == []


def test_no_pair_is_trivial():
    """Titles are unique, and the two sides of a pair are not one."""
    names = [pair.title for pair in PAIRS]

    assert len([pair for pair in PAIRS if pair.known]) == 7
    assert len([pair for pair in PAIRS if pair.same and not pair.known]) >= 40
    assert len([pair for pair in PAIRS if not pair.same]) >= 40
    assert len(set(names)) == len(names)
    assert [pair.title for pair in PAIRS if pair.one == pair.other] == []


def test_the_page_has_every_pair(measured):
    """key_pairs.md has all pairs, and with the JAX and libtpu that it was made with it is what the tool writes."""
    page = PAGE.read_text()
    missing = [pair.title for pair in PAIRS if f"| {pair.title} |" not in page]

    assert missing == [], f"run python {TOOL.relative_to(ROOT)}"
    sys.path.insert(0, str(TOOL.parent))
    import key_table

    if len(measured) == len(PAIRS) and f"JAX {jax.__version__}, " in page and f", {key_table.libtpu()};" in page:
        assert key_table.page(measured) == page


def test_the_tool_says_what_it_does():
    """Its help is text, and costs no measurement."""
    assert "tests/keys/key_pairs.md" in run_program([sys.executable, TOOL, "--help"]).stdout

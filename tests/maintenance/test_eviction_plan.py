"""Eviction plans: which entries a policy removes, and in which order."""

from __future__ import annotations

import random

import hypothesis
import hypothesis.strategies as st
import pytest

from ejcache.errors import SettingError
from ejcache.keys.key import parse_any_key
from ejcache.maintenance.eviction_plan import EvictionPlan, EvictionPolicy, Reason
from ejcache.stores.base import EntryInfo

NOW = 1_000_000.0
DAY = 86_400.0


def key(name="jit_f", *, platform="cpu", variant="plain", logical="a", environment="e"):
    return f"{name}-{platform}-{variant}-{logical * 40}-{environment * 24}"


def info(key_text, *, size=10, age=0.0, idle=None):
    return EntryInfo(key_text, size, NOW - age, NOW - (age if idle is None else idle))


def removed(entries, **policy):
    return [(d.entry.key, d.reason) for d in EvictionPlan(entries, now=NOW, policy=EvictionPolicy(**policy))]


def test_no_rule_removes_nothing():
    """A policy without a criterion plans nothing."""
    assert list(EvictionPlan([info(key())], now=NOW, policy=EvictionPolicy())) == []
    assert not EvictionPolicy().has_criterion


def test_max_size_takes_the_least_recently_used_first():
    """Entries go in the order of their last use until the rest fits, and no further."""
    entries = [info(key(logical=c), idle=idle, age=100) for c, idle in (("a", 5), ("b", 50), ("c", 20), ("d", 1))]
    assert removed(entries, max_size=20) == [(key(logical="b"), Reason.MAX_SIZE), (key(logical="c"), Reason.MAX_SIZE)]
    assert removed(entries, max_size=40) == []
    assert len(removed(entries, max_size=39)) == 1
    assert len(removed(entries, max_size=0)) == 4


def test_max_entries_counts():
    """The number of entries that may stay is exact."""
    entries = [info(key(logical=c), idle=idle) for c, idle in (("a", 5), ("b", 50), ("c", 20))]
    assert removed(entries, max_entries=1) == [
        (key(logical="b"), Reason.MAX_ENTRIES),
        (key(logical="c"), Reason.MAX_ENTRIES),
    ]


def test_ages():
    """Older-than looks at creation, unused-for at the last use; what is exactly of that age stays."""
    old_but_used = info(key(logical="a"), age=10 * DAY, idle=1 * DAY)
    young = info(key(logical="b"), age=2 * DAY)
    entries = [old_but_used, young]
    assert removed(entries, older_than=5 * DAY) == [(old_but_used.key, Reason.OLDER_THAN)]
    assert removed(entries, unused_for=1.5 * DAY) == [(young.key, Reason.UNUSED_FOR)]
    assert removed(entries, older_than=10 * DAY, unused_for=2 * DAY) == []


def test_a_time_in_the_future_is_no_age():
    """A clock that was wrong when an entry was made does not remove it."""
    assert removed([info(key(), age=-DAY)], older_than=0, unused_for=0) == []


def test_rules_add_up_and_limits_come_last():
    """What a rule removed counts for no limit any more."""
    old, idle, fresh = (
        info(key(logical="a"), age=9 * DAY),
        info(key(logical="b"), idle=8, age=8),
        info(key(logical="c")),
    )
    assert removed([old, idle, fresh], older_than=5 * DAY, max_size=20) == [(old.key, Reason.OLDER_THAN)]
    assert removed([old, idle, fresh], older_than=5 * DAY, max_size=10) == [
        (old.key, Reason.OLDER_THAN),
        (idle.key, Reason.MAX_SIZE),
    ]


def test_name_alone_removes_what_matches():
    """A name is a shell pattern over the whole name, case counting."""
    entries = [info(key("jit_train")), info(key("jit_Train")), info(key("jit_eval"))]
    assert removed(entries, name_glob="jit_t*") == [(key("jit_train"), Reason.NAME)]
    assert removed(entries, name_glob="train") == []


def test_name_narrows_the_other_rules():
    """With a name, limits are about the entries of that name alone."""
    entries = [
        info(key("jit_eval", logical="a"), idle=9),
        info(key("jit_train", logical="b"), idle=5),
        info(key("jit_train", logical="c"), idle=1),
    ]
    assert removed(entries, name_glob="jit_train", max_entries=1) == [(entries[1].key, Reason.MAX_ENTRIES)]
    assert removed(entries, name_glob="jit_train", max_size=1000) == []


def test_an_untuned_entry_goes_before_the_tuned_one():
    """Also where it was used later: no process loads it any more."""
    untuned, tuned, other = key(platform="gpu", variant="cross"), key(platform="gpu"), key(logical="b")
    entries = [info(untuned, idle=1), info(tuned, idle=50), info(other, idle=20)]
    assert [k for k, _ in removed(entries, max_entries=0)] == [untuned, tuned, other]
    assert [k for k, _ in removed([info(untuned, idle=1), info(other, idle=20)], max_entries=0)] == [other, untuned]


def test_a_plain_entry_goes_before_its_pgle_sibling():
    """Whichever was used last, the plain one of a pair is the first of the two to go."""
    plain, pgle = key(variant="plain"), key(variant="pgle")
    other = key("jit_g", logical="b")
    entries = [info(plain, idle=1), info(pgle, idle=50), info(other, idle=20)]
    assert [k for k, _ in removed(entries, max_entries=0)] == [plain, pgle, other]
    entries = [info(plain, idle=50), info(pgle, idle=1), info(other, idle=20)]
    assert [k for k, _ in removed(entries, max_entries=0)] == [plain, other, pgle]


def test_siblings_share_their_environment():
    """A PGLE entry of another version of the tool chain is no sibling."""
    plain, pgle = key(environment="e"), key(variant="pgle", environment="f")
    assert [k for k, _ in removed([info(plain, idle=1), info(pgle, idle=50)], max_entries=0)] == [pgle, plain]


def test_old_versions():
    """All but the environment of the newest entry of each platform are old; unknown keys never are."""
    entries = [
        info(key(environment="a", logical="1"), age=3),
        info(key(environment="b", logical="1"), age=2),
        info(key(environment="b", logical="2"), age=9),
        info(key(platform="cuda", environment="a", logical="1"), age=8),
        info("somebody's own key", age=99),
    ]
    assert removed(entries, old_versions=True) == [(entries[0].key, Reason.OLD_VERSION)]


def test_old_versions_of_a_name_are_judged_by_all_names():
    """A name narrows what is removed, not what the newest version is."""
    entries = [info(key("jit_f", environment="a"), age=3), info(key("jit_g", environment="b"), age=1)]
    assert removed(entries, old_versions=True, name_glob="jit_f") == [(entries[0].key, Reason.OLD_VERSION)]


def test_what_is_kept_stays():
    """Kept entries survive every rule, and count for the limits."""
    kept, other = info(key("jit_kept", logical="a"), age=50 * DAY), info(key(logical="b"))
    policy = {"keep": ("nothing", "jit_k*")}
    assert removed([kept, other], older_than=DAY, **policy) == []
    assert removed([kept, other], max_entries=1, **policy) == [(other.key, Reason.MAX_ENTRIES)]
    assert removed([kept, other], max_size=5, **policy) == [(other.key, Reason.MAX_SIZE)]


@pytest.mark.parametrize("field", ["max_size", "max_entries", "older_than", "unused_for"])
def test_negative_limits_are_refused(field):
    """A limit below nothing is a mistake, and is named."""
    with pytest.raises(SettingError, match=field):
        EvictionPolicy(**{field: -1})


@pytest.mark.parametrize(
    ("text", "name", "environment"),
    [
        (key("jit_f"), "jit_f", "e" * 24),
        (key("jit_f") + "~0123456789abcdef", "jit_f", "e" * 24),
        ("jit__lambda_-" + "0" * 64, "jit__lambda_", ""),
        ("anything else", "anything else", ""),
    ],
)
def test_names_of_keys(text, name, environment):
    """Every key has a name: ours, ours for hosts that disagree, plain JAX's, and any other."""
    parts = parse_any_key(text)
    assert (parts.name, parts.environment) == (name, environment)


infos = st.builds(
    lambda number, size, age, idle, variant: info(
        key(variant=variant, logical="0123456789"[number]), size=size, age=age, idle=min(age, idle)
    ),
    st.integers(0, 9),
    st.integers(0, 100),
    st.floats(0, 1000),
    st.floats(0, 1000),
    st.sampled_from(["plain", "pgle"]),
)


@hypothesis.given(
    st.lists(infos, max_size=12, unique_by=lambda i: i.key),
    st.integers(0, 500) | st.none(),
    st.integers(0, 12) | st.none(),
    st.integers(0, 2**32),
)
def test_limits_hold_and_nothing_more_goes(entries, max_size, max_entries, seed):
    """Limits hold afterwards, the last deletion was needed, and the order of the listing does not matter."""
    policy = EvictionPolicy(max_size=max_size, max_entries=max_entries)
    deletions = list(EvictionPlan(entries, now=NOW, policy=policy))
    gone = {d.entry.key for d in deletions}
    left = [e for e in entries if e.key not in gone]

    def holds(some):
        return (max_size is None or sum(e.size for e in some) <= max_size) and (
            max_entries is None or len(some) <= max_entries
        )

    assert len(gone) == len(deletions)
    assert holds(left)
    if deletions:
        assert not holds([*left, deletions[-1].entry])
    for deletion in deletions:
        parts = parse_any_key(deletion.entry.key)
        if parts.variant == "pgle":
            assert deletion.entry.key.replace("-pgle-", "-plain-") not in {e.key for e in left}
    shuffled = random.Random(seed).sample(entries, len(entries))
    assert list(EvictionPlan(shuffled, now=NOW, policy=policy)) == deletions

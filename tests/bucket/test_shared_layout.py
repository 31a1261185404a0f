"""Names of entries in a shared store."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_suite import ODD_KEYS

from ejcache.bucket.object_names import entry_name, key_of_name
from ejcache.errors import InvalidKeyError
from ejcache.util.store_keys import MAX_KEY_BYTES, check_key, escape_key, unescape_key
from ejcache.util.writer import process_name


def valid(key):
    try:
        return bool(check_key(key))
    except InvalidKeyError:
        return False


KEYS = st.one_of(
    st.text(max_size=60),
    st.text("/+=%. -~aA", max_size=300),
    st.text("a+/%", min_size=235, max_size=245),
    st.sampled_from(ODD_KEYS),
).filter(valid)


@given(KEYS)
def test_names_lead_back(key):
    """Every key has a name that leads back to it, whose parts are file names, and that fits an object name."""
    name = entry_name(key)
    assert key_of_name(name) == key
    assert unescape_key(escape_key(key)) == key
    parts = name.split("/")
    assert all(0 < len(part.encode()) <= 255 and part not in (".", "..") for part in parts)
    assert len(name.encode()) <= 960
    assert name.isascii()


@given(KEYS, KEYS)
def test_names_differ(one, two):
    """Different keys have different names, and no entry's name is a directory of another's."""
    if one != two:
        assert escape_key(one) != escape_key(two)
        assert not escape_key(one).startswith(escape_key(two) + "/")


@given(st.text("abc/+=%4F.", max_size=30))
def test_foreign_names_are_no_keys(name):
    """A name that is no key's own spelling is nobody's."""
    key = unescape_key(name)
    assert key is None or escape_key(key) == name


@pytest.mark.parametrize("key", ["evil\x1b]0;owned\x07", "a\nb", "a\0b", "k" * 701, "del\x7f"])
def test_names_of_what_is_not_a_key(key):
    """An object that somebody named after a text that is not a key is not an entry or a lease."""
    name = quote(key, safe=" !$&'(),-.;=@^_{}~")
    digest = hashlib.sha256(key.encode()).hexdigest()[:2]
    assert unescape_key(name) is None
    assert key_of_name(f"v1/entries/{digest}/{name}") is None


def test_people_can_read_them():
    """An ordinary key is spelled as it is."""
    key = "jit_train_step-cpu-plain-0123456789abcdef.v2@host"
    assert escape_key(key) == key
    assert entry_name(key) == f"v1/entries/d3/{key}"
    assert key_of_name("v1/entries/00/jit_train_step") is None
    assert key_of_name("v1/entries/d3/") is None
    assert key_of_name("v1/journal/x") is None
    assert len(escape_key("/" * MAX_KEY_BYTES)) < 945


def test_process_names_are_their_own():
    """No two names of a process are the same."""
    assert len({process_name() for _ in range(50)}) == 50

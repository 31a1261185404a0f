"""Sets of words and of numbers have plain texts and numbers as members."""

from __future__ import annotations

import pytest

from ejcache.bucket.storage_causes import StorageCause
from ejcache.cache.counters import Skip
from ejcache.cache.policy import Miss
from ejcache.jax_integration.forms import Form
from ejcache.keys.known_flags import Kind
from ejcache.settings.table import Origin
from ejcache.util.lifecycle import ExitPhase


@pytest.mark.parametrize(
    ("kind", "of"),
    [(each, str) for each in (Form, Kind, Miss, Origin, Skip, StorageCause)] + [(ExitPhase, int)],
)
def test_members_are_plain_and_differ(kind, of):
    """What the collector has to go through is the class alone, and no two members of it are mixed up."""
    members = [value for name, value in vars(kind).items() if name.isupper()]
    assert len(set(members)) == len(members) > 1
    assert {type(member) for member in members} == {of}

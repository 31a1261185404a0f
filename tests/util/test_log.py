"""Warnings that are logged once."""

from __future__ import annotations

import logging

from ejcache.util.log import forget_warnings, warn_once


def test_once_per_key(caplog):
    """The first message of a key is a warning; the later ones are for debugging."""
    with caplog.at_level(logging.DEBUG, "ejcache"):
        assert warn_once(("test", 1), "%s of %s", "damage", "a") is True
        assert warn_once(("test", 1), "%s of %s", "damage", "b") is False
        assert warn_once(("test", 2), "another") is True
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "damage of a"),
        ("DEBUG", "damage of b"),
        ("WARNING", "another"),
    ]
    forget_warnings()
    assert warn_once(("test", 1), "again") is True


def test_memory_is_bounded():
    """The keys that were passed longest ago are forgotten."""
    for number in range(1_001):
        assert warn_once(number, "number %d", number) is True
    assert warn_once(1_000, "known") is False
    assert warn_once(0, "forgotten") is True
    forget_warnings()

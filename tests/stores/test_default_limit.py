"""The limit of a local cache where nobody sets one: a tenth of its disk."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ejcache.cache.opening import open_cache_store
from ejcache.settings.resolve import resolve
from ejcache.stores.local.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path


def limit_of(path: Path) -> int:
    """The limit of the store that a program opens at `path`."""
    with open_cache_store(str(path), resolve()) as store:
        return store.max_size


def test_a_new_cache_gets_a_tenth_of_its_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new cache holds at most a tenth of its disk, and 20 GB at most; the limit is written down, silently."""
    expected = min(20 * 10**9, shutil.disk_usage(tmp_path).total // 10)
    assert limit_of(tmp_path / "cache") == expected
    assert (tmp_path / "cache/v1/local/limit").read_text() == f"{expected}\n"
    (tmp_path / "cache/v1/local/limit").write_text("1000\n")
    assert limit_of(tmp_path / "cache") == 1000
    assert caplog.messages == []


def test_a_limit_that_is_set_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit in the environment counts instead, -1 for none among them."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")
    assert limit_of(tmp_path / "cache") == -1
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "5000")
    assert limit_of(tmp_path / "cache") == 5000


@pytest.mark.parametrize("text", ["", "many", "-2", "9" * 30, "\0" * 70])
def test_a_damaged_limit_is_none(tmp_path: Path, text: str) -> None:
    """A file that holds no limit cuts nothing."""
    limit_of(tmp_path / "cache")
    (tmp_path / "cache/v1/local/limit").write_text(text)
    assert limit_of(tmp_path / "cache") == -1


def test_a_cache_that_does_not_exist_is_not_made_to_ask(tmp_path: Path) -> None:
    """Asking for the limit makes nothing."""
    assert Layout(tmp_path / "cache").limit() == min(20 * 10**9, shutil.disk_usage(tmp_path).total // 10)
    assert not (tmp_path / "cache").exists()

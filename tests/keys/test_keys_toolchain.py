"""The tool chain's digest is computed in the background, where no earlier run has left it."""

from __future__ import annotations

import functools
import threading

import pytest

from ejcache.jax_integration.lowering import native_libraries
from ejcache.jax_integration.lowering.native_libraries import LibraryDigests


@pytest.fixture
def computed(tmp_path, monkeypatch):
    """The names of the threads that computed digests, and an event that the first sets; nothing is known yet."""
    threads: list[str] = []
    done = threading.Event()

    class Watched(LibraryDigests):
        def digest_of(self, paths, *, memo=None):
            threads.append(threading.current_thread().name)
            try:
                return super().digest_of(list(paths)[:1], memo=memo)
            finally:
                done.set()

    # As in a new process.
    monkeypatch.setattr(native_libraries, "library_digests", Watched())
    monkeypatch.setattr(
        native_libraries, "native_libraries", functools.cache(native_libraries.native_libraries.__wrapped__)
    )
    monkeypatch.setattr(native_libraries, "state_directory", lambda: tmp_path / "state")
    return threads, done


def test_a_new_host_reads_the_libraries_in_the_background(computed, tmp_path):
    """The first key finds the digest, or waits for what is left of it; the next process finds it on disk."""
    threads, done = computed
    native_libraries.read_libraries_ahead()
    assert done.wait(60)
    assert threads[0] != threading.current_thread().name
    assert (tmp_path / "state" / "libraries.json").exists()


def test_a_host_that_knows_them_reads_nothing(computed, tmp_path):
    """A start with a memo begins no thread for it."""
    threads, _ = computed
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "libraries.json").write_text("{}")
    native_libraries.read_libraries_ahead()
    assert not threads


def test_an_activation_reads_them_and_one_without_a_cache_does_not(run_forked, tmp_path):
    """`enable` begins it, before there is a backend; where a setting disables caching nothing is read."""
    done = run_forked(
        """
        from ejcache.jax_integration.lowering import native_libraries
        begun = []
        native_libraries.native_libraries = begun.append
        native_libraries.submit = lambda task: task()
        import ejcache
        ejcache.enable(max_size=0)
        print(len(begun))
        ejcache.enable(max_size=-1)
        print(len(begun))
        """,
        env={"XDG_CACHE_HOME": str(tmp_path / "home")},
    )
    assert done.stdout.split() == ["0", "1"]

"""Trouble with the storage in real programs: the result is right, one warning, and the counters say why."""

from __future__ import annotations

import json

from capabilities import needs

PROGRAM = """
    import json, os, sys
    import jax, numpy as np
    import ejcache
    directory = {directory!r}
    {before}
    cache = ejcache.enable(directory, min_compile_seconds=0)
    {enabled}
    x = np.arange(8, dtype=np.float32)
    for factor in range(1, 4):
        assert np.allclose(jax.jit(lambda x: x * factor + 1)(x), x * factor + 1)
        {between}
    print(json.dumps(cache.stats().to_dict()))
"""


def program(directory, *, before="pass", enabled="pass", between="pass"):
    return PROGRAM.format(directory=str(directory), before=before, enabled=enabled, between=between)


def stats_of(finished):
    assert "Traceback" not in finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_disk_full(run_forked, tmp_path):
    """Every write fails (a file-size limit): right results, one warning, errors counted, and no half entry left."""
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    finished = run_forked(
        program(tmp_path / "c", enabled=limit + "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))")
    )

    stats = stats_of(finished)
    assert stats["errors"] >= 1
    assert stats["stores"] == 0
    assert finished.stderr.count("goes on without it") == 1
    again = stats_of(run_forked(program(tmp_path / "c")))
    assert (again["stores"], again["corrupt"]) == (3, 0)


def test_a_read_only_directory_is_read(run_forked, tmp_path):
    """Entries are hits; new compilations are counted as skipped; no warning is due."""
    directory = tmp_path / "c"
    first = stats_of(run_forked(program(directory)))
    finished = run_forked(
        program(directory, between="jax.jit(lambda x: x - factor)(x)"),
        env={"EJCACHE_READ_ONLY": "1"},
    )

    stats = stats_of(finished)
    assert first["stores"] == stats["hits"] == 3
    assert stats["skipped"] == {"read_only": 3}
    assert (stats["stores"], stats["errors"]) == (0, 0)


# The interpreter itself may lie where that user cannot read, so a whole round is gone through before.
AS_NOBODY = (
    "import tempfile; ejcache.enable(tempfile.mkdtemp(), min_compile_seconds=0); jax.jit(lambda x: x)(1.0); "
    "ejcache.active().close(); ejcache.disable(); os.setgid(54321); os.setuid(54321)"
)
needs_root = needs("root")


@needs_root
def test_who_asks_for_errors_gets_no_other_directory(run_forked, open_place):
    """Nor is a directory made in place of one that cannot be: JAX's own cache raises there, too."""
    (open_place / "c").mkdir(mode=0o755)
    finished = run_forked(
        f"""
        import os
        import jax
        import ejcache
        {AS_NOBODY}
        ejcache.enable({str(open_place / "c" / "cache")!r}, raise_errors=True)
        try:
            jax.jit(lambda x: x + 1)(1.0)
        except ejcache.StoreError as exc:
            print("raised", "cannot write" in str(exc))
        """,
        env={"HOME": None, "TMPDIR": str(open_place)},
        cwd="/",
    )
    assert finished.stdout.splitlines() == ["raised True"]


@needs_root
def test_a_home_of_another_user(run_forked, open_place):
    """As in a container of an arbitrary uid with root's HOME: temporary files hold the copies of a bucket's entries."""
    home, temporary = open_place / "root", open_place / "tmp"
    home.mkdir(mode=0o700)
    temporary.mkdir()
    temporary.chmod(0o777)
    finished = run_forked(
        f"""
        import os, tempfile
        import ejcache.errors
        from ejcache.settings.resolve import resolve
        from ejcache.stores.local.store import LocalStore
        from ejcache.stores.tier_directory import find_local_tier
        from ejcache.stores.location import Location
        from ejcache.stores.opening import open_store
        os.setgid(54321), os.setuid(54321)
        print(find_local_tier(Location.parse("gs://bucket/a"), resolve()).parent)
        try:
            open_store({str(home / "cache")!r}).get("key")
        except ejcache.errors.StoreError as exc:
            print("refused", {str(home)!r} in str(exc))
        """,
        env={"HOME": str(home), "XDG_CACHE_HOME": None, "TMPDIR": str(temporary)},
        cwd="/",
    )
    assert finished.stdout.splitlines() == [f"{temporary}/ejcache-54321/tiers", "refused True"]


def test_a_directory_deleted_while_running(run_forked, tmp_path):
    """Results stay right and nothing hangs, whether or not the directory comes back."""
    directory = tmp_path / "c"
    finished = run_forked(
        program(directory, between="import shutil; factor == 2 and shutil.rmtree(directory, ignore_errors=True)")
    )

    stats = stats_of(finished)
    assert stats["misses"] == 3
    assert finished.stderr.count("goes on without it") <= 1


def test_a_file_in_the_place_of_the_directory(run_forked, tmp_path):
    """It is left alone, and one sentence says what is wrong: a log line, and no warning that could be an error."""
    place = tmp_path / "c"
    place.write_text("mine")
    strict = "import warnings; warnings.simplefilter('error', UserWarning)"
    finished = run_forked(program(place, before=strict))

    assert stats_of(finished)["stores"] == 0
    assert finished.stderr.count("goes on without it") == 1
    assert str(place) in finished.stderr
    assert place.read_text() == "mine"


def test_fork_after_activation(run_forked, tmp_path):
    """A forked child uses the cache, and neither it nor its parent hangs or loses an entry."""
    finished = run_forked(
        program(
            tmp_path / "c",
            between="""
        if factor == 3:
            child = os.fork()
            if child == 0:
                from ejcache.keys.key import is_side_key
                with ejcache.open_store(directory) as store:
                    # A program that takes long to compile, as on a busy machine, leaves its text beside its entry.
                    assert len([e for e in store.entries() if not is_side_key(e.key)]) == 3, "three programs"
                assert cache.put("from the child", b"x") and cache.get("from the child") == b"x"
                assert cache.stats().hits == 1
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""",
        ),
    )

    assert stats_of(finished)["stores"] == 3


def test_nothing_is_left_in_the_working_directory(run_forked, tmp_path):
    """A URL or path never becomes a directory of that name where the program runs (JAX makes `./gs:/bucket`)."""
    work = tmp_path / "work"
    work.mkdir()
    finished = run_forked(
        """
        import ejcache, jax
        ejcache.enable(min_compile_seconds=0)
        print(jax.jit(lambda x: x * 2)(21))
        """,
        cwd=work,
        env={"JAX_COMPILATION_CACHE_DIR": "nonsense://bucket/x"},
    )

    assert finished.stdout.split() == ["42"]
    assert finished.stderr.count("nonsense") == 1
    assert list(work.iterdir()) == []

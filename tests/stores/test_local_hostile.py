"""What another user or program may have put into the directory of a local store: nothing outside is read or deleted."""

from __future__ import annotations

import os
import re

import pytest
from capabilities import needs
from store_processes import in_fork

from ejcache.errors import NotAStoreError, StoreError, StoreUnavailableError, UntrustedDirectoryError
from ejcache.stores.local.store import LocalStore
from ejcache.util.directory_access import why_replaceable, why_untrusted

SIZE = 60_000


@pytest.fixture
def path(tmp_path):
    """A store with entries in rows and in files."""
    with LocalStore(tmp_path / "store") as store:
        for number in range(5):
            store.put(f"k{number}", bytes([number]) * SIZE)
        store.put("small", b"small")
    return tmp_path / "store"


@pytest.fixture
def private(tmp_path):
    """A directory that is none of the store's, with files whose names are like the store's own, too."""
    directory = tmp_path / "docs"
    directory.mkdir()
    for name in (
        "thesis.tex",
        "id_rsa",
        "1-0123456789ab",
        "99999-0123456789ab_0123456789abcdef-0123456789abcdef.val",
        "0123456789abcdef-01234567.entry",
    ):
        (directory / name).write_text("secret")
    (directory / "index-html").mkdir()
    (directory / "index-0123456789abcdef").mkdir()
    (directory / "index-html" / "page").write_text("secret")
    return directory


def content(directory):
    return sorted((path.relative_to(directory).as_posix(), path.is_file()) for path in directory.rglob("*"))


def generation_of(path):
    (generation,) = path.glob("v1/local/g-*")
    return generation


def use(path):
    """Everything that opens, reads, writes, audits and deletes."""
    for read_only in (True, False):
        try:
            with LocalStore(path, read_only=read_only, timeout=1.0) as store:
                for number in range(5):
                    data = store.get(f"k{number}")
                    assert data is None or data == bytes([number]) * SIZE
                list(store.entries())
                if not read_only:
                    store.quarantine("small", b"small")
                    store.put("new", b"n" * SIZE)
                    store.check(fix=True)
        except StoreError as exc:
            assert str(exc).count("\n") == 0  # noqa: PT017 (an error is allowed, of one sentence)


def replace_by_link(path, target):
    if path.is_dir():
        path.rename(path.with_name("moved-away"))
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize(
    "where",
    ["v1", "v1/local", "v1/local/present", "v1/local/lock", "v1/local/format", "v1/quarantine", "v1/local/new-0"],
)
def test_links_in_place_of_directories(path, private, where):
    """Where a directory or a file of the store is a link, nothing behind it is read, written or deleted."""
    before = content(private)
    replace_by_link(path / where, private)
    use(path)
    assert content(private) == before


@pytest.mark.parametrize("where", ["v1", "v1/local", "v1/local/present"])
def test_a_linked_directory_is_named(path, private, where):
    """The error names the link."""
    replace_by_link(path / where, private)
    with pytest.raises(NotAStoreError, match=f"{re.escape(str(path / where))} is a symbolic link"):
        LocalStore(path)


@pytest.mark.parametrize(
    "where", ["tmp", "0", "7", "a", "f", "cache.db", "cache.db-wal", "cache.db-shm", "cache.db-journal"]
)
def test_links_in_a_generation(path, private, where):
    """A generation with a link in it is not used, and nothing behind the link is touched; without it, all is there."""
    generation = generation_of(path)
    (generation / where).exists() or (private / "cache.db").write_text("secret")
    before = content(private)
    replace_by_link(generation / where, private / "id_rsa" if where.startswith("cache") else private)
    use(path)
    assert content(private) == before
    assert (private / "id_rsa").read_text() == "secret"
    with pytest.raises(StoreUnavailableError, match=f"{where} is not a file or directory that ejcache makes"):
        LocalStore(path)
    (generation / where).unlink()
    (generation / "moved-away").exists() and (generation / "moved-away").rename(generation / where)
    with LocalStore(path) as store:
        assert len(list(store.entries())) == (0 if where == "cache.db" else 6)  # values that are no entries
        assert store.put("again", b"x")


def test_a_generation_that_is_a_link(path, private):
    """A link with the name of a generation is not one."""
    before = content(private)
    (path / "v1/local/g-0123456789abcdef").symlink_to(private)
    (path / "v1/local/dead-0123456789abcdef").symlink_to(private)
    use(path)
    assert content(private) == before


def test_a_journal_with_a_super_journal(path, private):
    """A planted rollback journal, which can have SQLite delete any file, is never opened, and neither is the index."""
    victim = private / "thesis.tex"
    name = str(victim).encode()
    journal = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504)
    checksum = sum(name) & 0xFFFFFFFF
    journal += b"\xff\xff\xff\xff" + name + len(name).to_bytes(4, "big") + checksum.to_bytes(4, "big") + journal[:8]
    (generation_of(path) / "cache.db-journal").write_bytes(journal)
    use(path)
    assert victim.read_text() == "secret"
    (generation_of(path) / "cache.db-journal").unlink()
    with LocalStore(path) as store:
        assert store.get("small") == b"small"


def make_pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


PIPES = ["v1/local/format", "v1/local/lock", "v1/local/present/1-0123456789ab", "cache.db", "cache.db-wal"]


@pytest.mark.parametrize("where", PIPES)
def test_pipes_keep_nobody_waiting(path, where):
    """A pipe where a file is expected is a miss or an error at once; the process below is killed if it hangs."""
    generation = generation_of(path)
    make_pipe(generation / where if where.startswith("cache") else path / where)
    in_fork(lambda: use(path))
    if where.startswith("cache"):
        with pytest.raises(StoreUnavailableError, match=f"{where} is not a file or directory that ejcache makes"):
            LocalStore(path)
    else:
        with LocalStore(path) as store:
            assert store.get("k3") == bytes([3]) * SIZE


# -- directories of others -------------------------------------------------------------------------------------------

needs_root = needs("root")


class Status:
    """As `os.stat` answers."""

    def __init__(self, uid, mode, gid=0):
        self.st_uid, self.st_gid, self.st_mode = uid, gid, 0o040000 | mode


UNKNOWN = 4_123_456


@pytest.fixture
def inside(monkeypatch):
    """Sets whether this process seems to run in a container."""
    return lambda answer: monkeypatch.setattr("ejcache.util.directory_access.is_in_container", lambda: answer)


@pytest.fixture
def as_user(monkeypatch):
    """Be the ordinary user 1000, `me`, of the private group `me`; `team` has others."""
    groups = {1000: ("me", []), 2000: ("team", ["me", "you"]), 100: ("users", [])}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def group(gid):
        name, members = groups[gid]
        return type("Group", (), {"gr_name": name, "gr_mem": members})

    monkeypatch.setattr("grp.getgrgid", group)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: type("User", (), {"pw_name": {1000: "me", 1001: "you"}[uid]}))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (Status(1000, 0o700), ""),
        (Status(1000, 0o755), ""),
        (Status(0, 0o755), ""),
        (Status(1000, 0o775, 1000), ""),  # umask 002 with a private group
        (Status(1000, 0o2770, UNKNOWN), f"the group with id {UNKNOWN}"),
        (Status(1000, 0o775, 100), "the group users"),
        (Status(1000, 0o775, 2000), "the group team"),
        (Status(1000, 0o777), "any user can write"),
        (Status(0, 0o1777), "any user can write"),
        (Status(1001, 0o700), "belongs to the user you (id 1001)"),
        (Status(UNKNOWN, 0o755), f"belongs to the user with id {UNKNOWN}"),
    ],
)
def test_who_could_have_put_code_there(as_user, inside, status, why):
    """A directory of this user or root is trusted unless users can write to it that are not this one."""
    inside(False)
    said = why_untrusted("/cache", status)
    assert why in said
    assert bool(said) == bool(why)


def test_the_group_of_a_volume_of_kubernetes_is_private_in_a_container(as_user, inside):
    """Kubernetes gives a volume of a pod the `fsGroup`, which no table of groups in the container names."""
    inside(True)
    assert why_untrusted("/cache", Status(1000, 0o2770, UNKNOWN)) == ""


def test_root_in_a_container_uses_a_bind_mount(monkeypatch, inside):
    """Root in a container trusts a directory of a user of the host; root of the host does not."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    inside(True)
    assert why_untrusted("/cache", Status(1000, 0o755)) == ""
    assert "any user" in why_untrusted("/cache", Status(1000, 0o777))
    inside(False)
    assert "belongs to" in why_untrusted("/cache", Status(1000, 0o755))


@pytest.mark.parametrize(
    ("mode", "below", "why"),
    [
        (0o1777, "", ""),  # /tmp
        (0o2775, "", ""),  # a group's scratch
        (0o755, "", ""),
        (0o777, "", "any user can rename"),
        (0o777, "user/cache", "any user can rename"),
        (0o777, "not yet there", "any user can rename"),
    ],
)
def test_who_could_replace_a_directory(tmp_path, inside, mode, below, why):
    """A cache below a directory that any user may change can be exchanged, unless the sticky bit is set."""
    above = tmp_path / "above"
    (above / "user" / "cache").mkdir(parents=True)
    above.chmod(mode)
    (tmp_path / "link").symlink_to(above / below)
    for path in (above / below, tmp_path / "link"):
        inside(False)
        said = why_replaceable(path)
        assert bool(said) == bool(why)
        assert why in said
        inside(True)
        assert why_replaceable(path) == ""  # an emptyDir of Kubernetes


def test_a_cache_that_any_user_could_replace_is_not_used(tmp_path, inside):
    """Such a cache is neither made nor opened; EJCACHE_TRUST_DIR overrules that."""
    inside(False)
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(UntrustedDirectoryError, match=r"any user can rename what is in .*EJCACHE_TRUST_DIR=1"):
        LocalStore(above / "cache").put("k", b"x")
    assert list(above.iterdir()) == []
    with LocalStore(above / "cache", trusted=True) as store:
        assert store.put("k", b"x") is True


AS_OTHER = "import os, sys; os.setgid(54321); os.setuid(54321)\n"


@needs_root
def test_a_prepared_directory_is_not_used(run_forked, open_place):
    """A store that another user has prepared is neither read nor written, unless the directory is declared trusted."""
    open_place.chmod(0o755)
    path = open_place / "cache"
    with LocalStore(path) as store:
        store.put("k", b"attacker's bytes")
    for directory, _, files in os.walk(path):
        os.chown(directory, 54322, 54322)
        os.chmod(directory, 0o777)  # noqa: PTH101
        for file in files:
            os.chown(f"{directory}/{file}", 54322, 54322)
            os.chmod(f"{directory}/{file}", 0o666)  # noqa: PTH101
    finished = run_forked(
        f"""
        import os
        from ejcache.errors import UntrustedDirectoryError
        from ejcache.stores.local.store import LocalStore
        os.setgid(54321)
        os.setuid(54321)
        for read_only in (True, False):
            try:
                LocalStore({str(path)!r}, read_only=read_only)
            except UntrustedDirectoryError as exc:
                print(exc)
        print(LocalStore({str(path)!r}, trusted=True).get("k"))
        """
    )
    first, second, data = finished.stdout.splitlines()
    assert "belongs to the user with id 54322, who could have put code there; it is not used" in first
    assert "EJCACHE_TRUST_DIR=1" in first
    assert first == second
    assert data == str(b"attacker's bytes")


def test_directories_that_others_can_write_to(tmp_path):
    """The directories of the store, not the one above them, must be this user's alone."""
    LocalStore(tmp_path / "store").close()
    (tmp_path / "store").chmod(0o777)  # an emptyDir volume is like this
    LocalStore(tmp_path / "store").close()
    (tmp_path / "store/v1/local").chmod(0o777)
    with pytest.raises(UntrustedDirectoryError, match="any user can write"):
        LocalStore(tmp_path / "store")
    LocalStore(tmp_path / "store", trusted=True).close()


def test_ordinary_umasks_and_links_keep_working(tmp_path, monkeypatch):
    """With a umask of 002, below a linked cache directory, and in one with the setgid bit, a store is made and used."""
    (tmp_path / "scratch").mkdir(mode=0o2775)
    (tmp_path / ".cache").symlink_to(tmp_path / "scratch")
    before = os.umask(0o002)
    try:
        for _ in range(2):
            with LocalStore(tmp_path / ".cache" / "ejcache") as store:
                store.put("k", b"value")
                assert store.get("k") == b"value"
    finally:
        os.umask(before)

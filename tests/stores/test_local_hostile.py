"""What another user or program may have put into the directory of a local store: nothing outside is read or deleted."""

from __future__ import annotations

import errno
import os
import re
from contextlib import nullcontext

import pytest
from capabilities import needs
from store_processes import in_fork

from ejcache.errors import NotAStoreError, StoreError, UntrustedDirectoryError
from ejcache.stores.local.store import LocalStore
from ejcache.util.directory_access import why_replaceable, why_untrusted

SIZE = 60_000


@pytest.fixture
def path(tmp_path):
    """A store with entries."""
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
        "0123456789abcdef-01234567.entry",
    ):
        (directory / name).write_text("secret")
    (directory / "index-html").mkdir()
    (directory / "index-0123456789abcdef").mkdir()
    (directory / "index-html" / "page").write_text("secret")
    return directory


def content(directory):
    return {path: path.is_file() and path.read_bytes() for path in directory.rglob("*")}


def use(path):
    """Everything that opens, reads, writes, audits and deletes."""
    for read_only in (True, False):
        try:
            with LocalStore(path, read_only=read_only, timeout=1.0) as store:
                for number in range(5):
                    data = store.get(f"k{number}")
                    assert data is None or data == bytes([number]) * SIZE
                list(store.entries())
                store.counters()
                if not read_only:
                    store.quarantine("small", b"small")
                    store.put("new", b"n" * SIZE)
                    store.check(fix=True)
        except StoreError as exc:
            assert str(exc).count("\n") == 0  # noqa: PT017 (an error is allowed, of one sentence)


def value_in(path, *, read_only=False):
    with LocalStore(path, read_only=read_only) as store:
        return store.get("k3")


def plant_link(place, private):
    place.symlink_to(private / "id_rsa" if place.name.startswith("cache.db") else private)


def plant_pipe(place, _):
    os.mkfifo(place)


def plant_super_journal(place, private):
    """A rollback journal that has SQLite delete any file."""
    name = str(private / "thesis.tex").encode()
    start, checksum = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", sum(name) & 0xFFFFFFFF
    tail = name + len(name).to_bytes(4, "big") + checksum.to_bytes(4, "big") + start
    place.write_bytes(start + bytes(504) + b"\xff\xff\xff\xff" + tail)


def plant_newer_format(place, _):
    place.write_text("3\n")


LINKED = NotAStoreError, "{place} is a symbolic link"
PLANTED = [
    *((where, plant_link, LINKED) for where in ("v1", "v1/local", "v1/local/tmp")),
    ("v1/local/format", plant_newer_format, (NotAStoreError, "format 3, and this version reads 2")),
    ("v1/quarantine", plant_link, None),
    ("v1/local/lock", plant_link, None),
    *((f"v1/local/{name}", plant_link, None) for name in ("format", "changes", "counters", "limit")),
    *((f"v1/local/{name}", plant_link, None) for name in (f"order-{'0' * 16}", f"dead-{'0' * 16}")),
    *((f"v1/local/{name}", plant_pipe, None) for name in ("format", "lock", "changes", "counters", "tmp/0123456789ab")),
    *((f"order/cache.db{end}", plant_link, None) for end in ("", "-wal", "-shm", "-journal")),
    *((f"order/cache.db{end}", plant_pipe, None) for end in ("", "-wal", "-journal")),
    ("order/cache.db-journal", plant_super_journal, None),
]
"""A place, what is planted there, and the error with its sentence, or None where the store works all the same.

What lies in the place of an entry is in tests/hostile/test_fault_matrix.py.
"""


@pytest.mark.parametrize(("where", "plant", "refused"), PLANTED)
def test_what_others_have_planted(path, private, where, plant, refused):
    """Nothing outside is touched, nobody waits, hits go on, and the store is whole once that is gone."""
    (order,) = path.glob("v1/local/order-*")
    place = order / where[6:] if where.startswith("order/") else path / where
    outside, aside = content(private), path / "aside"
    if place.exists():
        place.rename(aside)
    plant(place, private)
    in_fork(lambda: use(path)) if plant is plant_pipe else use(path)  # a fork is killed if it hangs
    assert content(private) == outside
    for read_only in (True, False):
        error, said = refused or (StoreError, "")
        with nullcontext() if refused is None else pytest.raises(error, match=re.escape(said.format(place=place))):
            assert value_in(path, read_only=read_only) == bytes([3]) * SIZE
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        place.unlink()
    if aside.exists() and not place.exists() and place.parent.exists():
        aside.rename(place)
    with LocalStore(path) as store:
        assert store.get("k3") == bytes([3]) * SIZE
        assert store.put("again", b"x")
        store.check(fix=True)
        assert store.check() == []


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


TRUST = [
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
]
IN_CONTAINERS = [
    (1000, True, Status(1000, 0o2770, UNKNOWN), ""),  # Kubernetes gives a volume the `fsGroup`, which has no name there
    (0, True, Status(1000, 0o755), ""),  # a bind mount of a user of the host
    (0, True, Status(1000, 0o777), "any user can write"),
    (0, False, Status(1000, 0o755), "belongs to the user me (id 1000)"),
]


@pytest.mark.parametrize(
    ("uid", "container", "status", "why"), [*((1000, False, *row) for row in TRUST), *IN_CONTAINERS]
)
def test_who_could_have_put_code_there(as_user, inside, monkeypatch, uid, container, status, why):
    """A directory of this user or root is trusted unless users can write to it that are not this one."""
    inside(container)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    said = why_untrusted("/cache", status)
    assert why in said
    assert bool(said) == bool(why)


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


def test_a_question_without_an_answer_makes_no_directory_safe(tmp_path, monkeypatch):
    """Where nobody can say whether this is a container, a directory that any user could exchange is not safe."""

    def refused():
        raise PermissionError(errno.EACCES, "closed")

    tmp_path.chmod(0o777)
    monkeypatch.setattr("ejcache.util.directory_access.is_in_container", refused)
    with pytest.raises(PermissionError):
        why_replaceable(tmp_path / "cache")


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

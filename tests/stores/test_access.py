"""Who uses which directory: every row of the table in docs/trust.md, as two users of a group, under four umasks."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import stat
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from capabilities import needs
from mounts import mount_nfs
from store_processes import in_fork

from ejcache.bucket import breaker
from ejcache.bucket.files import FileBucket
from ejcache.cache.compilation_cache import CompilationCache
from ejcache.cache.opening import open_cache_store
from ejcache.cache.reading import CacheReader
from ejcache.entry import Header, encode
from ejcache.errors import StoreUnavailableError
from ejcache.maintenance import doctor
from ejcache.maintenance.sharing import share_directory
from ejcache.maintenance.stored_policy import change_policy
from ejcache.settings.resolve import resolve
from ejcache.stores import sharing_detection
from ejcache.stores.location import Location
from ejcache.stores.memory import MemoryStore
from ejcache.stores.opening import decide_location
from ejcache.util import directory_access
from ejcache.util.directory_access import Access

DOCS = Path(__file__).parents[2] / "docs" / "trust.md"
UMASKS = (0o002, 0o077, 0o000, 0o027)
ROOT, YOU, OTHER, TEAM = 0, 54321, 54322, 54300
KEYS = [f"jit_f{number}" for number in range(6)]
ALL = len(KEYS)
VALUE = os.urandom(20_000)

needs_root = needs("root")


class Row(NamedTuple):
    """A row: who owns the root, its mode (None: it does not exist), what is set, and what happens where."""

    owner: str
    mode: int | None
    shared: str
    setting: str
    local: str
    mount: str


def rows():
    table = DOCS.read_text().partition("| owner | mode |")[2].partition("\n\n")[0].splitlines()[2:]
    for line in table:
        owner, mode, setting, local, mount = (cell.strip().replace("`", "") for cell in line.strip("|").split("|"))
        declared = re.search(r"shared=(\w+)", setting)
        variable = re.search(r"EJCACHE_\w+=1", setting)
        yield Row(
            owner,
            int(mode, 8) if mode.isdigit() else None,
            declared[1] if declared else "",
            variable[0] if variable else "",
            local,
            mount,
        )


def test_the_table_is_read():
    """The table in the documentation has rows for each owner, and its words are those that this file checks."""
    found = list(rows())
    assert {row.owner for row in found} == {"you", "another user", "root"}
    assert {word for row in found for word in (row.local, row.mount)} == {
        "private",
        "shared",
        "readable",
        "read-only",
        "refused",
    }


class Start(NamedTuple):
    """What one process did with the cache: its hits, the directory it used, and what it logged."""

    hits: int
    stored: int
    place: str
    said: list[str]


def start(directory, **variables):
    """Use a cache for six programs: look each up, and store those that are not there."""
    os.environ.update(variables)
    settings = resolve(environ={**os.environ, "EJCACHE_DIR": str(directory)})
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("ejcache").addHandler(handler)
    reader = CacheReader(str(directory), open_store=lambda: open_cache_store(Location.parse(directory), settings))
    cache = CompilationCache(reader, settings=lambda: settings)
    missing = [key for key in KEYS if cache.get(key) is None]
    stored = sum(cache.put(key, VALUE, compile_seconds=1.0) for key in missing)
    assert cache.flush(timeout=240)
    cache.close()
    logging.getLogger("ejcache").removeHandler(handler)
    return Start(len(KEYS) - len(missing), stored, cache.url, said)


def as_user(uid, function, *, mount=None, team=TEAM, container=False):
    """What `function` returns in a process of this user of the team, on a host that is no container, or in one."""

    def become():
        directory_access.is_in_container = lambda: container
        sharing_detection.forget_filesystems()
        if mount:
            mount_nfs(mount)
        if uid != ROOT:
            os.setgroups([team])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        return function()

    return in_fork(become)


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """Whatever the tests import is imported: another user may not be able to read this interpreter's files."""

    def use():
        with tempfile.TemporaryDirectory() as name:
            for kind in ("local", "mount"):
                start(Path(name, kind), HOME=name)
                start(Path(name, kind), HOME=name)
                mount_nfs(name)
        return sorted(sys.modules)

    for module in (*in_fork(use), "grp", "pwd"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """The mount is waited for on a busy machine, too: after a few seconds a program goes on without its storage."""
    for name in ("_UNKNOWN_SECONDS", "_KNOWN_SECONDS"):
        monkeypatch.setattr(breaker, name, 240.0)


@pytest.fixture
def place(open_place):
    """A directory that every user can reach, and only this one can change."""
    open_place.chmod(0o755)
    return open_place


def prepare(directory, row, owner):
    """Make the root as the row says; one that others have made is as their umask made what is in it, too."""
    if row.mode is not None:
        directory.mkdir()
        os.chown(directory, owner, TEAM)
        directory.chmod(row.mode)
    directory.parent.chmod(0o2775 if row.mode is None and row.setting else 0o755)
    os.chown(directory.parent, owner, TEAM)


def each_row():
    """Each row, in a place and under a umask that take turns, and for `make soak` all of them."""
    for number, row in enumerate(rows()):
        name = f"{row.owner}-{row.mode and oct(row.mode)}-{row.setting}{row.shared}"
        kinds = ("local", "mount")
        quick, umask = kinds[number % 2], UMASKS[number // 2 % 2]
        yield pytest.param(row, quick, (umask,), id=f"{name}-{quick}-{umask:03o}")
        for kind in kinds:
            yield pytest.param(row, kind, UMASKS, id=f"{name}-{kind}", marks=pytest.mark.soak)


@needs_root
@pytest.mark.parametrize(("row", "kind", "umasks"), list(each_row()))
def test_every_row(place, row, kind, umasks):
    """You use the directory as the row says: doctor agrees, and where sharing is meant every program is a hit."""
    owner = {"you": YOU, "another user": OTHER, "root": ROOT}[row.owner]
    filler = owner if owner != YOU else OTHER
    expected = getattr(row, kind)
    mount = place if kind == "mount" else None
    variables = {row.setting.partition("=")[0]: "1"} if row.setting else {}

    def directories():
        for umask in umasks:
            os.umask(umask)
            home = place / f"{umask:03o}" / f"home-{os.geteuid()}"
            yield place / f"{umask:03o}" / "cache", {"HOME": str(home), "XDG_CACHE_HOME": str(home)}

    for umask in umasks:
        (place / f"{umask:03o}").mkdir()
        for uid in (ROOT, YOU, OTHER):
            home = place / f"{umask:03o}" / f"home-{uid}"
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
        prepare(place / f"{umask:03o}" / "cache", row, owner)

    def declare():
        for directory, _ in directories():
            assert share_directory(Location.parse(directory), row.shared) == 0

    def fill():
        trusting = {"EJCACHE_TRUST_DIR": "1"} if expected == "shared" else {}
        return [start(directory, **home, **trusting) for directory, home in directories()]

    def use():
        found = []
        for directory, home in directories():
            os.environ.update(home | variables)
            settings = resolve(environ={**os.environ, "EJCACHE_DIR": str(directory)})
            decision = decide_location(Location.parse(directory), settings)
            checks = list(doctor.check_directory(directory, read_only=settings.read_only, trusted=settings.trust_dir))
            found.append((decision, checks, *(start(directory, **home, **variables) for _ in range(2))))
        return found

    if row.shared and row.shared != "readers":
        as_user(owner, declare, mount=mount)
    if owner != YOU or expected == "shared":
        as_user(filler, fill, mount=mount)
    if row.shared == "readers":
        as_user(owner, declare, mount=mount)
    for (decision, checks, first, second), umask in zip(as_user(YOU, use, mount=mount), umasks, strict=True):
        directory = place / f"{umask:03o}" / "cache"
        assert bool(decision.why) == (expected == "refused"), (umask, decision)
        if kind == "local":
            trust = next(check for check in checks if check.name == "trust")
            assert (trust.verdict == "warning") == (expected == "refused"), (umask, trust)
        if expected == "refused":
            assert first.place != str(directory)
            assert [message for message in first.said if "This process uses" in message] == first.said
            assert re.search(r"`ejcache config set|`chmod|EJCACHE_DIR", first.said[0])
            assert (first.hits, second.hits) == ((0, ALL) if "READ_ONLY" not in row.setting else (0, 0))
            continue
        assert (first.place, first.said) == (str(directory), []), umask
        assert second.hits == ALL, umask
        modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in directory.rglob("*")}
        if expected == "private":
            assert {
                path: oct(mode) for path, mode in modes.items() if mode & 0o077 and path.name != "CACHEDIR.TAG"
            } == {}
        assert first.hits == (0 if expected in ("private", "readable") else ALL), umask
        if expected in ("shared", "readable"):
            wrong = {p: oct(m) for p, m in modes.items() if (m ^ directory.stat().st_mode) & 0o066 & ~_policy(p)}
            assert wrong == {}, umask
            if directory.stat().st_mode & 0o022 == 0o020:
                assert {path.lstat().st_gid for path in modes} == {TEAM}, umask


def _policy(path):
    return 0o022 if path.name == "policy.json" else 0


@needs_root
def test_a_shared_cache_stays_shared_when_its_policy_changes(place):
    """A cache that its owner shares with a group is used by the owner after it was turned off and on, too."""
    directory = place / "cache"
    directory.mkdir()
    os.chown(directory, YOU, TEAM)

    def decide():
        os.umask(0o002)
        os.environ["HOME"] = "/nowhere"
        location = Location.parse(directory)
        share_directory(location, "group")
        with FileBucket(directory, local=True, documents=True) as bucket:
            change_policy(bucket, {"enabled": False})
            change_policy(bucket, {"enabled": True})
        return decide_location(location, resolve(environ={**os.environ, "EJCACHE_DIR": str(directory)}))

    assert as_user(YOU, decide) == Access(directory, 0o770, others=True)


@needs_root
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("local", [True, False])
def test_doctor_advises_what_opens_a_directory(place, local, read_only):
    """Of a directory that is closed to this user, or holds no cache, doctor says what programs say, which helps."""
    for name, owner, mode in (("closed", ROOT, 0o700), ("mine", YOU, 0o000), ("empty", ROOT, 0o755)):
        (place / name).mkdir()
        os.chown(place / name, owner, TEAM)
        (place / name).chmod(mode)
    (place / "of others").mkdir()
    (place / "of others").chmod(0o775)

    def look():
        return {
            name: next(iter(doctor.check_directory(place / name, read_only=read_only, local=local)))
            for name in ("closed", "mine", "empty", "closed/below", "of others")
        }

    checks = as_user(YOU, look)
    for name in ("closed", *["empty"] * (not read_only)):
        assert f"its owner opens it by `ejcache config set --dir {place / name} shared=readers`" in checks[name].advice
    assert checks["mine"].advice == f"`chmod u+rwx {place / 'mine'}` mends it"
    # Hosts that share a directory trust those who can write there, so that nobody has to say so.
    assert read_only or ("EJCACHE_TRUST_DIR=1" in checks["of others"].advice) == local
    assert [name for name, check in checks.items() if "READ_ONLY" in check.advice] == []


@needs_root
def test_a_shared_directory_has_its_group_from_the_beginning(place, monkeypatch):
    """What another thread makes in a directory as soon as it can be seen belongs to the group, as all that follows."""
    os.chown(place, ROOT, TEAM)
    rename, seen = Path.rename, []

    def renamed(path, target):
        seen.append((path.stat().st_gid, oct(stat.S_IMODE(path.stat().st_mode))))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    Access(place, 0o770).make("v1/entries")
    assert seen == [(TEAM, "0o2770")] * 2


@needs_root
def test_two_users_write_in_turns(place):
    """Each of two users adds entries, evicts and reads what the other one stored, and nothing is an error."""
    (place / "cache").mkdir()
    os.chown(place / "cache", OTHER, TEAM)
    (place / "cache").chmod(0o2775)

    def turn(number):
        def work():
            os.umask(0o077)
            os.environ.update(HOME="/nowhere", EJCACHE_TRUST_DIR="1")
            settings = resolve(
                environ={**os.environ, "EJCACHE_DIR": str(place / "cache"), "EJCACHE_MAX_SIZE": "200000"}
            )
            store = open_cache_store(Location.parse(place / "cache"), settings)
            with contextlib.closing(store):
                for entry in range(8):
                    assert store.put(f"k{number}-{entry}", VALUE)
                assert store.check() == []
                return sorted(info.key for info in store.entries())

        return work

    for number, uid in enumerate((YOU, OTHER, YOU, OTHER)):
        assert f"k{number}-7" in as_user(uid, turn(number))


NAMELESS = 54377


@needs_root
@pytest.mark.parametrize("mode", [0o2775, 0o2770])
def test_a_group_without_a_name_in_a_container(place, mode):
    """What fsGroup gives a volume: who trusts all that can write there shares it with them, whatever the umask."""

    def use(umask, *, trusting):
        os.umask(umask)
        home = place / f"home-{os.geteuid()}"
        return start(place / f"{umask:03o}-{trusting}", HOME=str(home), EJCACHE_TRUST_DIR="01"[trusting])

    for uid in (YOU, OTHER):
        (place / f"home-{uid}").mkdir(mode=0o700)
        os.chown(place / f"home-{uid}", uid, uid)
    for umask in (0o022, 0o002, 0o077):
        for trusting in (False, True):
            directory = place / f"{umask:03o}-{trusting}"
            directory.mkdir()
            os.chown(directory, ROOT, NAMELESS)
            directory.chmod(mode)
            first, second = (
                as_user(uid, lambda u=umask, t=trusting: use(u, trusting=t), team=NAMELESS, container=True)
                for uid in (YOU, OTHER)
            )
            assert (first.stored, first.place) == (ALL, str(directory))
            assert (second.hits, second.place) == (ALL, str(directory)) or not trusting, (oct(umask), second)
            assert second.place != str(directory) or trusting
            shared = {path.name for path in directory.rglob("*") if path.lstat().st_mode & 0o022}
            assert bool(shared - {"CACHEDIR.TAG"}) is trusting


@needs_root
def test_who_can_share_a_directory_of_another_user(place):
    """A member of the group that may write there is told whose the directory is, and what he can do himself."""
    (place / "cache").mkdir()
    os.chown(place / "cache", OTHER, TEAM)
    (place / "cache").chmod(0o2775)

    def share():
        with pytest.raises(StoreUnavailableError) as caught:
            share_directory(Location.parse(place / "cache"), "everybody")
        return str(caught.value)

    said = as_user(YOU, share)
    assert f"only its owner, the user with id {OTHER}, or root can change its permissions" in said
    assert "EJCACHE_TRUST_DIR=1" in said


def test_a_path_that_sqlite_cannot_open(place, monkeypatch):
    """A path of 480 characters: one sentence names the limit, and a directory of this user is used."""
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    deep = place.joinpath(*["d" * 60] * 8)
    deep = Path(str(deep)[:480].rstrip("/"))
    first, second = start(deep), start(deep)
    assert (first.hits, second.hits) == (0, ALL)
    assert first.place == str(place / ".cache" / "ejcache")
    assert "SQLite opens a database at a path of at most" in first.said[0]
    (check,) = (check for check in doctor.check_directory(deep) if check.name == "trust")
    assert (check.verdict, "another path" in check.advice) == ("warning", True)
    long = Path(str(place.joinpath(*["d" * 60] * 8))[:440].rstrip("/"))
    assert (start(long).hits, start(long).hits, start(long).place) == (0, ALL, str(long))


def test_a_path_that_is_not_utf8(place):
    """A name in another encoding is a name as any other."""
    directory = os.fsdecode(os.fsencode(place) + b"/caf\xe9")
    assert (start(directory).hits, start(directory).hits) == (0, ALL)


def test_a_host_with_an_open_umask(place, monkeypatch):
    """A umask of 000: the local tier is private and used, and what a killed process left to upload is uploaded."""
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(directory_access, "is_in_container", lambda: False)
    shared = Location.parse(place / "mount")
    mount_nfs(shared.path, monkeypatch)

    def work(*, killed):
        os.umask(0)
        if killed:
            monkeypatch.setattr(FileBucket, "create", lambda *_: threading.Event().wait())
        store = open_cache_store(shared, resolve(environ=os.environ))
        assert not isinstance(store.local, MemoryStore)
        if killed:
            assert store.put("jit_left", encode(Header(key="jit_left"), VALUE))
            return
        uploaded = threading.Event()
        create = FileBucket.create

        def created(bucket, *arguments):
            done = create(bucket, *arguments)
            uploaded.set()
            return done

        monkeypatch.setattr(FileBucket, "create", created)
        assert store.get("jit_other") is None
        assert uploaded.wait(240)

    in_fork(lambda: work(killed=True))
    assert not list(place.glob("mount/v1/entries/*/*"))
    in_fork(lambda: work(killed=False))
    assert [path.name for path in place.glob("mount/v1/entries/*/*")] == ["jit_left"]
    home = {path: stat.S_IMODE(path.lstat().st_mode) for path in (place / "home", *(place / "home").rglob("*"))}
    assert {path: oct(mode) for path, mode in home.items() if mode & 0o077} == {}

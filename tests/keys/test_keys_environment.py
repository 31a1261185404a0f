"""Native libraries by content, CPUs by what they can do, and a memo that can only save time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from store_processes import in_fork

from ejcache.jax_integration.lowering.host_cpu import canonical_cpuinfo, cpu_features
from ejcache.jax_integration.lowering.native_libraries import LibraryDigests, native_files
from ejcache.keys.file_digests import content_digest, file_digest


def library_digest(paths, *, memo=None):
    """As a fresh process makes it."""
    return LibraryDigests().digest_of(paths, memo=memo)


@pytest.fixture
def library(tmp_path):
    """A library that has not changed for a while."""
    path = tmp_path / "lib" / "libjax.so"
    path.parent.mkdir()
    write(path, b"one")
    return path


def write(path, content: bytes, *, age: float = 60.0) -> None:
    path.write_bytes(content)
    then = time.time() - age
    os.utime(path, (then, then))


def test_content_counts_and_place_does_not(library, tmp_path):
    """A moved installation is the same, another build of the same version is not."""
    first = library_digest([library])
    elsewhere = tmp_path / "elsewhere" / "libjax.so"
    elsewhere.parent.mkdir()
    shutil.copy(library, elsewhere)
    assert library_digest([elsewhere]) == first
    write(elsewhere, b"two")
    assert library_digest([elsewhere]) != first
    other_name = library.with_name("other.so")
    shutil.copy(library, other_name)
    assert library_digest([other_name]) != first
    assert library_digest([library, other_name]) == library_digest([other_name, library]) != first
    assert library_digest([]) != first


def test_a_library_replaced_in_place_is_seen_with_and_without_a_memo(library, tmp_path):
    """Neither the process nor the memo goes on believing in the old content, even with the old size and times."""
    memo = tmp_path / "memo.json"
    digests = LibraryDigests()
    first = digests.digest_of([library], memo=memo)
    status = library.stat()
    library.write_bytes(b"two")
    os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert library.stat().st_size == status.st_size
    assert digests.digest_of([library], memo=memo) != first
    assert library_digest([library], memo=memo) != first


def test_the_memo_saves_reading(library, tmp_path):
    """What another process hashed is not read again; the memo holds nothing but identities and digests."""
    memo = tmp_path / "new" / "memo.json"
    first = library_digest([library], memo=memo)
    unread = LibraryDigests(read=lambda path: pytest.fail(f"{path} was read"))
    assert unread.digest_of([library], memo=memo) == first
    (digest,) = json.loads(memo.read_text())["libraries"].values()
    assert len(digest) == 64
    assert [path.name for path in memo.parent.iterdir()] == ["memo.json"]


def test_the_memo_forgets_the_environments_that_are_oldest(tmp_path, monkeypatch):
    """Where each job makes an environment at a path of its own, no start has to read what all the others have left."""
    monkeypatch.setattr("ejcache.keys.file_digests._MOST_REMEMBERED", 4)
    memo = tmp_path / "memo.json"
    environments = []
    for name in ("z-first", "b", "c"):  # not in the order of their names
        libraries = [tmp_path / name / "a.so", tmp_path / name / "b.so"]
        libraries[0].parent.mkdir()
        for path in libraries:
            write(path, name.encode())
        environments.append(libraries)
        library_digest(libraries, memo=memo)
    read = []
    for libraries in environments[::-1]:
        LibraryDigests(read=lambda path: read.append(path) or file_digest(path)).digest_of(libraries, memo=memo)
    assert sorted(read) == environments[0]
    assert len(json.loads(memo.read_text())["libraries"]) == 4


def test_one_environment_of_more_libraries_than_are_remembered_is_remembered(tmp_path, monkeypatch):
    """What is fresh is never left out."""
    monkeypatch.setattr("ejcache.keys.file_digests._MOST_REMEMBERED", 1)
    libraries = [tmp_path / "a.so", tmp_path / "b.so"]
    for path in libraries:
        write(path, b"one")
    first = library_digest(libraries, memo=tmp_path / "memo.json")
    unread = LibraryDigests(read=lambda path: pytest.fail(f"{path} was read"))
    assert unread.digest_of(libraries, memo=tmp_path / "memo.json") == first


def test_several_threads_read_a_library_once(library):
    """At the start of a program on a new host, one in the background and the first key want the same digest."""
    begun, go_on, read = threading.Event(), threading.Event(), []
    asking = threading.Barrier(5)

    def slow(path):
        read.append(path)
        begun.set()
        assert go_on.wait(60)
        return file_digest(path)

    def asked():
        yield library
        asking.wait(60)

    digests = LibraryDigests(read=slow)
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(digests.digest_of, [library])
        assert begun.wait(60)
        others = [pool.submit(digests.digest_of, asked()) for _ in range(4)]
        asking.wait(60)
        go_on.set()
        assert {other.result(60) for other in others} == {first.result(60)}
    assert read == [library]


def test_a_child_forked_while_its_parent_reads_libraries_reads_them_itself(library):
    """The thread that has the lock does not exist in the child."""
    begun, go_on = threading.Event(), threading.Event()

    def slow_at_first(path):
        if not begun.is_set():
            begun.set()
            assert go_on.wait(60)
        return file_digest(path)

    digests = LibraryDigests(read=slow_at_first)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(digests.digest_of, [library])
        assert begun.wait(60)
        found = in_fork(lambda: digests.digest_of([library]))
        go_on.set()
        assert first.result(60) == found


def test_a_library_of_several_pieces_has_the_digest_of_its_content(library):
    """What is read in pieces is the same as what is read at once."""
    content = bytes(range(256)) * 40_000
    library.write_bytes(content)
    assert content_digest(str(library)) == hashlib.sha256(content).hexdigest()


def test_the_memo_forgets_what_a_path_held_before(library, tmp_path):
    """Upgrades do not make it grow."""
    memo = tmp_path / "memo.json"
    for content in (b"1", b"22", b"333"):
        write(library, content)
        library_digest([library], memo=memo)
    assert len(json.loads(memo.read_text())["libraries"]) == 1


def test_a_file_that_has_just_changed_is_not_remembered_on_disk(library, tmp_path):
    """It could change once more within one tick of the file system's clock."""
    memo = tmp_path / "memo.json"
    write(library, b"just now", age=-60)  # as on a network file system whose clock is ahead
    library_digest([library], memo=memo)
    assert not memo.exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'{"format": 2, "libraries": 3}',
        b'{"format": 1}',
        b'{"format": 1, "libraries": []}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_memo_is_ignored_and_replaced(library, tmp_path, damage):
    """A memo can be lost, never wrong."""
    first = library_digest([library])
    memo = tmp_path / "memo.json"
    memo.write_bytes(damage)
    assert library_digest([library], memo=memo) == first
    assert json.loads(memo.read_text())["format"] == 1


def test_digests_of_another_kind_in_a_memo_are_not_believed(library, tmp_path):
    """Only what looks like a digest is taken."""
    first = library_digest([library])
    memo = tmp_path / "memo.json"
    library_digest([library], memo=memo)
    written = json.loads(memo.read_text())
    memo.write_text(json.dumps({**written, "libraries": dict.fromkeys(written["libraries"], "../x")}))
    assert library_digest([library], memo=memo) == first


def test_a_memo_that_cannot_be_written_costs_nothing(library, tmp_path):
    """A directory in its place, or a file in the place of its directory."""
    first = library_digest([library])
    (tmp_path / "memo.json").mkdir()
    for memo in (tmp_path / "memo.json", library / "memo.json"):
        assert library_digest([library], memo=memo) == first


def test_a_library_that_cannot_be_read_is_an_error(tmp_path):
    """An environment of unknown content must not pass for a known one."""
    with pytest.raises(OSError, match="gone"):
        library_digest([tmp_path / "gone.so"])


def test_a_path_may_be_spelled_otherwise(tmp_path):
    """A variable names a plug-in's library, or `sys.path` its directory, as somebody wrote it."""
    (library := tmp_path / "a.so").write_bytes(b"code")
    for spelled in (f"{tmp_path}//a.so", f"{tmp_path}/./a.so", f"{tmp_path}/../{tmp_path.name}/a.so"):
        assert library_digest([spelled], memo=tmp_path / "memo") == library_digest([library])


def test_native_files_are_found_under_a_package(tmp_path):
    """Shared libraries of every kind, versioned ones too, and nothing else; a link that leads nowhere hides none."""
    for name in ("circle.so", "sub.so", "z.so"):
        (tmp_path / name).symlink_to({"sub.so": "sub", "z.so": "a.so"}.get(name, name))
    for name in ("a.so", "sub/b.so.12", "sub/c.dylib", "d.py", "e.so.txt", "libdevice.10.bc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = [Path(path).relative_to(tmp_path).as_posix() for path in native_files(tmp_path)]
    assert sorted(found) == ["a.so", "libdevice.10.bc", "sub/b.so.12", "sub/c.dylib", "z.so"]
    assert native_files(tmp_path / "none") == []


def test_files_that_flags_name_are_digested_with_directories(tmp_path):
    """A file by content, a directory by its files, nothing readable as None."""
    first, second = tmp_path / "a", tmp_path / "b"
    for directory, content in ((first, b"1"), (second, b"1")):
        directory.mkdir()
        (directory / "p.pb").write_bytes(content)
    assert content_digest(str(first)) == content_digest(str(second))
    assert content_digest(str(first / "p.pb")) == content_digest(str(second / "p.pb"))
    (second / "p.pb").write_bytes(b"2")
    assert content_digest(str(first)) != content_digest(str(second))
    (first / "p.pb").rename(first / "q.pb")
    (second / "p.pb").write_bytes(b"1")
    assert content_digest(str(first)) != content_digest(str(second))
    assert content_digest(str(tmp_path / "gone")) is None


X86 = """processor : {core}
vendor_id : GenuineIntel
cpu family : 6
model : 85
model name : Intel(R) Xeon(R)
stepping : 7
microcode : {microcode}
cpu MHz : {mhz}
flags : fpu avx avx2 {flags}
bugs : spectre_v1 {bugs}

"""


def test_cpus_of_one_kind_are_one():
    """Cores, clock, microcode, mitigations and the hypervisor do not count; model and instruction sets do."""
    plain = canonical_cpuinfo(X86.format(core=0, microcode="0x1", mhz=2000, flags="", bugs=""))
    same = "".join(
        X86.format(core=core, microcode="0x2", mhz=3000, flags="hypervisor ibrs md_clear constant_tsc", bugs="mds")
        for core in range(4)
    )
    assert canonical_cpuinfo(same) == plain
    assert canonical_cpuinfo(X86.format(core=0, microcode="0x1", mhz=2000, flags="avx512f", bugs="")) != plain
    assert canonical_cpuinfo(X86.format(core=0, microcode="", mhz=1, flags="", bugs="").replace("85", "86")) != plain
    arm = "Features : fp asimd sve\nCPU implementer : 0x41\nCPU part : 0xd40\n"
    assert canonical_cpuinfo(arm) not in ("", plain, canonical_cpuinfo(arm.replace(" sve", "")))
    assert canonical_cpuinfo("nothing known") == ""


@pytest.mark.parametrize(
    "flag", ["avx", "avx512_vnni", "amx_tile", "sse4_2", "bmi2", "fma", "sha_ni", "gfni", "rdpid", "xsave"]
)
def test_no_instruction_set_is_taken_for_a_mode_of_the_kernel(flag):
    """Each of these decides which code can run."""
    assert flag in canonical_cpuinfo(f"flags : {flag}")


def test_this_hosts_cpu_is_described():
    """Something is known on every host, and it is the same every time."""
    described = cpu_features()
    assert described.strip()
    assert described == cpu_features()


def test_what_was_compiled_for_one_thread_is_not_served_to_many(run_forked, tmp_path):
    """XLA for CPU before jaxlib 0.11 cuts loops by the threads it has; later ones have one key."""
    program = """
        import sys
        import jax
        import ejcache

        cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
        jax.jit(lambda x: x + 1)(1.0)
        print(cache.stats().hits, cache.stats().misses)
    """
    one, again, many = (
        run_forked(program, tmp_path / "cache", env={"NPROC": threads}).stdout.split() for threads in ("1", "1", "3")
    )

    assert one[0] == "0"
    assert again == [one[1], "0"]
    assert many == (again if jax.__version_info__ >= (0, 11) else one)

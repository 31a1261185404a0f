"""XLA's own caches: private to each process, and exchanged with the store file by file so that nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from archives import flipped
from buckets import GcsServer, gcs_bucket
from forking import Forked, ForkedBeforeEjcache
from helpers import SUPPORT, local_documents

from ejcache.jax_integration.xla_caches import Mirror, XlaFiles, merge_kernels
from ejcache.jax_integration.xla_directories import AUTOTUNE, KERNELS, OwnDirectory
from ejcache.keys.xla_messages import Field, join, split
from ejcache.stores.documents import Documents

WATCHED = f"""
    import json, os, sys
    from pathlib import Path
    import jax
    import ejcache
    from jax._src import compiler
    from ejcache.jax_integration import pipeline
    pipeline._PLATFORMS_WITH_CACHES = ("cpu",)
    seen = []
    compile = compiler.backend_compile_and_load
    def watched(backend, module, devices, options, *rest):
        debug = options.executable_build_options.debug_options
        seen.append([getattr(debug, name) for name in ({AUTOTUNE!r}, {KERNELS!r})])
        for path in seen[-1]:
            assert not path or path.startswith("/elsewhere") or Path(path).parent.is_dir(), path
        return compile(backend, module, devices, options, *rest)
    compiler.backend_compile_and_load = watched
"""
SEEN = f"""{WATCHED}
    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0, **dict(arg.split("=") for arg in sys.argv[2:]))
    jax.jit(lambda: 1.0).lower().compile()
    print("|".join(seen[-1] if seen else ["loaded"]))
    print(cache.stats().hits)
    ejcache.disable()
    jax.jit(lambda: 2.0).lower().compile()
    print("|".join(seen[-1]))
"""


def kernels(*names, version=3, **fingerprints):
    """A file as XLA writes it."""

    def text(number, value):
        return Field(number, 2, value if isinstance(value, bytes) else value.encode())

    return join(
        [
            *(
                text(1, join([text(1, name), text(2, join([text(1, fingerprints.get(name, f"of {name}"))]))]))
                for name in names
            ),
            Field(2, 0, bytes([version])),
        ]
    )


def names_in(data):
    return [split(field.value)[0].value.decode() for field in split(data) if field.number == 1]


HIT = """
    import os, sys
    from pathlib import Path
    import jax
    import ejcache
    from ejcache.jax_integration import pipeline
    pipeline._PLATFORMS_WITH_CACHES = ("cpu",)
    listed = []
    sys.addaudithook(lambda event, args: listed.append(str(args[0])) if event in ("os.listdir", "os.scandir") else None)
    cache = ejcache.enable(sys.argv[1], min_compile_seconds=0)
    jax.jit(lambda x: x + 1).lower(1.0).compile()
    hits, looked = cache.stats().hits, any("v1/xla/" in path for path in listed)
    (own,) = (path for path in Path(sys.argv[1], "v1/xla-processes").glob("*/*-*") if path.is_dir())
    def files():
        return sum(len(files) for _, _, files in os.walk(own))
    print(hits, files(), looked)
    print("ejcache.jax_integration.xla_caches" in sys.modules, "ejcache.bucket.base" in sys.modules)
    if len(sys.argv) > 2:
        jax.jit(lambda x: x + 2).lower(1.0).compile()
        print(files())
"""


def test_a_hit_fetches_nothing(run_python, tmp_path):
    """What is stored is fetched when something compiles; a hit has the path of an empty directory."""
    cache = tmp_path / "cache"
    assert run_python(HIT, str(cache), start=ForkedBeforeEjcache).stdout.splitlines()[0].startswith("0 0 ")
    (environment,) = (path.name for path in (cache / "v1/xla-processes").iterdir())
    files = XlaFiles(local_documents(cache), environment)
    (tmp_path / "own" / AUTOTUNE).mkdir(parents=True)
    for n in range(30):
        (tmp_path / "own" / AUTOTUNE / f"result{n}").write_bytes(os.urandom(50))
    assert files.push(tmp_path / "own", known=set()) == 30
    said = run_python(HIT, str(cache), "compile", start=ForkedBeforeEjcache).stdout.splitlines()
    assert said == ["1 0 False", "False False", "30"]
    assert [path.name for path in (cache / "v1/xla-processes" / environment).iterdir()] == ["present"]


def test_a_directory_that_xla_used_without_us(tmp_path):
    """If XLA wrote into a directory that nothing was fetched for, the next process that compiles stores that."""
    own = OwnDirectory(tmp_path / "processes")
    (own.path / AUTOTUNE / "result").write_bytes(b"result")
    own.close()
    os.utime(own.path, (0, 0))
    mirror = Mirror(XlaFiles(local_documents(tmp_path / "store"), "e"), OwnDirectory(tmp_path / "processes"))
    assert mirror.fill() == 1
    mirror.close()
    assert [path.name for path in (tmp_path / "processes").iterdir()] == ["present"]
    unused = OwnDirectory(tmp_path / "processes")
    unused.close()
    assert not unused.path.exists()


def test_a_local_cache(run_forked, tmp_path):
    """Each process has its own directory, removed at exit, and it is no part of the key."""
    paths = []
    for hits, spelled in (("0", "file://"), ("1", "")):
        said = run_forked(SEEN, f"{spelled}{tmp_path / 'cache'}", f"xla_caches={AUTOTUNE}").stdout.splitlines()
        paths.append(said[0])
        assert said[1:] == [hits, "|"]
    assert paths[1] == "loaded"
    directory, nothing = paths[0].split("|")
    assert nothing == ""
    assert directory.startswith(f"{tmp_path}/cache/v1/xla-processes/")
    assert not Path(directory).parent.exists()


def test_a_bucket(run_client, tmp_path):
    """The directory is one of this host's; storage that is down costs seconds, and no program."""
    env = {"EJCACHE_LOCAL_DIR": str(tmp_path / "disk"), "STORAGE_EMULATOR_HOST": "127.0.0.1:1"}
    said = run_client(SEEN, "gs://bucket/a", "xla_caches=all", env=env).stdout.splitlines()
    (tier,) = (tmp_path / "disk").iterdir()
    assert [Path(path).name for path in said[0].split("|")] == [AUTOTUNE, KERNELS]
    assert said[0].startswith(f"{tier}/xla/")


WHICH = f"""{WATCHED}
    for number, (url, settings) in enumerate(json.loads(sys.argv[1])):
        with ejcache.enable(url, min_compile_seconds=0, **settings):
            jax.jit(lambda: number).lower().compile()
        print("|".join(seen[-1]))
"""
NONE, OWN, FIRST, BOTH = "|", "/elsewhere/a|", "first", "both"


@pytest.mark.parametrize(
    ("env", "caches"),
    [
        pytest.param({}, [("memory://x", "all", NONE), ("{}", "none", NONE), ("{}", None, FIRST)], id="plain"),
        pytest.param({"XLA_FLAGS": f"--{AUTOTUNE}=/elsewhere/a"}, [("{}", "none", OWN)], id="own"),
        pytest.param({"ALLOW_FULL_CACHE": "1"}, [("{}", None, BOTH)], id="full"),
    ],
)
def test_which_caches(run_forked, tmp_path, env, caches):
    """Those that were asked for; what the program set itself is left alone."""
    asked = [(url.format(tmp_path / "cache"), {"xla_caches": which} if which else {}) for url, which, _ in caches]
    said = run_forked(WHICH, json.dumps(asked), env=env).stdout.splitlines()
    for line, (*_, expected) in zip(said, caches, strict=True):
        if expected in {FIRST, BOTH}:
            assert [bool(path) for path in line.split("|")] == [True, expected == BOTH]
        else:
            assert line == expected


MERGING = f"""
import json, sys
sys.path.insert(0, {str(SUPPORT)!r})
from pathlib import Path
from buckets import gcs_bucket
from ejcache.jax_integration.xla_caches import Mirror
from ejcache.jax_integration.xla_caches import XlaFiles
from ejcache.jax_integration.xla_directories import OwnDirectory
from ejcache.stores.documents import Documents

me, root, url, kernels = sys.argv[1:]
mirror = Mirror(XlaFiles(Documents(gcs_bucket(url, deadline=60.0)), "e"), OwnDirectory(Path(root)), exit_seconds=60.0)
mirror.fill()
results = mirror.directory / {AUTOTUNE!r}
(results / "tmp").mkdir()
(results / "tmp" / "half").write_text("half")
print("ready", flush=True)
sys.stdin.readline()
for n in range(5):
    (results / f"only-{{me}}-{{n}}.textproto").write_text(f"{{me}} {{n}}" * 100)
    (results / f"everyone-{{n}}.textproto").write_text(me * 1000)
(mirror.directory / {KERNELS!r}).write_bytes(bytes.fromhex(kernels))
if int(me) % 2:
    mirror.store(seconds=60.0)
"""


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.soak)])
def test_several_processes_lose_nothing(count, tmp_path):
    """Half of them store at once and half at their end: the bucket has every file of each, whole, and every kernel."""
    with GcsServer() as server:
        command = [sys.executable, "-c", MERGING]
        workers = [
            Forked(
                [*command, str(n), str(tmp_path / "processes"), server.url, kernels("shared", f"of{n}").hex()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for n in range(count)
        ]  # fmt: skip
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        for worker in workers:
            worker.communicate(timeout=120)
            assert worker.returncode == 0

        mirror = Mirror(XlaFiles(Documents(gcs_bucket(server.url)), "e"), OwnDirectory(tmp_path / "mine"))
        assert mirror.fill() == count * 5 + 5 + 1
        for n in range(5):
            for me in range(count):
                file = mirror.directory / AUTOTUNE / f"only-{me}-{n}.textproto"
                assert file.read_text() == f"{me} {n}" * 100
            common = (mirror.directory / AUTOTUNE / f"everyone-{n}.textproto").read_text()
            assert common in {str(me) * 1000 for me in range(count)}
        merged = (mirror.directory / KERNELS).read_bytes()
        assert sorted(names_in(merged)) == sorted(["shared", *(f"of{me}" for me in range(count))])
        mirror.close()
    assert [path.name for path in (tmp_path / "processes").iterdir()] == ["present"]


def mirror_of(tmp_path, name="mine", *, documents=None, **options):
    files = XlaFiles(documents or local_documents(tmp_path / "store"), "e")
    return Mirror(files, OwnDirectory(tmp_path / name), **options)


def fill(mirror, **results):
    (mirror.directory / AUTOTUNE).mkdir(exist_ok=True)
    for name, text in results.items():
        (mirror.directory / AUTOTUNE / name).write_text(text)


def results_of(mirror):
    return {path.name: path.read_text() for path in (mirror.directory / AUTOTUNE).iterdir()}


def test_only_what_is_new_is_stored(tmp_path):
    """The first result under a name stays, and what was pulled is not sent back."""
    first = mirror_of(tmp_path)
    first.fill()
    fill(first, a="1", b="2")
    assert [first.store(), first.store()] == [2, 0]
    second = mirror_of(tmp_path)
    assert second.fill() == 2
    fill(second, c="3")
    (second.directory / AUTOTUNE / ".hidden").write_text("no result")
    assert second.store() == 1
    fill(first, c="4", d="5")
    first.close()
    second.close()
    third = mirror_of(tmp_path)
    assert third.fill() == 4
    assert results_of(third) == {"a": "1", "b": "2", "c": "3", "d": "5"}
    third.close()


def test_results_in_directories_of_devices_are_kept(tmp_path):
    """XLA of jaxlib 0.11 names a directory after the device; what is not whole, temporary or deeper is left out."""
    first = mirror_of(tmp_path)
    first.fill()
    device = first.directory / AUTOTUNE / "ed0e56ab8b2a0ecb"
    (device / "tmp").mkdir(parents=True)
    whole = join([Field(1, 2, b"a77e7c79"), Field(2, 0, b"\x01")])
    (device / "dac91dca.pb").write_bytes(whole)
    (device / "a23f8ef7.pb").write_bytes(whole[:-4])
    (device / "tmp" / "c4faadf3.pb").write_bytes(whole)
    (device / "elsewhere").symlink_to(tmp_path)
    assert first.store() == 1
    first.close()
    second = mirror_of(tmp_path)
    assert second.fill() == 1
    found = [path for path in (second.directory / AUTOTUNE).rglob("*") if path.is_file()]
    assert [(path.parent.name, path.name, path.read_bytes()) for path in found] == [
        ("ed0e56ab8b2a0ecb", "dac91dca.pb", whole)
    ]
    assert second.store() == 0
    second.close()


def test_damage_never_reaches_xla(tmp_path):
    """A damaged or foreign file is taken out, and the next process's result takes its place."""
    mirror = mirror_of(tmp_path)
    fill(mirror, a="1", b="2", c="3")
    mirror.close()
    stored = {path.name: path for path in (tmp_path / "store").rglob("*") if path.is_file()}
    stored["a"].write_bytes(flipped(stored["a"].read_bytes(), -320))
    stored["b"].write_bytes(stored["c"].read_bytes())

    mirror = mirror_of(tmp_path)
    assert mirror.fill() == 1
    assert results_of(mirror) == {"c": "3"}
    fill(mirror, a="1")
    mirror.close()
    mirror = mirror_of(tmp_path)
    mirror.fill()
    assert results_of(mirror) == {"a": "1", "c": "3"}
    mirror.close()


@pytest.mark.parametrize("ago", [1000, -1000], ids=["long ago", "by a clock that was ahead"])
def test_a_killed_process_loses_nothing(tmp_path, ago):
    """The next one stores what it left, and removes it; a living one's directory is left alone."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from helpers import local_documents\n"
        "from ejcache.jax_integration.xla_caches import Mirror, XlaFiles\n"
        "from ejcache.jax_integration.xla_directories import AUTOTUNE, OwnDirectory\n"
        "place = Path(sys.argv[1])\n"
        "mirror = Mirror(XlaFiles(local_documents(place / 'store'), 'e'), OwnDirectory(place / 'mine'))\n"
        "mirror.fill()\n"
        "(mirror.directory / AUTOTUNE).mkdir(exist_ok=True)\n"
        "(mirror.directory / AUTOTUNE / 'left').write_text('1')\n"
        "print(mirror.directory, flush=True); sys.stdin.read()\n"
    )
    worker = Forked(
        [sys.executable, "-c", program, str(tmp_path), str(SUPPORT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    left = Path(worker.stdout.readline().strip())
    when = time.time() - ago
    os.utime(left, (when, when))
    living = mirror_of(tmp_path)
    assert living.fill() == 0
    assert left.is_dir()
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate()

    heir = mirror_of(tmp_path)
    assert heir.fill() == 1
    assert results_of(heir) == {"left": "1"}
    assert not left.exists()
    assert living.directory.is_dir()
    heir.close()
    living.close()
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == ["present"]


def test_what_was_not_stored_in_time_is_left_to_the_next(tmp_path):
    """A directory is removed when all of it is stored, and not before."""
    late = mirror_of(tmp_path, exit_seconds=-1.0)
    fill(late, a="1")
    late.close()
    assert late.directory.is_dir()
    long_ago = time.time() - 1000
    os.utime(late.directory, (long_ago, long_ago))
    heir = mirror_of(tmp_path)
    assert heir.fill() == 1
    assert not late.directory.exists()
    heir.close()


def test_read_only(tmp_path):
    """What is stored is used, and nothing is added."""
    mirror = mirror_of(tmp_path)
    fill(mirror, a="1")
    mirror.close()
    mirror = mirror_of(
        tmp_path, "reader", documents=local_documents(tmp_path / "store", read_only=True), read_only=True
    )
    assert mirror.fill() == 1
    fill(mirror, b="2")
    mirror.collect()
    assert mirror.store() == 0
    mirror.close()
    assert XlaFiles(local_documents(tmp_path / "store"), "e").stored() == {f"{AUTOTUNE}/a"}


def test_merged_kernels():
    """Both files' kernels; none twice by name or fingerprint, of which XLA would fail, and the stored one stays."""
    stored = kernels("a", "b")
    assert names_in(merge_kernels(stored, kernels("b", "c"))) == ["a", "b", "c"]
    assert names_in(merge_kernels(stored, kernels("c", "d", d="of c"))) == ["a", "b", "c"]
    assert merge_kernels(stored, kernels("c", c="of a")) is None
    assert merge_kernels(stored, kernels("a", a="another")) is None
    assert merge_kernels(stored, b"\xff") is None
    for useless in (None, b"\xff", kernels("a", version=2)):
        assert merge_kernels(useless, kernels("c")) == kernels("c")
    assert split(merge_kernels(stored, kernels("c")))[-1] == Field(2, 0, b"\x03")


def test_another_compiler_has_other_files(tmp_path):
    """Kernels of one version or device are nothing for another."""
    documents = local_documents(tmp_path / "store")
    mirror = mirror_of(tmp_path, documents=documents)
    fill(mirror, a="1")
    mirror.close()
    other = Mirror(XlaFiles(documents, "f"), OwnDirectory(tmp_path / "other"))
    assert other.fill() == 0
    other.close()


@pytest.mark.parametrize("link", ["v1", "v1/xla-processes", "v1/xla-processes/env"])
def test_a_link_where_a_directory_of_ours_is_expected(link, tmp_path):
    """It is not used, and nothing of what it points to is read or removed."""
    home, cache = tmp_path / "home", tmp_path / "cache"
    for name in ("projects", "1-0123456789ab"):
        (home / name).mkdir(parents=True)
        os.utime(home / name, (0, 0))
    (cache / link).parent.mkdir(parents=True)
    (cache / link).symlink_to(home)
    with pytest.raises(OSError, match="symbolic link"):
        OwnDirectory(cache, "v1/xla-processes/env")
    assert sorted(path.name for path in home.iterdir()) == ["1-0123456789ab", "projects"]


def test_only_directories_of_killed_processes_are_removed(tmp_path):
    """Of other names, and of links, nothing is touched; a pipe in one does not make us wait."""
    root, home = tmp_path / "processes", tmp_path / "home"
    left = root / "12-0123456789ab"
    for directory in (root / "notes", home / "text", left / AUTOTUNE):
        directory.mkdir(parents=True)
    (root / "13-0123456789ab").symlink_to(home)
    (left / AUTOTUNE / "result").write_bytes(b"result")
    os.mkfifo(left / KERNELS)
    for path in (root / "notes", left):
        os.utime(path, (0, 0))
    files = XlaFiles(local_documents(tmp_path / "store"), "env")
    mirror = Mirror(files, OwnDirectory(tmp_path, "processes"))
    assert mirror.fill() == 1
    mirror.close()
    assert sorted(path.name for path in root.iterdir()) == ["13-0123456789ab", "notes", "present"]
    assert (home / "text").is_dir()


def test_what_is_taken_from_the_store_is_bounded(tmp_path):
    """
    A file that is too large is not stored.

    Of files that somebody else stored, those that are too large, and all beyond a total, are left there.
    """
    documents = local_documents(tmp_path / "store")
    files = XlaFiles(documents, "env", max_file=1000, max_total=2500)
    (tmp_path / "own" / AUTOTUNE).mkdir(parents=True)
    for name, size in (("a", 900), ("b", 1100), ("c", 900), ("d", 900)):
        (tmp_path / "own" / AUTOTUNE / name).write_bytes(os.urandom(size))
    assert files.push(tmp_path / "own", known=set()) == 3
    assert XlaFiles(documents, "env").push(tmp_path / "own", known=set()) == 1
    assert files.pull(tmp_path / "other") == 2
    assert sorted(path.name for path in (tmp_path / "other" / AUTOTUNE).iterdir()) == ["a", "c"]

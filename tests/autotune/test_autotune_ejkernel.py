"""The drop-in for ejkernel's store: its files, its class, and an unmodified ejkernel on top of ours."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import sys
import textwrap
import types
from argparse import Namespace

import pytest
from capabilities import needs

from ejcache.autotune.ejkernel import PersistentCache
from ejcache.autotune.ejkernel.cache import OperationFile, file_key, key_of_file, operation_directory
from ejcache.autotune.ejkernel.chain import held_in_modules
from ejcache.autotune.records.record import Source
from ejcache.autotune.records.store import QUARANTINE, AutotuneStore

needs_ejkernel = needs("ejkernel")
DEVICE, OP, CALL = "cpu|cpu", "matmul@v1", "76c3833ef674ac9b"
TEXT = f"{DEVICE}|{OP}|{CALL}"


@dataclasses.dataclass
class Params:
    q: int = 1


@dataclasses.dataclass
class Config:
    block: int
    params: Params | None = None


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """ejkernel's directory, fresh for each test."""
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", str(tmp_path / "place"))
    return tmp_path / "place"


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())


def test_keys_are_ejkernels():
    """A key is taken apart from its end, because a device has a bar of its own, and put together the same."""
    key = key_of_file("NVIDIA H200|PJRT C API|cuda 13|flash_attention@v2|0123456789abcdef")
    assert (key.operation, key.version, key.device) == ("flash_attention", "2", "NVIDIA H200")
    assert key.environment == {"platform_version": "PJRT C API|cuda 13"}
    assert key.call == {"ejkernel": "0123456789abcdef"}
    assert file_key(DEVICE, OP, CALL) == TEXT
    for text in ("_ejcache", "a|b", "cpu|cpu|matmul|123", "||@v|", "cpu|matmul@v1|"):
        assert key_of_file(text) is None


def test_values_come_back_as_from_ejkernels_class(place):
    """By loader, by type, or as a Namespace; a raw value as it is."""
    write(place / "op.json", {TEXT: {"block": 4, "params": {"q": 2}}, f"{DEVICE}|{OP}|raw": [1, 2]})
    assert PersistentCache("op").get(DEVICE, OP, CALL) == Namespace(block=4, params={"q": 2})
    assert PersistentCache("op", cfg_type=Config).get(DEVICE, OP, CALL) == Config(4, Params(2))
    assert PersistentCache("op", loader=lambda raw: raw["block"]).get(DEVICE, OP, CALL) == 4
    assert PersistentCache("op").get(DEVICE, OP, "raw") == [1, 2]
    assert PersistentCache("op").get(DEVICE, OP, "other") is None
    assert PersistentCache("op", path=str(place / "op.json")).path == str(place / "op.json")


def test_put_keeps_the_file_and_a_record(place):
    """What is put is in ejkernel's file, byte for byte in its format, and in a record that ranks as imported."""
    write(place / "op.json", {"foreign": 1})
    PersistentCache("op").put(DEVICE, OP, CALL, Config(8, Params()))
    assert json.loads((place / "op.json").read_text()) == {"foreign": 1, TEXT: {"block": 8, "params": {"q": 1}}}
    (found,) = AutotuneStore(str(place)).records()
    assert (found.source, found.record.configuration) == (Source.IMPORTED, {"block": 8, "params": {"q": 1}})
    PersistentCache("op", dumper=lambda config: {"dumped": config.block}).put(DEVICE, OP, "2", Config(9))
    assert json.loads((place / "op.json").read_text())[f"{DEVICE}|{OP}|2"] == {"dumped": 9}


def test_other_processes_entries_are_seen(place, clock, monkeypatch):
    """A cache that was opened before another process wrote sees what it wrote."""
    monkeypatch.setattr("ejcache.autotune.ejkernel.cache.time", clock)
    cache = PersistentCache("op", cfg_type=Config)
    assert cache.get(DEVICE, OP, CALL) is None
    write(place / "op.json", {TEXT: {"block": 4}})
    clock.now += 1.0
    assert cache.get(DEVICE, OP, CALL) == Config(4)


@pytest.mark.parametrize("rest", [None, {}], ids=["deleted", "empty"])
def test_a_file_that_is_gone_answers_no_more(rest, place, clock, monkeypatch):
    """A cache that has read it misses what it does not have any more."""
    monkeypatch.setattr("ejcache.autotune.ejkernel.cache.time", clock)
    write(place / "op.json", {TEXT: {"block": 4}})
    cache = PersistentCache("op", cfg_type=Config)
    assert cache.get(DEVICE, OP, CALL) == Config(4)
    if rest is None:
        (place / "op.json").unlink()
    else:
        write(place / "op.json", rest)
    clock.now += 1.0
    assert cache.get(DEVICE, OP, CALL) is None


def test_a_record_survives_a_rewritten_file(place):
    """A process with ejkernel's own class rewrites the whole file from memory; the record beside it is still there."""
    PersistentCache("op").put(DEVICE, OP, CALL, Config(8))
    write(place / "op.json", {})
    assert PersistentCache("op", cfg_type=Config).get(DEVICE, OP, CALL) == Config(8)


@pytest.mark.parametrize("data", [b"", b'{"cut": ', b"[1]", b"\xff", b'"text"'])
def test_damaged_files_are_misses_and_heal(place, data, caplog):
    """A file that is no JSON object costs one warning; the next put sets it aside and starts a new one."""
    write(place / "op.json", data)
    cache = PersistentCache("op", cfg_type=Config)
    assert cache.get(DEVICE, OP, CALL) is None
    cache.put(DEVICE, OP, CALL, Config(8))
    assert json.loads((place / "op.json").read_text()) == {TEXT: {"block": 8, "params": None}}
    assert (place / QUARANTINE / "op.json").read_bytes() == data
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1


@pytest.mark.parametrize("value", [{"gone": 1}, "text", [1], {"block": 1, "params": {"nope": 2}}])
def test_values_that_do_not_fit_are_misses(place, value, caplog):
    """A stored value that the type refuses is a miss with one warning, and other entries are not affected."""
    write(place / "op.json", {TEXT: value, f"{DEVICE}|{OP}|2": {"block": 2}})
    cache = PersistentCache("op", cfg_type=Config)
    assert cache.get(DEVICE, OP, CALL) is None
    assert cache.get(DEVICE, OP, CALL) is None
    assert cache.get(DEVICE, OP, "2") == Config(2)
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1


def test_a_configuration_that_json_cannot_hold_costs_only_itself(place, caplog):
    """It is not kept, with one warning, and what is put after it is."""
    cache = PersistentCache("op")
    cache.put(DEVICE, OP, CALL, {"block": object()})
    cache.put(DEVICE, OP, "2", {"block": 2})
    assert list(json.loads((place / "op.json").read_text())) == [f"{DEVICE}|{OP}|2"]
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1


def test_unwritable_places_keep_the_process_going(tmp_path, monkeypatch, caplog):
    """Where nothing can be written the process keeps its own results, and says so once for each place."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = PersistentCache("op", path=str(blocked / "op.json"), store=AutotuneStore(str(blocked), seeds=()))
    for call in ("1", "2"):
        cache.put(DEVICE, OP, call, {"block": 1})
        assert cache.get(DEVICE, OP, call) == Namespace(block=1)
    assert sum(r.levelno == logging.WARNING for r in caplog.records) <= 2


def test_directories_as_ejkernel_chooses_them(tmp_path, monkeypatch, clean_environment):
    """The variable, else the home directory, else the working directory; looked up when it is used."""
    assert operation_directory() == str(tmp_path / "place")
    monkeypatch.delenv("EJKERNEL_PERSISTENT_CACHE_DIR")
    assert operation_directory() == str(clean_environment / "ejkernel-presistent-cache")
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert operation_directory() == str(tmp_path / ".ejkernel-presistent-cache")
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", "gs://bucket/tuned")
    assert operation_directory() == "gs://bucket/tuned"


def test_files_in_a_bucket_are_read_and_not_written(tmp_path):
    """ejkernel cannot read a bucket, and a bucket takes one write a second to an object."""
    file = OperationFile(f"{tmp_path}/op.json")
    file.documents.url, file.documents.remote = "gs://bucket", True
    write(tmp_path / "op.json", {TEXT: {"block": 4}})
    assert file.read() == {TEXT: {"block": 4}}
    assert not file.put(TEXT, {"block": 5})


PROGRAM = textwrap.dedent("""
    import hashlib, json, os, sys
    if {install}:
        import ejcache.autotune.ejkernel as drop_in
        from ejcache.autotune import Tuner
        assert drop_in.install(tuner=Tuner(rounds=8, sample_seconds=0.0005)) == 0
    import jax, jax.numpy as jnp, numpy as np
    import ejkernel.modules.operations as o
    if not {install}:
        # It would measure by tracing into the caller's program a hundred times for each candidate.
        chain = sys.modules["ejkernel.modules.operations.flash_attention"]._flash_executor.chooser
        chain.policy.cache_miss_fallback = "heuristics"
    r = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
    x = r(0, 1, 16, 1, 8)
    results = dict(
        cross_entropy=o.fused_cross_entropy(r(1, 16, 64), jnp.zeros((16,), jnp.int32)),
        divergence=o.fused_kl_divergence(r(2, 16, 64), r(3, 16, 64)),
        in_jit=jax.jit(lambda x: o.flash_attention(x, x, x, causal=True))(x),
        sdpa=o.scaled_dot_product_attention(x, x, x),
    )
    digests = {{n: hashlib.sha256(b"".join(np.asarray(l).tobytes() for l in jax.tree.leaves(v))).hexdigest()[:16]
               for n, v in results.items()}}
    said = dict(digests=digests)
    if {install}:
        from ejcache.autotune import default_chooser
        said["chains"] = drop_in.install()
        said["counters"] = dict(default_chooser().counters)
    print("SAID " + json.dumps(said))
""")


def run_operations(run_forked, place, *, install):
    done = run_forked(PROGRAM.format(install=install), env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(place)}, timeout=240)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("SAID "))[5:])


@needs_ejkernel
def test_unmodified_ejkernel_shares_through_our_store(run_forked, tmp_path):
    """Same results before and after `install()`; the second process tunes nothing; files are read both ways."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    before = run_operations(run_forked, theirs, install=False)
    # Files that ejkernel wrote are read by us: none of these operations is tuned again.
    first = run_operations(run_forked, theirs, install=True)
    assert first["digests"] == before["digests"]
    assert first["chains"] == 39
    assert first["counters"] == {"chosen_imported": 4}

    alone = run_operations(run_forked, ours, install=True)
    assert alone["digests"] == before["digests"]
    assert alone["counters"]["tuning"] == 3
    again = run_operations(run_forked, ours, install=True)
    assert again["digests"] == before["digests"]
    assert "tuning" not in again["counters"]
    assert again["counters"]["chosen_tuned"] == 3
    # And the reverse: what we wrote is in the files that ejkernel reads.
    names = ("flash-attn.json", "fused_cross_entropy.json", "fused_kl_divergence.json")
    assert sorted(path.name for path in ours.glob("*.json")) == list(names)
    done = run_forked(
        """
        import sys
        import ejkernel.modules.operations
        persistent = sys.modules["ejkernel.modules.operations.fused_kl_divergence"]._executor.chooser.persistent
        print(type(persistent).__module__, persistent.get(*next(iter(persistent._data)).rsplit("|", 2)))
        """,
        env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(ours)},
    )
    assert done.stdout.startswith("ejkernel.ops.config.persistent Namespace(")


POOLING = """
    import contextlib, json, sys
    import ejcache.autotune.ejkernel as drop_in
    from ejcache.autotune import Tuner, default_chooser, forward_only
    drop_in.install(tuner=Tuner(rounds=8, sample_seconds=0.0005))
    import jax.numpy as jnp
    from ejkernel.modules.operations.pooling import mean_pooling
    for mode in sys.argv[1:]:
        with forward_only() if mode == "forward" else contextlib.nullcontext():
            mean_pooling(jnp.ones((1, 32, 2, 16)), chunk_size=16)
    print(json.dumps([[e.source, e.key.call["mode"]] for e in default_chooser().events if e.name == "chosen"]))
"""


@needs_ejkernel
def test_what_we_wrote_into_ejkernels_file_answers_no_other_call(run_forked, place):
    """ejkernel's key has neither mode nor limits: a winner of ours that is filed under it serves its own call."""
    forward, both = ["tuned", "forward"], ["tuned", "forward and backward"]
    chosen = [json.loads(run_forked(POOLING, *modes).stdout) for modes in (["forward"], ["both", "forward"], ["both"])]
    assert chosen == [[forward], [both, forward], [both]]
    before = (place / "pooling.json").read_bytes()
    for calls in ([forward, both], [forward, both]):
        done = run_forked(POOLING, "forward", "both", env={"EJKERNEL_TRITON_SMEM_LIMIT": "50000"})
        assert json.loads(done.stdout) == calls
    assert (place / "pooling.json").read_bytes() == before
    assert len(list(AutotuneStore(str(place), seeds=()).records())) == 4

    # In one process, too, and an entry that ejkernel itself wrote still counts.
    other = place / "other"
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(other)}
    assert json.loads(run_forked(POOLING, "forward", "both", "forward", env=env).stdout)[:2] == [forward, both]
    shutil.rmtree(other / "autotune")
    assert json.loads(run_forked(POOLING, "both", env=env).stdout) == [["imported", "forward and backward"]]


@needs_ejkernel
def test_import_of_ejkernel_survives_a_damaged_file(run_forked, place):
    """Installed first, a file that is no JSON does not end the import, which it does without."""
    write(place / "flash-attn.json", b'{"cut": ')
    program = "{}import ejkernel.modules.operations as o; print('imported')"
    install = "import ejcache.autotune.ejkernel as d; d.install(); "
    assert run_forked(program.format(""), check=False).returncode != 0
    assert run_forked(program.format(install)).stdout.strip() == "imported"


@needs_ejkernel
def test_policies_overrides_and_uninstall(run_forked, place):
    """Overrides go first and are not stored, guesses are not stored, and ejkernel's chain comes back."""
    done = run_forked(
        """
        import json, os, sys
        import ejkernel.modules.operations as o
        from ejkernel.ops.config.selection import ConfigSelectorChain
        from ejkernel.ops import PersistentCache as theirs
        import ejcache.autotune.ejkernel as drop_in
        from ejcache.autotune import default_chooser
        original = ConfigSelectorChain.choose
        assert drop_in.install() == 39 and drop_in.install() == 39
        import jax, jax.numpy as jnp
        from ejkernel.ops import overlay_cache
        from ejkernel.modules.operations.configs import FusedCrossEntropyConfig as Config
        m = sys.modules["ejkernel.modules.operations.fused_cross_entropy"]
        x, t = jnp.ones((8, 16)), jnp.zeros((8,), jnp.int32)
        heard = []
        m._executor.chooser.on_event = lambda event, **data: "cfg" in data and heard.append((event, data["cfg"]))
        os.environ["EJKERNEL_AUTOTUNE_POLICY"] = "heuristics"
        o.fused_cross_entropy(x, t, cfg=Config(block_v=7))
        o.fused_cross_entropy(x, t)
        print(json.dumps([[event, cfg.block_v] for event, cfg in heard]))
        print([f.record for f in default_chooser().store.records()])
        drop_in.uninstall()
        assert ConfigSelectorChain.choose is original
        from ejkernel.ops import PersistentCache
        assert PersistentCache is theirs
        o.fused_cross_entropy(x, t)
        """
    )
    events, records = done.stdout.splitlines()
    (override, guess) = json.loads(events)
    assert override == ["override", 7]
    assert guess[0] == "heuristics"
    assert guess[1] != 7
    assert records == "[]"


def test_lazy_objects_of_other_libraries_are_left_alone(monkeypatch):
    """Looking for executors asks nothing of what other modules hold, which might load or refuse to."""

    class Lazy:
        @property
        def __class__(self):
            raise RuntimeError("settings are not configured")

    class LazyModule(types.ModuleType):
        def __getattribute__(self, name):
            raise RuntimeError(f"{name} would be loaded")

    plain = types.ModuleType("some_framework")
    plain.settings, plain.file = Lazy(), OperationFile("/nonexistent/op.json")
    monkeypatch.setitem(sys.modules, "some_framework", plain)
    monkeypatch.setitem(sys.modules, "some_lazy_module", LazyModule("some_lazy_module"))
    assert ("some_framework:file", plain.file) in held_in_modules(OperationFile)


@needs_ejkernel
def test_recorded_operations_are_tuned_later(run_forked, place):
    """EJKERNEL_OPS_RECORD=1 writes the calls down, and `ejcache tune` tunes them in another process."""
    run_forked(
        """
        import ejcache.autotune.ejkernel as drop_in
        drop_in.install()
        import jax, jax.numpy as jnp
        import ejkernel.modules.operations as o
        o.fused_cross_entropy(jnp.ones((8, 16)), jnp.zeros((8,), jnp.int32))
        x = jnp.ones((1, 16, 1, 8))
        jax.jit(lambda x: o.flash_attention(x, x, x))(x)
        """,
        env={"EJKERNEL_OPS_RECORD": "1", "EJKERNEL_AUTOTUNE_POLICY": "heuristics"},
    )
    assert len(list((place / "autotune-recorded").rglob("*.json"))) == 2
    run = ["tuned", "tune", "--json", "--module", "ejkernel.modules.operations"]
    done = run_forked(f"from ejcache.cli.main import main; main({run})", timeout=240)
    said = json.loads(done.stdout)
    assert (said["tuned"], said["failures"]) == (2, 0)
    again = json.loads(run_forked(f"from ejcache.cli.main import main; main({run})").stdout)
    assert (again["tuned"], again["already"]) == (0, 2)


@needs_ejkernel
def test_operations_are_tuned_before_the_job(run_forked, place):
    """`ejcache.autotune.tune` finds ejkernel's operations in a function that is only traced, and tunes them."""
    done = run_forked(
        """
        import ejcache.autotune.ejkernel as drop_in
        drop_in.install()
        import jax, jax.numpy as jnp
        import ejkernel.modules.operations as o
        from ejcache import autotune
        stand_ins = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.int32)
        for call in autotune.tune(jax.jit(lambda x, y: o.fused_cross_entropy(x, y)), *stand_ins):
            print(call.operation, call.outcome, call.problem)
        o.fused_cross_entropy(jnp.ones((8, 16)), jnp.zeros((8,), jnp.int32))
        print(autotune.default_chooser().counters["tuning"])
        """,
        timeout=240,
    )
    assert done.stdout.splitlines()[-2:] == ["fused_cross_entropy tuned ", "0"]


@needs_ejkernel
def test_unmodified_ejkernel_shares_through_a_bucket(run_forked, tmp_path):
    """Two hosts with nothing in common but a gs:// URL: the second one tunes nothing."""
    from buckets import GcsServerProcess

    program = """
        import json
        import ejcache.autotune.ejkernel as drop_in
        drop_in.install()
        import jax.numpy as jnp
        import ejkernel.modules.operations as o
        from ejcache.autotune import default_chooser
        o.fused_cross_entropy(jnp.ones((8, 16)), jnp.zeros((8,), jnp.int32))
        print(json.dumps(default_chooser().counters))
    """
    counters = []
    with GcsServerProcess() as server:
        for host in ("one", "two"):
            home = tmp_path / host
            home.mkdir()
            env = {
                "EJKERNEL_PERSISTENT_CACHE_DIR": "gs://bucket/tuned",
                "STORAGE_EMULATOR_HOST": server.url,
                "HOME": str(home),
                "XDG_CACHE_HOME": str(home / ".cache"),
            }
            done = run_forked(program, env=env, cwd=home)
            counters.append(json.loads(done.stdout))
            assert [path.name for path in home.iterdir() if path.name != ".cache"] == []
    assert counters[0]["tuning"] == 1
    assert counters[1] == {"chosen_tuned": 1}

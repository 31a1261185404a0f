"""Each reason for a miss, provoked in a real program, and the sentence that a person reads of it."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import ejcache
from ejcache import entry
from ejcache.cli.main import app
from ejcache.explaining import Known, explain
from ejcache.keys.difference import Identity, differences, nearest
from ejcache.keys.key import is_side_key
from ejcache.misses import MissRecord, read_misses, record_miss
from ejcache.settings import state_directory


@pytest.fixture
def directory(tmp_path):
    yield str(tmp_path / "cache")
    ejcache.disable()
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture
def cache(directory):
    return ejcache.enable(directory, min_compile_seconds=0)


def train(x):
    return jax.numpy.sin(x) * 2


def compile_one(function=train, size=4):
    jax.clear_caches()
    return np.asarray(jax.jit(function)(np.ones(size, np.float32)))


def last_miss():
    return next(read_misses())


def sentence(directory):
    with ejcache.open_store(directory, read_only=True) as store:
        return explain(last_miss(), Known(store)).sentence


def entry_of(store, name="jit_train"):
    return next(i.key for i in store.entries() if not is_side_key(i.key) and i.key.startswith(name))


def test_nothing_of_that_name_is_stored(cache, directory):
    """The first compilation of a function: new here, or evicted."""
    compile_one()

    assert sentence(directory) == (
        "jit_train was compiled: no entry is stored under its key, nor another entry of a function of this name: "
        "it is new here, or was evicted"
    )


def test_other_arguments(cache, directory):
    """The shapes that changed are named, from what to what."""
    compile_one()
    compile_one(size=8)

    assert "arguments: (tensor<4xf32>) -> tensor<4xf32> → (tensor<8xf32>) -> tensor<8xf32>" in sentence(directory)


def test_another_program_text(cache, directory):
    """A unified diff of the two modules shows the line that changed."""
    compile_one()

    def changed(x):
        return jax.numpy.cos(x) * 2

    changed.__name__ = changed.__qualname__ = "train"
    compile_one(changed)

    with ejcache.open_store(directory, read_only=True) as store:
        explanation = explain(last_miss(), Known(store))
    assert "the program's text differs" in explanation.sentence
    assert "-    %0 = stablehlo.sine" in explanation.diff
    assert "+    %0 = stablehlo.cosine" in explanation.diff


def test_no_text_is_kept_when_switched_off(directory):
    """`keep_module_text=False`: the miss is still explained, without a diff, and no side object is stored."""
    ejcache.enable(directory, min_compile_seconds=0, keep_module_text=False)
    compile_one()
    compile_one(size=8)

    with ejcache.open_store(directory, read_only=True) as store:
        explanation = explain(last_miss(), Known(store))
        assert not [i for i in store.entries() if is_side_key(i.key)]
    assert "arguments" in explanation.sentence
    assert explanation.diff == ""


def test_another_namespace(cache, directory, monkeypatch):
    """The salt that changed is named."""
    compile_one()
    monkeypatch.setenv("EJCACHE_NAMESPACE", "second")
    compile_one()

    assert "EJCACHE_NAMESPACE: (none) → second" in sentence(directory)


def test_a_flag_that_changed(run_python, directory):
    """An XLA flag in the environment: the flag is named, not only 'options'."""
    code = f"""
        import ejcache, jax
        ejcache.enable({directory!r}, min_compile_seconds=0)
        jax.jit(lambda x: x * 3)(1.0)
    """
    run_python(code)
    run_python(code, env={"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"})

    assert "environment variables: + XLA_FLAGS=--xla_cpu_enable_fast_math=true" in sentence(directory)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(lambda data: data[:-1], "its entry was damaged", id="corrupt"),
        pytest.param(
            lambda data: entry.encode(entry.Header(key="another"), b"x"),
            "answered with another program's",
            id="foreign",
        ),
        pytest.param(
            lambda data: entry.encode(entry.decode(data).header, b"nonsense" * 99),
            "XLA would not load it",
            id="rejected",
        ),
    ],
)
def test_an_entry_that_could_not_be_used(damage, words, cache, directory):
    """Damaged, somebody else's, or not for this host: each says so."""
    compile_one()
    with ejcache.open_store(directory) as store:
        key = entry_of(store)
        store.replace(key, damage(store.peek(key)))
    compile_one()

    assert words in sentence(directory)


def test_an_entry_of_a_later_version(cache, directory):
    """It is left alone, and the sentence says that this version cannot read it."""
    import hashlib

    compile_one()
    with ejcache.open_store(directory) as store:
        key = entry_of(store)
        later = b"EJC2" + store.peek(key)[4:-32]
        later += hashlib.sha256(later).digest()
        store.replace(key, later)
        compile_one()

        assert store.peek(key) == later
    assert "of a format that this version of ejcache does not read" in sentence(directory)


def test_forced(cache, directory, monkeypatch):
    """EASYDEL_RECOMPILE_FORCE is named."""
    compile_one()
    monkeypatch.setenv("EASYDEL_RECOMPILE_FORCE", "1")
    compile_one()

    assert "EASYDEL_RECOMPILE_FORCE" in sentence(directory)


def test_checked(directory):
    """A hit that was recompiled to check it is no unexplained miss."""
    cache = ejcache.enable(directory, min_compile_seconds=0, check_one_in=1)
    compile_one()
    compile_one()

    assert cache.stats().misses_by_reason == {"absent": 1, "checked": 1}


def test_storage_trouble(tmp_path):
    """A place that cannot be opened: the reason is the storage."""
    place = tmp_path / "file"
    place.write_text("mine")
    ejcache.enable(str(place), min_compile_seconds=0)
    compile_one()
    ejcache.disable()

    record = last_miss()
    assert (record.reason, record.outcome) == ("error", "error")
    assert "could not be read" in explain(record, Known(ejcache.open_store("memory://none"))).sentence


@pytest.mark.parametrize(
    ("settings", "environment", "words"),
    [
        pytest.param({"min_compile_seconds": 60}, {}, "less than the minimum compile time", id="quick"),
        pytest.param({"min_entry_size": 10**8}, {}, "below the minimum entry size", id="small"),
        pytest.param({"max_size": 500}, {}, "larger than the whole limit", id="large"),
        pytest.param({}, {"EJCACHE_READ_ONLY": "1"}, "the cache is read-only", id="read-only"),
    ],
)
def test_why_it_was_not_stored_either(settings, environment, words, directory, monkeypatch):
    """A compilation that is repeated at every start because it is never stored says why."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ejcache.enable(directory, **{"min_compile_seconds": 0, **settings})
    compile_one()
    jax.config.update("jax_compilation_cache_max_size", -1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    ejcache.disable()

    result = CliRunner().invoke(app, ["why", "--dir", directory])

    assert result.exit_code == 0
    assert words in result.output


def test_custom_partitioning_is_bypassed_loudly(run_python, directory):
    """No key holds a pointer: compiled without the cache, one warning, counted, and `why` knows; the flag overrides."""
    code = f"""
        import ejcache, jax, json, numpy as np
        from jax.experimental.custom_partitioning import custom_partitioning
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        cache = ejcache.enable({directory!r}, min_compile_seconds=0)

        @custom_partitioning
        def doubled(x):
            return x * 2

        doubled.def_partition(
            infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
            partition=lambda mesh, args, result: (mesh, lambda x: x * 2, args[0].sharding, (args[0].sharding,)),
            sharding_rule="i -> i",
        )
        x = jax.device_put(np.ones(4, np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("a",)), P("a")))
        for _ in range(2):
            jax.clear_caches()
            assert np.asarray(jax.jit(doubled)(x)).tolist() == [2.0] * 4
        print(json.dumps(cache.stats().to_dict()))
    """
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    finished = run_python(code, env=env)

    stats = json.loads(finished.stdout)
    assert (stats["skipped"], stats["requests"], stats["stores"]) == ({"partitioning": 2}, 0, 0)
    assert finished.stderr.count("uses custom_partitioning") == 1
    assert "has no identity outside the process" in sentence(directory)

    overridden = run_python(code, env={**env, "JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY": "1"})
    assert json.loads(overridden.stdout)["stores"] == 1


def test_the_flag_logs_the_explanation(cache, caplog):
    """`jax_explain_cache_misses` says it where the program runs."""
    jax.config.update("jax_explain_cache_misses", True)
    try:
        with caplog.at_level(logging.WARNING, logger="ejcache"):
            compile_one()
            compile_one(size=8)
    finally:
        jax.config.update("jax_explain_cache_misses", False)

    said = [r.getMessage() for r in caplog.records if r.name == "ejcache"]
    assert any("new here, or was evicted" in line for line in said)
    assert any("arguments:" in line and "stored" in line for line in said)


def test_why_on_the_command_line(cache, directory):
    """By name, by key, the last ones, as a page and as JSON; and an unknown name is exit status 1."""
    compile_one()
    compile_one(size=8)
    runner = CliRunner()

    by_name = runner.invoke(app, ["why", "train", "--dir", directory])
    assert by_name.exit_code == 0
    assert "arguments" in by_name.output
    as_json = json.loads(runner.invoke(app, ["why", "--last", "2", "--json", "--dir", directory]).output)
    assert [r["name"] for r in as_json] == ["jit_train", "jit_train"]
    assert as_json[0]["differences"][0]["component"] == "signature"
    key = as_json[1]["key"]
    assert key in runner.invoke(app, ["why", key, "--dir", directory]).output
    assert runner.invoke(app, ["why", "nobody", "--dir", directory]).exit_code == 1


def test_why_is_about_one_cache(cache, directory, tmp_path, monkeypatch):
    """With --dir, misses of that cache only; without, those of any, each compared with the entries of its own."""
    compile_one()
    compile_one(size=8)
    other = ejcache.enable(str(tmp_path / "other"), min_compile_seconds=0)
    compile_one(size=16)
    assert other.stats().misses == 1
    monkeypatch.chdir(tmp_path)

    def why(*arguments):
        return json.loads(CliRunner().invoke(app, ["why", "--json", *arguments]).output)

    (there,) = why("--dir", "other", "--last", "5")
    assert (there["url"], there["nearest_key"]) == (other.url, None)
    (here,) = why("train", "--dir", directory)
    assert here["url"] == directory
    assert here["differences"][0]["component"] == "signature"
    found = why("--last", "3")
    assert [each["url"] for each in found] == [other.url, directory, directory]
    assert [each["nearest_key"] is None for each in found] == [True, False, True]
    assert directory in CliRunner().invoke(app, ["why", "train", "--dir", directory]).output


def test_why_takes_a_full_name_before_its_beginning(tmp_path):
    """A later miss of `train_step` is not the answer about `train`."""
    for number, name in enumerate(("jit_train", "jit_train_step")):
        record_miss(
            MissRecord(
                time=number, url="u", reason="absent", outcome="stored", compile_seconds=0, key=f"{name}-k", name=name
            )
        )
    for what, name in (("jit_train", "jit_train"), ("train", "jit_train"), ("jit_train_", "jit_train_step")):
        assert json.loads(CliRunner().invoke(app, ["why", what, "--json"]).output)[0]["name"] == name


def test_why_of_an_entry_that_others_made(cache, directory, monkeypatch, tmp_path):
    """On a host that missed nothing: an entry is compared with the one of its function stored before it."""
    compile_one()
    compile_one(size=8)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-host"))

    result = CliRunner().invoke(app, ["why", "train", "--dir", directory])

    assert result.exit_code == 0
    assert "arguments" in result.output


def test_the_log_survives_damage_and_stays_small(tmp_path):
    """Lines that are no records are passed over; two files of 2 MB at most."""
    for number in range(1500):
        record_miss(
            MissRecord(
                time=number, url="u", reason="absent", outcome="stored", compile_seconds=0, key="k", name="n" * 2000
            )
        )
    log = state_directory() / "misses.jsonl"
    with log.open("a") as file:
        file.write('not json\n{"unknown": 1}\n')

    records = list(read_misses())

    assert records[0].time == 1499
    assert sum(path.stat().st_size for path in log.parent.glob("misses*")) < 4_200_000


def test_a_log_that_another_process_has_moved_aside(monkeypatch):
    """Of two processes that find the log full one moves it; the other one's fresh log stays in its place."""
    record = MissRecord(time=1, url="u", reason="absent", outcome="stored", compile_seconds=0, key="k", name="n")
    record_miss(record)
    log = state_directory() / "misses.jsonl"
    log.write_bytes(log.read_bytes() + b"{}\n" * 700_000)
    stat = os.fstat

    def stat_and_lose(descriptor):
        patched.undo()
        found = stat(descriptor)
        record_miss(replace(record, name="other"))
        record_miss(replace(record, name="fresh"))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", stat_and_lose)
        record_miss(replace(record, name="mine"))

    assert [r.name for r in read_misses()] == ["fresh", "other", "mine", "n"]


def test_a_reason_of_a_later_version(directory):
    """The log is shared with other versions; a reason that this one does not know is given as it stands."""
    record_miss(
        MissRecord(time=1, url="u", reason="someday", outcome="stored", compile_seconds=0, key="k", name="jit_f")
    )
    ejcache.open_store(directory).close()

    assert sentence(directory) == "jit_f was compiled: someday"


def identity(key="k", **components):
    details = {name: value for name, value in components.items() if name != "computation"}
    return Identity(key, "jit_f", {"computation": "c", **components}, details, created=1.0)


def test_the_nearest_entry_differs_least():
    """One flag apart is nearer than another program."""
    wanted = identity("k", arguments="--xla_a", jaxlib="1")
    flag = identity("flag", arguments="--xla_b", jaxlib="1")
    program = identity("program", arguments="--xla_a", jaxlib="1", computation="other")

    assert nearest(wanted, [program, flag]) is flag
    assert nearest(wanted, [wanted]) is None


def test_versions_are_named_from_what_to_what():
    """`jaxlib: 0.10.1 → 0.10.2`; libraries that changed under the same version are said to have."""
    old, new = identity(jaxlib="0.10.1", native_libraries="a"), identity("n", jaxlib="0.10.2", native_libraries="b")
    assert "jaxlib: 0.10.1 → 0.10.2" in [d.sentence for d in differences(old, new)]

    swapped = identity("s", jaxlib="0.10.1", native_libraries="b")
    (only,) = differences(old, swapped)
    assert "though jaxlib's version is the same" in only.sentence

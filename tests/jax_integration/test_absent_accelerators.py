"""The compilers of TPU and CUDA, without a device: entries, keys and reasons. Nothing here runs a program.

libtpu is for one process at a time, unless it is told that no process has a TPU.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from capabilities import needs
from helpers import ROOT
from other_host import pretend_other_host

from ejcache.jax_integration.devices.targets import DeviceTarget, document_path, encode
from ejcache.stores.documents import open_documents

PROGRAM = ROOT / "tests" / "programs" / "absent.py"
ALONE = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
GPU = "h200"
"""The target that `save_gpu` saves: one NVIDIA H200, from its topology as JAX 0.11.2 serialised it."""
saved = needs("saved topologies")
tpu = needs("libtpu")
cuda = needs("CUDA's plug-in")
TARGETS = [
    pytest.param("tpu:v5e:2x2", marks=tpu),
    pytest.param("tpu:v5p:4x4x4", marks=tpu),
    pytest.param("tpu:v6e:2x2", marks=tpu),
    pytest.param(GPU, marks=cuda),
]
EVERY = 20


def save_gpu(cache):
    gpu = DeviceTarget(GPU, "gpu", (ROOT / "tests" / "data" / "h200_topology.bin").read_bytes())
    with open_documents(str(cache)) as documents:
        documents.replace(document_path(GPU), encode(gpu))


@pytest.fixture
def absent(run_forked, tmp_path):
    """Runs `absent.py` with a cache of this test, in which the GPU is saved."""

    def absent(*arguments, cache="cache", **options):
        save_gpu(tmp_path / cache)
        options["env"] = {**ALONE, **options.get("env", {})}
        done = run_forked(PROGRAM, str(tmp_path / cache), *arguments, timeout=1800, **options)
        return json.loads(done.stdout.splitlines()[-1])

    return absent


@tpu
def test_three_programs_for_a_tpu_are_compiled_once(absent):
    """An elementwise one, a kernel of Pallas and a sum over chips; the second process compiles and loads nothing."""
    first = absent("tpu:v5e:2x2", "warm", "3")
    assert (set(first["outcomes"].values()), first["compiled"], len(first["entries"])) == ({"compiled"}, 3, 3)
    again = absent("tpu:v5e:2x2", "warm", "3")
    assert (set(again["outcomes"].values()), again["compiled"], again["loads"]) == ({"hit"}, 0, 0)
    assert again["entries"] == first["entries"] == sorted(again["keys"])


@pytest.mark.soak
@pytest.mark.parametrize("target", TARGETS)
def test_each_program_is_compiled_once_and_never_loaded(absent, target, run_forked, tmp_path):
    """By two processes in turns, and by two at once; the entries are whole."""
    first = absent(target, "warm")
    assert set(first["outcomes"].values()) == {"compiled"}
    assert (len(first["outcomes"]), len(first["entries"])) == (EVERY, EVERY)
    again = absent(target, "warm")
    assert (set(again["outcomes"].values()), again["compiled"], again["loads"]) == ({"hit"}, 0, 0)
    assert again["entries"] == first["entries"]
    with ThreadPoolExecutor() as threads:
        both = list(threads.map(lambda _: absent(target, "warm", cache="both"), range(2)))
    assert sum(list(each["outcomes"].values()).count("compiled") for each in both) == EVERY
    assert len(absent(target, "warm", cache="both")["entries"]) == EVERY
    assert [each["loads"] for each in both] == [0, 0]
    verify = "import sys, ejcache.cli.main; sys.exit(ejcache.cli.main.main())"
    assert run_forked(verify, "verify", "--dir", str(tmp_path / "cache")).returncode == 0


@pytest.mark.soak
@saved
@tpu
def test_a_saved_topology_gives_the_keys_of_the_named_one(absent):
    """So what was compiled for a name is a hit for who has saved the devices, and the reverse."""
    target = "tpu:v5e:2x2"
    named = absent(target, "keys", "3")["keys"]
    absent(target, "save")
    assert absent("copy", "keys", "3")["keys"] == named


@pytest.mark.soak
@pytest.mark.parametrize("target", [TARGETS[0], TARGETS[-1]])
def test_the_host_that_compiles_is_not_in_the_key(absent, target, tmp_path):
    """Another CPU, core count, user, directory, other plug-ins and other packages of NVIDIA's give the same keys."""
    here = absent(target, "keys", "3")["keys"]
    (tmp_path / "there" / "libneuronxla").mkdir(parents=True)
    (tmp_path / "there" / "libneuronxla" / "plugin.so").write_text("another compiler")
    (tmp_path / "there" / "libneuronxla" / "__init__.py").touch()
    for name in ("nvidia_nccl_cu12-9.9", *(["triton-9.9", "nvidia_cudnn_cu12-9.9"] if "tpu" in target else [])):
        package, version = name.split("-")
        (tmp_path / "there" / f"{name}.dist-info").mkdir()
        (tmp_path / "there" / f"{name}.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
    pretend_other_host(tmp_path / "there")
    home = str(tmp_path / "there")
    env = {"PYTHONPATH": home, "HOME": home, "XDG_CACHE_HOME": home, "USER": "builder"}
    assert absent(target, "keys", "3", env=env, cwd=tmp_path / "there")["keys"] == here


@pytest.mark.soak
@tpu
def test_what_a_tpu_program_depends_on_is_in_the_key(absent):
    """The chip, the shape of the slice, the chips of a host, and flags of libtpu."""
    changes = [
        ("tpu:v5e:2x2", {}),
        ("tpu:v6e:2x2", {}),
        ("tpu:v5e:2x4", {}),
        ("tpu:v5e:2x4:2x4", {}),
        ("tpu:v5e:2x2", {"LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=8192"}),
        ("tpu:v5e:2x2", {"XLA_FLAGS": "--xla_allow_excess_precision=false"}),
    ]
    keys = [absent(target, "keys", "1", env=env)["keys"][0] for target, env in changes]
    assert len(set(keys)) == len(changes)


@cuda
def test_what_a_gpu_program_depends_on_is_in_the_key(absent):
    """Flags of XLA; that model, clock and number of hosts do is in `tests/keys/test_keys_elsewhere.py`."""
    changed = {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true"}
    assert absent(GPU, "keys", "1")["keys"] != absent(GPU, "keys", "1", env=changed)["keys"]


@pytest.mark.soak
@cuda
def test_without_a_gpu_a_program_is_the_variant_that_a_tuned_one_replaces(absent):
    """XLA measures nothing here, so no entry says that it was tuned."""
    found = absent(GPU, "warm", "3")
    assert all("-gpu-cross-" in key for key in found["entries"])


@pytest.mark.soak
@cuda
def test_a_program_for_a_gpu_in_which_nothing_is_measured_is_plain(absent):
    """XLA itself says whether it lacks a measurement: of the product, it does."""
    found = absent(GPU, "measured", env={"XLA_FLAGS": "--xla_gpu_autotune_level=0"})
    assert found["outcomes"] == ["compiled", "compiled"]
    assert sorted(key.split("-")[2] for key in found["entries"]) == ["cross", "plain"]


@pytest.mark.soak
@tpu
def test_why_names_a_flag_of_libtpu_that_has_changed(absent, run_forked, tmp_path):
    """Compiled twice with different flags, the second is a miss for `variables`."""
    absent("tpu:v5e:2x2", "warm", "1")
    changed = {"LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=8192"}
    absent("tpu:v5e:2x2", "warm", "1", env=changed)
    command = "import sys, ejcache.cli.main; sys.exit(ejcache.cli.main.main())"
    said = run_forked(command, "why", "_lambda", "--dir", str(tmp_path / "cache")).stdout
    assert "xla_tpu_scoped_vmem_limit_kib" in said


@pytest.mark.soak
@pytest.mark.parametrize("target", [TARGETS[0], TARGETS[-1]])
def test_a_profile_in_the_options_is_in_the_key(run_forked, tmp_path, target):
    """`compiler_options={"fdo_profile": …}`, without PGLE, for absent devices as for others."""
    code = """
        import sys, jax, ejcache
        ejcache.enable(sys.argv[1])
        with ejcache.target(sys.argv[2]) as devices:
            shape = jax.ShapeDtypeStruct((8,), "float32", sharding=jax.sharding.SingleDeviceSharding(devices[0]))
            def key(**options):
                return ejcache.key_of(jax.jit(lambda x: x + 1, compiler_options=options).lower(shape))
            keys = [key(), key(fdo_profile=b"one"), key(fdo_profile=b"two")]
        print(len(set(keys)))
    """
    save_gpu(tmp_path / "cache")
    assert run_forked(code, str(tmp_path / "cache"), target, env=ALONE).stdout.split()[-1] == "3"

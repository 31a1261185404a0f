"""`ejcache target`, and `ejcache warm --target`: programs compiled elsewhere are hits where the devices are."""

from __future__ import annotations

import functools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from capabilities import needs
from cli_helpers import ejcache
from forking import ForkedWithChildren, ForkedWithFrameworks
from helpers import ROOT
from jax.experimental import topologies
from jobs import run_job
from other_host import pretend_other_host
from pod import free_port

from ejcache.errors import EjcacheError, EntryCorruptError, EntryVersionError, UsageError
from ejcache.jax_integration.devices.targets import (
    DeviceTarget,
    decode,
    encode,
    environment_for,
    gathered_topology,
    save_target,
)
from ejcache.keys.environment_variables import compile_variables
from ejcache.keys.xla_messages import edit, join, split
from ejcache.settings.environment import child_environment

PROGRAMS = ROOT / "tests" / "programs" / "elsewhere.py"
COMMAND = "import sys, ejcache.cli.main; sys.exit(ejcache.cli.main.main())"
FAST_MATH = "--xla_cpu_enable_fast_math=true"
saved = needs("saved topologies")


@pytest.fixture
def command(run_python):
    """Runs `ejcache` with these arguments."""

    def command(*arguments, **options):
        return run_python(COMMAND, *arguments, start=ForkedWithChildren, **options)

    return command


def flags(devices):
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}


@pytest.fixture
def other(tmp_path):
    """The environment of another user on another host: another CPU, as it says, one core, and flags of its own."""
    pretend_other_host(tmp_path / "elsewhere")
    home = str(tmp_path / "elsewhere" / "home")
    return {
        "XDG_CACHE_HOME": home,
        "HOME": home,
        "USER": "builder",
        "PYTHONPATH": str(tmp_path / "elsewhere"),
        "XLA_FLAGS": FAST_MATH,
    }


def test_the_other_host_is_another_one(command, other):
    """What the tests below compile there is of another CPU, also in a fork, which has imported ejcache before."""
    here, there = (command("key", "--json", env=env) for env in ({}, other))
    assert json.loads(here.stdout)["components"]["cpu"] != json.loads(there.stdout)["components"]["cpu"]


@saved
@pytest.mark.soak
@pytest.mark.parametrize(
    ("devices", "x64", "flag_there", "flag_here"),
    [
        pytest.param(1, "0", FAST_MATH, "", id="one device"),
        pytest.param(8, "1", "", FAST_MATH, id="eight devices"),
    ],
)
def test_what_was_compiled_for_a_saved_target_is_a_hit_there(
    command, run_forked, tmp_path, other, devices, x64, flag_there, flag_here
):
    """On another host, in another directory, by another user; nothing compiles there, and the results are equal.

    The flags of the target count, and not those of the processes that compile for it.
    """
    cache = str(tmp_path / "cache")
    here = {"XLA_FLAGS": f"{flags(devices)['XLA_FLAGS']} {flag_there}", "JAX_ENABLE_X64": x64}
    command("target", "save", "there", "--dir", cache, env=here)
    other |= {"JAX_ENABLE_X64": x64, "XLA_FLAGS": flag_here}
    warming = ("warm", f"{PROGRAMS}:warm", "--target", "there", "--dir", cache, "--min-compile-seconds", "0", "--json")
    first = json.loads(command(*warming, cwd=tmp_path / "elsewhere", env=other).stdout)
    assert (first["compiled"], first["failures"]) == (len(first["programs"]), 0)
    assert all(program["size"] > 0 for program in first["programs"])
    if devices == 1:
        again = json.loads(command(*warming, cwd=tmp_path / "elsewhere", env=other).stdout)
        assert (again["hits"], again["compiled"]) == (len(first["programs"]), 0)
    ran = json.loads(run_forked(PROGRAMS, "all", cache, env=here).stdout)
    assert ran["results"] == ran["plain"]
    assert ran["compiled"] == []
    assert ran["hits"] >= len(first["programs"]) > 10


@saved
def test_every_rank_of_a_job_hits_what_was_compiled_for_all_of_them(command, tmp_path, other):
    """The target is gathered from the ranks; one process without them compiles programs that span both."""
    cache = str(tmp_path / "cache")
    # As Slurm starts two tasks of a job; the port of the first one comes from the job's number.
    slurm = {"SLURM_JOB_ID": str(free_port()), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_STEP_NUM_TASKS": "2"}
    tasks = [{**flags(2), **slurm, "SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in "01"]
    with ThreadPoolExecutor() as threads:
        save = functools.partial(command, "target", "save", "pod", "--distributed", "--dir", cache)
        said = [done.stdout for done in threads.map(lambda task: save(env=task | {"SLURM_NTASKS": "2"}), tasks)]
    assert said == ["pod: 4 x cpu of 2 processes\n"] * 2
    warming = ("warm", f"{PROGRAMS}:warm_few", "--target", "pod", "--dir", cache, "--min-compile-seconds", "0")
    first = json.loads(command(*warming, "--json", cwd=tmp_path / "elsewhere", env=other).stdout)
    assert (first["compiled"], first["failures"]) == (len(first["programs"]), 0)
    _, ran = run_job(PROGRAMS, "few", cache, devices=2)
    assert [found["compiled"] for found in ran] == [[], []]
    assert [found["results"] for found in ran] == [found["plain"] for found in ran]


def differing(done):
    """The components in which a target differs from what is here, by `diff --json`."""
    return [row["component"] for row in done.json["components"] if row["target"] != row["here"]]


@saved
def test_targets_are_listed_shown_and_compared(command, tmp_path, monkeypatch):
    """`diff` names the component that differs, and says with its exit status that one does."""
    cache = ("--dir", str(tmp_path / "cache"))
    command("target", "save", "pod", *cache, env=flags(2))
    assert ejcache("target", "ls", *cache).out == "pod: 2 x cpu of 1 process\n"
    shown = ejcache("target", "show", "pod", *cache, "--json").json
    assert (shown["devices"], shown["platform"]) == (2, "cpu")
    assert shown["created"] > 0
    assert "saved" not in shown
    done = ejcache("target", "diff", "pod", *cache, "--json")
    assert (done.status, done.json["agree"]) == (0, True)
    done = ejcache("target", "diff", "pod", *cache, "--devices", "--json")
    assert (done.status, differing(done)) == (1, ["devices"])
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    done = ejcache("target", "diff", "pod", *cache, "--json")
    assert (done.status, differing(done)) == (1, ["variables"])


@pytest.mark.parametrize(
    ("platform", "there", "here"),
    [
        ("cuda", {"TF_CUDNN_DETERMINISTIC": "1"}, {"NVIDIA_TF32_OVERRIDE": "0", "TRITON_F32_DEFAULT": "ieee"}),
        ("tpu", {"LIBTPU_INIT_ARGS": "--a=1"}, {"LIBTPU_INIT_ARGS": "--b=1"}),
        ("neuron", {}, {"NEURON_CC_FLAGS": "-O1", "NEURON_FSDP": "1", "LIBTPU_INIT_ARGS": "--b=1"}),
    ],
)
def test_what_compiles_for_a_saved_target_has_its_variables_only(monkeypatch, platform, there, here):
    """A variable of a key that only this process has would give programs keys that no job of the target asks for."""
    for name, value in ({"XLA_FLAGS": "--xla_dump_to=/x"} | here).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRITON_HOME", "/triton")
    target = DeviceTarget("pod", platform, variables=there, saved=1.0)
    child = child_environment(environment_for(target))
    assert compile_variables(platform, child) == there
    assert not (here.keys() | {"XLA_FLAGS"}) - there.keys() & child.keys()
    assert child["TRITON_HOME"] == "/triton"
    # A target that is known by its name alone has no variables: those of this process count.
    unsaved = child_environment(environment_for(target._replace(saved=0.0, variables={})))
    assert here.items() <= unsaved.items()


@saved
def test_a_callback_is_refused_in_one_sentence(command, tmp_path):
    """JAX does not compile one for devices that it does not have."""
    cache = ("--dir", str(tmp_path / "cache"))
    assert ejcache("target", "save", "one", *cache).status == 0
    (tmp_path / "calls.py").write_text(
        "import jax, ejcache\ndef main():\n"
        "    ejcache.warm(lambda x: jax.debug.print('{}', x), jax.ShapeDtypeStruct((), 'float32'))\n"
    )
    done = command("warm", "calls.py:main", "--target", "one", *cache, check=False)
    assert done.returncode == 1
    assert "calls Python functions of its process" in done.stdout


@saved
def test_a_target_that_no_program_could_be_compiled_for_is_not_saved(monkeypatch, tmp_path):
    """jaxlib 0.9 writes topologies, which its JAX cannot read."""
    monkeypatch.delattr(topologies.TopologyDescription, "deserialize")
    with pytest.raises(UsageError, match="this JAX cannot save"):
        save_target("v5p-128", str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_a_target_that_is_not_there_is_named(tmp_path):
    """The message says which names are accepted."""
    done = ejcache("target", "show", "nowhere", "--dir", tmp_path)
    assert done.status == 1
    assert "ejcache target save nowhere" in done.err
    done = ejcache("target", "show", "gpu:h100:8")
    assert (done.status, "ejcache target save NAME" in done.err) == (1, True)


def test_a_name_alone_has_no_compiler_to_compare(tmp_path):
    """A comparison of nothing is no agreement."""
    done = ejcache("target", "diff", "tpu:v5e:4x4", "--dir", str(tmp_path / "cache"))
    assert done.status == 2
    assert "--devices" in done.err


def test_documents_of_targets_are_read_back_and_others_refused():
    """What is no target, is damaged, or is of a later version raises an error of ours."""
    target = DeviceTarget("pod", "cpu", topology=b"\x00\xff", variables={"XLA_FLAGS": "--a\n--b"}, devices=4, saved=1.5)
    assert decode(encode(target)) == target
    for damaged in (b"", b"[]", b"{}", encode(target).replace(b"ejcache-target", b"other"), b"[" * 100000):
        with pytest.raises(EntryCorruptError):
            decode(damaged)
    with pytest.raises(EntryCorruptError):
        decode(encode(target).replace(b'"devices": 4', b'"devices": "4"'))
    with pytest.raises(EntryVersionError):
        decode(encode(target).replace(b'"version": 1', b'"version": 2'))


@saved
@pytest.mark.soak
def test_steps_of_four_frameworks_are_hits(run_python, tmp_path, other):
    """Their states come from `jax.eval_shape`, so that no array is made where they are compiled."""
    cache = str(tmp_path / "cache")
    training = PROGRAMS.with_name("training.py")
    run = functools.partial(run_python, start=ForkedWithFrameworks)
    run(COMMAND, "target", "save", "four", "--dir", cache, env=flags(4))
    warming = ("warm", f"{training}:warm", "--target", "four", "--dir", cache, "--min-compile-seconds", "0", "--json")
    warmed = json.loads(run(COMMAND, *warming, cwd=tmp_path / "elsewhere", env=other).stdout)
    names = {program["program"] for program in warmed["programs"]}
    assert (warmed["compiled"], len(names)) == (4, 4)
    found = json.loads(run(training, cache, env=flags(4)).stdout)
    assert names.isdisjoint(found["compiled"])
    plain = json.loads(run(training, str(tmp_path / "empty"), env=flags(4)).stdout)
    assert names <= set(plain["compiled"])
    assert found["losses"] == plain["losses"]


DIFFERENCES = {
    "jaxlib": {"jaxlib": "0.0.1"},
    "native_libraries": {"native_libraries": "another plug-in"},
    "platform_version": {"platform_version": "cuda 12080"},
    "variables": {"variables": {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}},
    "cpu": {"cpu": "another CPU"},
}


@saved
def test_what_a_target_differs_in_is_named(tmp_path):
    """Each change gives another key, so `diff` names it and exits with 1."""
    cache = ("--dir", tmp_path / "cache")
    assert ejcache("target", "save", "pod", *cache).status == 0
    assert ejcache("target", "diff", "pod", *cache, "--devices", "--json").json["agree"]
    (path,) = (tmp_path / "cache").rglob("pod.json")
    target = decode(path.read_bytes())
    for component, changes in DIFFERENCES.items():
        path.write_bytes(encode(target._replace(**changes)))
        done = ejcache("target", "diff", "pod", *cache, "--devices", "--json")
        assert (done.status, differing(done)) == (1, [component])


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_each_rank_of_an_accelerator_says_the_topology_of_all(platform):
    """It is taken from one of them, where those of CPUs are put together; ranks that disagree make no target."""
    real = (ROOT / "tests" / "data" / "h200_topology.bin").read_bytes()
    assert gathered_topology([real, real], platform) == real
    with pytest.raises(EjcacheError, match="different topologies"):
        gathered_topology([real, edit(real, (9, 2, 8, 1, 21), lambda units: join(split(units)[1:]))], platform)

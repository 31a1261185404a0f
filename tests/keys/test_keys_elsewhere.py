"""Keys describe the devices that run a program, not the host that compiles it."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ejcache.jax_integration.lowering import native_libraries
from ejcache.jax_integration.lowering.key import compiler_environment, device_layout
from ejcache.keys.accelerators import canonical_gpu_topology
from ejcache.keys.xla_messages import Field, edit, join, split


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a package with a native library, or a distribution of some version, into this test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("libtpu", "jax_cuda12_plugin"):
        # A real one that JAX has imported would be found before those of this test.
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(native_libraries, "state_directory", lambda: tmp_path / "state")

    def install(name, content="1"):
        if "==" in name:
            name, _, version = name.partition("==")
            (tmp_path / f"{name}-{version}.dist-info").mkdir()
            (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        else:
            package = tmp_path / name.replace(".", "/")
            package.mkdir(parents=True, exist_ok=True)
            (package / "plugin.so").write_text(content)
            (package / "__init__.py").touch()
        importlib.invalidate_caches()

    return install


def digest(platform):
    return native_libraries.native_libraries.__wrapped__(platform)


def test_plug_ins_of_other_platforms_do_not_count(installed):
    """Neither do the NVIDIA packages, Triton and Neuron's compiler, except where they compile."""
    for name in ("libtpu", "jax_plugins.xla_cuda12", "jax_plugins.something"):
        installed(name)
    before = {platform: digest(platform) for platform in ("cpu", "tpu", "cuda", "gpu", "neuron", "something")}
    steps = {
        # Of a platform that is not known, nobody knows what compiles for it.
        "jax_cuda12_plugin": {"cuda", "gpu", "something"},
        "nvidia-cudnn-cu12==9.1": {"cuda", "gpu", "something"},
        "nvidia-nccl-cu12==2.3": set(),
        "triton==3": {"something"},
        "neuronx-cc==2": {"neuron", "something"},
        "jax_plugins.xla_rocm7": {"gpu", "something"},
    }
    for name, concerned in steps.items():
        installed(name)
        after = {platform: digest(platform) for platform in before}
        assert {platform for platform in before if before[platform] != after[platform]} == concerned, name
        before = after


def test_the_versions_of_compilers_are_read_without_opening_a_file(installed, monkeypatch):
    """A GPU's machine may have hundreds of packages, and to parse their metadata takes tenths of a second."""
    installed("nvidia-cudnn-cu12==9.1")
    before = digest("cuda")
    monkeypatch.setattr(importlib.metadata, "distributions", None)
    assert digest("cuda") == before
    installed("nvidia_cublas==13.1.0.3")
    assert digest("cuda") != before


def test_the_content_of_the_platforms_own_plug_in_counts(installed):
    """And that of a plug-in that a variable names for it."""
    installed("libtpu")
    first = digest("tpu")
    installed("libtpu", content="22")
    assert digest("tpu") != first


def test_a_plug_in_that_a_variable_names_counts_for_its_platform(installed, tmp_path, monkeypatch):
    """`tpu:path` is TPU's; a path without a name may be anybody's."""
    library = tmp_path / "named.so"
    library.write_text("named")
    before = digest("tpu"), digest("cuda")
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"tpu:{library}")
    assert (digest("tpu") != before[0], digest("cuda") == before[1]) == (True, True)
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f":{library}")
    assert digest("cuda") != before[1]


def gpu_topology(*, clock=b"\x01\x00\x00\x00", hosts=b"\x01", host=b"x86_64"):
    device = join([Field(13, 5, clock)])
    gpus = join([Field(3, 2, b"NVIDIA H100"), Field(5, 0, hosts), Field(8, 2, join([Field(1, 2, device)]))])
    gpus += join([Field(9, 2, join([Field(1, 2, host)]))])
    inner = join([Field(1, 2, b"type.googleapis.com/xla.GpuTopologyProto"), Field(2, 2, gpus)])
    return join([Field(1, 0, b"\x07"), Field(2, 2, b"cuda"), Field(9, 2, inner)])


def test_the_host_beside_a_gpu_does_not_count_and_everything_else_does():
    """Two hosts of a fleet may have different CPUs; another clock or number of hosts is another machine."""
    plain = canonical_gpu_topology(gpu_topology())
    assert canonical_gpu_topology(gpu_topology(host=b"aarch64")) == plain
    assert canonical_gpu_topology(gpu_topology(clock=b"\x02\x00\x00\x00")) != plain
    assert canonical_gpu_topology(gpu_topology(hosts=b"\x02")) != plain


def test_the_order_of_the_maps_in_what_a_gpu_says_of_itself_does_not_count():
    """Each process writes the rates of a GPU's units in another order; keys that kept it were hit by no other process.

    The file is the topology of one NVIDIA H200 as JAX 0.11.2 with CUDA 13 serialises it.
    """
    real = (Path(__file__).parent.parent / "data" / "h200_topology.bin").read_bytes()
    rates = (9, 2, 8, 1, 21)

    def reordered(units):
        assert len(split(units)) == 16
        return join(reversed(split(units)))

    plain = canonical_gpu_topology(real)
    assert canonical_gpu_topology(edit(real, rates, reordered)) == plain
    assert canonical_gpu_topology(edit(real, rates, lambda units: join(split(units)[1:]))) != plain


class Gpu:
    device_kind = "NVIDIA H100"

    def __init__(self, process, number, *, slice_index):
        self.process_index, self.id, self.slice_index, self.coords = process, number, slice_index, [slice_index, 0]


def test_a_gpu_is_the_same_wherever_a_client_says_that_it_stands():
    """A client of absent GPUs says slice 0 of all of them; the topology holds the number of slices."""
    real = [Gpu(0, 0, slice_index=0), Gpu(1, 1, slice_index=1)]
    absent = [Gpu(0, 0, slice_index=0), Gpu(1, 1, slice_index=0)]
    assert device_layout(real, compiled_in=False) == device_layout(absent, compiled_in=False)
    assert device_layout(real) != device_layout(absent)


def test_what_jaxlib_puts_before_the_version_of_a_client_with_devices_does_not_count():
    """jaxlib 0.10 writes it before the version of a plug-in, and leaves it out if the client has no devices."""
    settings = SimpleNamespace(namespace="")

    def environment(version):
        return compiler_environment(SimpleNamespace(platform="tpu", platform_version=version, devices=list), settings)

    assert environment("PJRT C API\nTFRT TPU v5e") == environment("TFRT TPU v5e") != environment("TFRT TPU v6e")

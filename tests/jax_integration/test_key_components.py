"""What keys share is remembered only as long as nothing that it is made of has changed."""

from __future__ import annotations

import os
import sys

import jax
import pytest
from jax._src.lib import xla_client

import ejcache
from ejcache.jax_integration.lowering.key import (
    device_components,
    device_layout,
    environment_components,
    option_components,
)


def compile_options(**overrides):
    options = xla_client.CompileOptions()
    options.env_option_overrides = [*options.env_option_overrides, *overrides.items()]
    return options


def test_environment_and_arguments(monkeypatch):
    """A variable or an argument that changes between two programs changes the second one's components."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    first = environment_components("cpu")
    assert environment_components("cpu") is first
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true --xla_cpu_max_isa=AVX2")
    second = environment_components("cpu")
    assert second.settings == ("XLA_FLAGS=--xla_cpu_enable_fast_math=true\n--xla_cpu_max_isa=AVX2",)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--xla_cpu_max_isa=AVX"])
    third = environment_components("cpu")
    assert (third.variables, third.arguments) == (second.variables, "--xla_cpu_max_isa=AVX")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_something=1")
    assert environment_components("tpu").settings[0] == "LIBTPU_INIT_ARGS=--xla_tpu_something=1"
    assert environment_components("cpu") == third


def test_bytes_that_are_no_text(monkeypatch, tmp_path):
    """An argument that is not UTF-8 counts: the program has a key, and the same bytes find its entry again."""
    cache = ejcache.enable(tmp_path, min_compile_seconds=0)
    argv, counted = sys.argv, []
    for given in (b"\xff", b"\xff", b"\xfe"):
        monkeypatch.setattr(sys, "argv", [*argv, os.fsdecode(b"--xla_nothing_of_xla=" + given)])
        jax.clear_caches()
        jax.jit(lambda x: x * 2 + 1).lower(jax.ShapeDtypeStruct((3,), "float32")).compile()
        counted.append((cache.stats().hits, cache.stats().misses))
    assert counted == [(0, 1), (1, 1), (1, 2)]


def test_content_of_files(monkeypatch, tmp_path):
    """A file that a flag names is read for each key, because it may change."""
    named = tmp_path / "results.textproto"
    monkeypatch.setenv("XLA_FLAGS", f"--xla_gpu_load_autotune_results_from={named}")
    found = []
    for text in ("one", "two"):
        named.write_text(text)
        options = compile_options(xla_gpu_load_autotune_results_from=str(named))
        found.append(
            (environment_components("cpu").variables, option_components(options, profile_sentinel=None).overrides)
        )
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]
    flags = tmp_path / "flags"
    monkeypatch.setenv("XLA_FLAGS", str(flags))
    texts = []
    for text in ("--xla_cpu_max_isa=AVX", "--xla_cpu_max_isa=AVX2"):
        flags.write_text(text)
        texts.append(environment_components("cpu").variables)
    assert texts == ["XLA_FLAGS=--xla_cpu_max_isa=AVX", "XLA_FLAGS=--xla_cpu_max_isa=AVX2"]


@pytest.mark.parametrize("change", ["num_partitions", "override", "profile", "debug"])
def test_options(change):
    """Options that differ in anything that counts are read anew, and equal ones are not."""
    options, other = compile_options(), compile_options()
    plain = option_components(options, profile_sentinel=None)
    assert option_components(other, profile_sentinel=None) is plain
    if change == "num_partitions":
        other.num_partitions = 2
    elif change == "override":
        other.env_option_overrides = [("xla_cpu_max_isa", "AVX")]
    elif change == "profile":
        other.executable_build_options.fdo_profile = b"p"
    else:
        other.executable_build_options.debug_options.xla_cpu_enable_fast_math = True
    assert option_components(other, profile_sentinel=None) != plain
    assert option_components(options, profile_sentinel=None) is plain
    assert option_components(options, profile_sentinel=b"x").variant == "pgle"


def test_devices():
    """The same devices are described once, and devices of another client by themselves."""
    device = jax.devices()[0]
    first = device_components([device], device.client)
    assert device_components([device], device.client) is first
    assert first.layout == device_layout([device])
    assert first.is_one_process
    assert device_components([device], _OtherClient(device.client)) is not first


class _OtherClient:
    def __init__(self, client):
        self.platform = client.platform

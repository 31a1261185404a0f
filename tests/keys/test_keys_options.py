"""Compile options and topologies on the wire: what is left out, what is put in order, and that all else counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ejcache.keys import xla_messages
from ejcache.keys.xla_messages import (
    Field,
    canonical_options,
    canonical_topology,
    edit,
    join,
    places,
    split,
    without,
    without_cache_paths,
)

PROGRAM = """
    import sys
    from jaxlib import xla_client
    print(xla_client.CompileOptions().SerializeAsString().hex())
    topology = None
    if sys.argv[1:]:
        import jax
        from jax._src.lib import xla_client
        topology = xla_client.get_topology_for_devices(jax.devices())
    print(topology.serialize().hex() if hasattr(topology, "serialize") else "")
"""

DUMPS = """
    --xla_dump_to=/tmp/nowhere --xla_dump_hlo_module_re=x --xla_dump_hlo_pass_re=x --xla_dump_hlo_as_text
    --xla_dump_hlo_as_proto --xla_dump_hlo_as_dot --xla_dump_hlo_as_url --xla_dump_hlo_as_html --xla_dump_hlo_snapshots
    --xla_dump_include_timestamp --xla_dump_max_hlo_modules=3 --xla_dump_module_metadata
    --xla_dump_fusion_visualization --xla_dump_compress_protos --xla_dump_disable_metadata --xla_dump_hlo_pipeline_re=x
    --xla_dump_hlo_as_long_text --xla_dump_latency_hiding_schedule --xla_dump_enable_mlir_pretty_form=false
    --xla_gpu_dump_autotune_results_to=x --xla_dump_large_constants --xla_gpu_dump_autotune_logs_to=x
    --xla_gpu_kernel_cache_file=x --xla_gpu_per_fusion_autotune_cache_dir=x --xla_dump_full_hlo_config=false
    --xla_gpu_cuda_data_dir=/x --xla_force_host_platform_device_count=3 --xla_gpu_print_compilation_stats
    --xla_dump_emitter_re=x --xla_enable_scoped_logging_timers=false
"""
"""Flags of both supported ends of jaxlib; those that only the newer one has are with the unit tests below."""


def serialized(run_forked, flags, *arguments):
    finished = run_forked(PROGRAM, *arguments, env={"XLA_FLAGS": " ".join(flags.split())})
    options, topology = finished.stdout.split("\n")[:2]
    return bytes.fromhex(options), bytes.fromhex(topology)


def test_dump_and_cache_flags_leave_no_trace(run_forked):
    """All of them at once, in the options that jaxlib makes: the same bytes as with none; the raw ones differ."""
    plain, plain_topology = serialized(run_forked, "", "topology")
    dumping, topology = serialized(run_forked, DUMPS, "topology")

    assert dumping != plain
    assert canonical_options(dumping) == canonical_options(plain)
    if topology:
        assert topology != plain_topology
        assert canonical_topology(topology) == canonical_topology(plain_topology)
        assert b"+sse" in canonical_topology(topology) or b"+neon" in canonical_topology(topology)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(
            "--xla_disable_hlo_passes=a,b --xla_backend_extra_options=x=1,y=2",
            "--xla_backend_extra_options=y=2,x=1 --xla_disable_hlo_passes=b,a",
            True,
            id="order",
        ),
        pytest.param("--xla_disable_hlo_passes=a", "--xla_disable_hlo_passes=b", False, id="pass"),
        pytest.param("--xla_backend_extra_options=x=1", "--xla_backend_extra_options=x=2", False, id="extra-option"),
        pytest.param("", "--xla_cpu_enable_fast_math=true", False, id="fast-math"),
        pytest.param("", "--xla_cpu_max_isa=AVX2", False, id="isa"),
        pytest.param("", "--xla_backend_optimization_level=1", False, id="optimisation-level"),
    ],
)
def test_what_counts_and_what_does_not(one, other, same, run_forked):
    """Order does not count; every value that the compiler sees does."""
    first, second = (
        canonical_options(serialized(run_forked, one)[0]),
        canonical_options(serialized(run_forked, other)[0]),
    )

    assert (first == second) is same


fields = st.lists(
    st.one_of(
        st.builds(Field, st.integers(1, 5000), st.just(2), st.binary(max_size=40)),
        st.builds(Field, st.integers(1, 5000), st.just(5), st.binary(min_size=4, max_size=4)),
        st.builds(Field, st.integers(1, 5000), st.just(1), st.binary(min_size=8, max_size=8)),
        st.builds(Field, st.integers(1, 5000), st.just(0), st.sampled_from([b"\0", b"\x7f", b"\x80\x01"])),
    ),
    max_size=20,
)


@given(fields)
def test_a_message_is_taken_apart_and_put_together_again(made):
    """Every field survives, bytes and order."""
    assert split(join(made)) == made
    assert edit(join(made), (), lambda message: join(split(message))) == join(made)


@given(fields, st.integers(1, 5000))
def test_an_edit_leaves_all_else_as_it_was(made, number):
    """A message within the fields of one number is replaced, whatever stands beside it; or the fields are left out."""
    numbers = (number, *(field.number for field in made[:2]))
    assert without(join(made), numbers) == join(field for field in made if field.number not in numbers)
    longer = b"x" * 200
    for path in numbers:
        changed = [
            field._replace(value=longer + field.value) if field.number == path and field.kind == 2 else field
            for field in made
        ]
        assert edit(join(made), (path,), lambda value: longer + value) == join(changed)


def test_programs_with_other_arguments_share_what_was_read_of_their_debug_options(monkeypatch):
    """The largest part of the options is taken apart once, though each number of arguments makes other options."""
    debug = join(Field(number, 0, b"\1") for number in range(700, 900))
    taken_apart = []
    monkeypatch.setattr(xla_messages, "places", lambda message: taken_apart.append(message) or places(message))

    def options_of(arguments):
        build = join([Field(3, 2, debug), Field(18, 2, b"\1" * arguments)])
        return join([Field(3, 2, build)])

    for arguments in range(1, 6):
        assert canonical_options(options_of(arguments)) == options_of(arguments)
        assert without_cache_paths(options_of(arguments)) == options_of(arguments)

    assert taken_apart.count(debug) == 2


@pytest.mark.parametrize("message", [b"\x0a\x05abc", b"\x80", b"\x0b\x00", b"\x00\x00", b"\x09abc"])
def test_what_is_no_message_is_refused(message):
    """Truncated, a group, field number 0: a ValueError, and no endless loop."""
    with pytest.raises(ValueError):
        split(message)

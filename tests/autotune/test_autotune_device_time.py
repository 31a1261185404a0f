"""Times from the trace of JAX's profiler, in which the dispatch does not count."""

from __future__ import annotations

import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from ejcache.autotune import AutotuneStore, Tuner, autotuned
from ejcache.errors import UsageError
from ejcache.jax_integration.seam.autotune.device_time import NoDeviceTimeError, busy_seconds, device_seconds

X = jnp.ones(64)
DEVICE = Tuner(timer="device", rounds=8, confirm=False, sample_seconds=0.0002)


def loop(steps):
    """A program that takes time in proportion to `steps`."""

    def steps_of_tanh(x):
        return jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y), x)

    return jax.jit(steps_of_tanh).lower(X).compile()


def test_the_time_of_operations_is_that_of_a_real_trace():
    """What the process does before and after a program does not count, and neither does a program of another name."""
    program = loop(10_000)
    jax.block_until_ready(program(X))
    times = []

    def run():
        for _ in range(2):
            time.sleep(0.05)
            times.append(time.perf_counter())
            jax.block_until_ready(program(X))
            times.append(time.perf_counter())
        time.sleep(0.05)

    seconds = device_seconds(run, modules=("jit_steps_of_tanh",))
    assert 0 < seconds <= times[1] - times[0] + times[3] - times[2]
    with pytest.raises(NoDeviceTimeError, match="no operation of the program"):
        device_seconds(lambda: jax.block_until_ready(loop(10)(X)), modules=("jit_other",))


def test_an_error_of_the_program_passes_and_ends_the_trace():
    """After a program that fails, the next one can be traced."""

    def fails():
        raise RuntimeError("out of registers")

    with pytest.raises(RuntimeError, match="out of registers"):
        device_seconds(fails, modules=())
    program = loop(10)
    assert device_seconds(lambda: jax.block_until_ready(program(X)), modules=("jit_steps_of_tanh",)) > 0


def event(start, stop, module="jit_core"):
    stats = {"hlo_op": "fusion", "hlo_module": module} if module else {}
    return SimpleNamespace(start_ns=start, duration_ns=stop - start, stats=stats.items())


def profile(**planes):
    """A trace with these planes, each a list of lines of events."""
    lines = {name: [SimpleNamespace(events=events) for events in found] for name, found in planes.items()}
    return SimpleNamespace(planes=[SimpleNamespace(name=name, lines=found) for name, found in lines.items()])


def test_operations_that_overlap_count_once():
    """A loop contains the operations of its body, streams run at the same time, and gaps do not count."""
    host = [[event(0, 10), event(2, 4), event(20, 25), event(0, 99, None), event(0, 99, "jit_other")], [event(8, 12)]]
    assert busy_seconds(profile(host=host), ("jit_core",)) == pytest.approx(17e-9)
    assert busy_seconds(profile(host=host), ("jit_none",)) == 0


def test_devices_count_and_not_the_launches_on_the_host():
    """Where planes of devices have operations, the one that ran longest counts, and the host does not."""
    planes = {"/host:CPU": [[event(0, 90)]], "/device:GPU:0": [[event(5, 6)]], "/device:GPU:1": [[event(5, 8)]]}
    assert busy_seconds(profile(**planes), ("jit_core",)) == pytest.approx(3e-9)


def test_tuning_by_the_time_of_the_device(tmp_path):
    """The record says what was read, and the candidate with less work wins."""
    store = AutotuneStore(str(tmp_path), seeds=())

    @autotuned(configs=[{"steps": 200_000}, {"steps": 5}], name="hidden", store=store, tuner=DEVICE)
    def hidden(x, *, steps):
        return x + 0 * jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y), x)

    record = hidden.tune(X)
    assert record.configuration == {"steps": 5}
    assert record.measurement["timer"] == "device"


def test_without_a_trace_the_wall_clock_counts(tmp_path):
    """While the program itself takes a trace, tuning uses the wall clock, and the record says why."""
    store = AutotuneStore(str(tmp_path / "store"), seeds=())

    @autotuned(configs=[{"n": 1}, {"n": 2}], name="traced", store=store, tuner=DEVICE)
    def op(x, *, n):
        return x + 0 * n

    with jax.profiler.trace(str(tmp_path / "trace")):
        record = op.tune(X)
    assert record.works
    assert record.measurement["timer"].startswith("wall: the profiler is not available")
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


def test_the_timer_has_two_values():
    """A misspelt timer is said at once."""
    with pytest.raises(UsageError, match="timer is 'cupti', and not one of wall, device"):
        Tuner(timer="cupti")

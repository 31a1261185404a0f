"""Measurement: what is timed, on what inputs, who wins, and what happens to candidates that misbehave."""

from __future__ import annotations

import io
import itertools
import math
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autotune_helpers import QUICK, key
from cli_helpers import Terminal
from helpers import traced_memory
from hypothesis import given
from hypothesis import strategies as st

import ejcache
from ejcache.autotune import Tuner, autotuned, key_environment
from ejcache.autotune.call_documents import RecordedNames, UnrecordableError, decode_value, encode_value, import_path
from ejcache.autotune.measure import provenance
from ejcache.autotune.measure.inputs import split_arguments
from ejcache.autotune.measure.output_comparison import DifferentResultError, Results, check_results, results_of
from ejcache.autotune.measure.race import GainDecision, decide, hopeless
from ejcache.autotune.measure.worker_thread import TookTooLongError, WorkerThread
from ejcache.autotune.progress import Progress, show_progress
from ejcache.autotune.records.record import Status, Timing, quantile
from ejcache.errors import EntryCorruptError, UsageError


def test_too_few_samples_decide_nothing():
    """With six rounds even a perfect record is open; with seven it is not."""
    assert decide([0.5] * 6, min_gain=0.03) is GainDecision.OPEN
    assert decide([0.5] * 7, min_gain=0.03) is GainDecision.BETTER
    assert decide([0.0] * 7, min_gain=0.03) is GainDecision.NOT_BETTER
    assert decide([], min_gain=0.03) is GainDecision.OPEN


def test_quantiles():
    """Quantiles are the textbook's."""
    assert quantile([0, 10], 0.2) == 2
    assert Timing.of([1, 2, 3, 4, 5]) == Timing(1.8, 3, 4.2, 5)
    assert hopeless([2, 2, 2], [1, 1, 1])
    assert not hopeless([1.2] * 3, [1, 1, 1])


def test_inputs_are_the_callers_own_or_seeded():
    """Arrays with a value are used as they are; for others, seeded ones of the same kind are made."""
    own = np.arange(4.0, dtype=np.float32)
    stand_ins = {
        "f": jax.ShapeDtypeStruct((3, 4), jnp.bfloat16),
        "i": jax.ShapeDtypeStruct((50,), jnp.int32),
        "b": jax.ShapeDtypeStruct((50,), jnp.bool_),
        "c": jax.ShapeDtypeStruct((2,), jnp.complex64),
        "k": jax.ShapeDtypeStruct((), jax.random.key(0).dtype),
    }
    inputs = split_arguments((own, "static", None), {"tree": stand_ins}, names=["x", "mode", "nothing"])
    assert inputs.names == ("x", "mode", *(f"tree['{n}']" for n in sorted(stand_ins)))
    made, again, other = inputs.concrete(seed=1), inputs.concrete(seed=1), inputs.concrete(seed=2)
    np.testing.assert_array_equal(made[0], own)
    args, kwargs = inputs.rebuild(made)
    assert args[1:] == ("static", None)
    for name, stand_in in stand_ins.items():
        assert (kwargs["tree"][name].shape, kwargs["tree"][name].dtype) == (stand_in.shape, stand_in.dtype)
    np.testing.assert_array_equal(made[4], again[4])
    assert not np.array_equal(made[4], other[4])
    integers = np.asarray(kwargs["tree"]["i"])
    assert integers.min() >= 0
    assert integers.max() < 2


def test_initialisers_make_inputs_by_name():
    """An argument whose values matter, such as a table of pages, has a function that makes it."""
    stand_in = jax.ShapeDtypeStruct((4,), jnp.int32)
    inputs = split_arguments((stand_in,), {"lengths": {"q": stand_in, "k": stand_in}}, names=["pages"])
    made = inputs.concrete(
        initialisers={
            "pages": lambda shape, dtype, generator: np.arange(shape[0]),
            "lengths": lambda shape, dtype, generator: np.full(shape, 7),
            "lengths['k']": lambda shape, dtype, generator: np.full(shape, 9),
        }
    )
    assert [array.tolist() for array in made] == [[0, 1, 2, 3], [9] * 4, [7] * 4]
    assert made[0].dtype == jnp.int32


def test_measuring_in_a_trace_measures_execution():
    """Inside `jit` the number is that of an execution, and the inputs are concrete."""
    seen = []

    def f(x, n):
        seen.append(type(x))
        return jax.lax.fori_loop(0, 300, lambda _, y: jnp.tanh(y @ x), x)

    x = jnp.eye(16)
    inside = []
    jaxpr = jax.make_jaxpr(lambda x: (inside.append(tuned(f, [1], x).candidates[0].seconds), x)[1])(x)
    assert len(jaxpr.eqns) == 0
    # Tracing alone takes far longer than this; what matters is that it is not next to nothing, either.
    assert inside[0].p50 > 1e-5
    assert inside[0].samples >= 4


def test_ambient_settings_reach_the_candidates():
    """What the caller set for compilation holds in the measurement too."""
    precisions = []

    def f(x, n):
        precisions.append(jax.config.jax_default_matmul_precision)
        return x

    with jax.default_matmul_precision("float32"):
        tuned(f, [1], jnp.ones(4))
    assert set(precisions) == {"float32"}


def test_a_call_that_takes_too_long_is_left_behind():
    """A hanging call costs its timeout, and the next call has a thread of its own."""
    stuck = threading.Event()
    thread = WorkerThread()
    with pytest.raises(TookTooLongError):
        thread.run(stuck.wait, timeout=0.05)
    assert thread.run(lambda: 5, timeout=60) == 5
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 // 0, timeout=60)
    thread.close()
    stuck.set()


def tuned(function, candidates, *args, tuner=QUICK, default=None, **options):
    return tuner.tune(
        lambda n: lambda *a, **k: function(*a, n=n, **k),
        args,
        {},
        key=key(),
        candidates=candidates,
        default=candidates[0] if default is None else default,
        **options,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x * np.nan, "NaN"),
        (lambda x: x * 0, "8 of 8 values of array 0 differ"),
        (lambda x: x + 0.1 * (np.arange(8) == 3), "1 of 8 values of array 0 differ from the default's, by 0.1"),
        (lambda x: np.where(np.arange(8) == 3, np.inf, x), "by inf"),
    ],
    ids=["nan", "zeros", "one value", "inf"],
)
def test_differences_are_said(change, said):
    """How many values differ, and by how much."""
    right = np.ones(8, np.float32)
    found = np.asarray(change(right), np.float32)
    with pytest.raises(DifferentResultError, match=said):
        check_results(Results([found], None), Results([right], None), check=True, inputs=[])


def test_what_is_new_is_compared_with_a_default_of_the_record():
    """The default was measured before: a quicker candidate with another data type fails none the less."""

    def f(x, n):
        return x.astype(jnp.bfloat16) if n == 2 else x + 0 * jax.lax.fori_loop(0, 2000, lambda _, y: jnp.tanh(y), x)

    record = tuned(f, [1, 3], jnp.ones(8))
    (failed,) = [c for c in tuned(f, [1, 2], jnp.ones(8), known=record).candidates if c.configuration == 2]
    assert (failed.status, "bfloat16[8]" in failed.error) == (Status.FAILED, True)


def statuses(record):
    return {c.configuration: c.status for c in record.candidates}


def differs(found, right, *, check=True, inputs=()):
    """Whether a candidate that computes `found` from `inputs` is refused, where the default computes `right`."""
    try:
        check_results(results_of(found), results_of(right), check=check, inputs=inputs)
    except DifferentResultError:
        return True
    return False


@pytest.mark.parametrize(
    ("inputs", "result", "error", "refused"),
    [
        (jnp.float32, jnp.float32, 1e-5, False),
        (jnp.float32, jnp.float32, 9e-3, True),
        (jnp.bfloat16, jnp.bfloat16, 2e-2, False),
        (jnp.bfloat16, jnp.float32, 2e-2, False),
        (jnp.bfloat16, jnp.float32, 0.2, True),
        (jnp.float8_e4m3fn, jnp.float32, 0.2, True),
    ],
)
def test_the_tolerance_is_that_of_the_result(inputs, result, error, refused):
    """Results may differ by rounding; a coarse input loosens the tolerance, to bfloat16's at most."""
    x = jnp.linspace(-3, 3, 64).astype(inputs)
    right = x.astype(result)
    signs = jnp.where(jnp.arange(64) % 2, 1, -1)  # rounding goes to both sides
    assert differs((right * (1 + error * signs)).astype(result), right, inputs=[x]) is refused


VALUES = st.sampled_from([0.0, -0.0, 1.0, 1.2, -1.0, 1e30, math.inf, -math.inf, math.nan])


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=4), st.sampled_from([0.05, 0.5, False]))
def test_a_value_is_right_within_the_tolerance_of_its_own_size_and_of_all_values(pairs, check):
    """An infinity equals itself alone; where the default computes NaN, others may compute anything."""
    found, right = (np.array(values, np.float32) for values in zip(*pairs, strict=True))
    finite = right[np.isfinite(right)].astype(float)
    scale = math.sqrt(sum(finite * finite) / finite.size) if finite.size else 0.0

    def is_wrong(ours, theirs):
        if math.isnan(theirs) or ours == theirs or not check:
            return math.isnan(ours) and not math.isnan(theirs) and (bool(check) or not np.isnan(right).any())
        return math.isinf(theirs) or not abs(ours - theirs) <= check * (abs(theirs) + scale)

    assert differs(found, right, check=check) is any(itertools.starmap(is_wrong, zip(found, right, strict=True)))


def test_integers_are_compared_exactly():
    assert differs(jnp.arange(8) + 1, jnp.arange(8))


def test_the_tolerance_of_what_is_nearly_infinite():
    """It is a number that float16 has not."""
    assert differs(np.full(4, 4e4, np.float16), np.full(4, 6e4, np.float16))


def test_check_changes_the_comparison():
    """`check=` is a tolerance, a function of both results, or False for results that differ by design."""
    ours, theirs = {"y": jnp.ones(8) * 1.2}, {"y": jnp.ones(8)}
    refused = {
        True: True,
        0.3: False,
        0.05: True,
        False: False,
        lambda a, b: jnp.allclose(a["y"], b["y"], rtol=0.3).item(): False,
        lambda a, b: bool((a["y"] == b["y"]).all()): True,
        lambda a, b: np.testing.assert_array_equal(a["y"], b["y"]): True,
    }
    for check, expected in refused.items():
        assert differs(ours, theirs, check=check) is expected
    for wrong in (0, -1.0, "loose", None):
        with pytest.raises(UsageError, match="check"):
            Tuner(check=wrong)
    with pytest.raises(UsageError, match="check"):
        autotuned(configs=[{"n": 1}], check="loose")(lambda x, *, n: x)
    loose = autotuned(configs=[{"n": 1}, {"n": 2}], check=0.3, tuner=QUICK)(lambda x, *, n: x * (0.9 + 0.1 * n))
    assert {c.status for c in loose.bound((jnp.ones(8),), {}).measured().candidates} == {Status.OK}


def test_gradients_are_compared():
    """A candidate whose results are right and whose gradients are wrong has failed, and so has one of another shape."""

    @jax.custom_vjp
    def wrong(x):
        return x * 2

    wrong.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 3,))
    tuner = Tuner(gradient=True, sample_seconds=0.0005)
    results = {1: lambda x: x * 2, 2: wrong, 3: lambda x: x[:4] * 2}
    record = tuned(lambda x, n: results[n](x), [1, 2, 3], jnp.ones(8), tuner=tuner)
    assert statuses(record) == {1: Status.OK, 2: Status.FAILED, 3: Status.FAILED}
    assert record.measurement["mode"] == "forward and backward"
    # A gradient that cancels out is rounding noise, and any noise is as right.
    record = tuned(lambda x, n: jax.nn.softmax(x * (1 + 1e-7 * n)), [1, 2], jnp.linspace(0, 5, 8), tuner=tuner)
    assert statuses(record) == {1: Status.OK, 2: Status.OK}
    # Where nothing has a gradient, the forward pass is timed.
    assert tuned(lambda x, n: x * n, [1], jnp.ones(8, jnp.int32), tuner=tuner).measurement["mode"] == "forward"
    assert tuned(lambda x, n: (x > 0) * n, [1], jnp.ones(8), tuner=tuner).measurement["mode"] == "forward"


def test_candidates_are_compiled_through_the_cache(tmp_path):
    """With the compilation cache active, tuning the same candidates again compiles nothing."""
    x = jnp.ones((16, 16))
    cache = ejcache.enable(str(tmp_path / "cache"), min_compile_seconds=0.0, min_entry_size=0)
    try:

        def f(x, n):
            return jnp.tanh(x @ x) * n

        tuned(f, [1, 2, 3], x)
        stored = cache.stats().stores
        jax.clear_caches()
        tuned(f, [1, 2, 3], x)
        assert stored >= 3
        assert cache.stats().stores == stored
        assert cache.stats().hits >= 3
    finally:
        ejcache.disable()


def test_values_are_recorded_and_made_again():
    """Arrays become stand-ins; data types, enumerations, functions and containers come back as they were."""
    values = [
        None, True, 3, 2.5, float("inf"), "text", (1, [2, {"a": (3,)}]), jnp.float32, jnp.dtype("bfloat16"),
        jax.lax.Precision.HIGH, np.sum, QUICK.__class__, np.int32(3), np.bool_(False), np.float32("inf"),
    ]  # fmt: skip
    names = RecordedNames(None)
    for value in values:
        import json

        made = decode_value(json.loads(json.dumps(encode_value(value))), names)
        assert (type(made), made) == (type(value), value)
    stand_in = decode_value(encode_value(np.ones((2, 3), np.int8)), names)
    assert (stand_in.shape, stand_in.dtype) == ((2, 3), np.int8)
    assert decode_value(encode_value(jax.random.key(0)), names).dtype == jax.random.key(0).dtype


def test_what_cannot_be_made_again_is_said():
    """Local functions and arbitrary objects are refused by name; malformed documents are corrupt."""
    for value in (lambda: None, object(), {1: 2}):
        with pytest.raises(UnrecordableError, match="mask"):
            encode_value(value, name="mask")
    with pytest.raises(UnrecordableError):
        import_path(test_what_cannot_be_made_again_is_said.__call__)
    for value in (
        {"array": "nope", "shape": []},
        {"tuple": 3},
        {"other": 1},
        {"object": "json:loads", "fields": {"x": 1}},
    ):
        with pytest.raises((EntryCorruptError, UsageError)):
            decode_value(value, RecordedNames(None))


@pytest.mark.parametrize(
    ("stream", "shown", "late", "drawn", "lines"),
    [
        (Terminal, True, 3600.0, True, 0),
        (io.StringIO, True, 3600.0, True, 0),
        (Terminal, None, 3600.0, False, 0),
        (Terminal, None, -1.0, True, 0),
        (io.StringIO, None, -1.0, False, 1),
        (Terminal, False, -1.0, False, 0),
    ],
)
def test_progress(monkeypatch, caplog, stream, shown, late, drawn, lines):
    """A bar where it is wanted, on a terminal after two seconds, and elsewhere one line of the log then."""
    monkeypatch.setattr("sys.stderr", stream())
    show_progress(shown)
    try:
        progress = Progress("block_matmul", late=late)
        for done in range(3):
            progress.step("race", done, 3)
        progress.close()
    finally:
        show_progress(None)
    assert ("block_matmul race" in sys.stderr.getvalue()) is drawn
    assert caplog.text.count("measuring the candidates of block_matmul") == lines


def test_candidates_are_logged(monkeypatch, caplog):
    """`EJKERNEL_LOG_AUTOTUNE` logs every candidate's time."""
    monkeypatch.setenv("EJKERNEL_LOG_AUTOTUNE", "1")
    with caplog.at_level("INFO", "ejcache.autotune"):
        tuned(lambda x, n: x + n * 0, [1, 2], jnp.ones(8))
    assert sum(r.message.startswith("matmul: ") and r.message.endswith(" ms") for r in caplog.records) == 2


def test_a_candidate_that_ends_the_program_has_failed():
    """SystemExit is a failure of the candidate and is in the record, so that the next start does not end, too."""

    def f(x, n):
        if n == 2:
            sys.exit("no such block")
        return x + 0 * n

    record = tuned(f, [1, 2], jnp.ones(8))
    assert statuses(record) == {1: Status.OK, 2: Status.FAILED}
    assert record.failures() == "2: SystemExit: no such block"


def test_compiler_flags_are_in_the_key(monkeypatch):
    """Flags that change programs are a part of the environment; without any, keys are those of version 0.1."""

    def named(flags):
        monkeypatch.setenv("XLA_FLAGS", flags)
        key_environment.environment_of.cache_clear()
        return set(key_environment.device_and_environment([jnp.ones(3)])[1])

    plain = named("")
    assert "cores" in plain
    assert named("--xla_force_host_platform_device_count=1") == plain
    assert named("--xla_cpu_enable_fast_math=true") == plain | {"XLA_FLAGS"}
    key_environment.environment_of.cache_clear()


@pytest.mark.filterwarnings("ignore:PGLE collected an empty trace")
def test_the_rank_of_pgle_needs_a_profile():
    """Where the profiler sees no operations, as on CPUs, JAX compiles again with an empty profile: that is no PGLE."""
    jax.config.update("jax_enable_pgle", True)
    jax.config.update("jax_pgle_profiling_runs", 1)

    assert not tuned(lambda x, n: x + 0 * n, [1, 2], jnp.ones(8)).with_profile


def test_a_large_result_is_compared_in_pieces():
    """Also where it is not contiguous; the comparison needs no copies of all of it."""
    wanted = np.arange(3 * 2**20, dtype=np.float32).reshape(3, -1).T
    found = wanted.copy(order="K")
    check_results(Results([found], None), Results([wanted], None), check=True, inputs=[])
    found[-1, -1] = np.nan
    with pytest.raises(DifferentResultError, match="NaN"):
        check_results(Results([found], None), Results([wanted], None), check=True, inputs=[])
    found[-1, -1], found[0, 0] = 0.0, 1e9
    with pytest.raises(DifferentResultError, match="2 of 3145728 values"):
        check_results(Results([found], None), Results([wanted], None), check=True, inputs=[])
    wanted = np.ascontiguousarray(wanted)
    with traced_memory() as peak:
        check_results(Results([wanted], None), Results([wanted], None), check=True, inputs=[])
    assert peak[0] < wanted.nbytes


class Nvml(types.ModuleType):
    """What `nvidia-ml-py` says of two GPUs, of which CUDA shows the second one alone to this process."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, *, broken=False):
        super().__init__("pynvml")
        self.users, self.broken = 0, broken

    def nvmlInit(self):  # noqa: N802 (its own name)
        self.users += 1

    def nvmlShutdown(self):  # noqa: N802 (its own name)
        self.users -= 1

    def nvmlDeviceGetHandleByPciBusId(self, bus):  # noqa: N802 (its own name)
        return {b"0000:65:00.0": "second"}[bus]

    def nvmlSystemGetDriverVersion(self):  # noqa: N802 (its own name)
        return "580.1"

    def nvmlDeviceGetClockInfo(self, handle, which):  # noqa: N802 (its own name)
        if self.broken:
            raise OSError("not permitted")
        return {"second": {1: 1980, 2: 2619}}[handle][which]

    def nvmlDeviceGetPowerManagementLimit(self, handle):  # noqa: N802 (its own name)
        return {"second": 700_000}[handle]


@pytest.mark.parametrize("broken", [False, True])
def test_the_state_of_a_gpu_is_that_of_the_one_that_ran(monkeypatch, broken):
    """NVML counts the GPUs of the host and CUDA those of the process; and whoever opens NVML closes it."""
    nvml = Nvml(broken=broken)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    class Cuda:
        def cuDeviceGetPCIBusId(self, text, size, number):  # noqa: N802 (its own name)
            text.value = {0: b"0000:65:00.0"}[number]
            return 0

    monkeypatch.setattr(provenance.ctypes, "CDLL", lambda name: Cuda())
    gpu = types.SimpleNamespace(platform="gpu", local_hardware_id=0, client=None)
    about = provenance.provenance(gpu)
    said = {"driver": "580.1", "clock_mhz": 1980, "memory_clock_mhz": 2619, "power_limit_watts": 700.0}
    wanted = {"gpu": "not read: OSError: not permitted"} if broken else said
    assert {name: about.get(name) for name in {"gpu", *said} if name in about} == wanted
    assert nvml.users == 0

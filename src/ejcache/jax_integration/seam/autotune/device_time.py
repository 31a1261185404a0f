"""Times programs by the trace of JAX's profiler, which does not contain what Python and the dispatch take.

In a trace, each operation of a program is an event that names its `hlo_op` and its `hlo_module`, on a plane of the
device or, for CPUs, on that of the host. The time of a program is that during which at least one of its operations ran.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class NoDeviceTimeError(Exception):
    """The profiler was not available, or its trace has no operation of the program."""


def device_seconds(run: Callable[[], Any], *, modules: tuple[str, ...]) -> float:
    """Return the seconds in which operations of programs of these names ran while `run` ran.

    Raises:
        NoDeviceTimeError: another trace is being taken, or this one has no operation of such a program.
        Exception: the error of `run`.
    """
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory(prefix="ejcache-trace-", ignore_cleanup_errors=True) as directory:
        try:
            jax.profiler.start_trace(directory, profiler_options=options)
        except Exception as exc:
            raise NoDeviceTimeError(f"the profiler is not available: {exc}") from exc
        try:
            run()
        finally:
            jax.profiler.stop_trace()
        files = list(Path(directory).rglob("*.xplane.pb"))
        if not files:
            raise NoDeviceTimeError("the profiler wrote no trace")
        with warnings.catch_warnings():
            # Python 3.13 warns when jaxlib makes the types of these objects. As an error, that would end the process.
            warnings.simplefilter("ignore", DeprecationWarning)
            seconds = busy_seconds(jax.profiler.ProfileData.from_file(str(files[0])), modules)
    if seconds <= 0:
        raise NoDeviceTimeError("the trace has no operation of the program")
    return seconds


def has_pgle_profile(jaxpr: Any) -> bool:
    """True if PGLE has compiled this jaxpr again with a profile that names operations; an empty one is none.

    Read for this: jax 0.10.2 and 0.12.0.1, `_pjit_call_impl_python` in `pjit.py`. False if JAX has changed there.
    """
    from jax._src import pjit

    profiler = getattr(pjit, "_pgle_profiler_dict", {}).get(jaxpr)
    return bool(getattr(profiler, "collected_fdo", None))


def busy_seconds(profile: Any, modules: tuple[str, ...]) -> float:
    """Return the seconds in which operations of these modules ran, on the device on which they ran longest.

    Args:
        profile: a `jax.profiler.ProfileData`.
        modules: names of HLO modules.
    """
    busy = {plane.name: _union(_operations(plane, modules)) for plane in profile.planes}
    # The host has events of an operation that runs on a device, too, such as its launch.
    on_devices = [time for name, time in busy.items() if name.startswith("/device:") and time > 0]
    return max(on_devices or busy.values(), default=0.0) * 1e-9


def _operations(plane: Any, modules: tuple[str, ...]) -> Iterator[tuple[float, float]]:
    for line in plane.lines:
        for event in line.events:
            stats = dict(event.stats)
            if "hlo_op" in stats and stats.get("hlo_module") in modules:
                yield event.start_ns, event.start_ns + event.duration_ns


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals: a loop contains the operations of its body."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total

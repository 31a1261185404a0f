"""Records the fast path of one call in a process, and serves it in another that never traces.

    direct_driver.py record DIRECTORY CASE …    run the cases with `jax.jit`; write records, executables and results
    direct_driver.py serve DIRECTORY CASE …     run them from the records alone

Both print what happened to each case, as JSON.

A case is a function of the module `direct_cases` that returns a `Case`.
"""

from __future__ import annotations

import base64
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import direct_cases
import jax
import numpy as np
from jax._src import compiler as jax_compiler

from ejcache.direct.call.fastpath_format import decode_fastpath, encode_fastpath
from ejcache.direct.call.shardings import Devices
from ejcache.direct.call.signature import call_signature
from ejcache.jax_integration.program import CompileTarget
from ejcache.jax_integration.seam.backends import load_ahead
from ejcache.jax_integration.seam.direct.fastpath import direct_function, parse_call, plain_miss, run_loaded
from ejcache.jax_integration.seam.direct.plain_calls import why_plain
from ejcache.jax_integration.seam.direct.refusal import RefusedError


def as_data(outputs: Any) -> list[Any]:
    """What can be compared of results in two processes: their structure, and the bits, types and places of arrays."""
    leaves, tree = jax.tree.flatten(outputs)
    arrays = [
        jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf for leaf in leaves
    ]
    about = [[str(leaf.aval), str(leaf.sharding), leaf.committed] for leaf in leaves]
    return [direct_cases.structure(tree), about, [np.asarray(array).tobytes().hex() for array in arrays]]


def compiled_targets() -> dict[int, CompileTarget]:
    """The targets of the executables that JAX compiles from now on, by their identities; the executables stay alive."""
    targets: dict[int, CompileTarget] = {}
    original = jax_compiler.backend_compile_and_load

    def compile_noted(backend: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> Any:
        executable = original(backend, module, devices, options, callbacks)
        targets[id(executable)] = CompileTarget(backend, tuple(devices), options, tuple(callbacks))
        alive.append(executable)
        return executable

    alive: list[Any] = []
    jax_compiler.backend_compile_and_load = compile_noted
    return targets


def record(path: Path, case: direct_cases.Case, targets: dict[int, CompileTarget]) -> dict[str, Any]:
    """Run with `jax.jit`, and write the record of the first call."""
    devices = Devices(jax.devices()[0].client)
    jitted = jax.jit(case.function, **case.options)
    written: dict[str, Any] = {}

    def miss(*args: Any, **kwargs: Any) -> Any:
        call = parse_call(jitted, args, kwargs)
        signature = call_signature(call, devices)
        outputs, data, rebuild = plain_miss(jitted)(*args, **kwargs)
        if not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in call.leaves):
            assert call_signature(call, devices).text == signature.text  # tracing has not changed it
        if not written:
            target = CompileTarget(None, (), None) if data is None else targets[id(data.xla_executable)]
            fastpath = encode_fastpath(data, target, call, devices)
            executable = base64.b64encode(data.xla_executable.serialize()).decode()
            written.update(signature=signature.text, fastpath=fastpath, executable=executable)
        return outputs, data, rebuild

    function = direct_function(jitted, miss)
    with case.around():
        results = [as_data(function(*args, **kwargs)) for args, kwargs in case.calls()]
    path.write_text(json.dumps({**written, "results": results}))
    return {"traced": direct_cases.traced, "bytes": len(json.dumps(written["fastpath"]))}


def serve(path: Path, case: direct_cases.Case, targets: dict[int, CompileTarget]) -> dict[str, Any]:
    """Run from the record alone, twice."""
    written = json.loads(path.read_text())
    devices = Devices(jax.devices()[0].client)
    jitted = jax.jit(case.function, **case.options)
    counts = {"misses": 0, "loads": 0, "compiled": 0}
    loaded: list[Any] = []

    def miss(*args: Any, **kwargs: Any) -> Any:
        before = len(targets)
        counts["misses"] += 1
        call = parse_call(jitted, args, kwargs)
        assert why_plain(call) is None, why_plain(call)
        assert call_signature(call, devices).text == written["signature"]
        found = decode_fastpath(written["fastpath"], call, devices)
        if not loaded:
            counts["loads"] += 1
            serialized = base64.b64decode(written["executable"])
            pair = load_ahead(devices.backend, serialized, found.options, found.devices)
            assert pair is not None
            loaded.append(pair[0])
        outputs, data = run_loaded(loaded[0], found.parts, call.leaves)
        counts["compiled"] += len(targets) - before
        return outputs, data, False

    function = direct_function(jitted, miss)
    with case.around():
        results = [as_data(function(*args, **kwargs)) for args, kwargs in case.calls()]
        first = dict(counts)
        again = [as_data(function(*args, **kwargs)) for args, kwargs in case.calls()]
    return {
        **first,
        "calls": len(results),
        "traced": direct_cases.traced,
        "equal": results == written["results"],
        "equal again": again == written["results"],
        "misses again": counts["misses"] - first["misses"],
        "difference": [pair for pair in zip(results, written["results"], strict=True) if pair[0] != pair[1]],
    }


def main() -> None:
    """See the module."""
    mode, directory, *names = sys.argv[1:]
    targets = compiled_targets()
    said: dict[str, Any] = {}
    for name in names:
        path = Path(directory) / f"{name}.json"
        if mode == "serve" and not path.exists():
            continue
        case = getattr(direct_cases, name)()
        direct_cases.traced = 0
        try:
            said[name] = (record if mode == "record" else serve)(path, case, targets)
        except RefusedError as exc:
            said[name] = {"refused": exc.reason}
        except Exception:
            said[name] = {"failed": traceback.format_exc()}
    print(json.dumps(said))


if __name__ == "__main__":
    main()

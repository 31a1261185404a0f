"""Making a key changes nothing of what XLA gets."""

from __future__ import annotations

import json

import pytest
from helpers import SUPPORT

PROGRAM = """
    import hashlib, io, json, sys
    import jax
    import numpy as np
    from jax._src import compiler as jax_compiler

    sys.path.insert(0, sys.argv[1])
    import key_programs
    if sys.argv[2]:
        import ejcache
        ejcache.enable(sys.argv[2], min_compile_seconds=0)

    class NotCompiled(Exception):
        pass

    given = []

    def recording(backend, module, devices, options, host_callbacks):
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
        locations = module.operation.get_asm(enable_debug_info=True)
        overrides = repr(list(options.env_option_overrides))
        parts = [bytecode.getvalue(), locations.encode(), options.SerializeAsString(), overrides.encode(),
                 repr([device.id for device in devices]).encode()]
        given.append([hashlib.sha256(part).hexdigest() for part in parts])
        raise NotCompiled

    jax_compiler.backend_compile_and_load = recording
    for name, arguments, options in [
        ("step", {}, None), ("step", {"dtype": "bfloat16"}, {"xla_cpu_enable_fast_math": True}), ("helpers", {}, None),
        ("calling", {"forget": True}, None), ("sharded", {}, None), ("mapped", {"devices": (1, 0)}, None),
        ("loop", {"way": "fori"}, None), ("random_numbers", {}, None), ("embedded", {"last": 1.0}, None),
        ("rematerialised", {}, None), ("aliased", {"donate": (0,)}, None), ("unused", {"keep_unused": True}, None),
    ]:
        function, shapes = getattr(key_programs, name)(**arguments)
        try:
            function.lower(*shapes).compile(options)
        except NotCompiled:
            pass
    print(json.dumps(given))
"""


@pytest.mark.parametrize(
    "metadata",
    [pytest.param("0", id="without metadata", marks=pytest.mark.soak), pytest.param("1", id="with metadata")],
)
def test_xla_gets_the_same_with_and_without_the_cache(metadata, run_forked, tmp_path):
    """Modules with their locations, options, overrides and devices reach the compiler as they do in plain JAX."""
    env = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4 --xla_cpu_enable_fast_math=false",
        "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": metadata,
        # JAX itself writes the cache directory into the options for XLA's own caches on a GPU.
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }

    def given(url: str) -> list:
        return json.loads(run_forked(PROGRAM, str(SUPPORT), url, env=env).stdout.splitlines()[-1])

    plain, cached = given(""), given(str(tmp_path / "cache"))

    assert len(plain) == 12
    assert cached == plain

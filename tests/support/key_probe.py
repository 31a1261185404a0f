"""Runs in a process of its own and says which key ejcache, and which JAX, gives a compilation.

    key_probe.py ALONE     the orders of one process from stdin, the answers to stdout
    key_probe.py SERVER    orders of many processes, a line each; each is carried out in a fork of this process, which
                           has imported JAX and done nothing with it; a line of answers each
    key_probe.py POD       the orders lie in $KEY_ORDERS; for a process of a pod, which is already initialised

JAX is asked to compile, through everything that comes before the compiler. Where it makes the key, both keys are
made of what it hands over, and the compilation is abandoned.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import io
import json
import os
import sys
import warnings
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "key_programs.py"


class Stop(BaseException):
    """Carries the keys out of JAX; not an Exception, so that nobody handles it on the way."""


def answer(order: dict) -> list[dict]:
    """The keys of every case of a process."""
    process = order["process"]
    prepare(process)
    import jax

    import ejcache

    ejcache.enable(process["url"], **process["settings"])
    watch(process)
    for case in process["history"]:
        keys_of(case)
    answers = []
    for number, case in enumerate(order["cases"]):
        if number:
            jax.clear_caches()
        answers.append(keys_of(case))
    return answers


def prepare(process: dict) -> None:
    for name, value in process["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if process["cwd"]:
        os.chdir(process["cwd"])
    sys.argv[:] = process["argv"]
    import jax

    for name, value in process["config"].items():
        jax.config.update(name, value)
    for name, attribute, value in process["assigned"]:
        setattr(importlib.import_module(name), attribute, value and (lambda value=value: value))
    for path, content in process["files"]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)
    sys.path[:0] = process["path"]
    if process["jaxlib"]:
        exchange_jaxlib(Path(process["jaxlib"]))


def exchange_jaxlib(folder: Path) -> None:
    """Let jaxlib lie in `folder`; one native library is another one there, if the name of the folder says so."""
    import jaxlib

    original = Path(jaxlib.__file__).parent
    libraries = sorted((path for path in original.rglob("*.so")), key=lambda path: path.stat().st_size)
    for library in libraries:
        place = folder / library.relative_to(original)
        place.parent.mkdir(parents=True, exist_ok=True)
        if library is libraries[0] and folder.name == "patched":
            content = bytearray(library.read_bytes())
            content[-1] ^= 1
            place.write_bytes(content)
        else:
            place.symlink_to(library)
    jaxlib.__file__ = str(folder / "__init__.py")


class CalledOtherwise:
    """A back end under the name of another platform."""

    def __init__(self, backend, platform: str) -> None:
        self.platform = platform
        self._backend = backend

    def __getattr__(self, name: str):
        return getattr(self._backend, name)


# -- where the keys are made ----------------------------------------------------------------------------------------

changes: list[str] = []


def watch(process: dict) -> None:
    """Stand between JAX and ejcache's key."""
    from jax._src import compilation_cache as jax_cache
    from jax._src import compiler as jax_compiler
    from jax._src import config as jax_config

    from ejcache.jax_integration import pipeline
    from ejcache.jax_integration.activate import compiler_in_use
    from ejcache.jax_integration.seam import patch as seam
    from ejcache.jax_integration.seam.xla_cache_options import set_xla_caches

    compiler = compiler_in_use()
    assert compiler is not None
    jax_cache.is_cache_used = lambda backend: True
    # JAX's own cache has XLA's caches below its directory, and ejcache keeps JAX from that.
    jax_cache.is_persistent_cache_enabled = seam.original(jax_cache, "is_persistent_cache_enabled")
    own_key = seam.original(jax_cache, "get_cache_key")

    def key_of_jax(options, backend, computation, devices, sentinel):
        make = getattr(jax_compiler, "_get_cache_key", None)
        if make is not None:
            return make(options, backend, computation, devices, sentinel)
        from jax._src.cache_key import IgnoreCallbacks

        ignored = jax_config.remove_custom_partitioning_ptr_from_cache_key.value
        options = copy.deepcopy(options)
        if sentinel is not None:
            options.executable_build_options.fdo_profile = sentinel
        return own_key(
            computation,
            devices,
            options,
            backend,
            ignore_callbacks=IgnoreCallbacks.CUSTOM_PARTITIONING if ignored else IgnoreCallbacks.NO,
        )

    def compile_or_get_cached(backend, computation, devices, options, callbacks, *rest):
        if process["platform"]:
            backend = CalledOtherwise(backend, process["platform"])
        options, sentinel = copy.deepcopy(options), None
        if "://" in process.get("url", "memory://"):
            set_xla_caches(options, {})  # JAX makes nothing of URLs
        for change in changes:
            name, _, value = change.partition(":")
            if name == "profile":
                options.executable_build_options.fdo_profile = value.encode()
            elif name == "sentinel":
                sentinel = seam.PROFILED
            elif name == "renumber":
                computation = renumbered(computation, value)
            else:
                raise ValueError(change)
        before = state(computation, options)
        call = seam.JaxCall(None, (backend, computation, devices, options, callbacks), rest)
        settings = compiler.settings()
        key = pipeline._compilation(call, settings, compiler.cache_of(settings), sentinel=sentinel).key
        untouched = state(computation, options) == before
        raise Stop(
            {
                "ours": key.text,
                "theirs": key_of_jax(options, backend, computation, devices, sentinel),
                "components": dict(key.components),
                "untouched": untouched,
            }
        )

    jax_compiler.compile_or_get_cached = compile_or_get_cached


def renumbered(module, number: str):
    """The module with that number behind the names of its private functions."""
    from jaxlib.mlir import ir

    with module.context, ir.Location.unknown():
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
        copied = ir.Module.parse(bytecode.getvalue())
        for function in copied.body.operations:
            if "sym_visibility" in function.attributes and "private" in str(function.attributes["sym_visibility"]):
                old = ir.StringAttr(function.attributes["sym_name"]).value
                ir.SymbolTable.replace_all_symbol_uses(old, f"{old}_{number}", copied.operation)
                ir.SymbolTable.set_symbol_name(function.operation, f"{old}_{number}")
        return copied


def state(computation, options) -> tuple:
    """All of what goes to the compiler, locations included."""
    bytecode = io.BytesIO()
    computation.operation.write_bytecode(bytecode)
    text = computation.operation.get_asm(enable_debug_info=True)
    profile = bytes(options.executable_build_options.fdo_profile or b"")
    return bytecode.getvalue(), text, options.SerializeAsString(), profile, list(options.env_option_overrides)


def keys_of(case: dict) -> dict:
    import jax
    import numpy as np

    scope = programs(case["place"], tuple(map(tuple, case["edits"])))
    function, arguments, *platforms = scope[case["program"]](**case["arguments"])
    changes[:] = case["changes"]
    options = case["compiler_options"] or None
    try:
        if case["how"] == "call":
            values = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), arguments)
            function(*values)
        elif case["how"] == "ejit":
            import ejcache

            ejcache.ejit(function.__wrapped__).lower(*arguments).compile(options)
        elif platforms:
            function.trace(*arguments).lower(lowering_platforms=platforms[0]).compile(options)
        else:
            function.lower(*arguments).compile(options)
    except Stop as stop:
        return stop.args[0]
    raise AssertionError(f"{case['program']} was compiled without a key")


@functools.cache
def programs(place: str, edits: tuple[tuple[str, str], ...]) -> dict:
    """What the file of programs defines when it lies in `place`; the same functions for every case."""
    text = SOURCE.read_text()
    for old, new in edits:
        if old not in text:
            raise ValueError(f"{old!r} is not in the source")
        text = text.replace(old, new)
    path = Path(place) / "programs.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    scope = {"__name__": "programs", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), scope)
    return scope


def write(line: str, descriptor: int) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def serve() -> None:
    # Everything that a fork would otherwise import anew.
    import jax.experimental.layout
    import jax.experimental.pallas  # noqa: F401
    from jaxlib.mlir.dialects import builtin, mhlo  # noqa: F401

    import ejcache.jax_integration.activate
    import ejcache.jax_integration.pipeline
    import ejcache.stores.opening  # noqa: F401

    # JAX warns of forks because of its threads; it has none before its first back end.
    warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            carry_out(line)
        _, status = os.waitpid(child, 0)
        if status:  # of a signal, so that it has answered nothing
            write(json.dumps(f"signal {os.WTERMSIG(status)} ended it"), 1)


def carry_out(line: str) -> None:
    try:
        result: object = answer(json.loads(line))
    except BaseException:  # the parent fails the test with this text
        import traceback

        result = traceback.format_exc()
    write(json.dumps(result), 1)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:] == ["SERVER"]:
        serve()
    elif "KEY_ORDERS" in os.environ:
        rank = os.environ["POD_RANK"]
        order = json.loads(os.environ["KEY_ORDERS"])[int(rank)]
        print("KEYS " + json.dumps(answer(order)))
    else:
        carry_out(sys.stdin.read())

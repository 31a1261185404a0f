#!/usr/bin/env python3
"""Everything of ejcache that only an NVIDIA GPU can show, one line for each: PASS or FAIL, and what was seen.

    python tools/gpu_check.py [--only WORD …] [--keep DIR]

Wants JAX 0.11 or later with CUDA, and a minute or two. Exit status 1 if a line failed, 2 if there is no GPU.

`--rehearse` runs the same lines on a CPU, with made-up profiles and autotuning results, to try the script itself: it
says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOOLS = Path(__file__).resolve().parent
RUNS = 3


# -- in a process of its own -------------------------------------------------------------------------------------------


def results_in(directory: str) -> list[Path]:
    """What XLA's autotuner has in a directory."""
    return [path for path in Path(directory).rglob("*") if path.is_file()] if directory else []


def child(wanted: dict[str, Any]) -> dict[str, Any]:
    """Compile and call one program; what JAX did."""
    import jax
    import numpy as np

    if "task" in wanted:
        return {"tuned": tuned, "raced": raced}[wanted["task"]](wanted)
    if wanted.get("platform_only"):
        import ejcache  # that it is there
        from ejcache.jax_integration.seam import patch as seam

        device = jax.devices()[0]
        return {
            "platform": device.platform,
            "kind": device.device_kind,
            "jax": jax.__version__,
            "version": device.client.platform_version.replace("\n", " "),
            "mismatches": seam.mismatches(),
        }
    from jax._src import compiler, profiler

    import ejcache

    if wanted.get("no_directory"):
        from ejcache.jax_integration.xla_options import XlaCaches

        give = XlaCaches.paths

        def paths(self: Any, backend: Any) -> dict[str, str]:
            given = give(self, backend)
            for path in given.values():
                shutil.rmtree(Path(path).parent, ignore_errors=True)
            return given

        XlaCaches.paths = paths  # type: ignore[method-assign]
    rehearse = wanted["rehearse"]
    seen: dict[str, Any] = {"compiled": [], "profiled": [], "paths": ["", ""]}
    compile_here, real = compiler.backend_compile_and_load, profiler._profiler  # noqa: SLF001

    def compiled(backend: Any, module: Any, devices: Any, options: Any, *rest: Any) -> Any:
        build = options.executable_build_options
        first_pass = ("xla_gpu_enable_command_buffer", "") in list(options.env_option_overrides)
        debug = build.debug_options
        paths = [debug.xla_gpu_per_fusion_autotune_cache_dir, debug.xla_gpu_kernel_cache_file]
        name = module.operation.attributes["sym_name"].value
        if name == "jit_step":
            seen["compiled"].append("profile" if build.fdo_profile else "first pass" if first_pass else "plain")
            seen["paths"] = paths
            seen["before"] = len(results_in(paths[0]))
        if rehearse and paths[0]:
            (Path(paths[0]) / "device").mkdir(parents=True, exist_ok=True)
            (Path(paths[0]) / "device" / f"{name}.pb").write_bytes(b"\x08\x01")
        return compile_here(backend, module, devices, options, *rest)

    class Profiler:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def get_fdo_profile(self, space: Any) -> bytes:
            profile: bytes = real.get_fdo_profile(space)
            if rehearse:
                profile = bytes.fromhex("0a0e0a0361646411000000000000f03f")
            seen["profiled"].append(len(profile))
            return profile

    compiler.backend_compile_and_load, profiler._profiler = compiled, Profiler()  # noqa: SLF001
    if rehearse:
        from ejcache.jax_integration import pipeline

        vars(pipeline)["_PLATFORMS_WITH_CACHES"] = ("cpu",)
    jax.config.update("jax_pgle_profiling_runs", RUNS)
    jax.config.update("jax_enable_pgle", wanted.get("pgle", False))
    jax.config.update("jax_compilation_cache_expect_pgle", wanted.get("expect", False))
    cache = ejcache.enable(
        wanted["url"], min_compile_seconds=0, xla_caches=wanted.get("xla_caches", "none"), **wanted.get("settings", {})
    )
    size = wanted.get("size", 512)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((size, size), dtype=np.float32) / size**0.5 for _ in range(2))

    def step(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = jax.nn.gelu(x @ w) + x.mean(axis=1, keepdims=True)
        return x

    jitted = jax.jit(step)
    if "target" in wanted:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        with ejcache.target(wanted["target"]), jax.default_matmul_precision("highest"):
            seen["warmed"] = ejcache.warm(jitted, shape, shape)._asdict()
        return seen
    with jax.default_matmul_precision("highest"):
        for _ in range(wanted.get("calls", 1)):
            value = np.asarray(jitted(x, w))
    seen["sum"] = float(np.abs(value).sum())
    seen["finite"] = bool(np.isfinite(value).all())
    seen["after"] = len(results_in(seen["paths"][0]))
    cache.flush()
    seen["stats"] = cache.stats().to_dict()
    return seen


def tuned(wanted: dict[str, Any]) -> dict[str, Any]:
    """Call a kernel of Pallas that has four block sizes, one of which computes something else; what was measured."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    import ejcache

    def add(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] * 2 + y[...]

    def add_wrongly(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] * 2 - y[...]

    calls: list[int] = []

    @ejcache.autotuned(configs=[{"block": block} for block in (256, 512, 1024, 2048)], name="gpu_check", version=1)
    def scaled_add(x: Any, y: Any, *, block: int) -> Any:
        calls.append(block)
        spec = pl.BlockSpec((block,), lambda index: (index,))
        kernel = add_wrongly if block == 512 else add
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        grid = (pl.cdiv(x.shape[0], block),)
        specs: dict[str, Any] = {"grid": grid, "in_specs": [spec, spec], "out_specs": spec}
        return pl.pallas_call(kernel, shape, **specs, interpret=jax.default_backend() == "cpu")(x, y)

    cache = ejcache.enable(wanted["url"], min_compile_seconds=0)
    x = jnp.arange(1 << (16 if jax.default_backend() == "cpu" else 22), dtype=jnp.float32)
    value = jax.block_until_ready(scaled_add(x, x))
    cache.flush()
    tuned = scaled_add.chooser().store.find(scaled_add.key(x, x))
    assert tuned is not None, "nothing was recorded"
    about = tuned.record.provenance
    facts = {name: about[name] for name in ("driver", "clock_mhz", "power_limit_watts", "gpu") if name in about}
    return {
        "blocks": sorted(set(calls)),
        "right": bool((value == 3 * x).all()),
        "failures": {each.configuration["block"]: each.reason for each in tuned.record.candidates if each.reason},
        "facts": facts,
    }


def raced(wanted: dict[str, Any]) -> dict[str, Any]:
    """Races of four programs that are the same: how often another than the default won."""
    import jax
    import jax.numpy as jnp

    from ejcache.autotune import Tuner
    from ejcache.autotune.records.record_key import RecordKey

    x = jax.random.normal(jax.random.key(0), (wanted.get("size", 512),) * 2)
    wins, unsure, medians = [], 0, []
    for race in range(wanted["races"]):
        key = RecordKey("identical", str(race), "gpu", {}, {})
        tuner = Tuner(seed=race)
        record = tuner.tune(
            lambda _: lambda x: jnp.tanh(x @ x) @ x, (x,), {}, key=key, candidates=[0, 1, 2, 3], default=0
        )
        medians.append(min(each.seconds.p50 for each in record.candidates if each.seconds is not None))
        unsure += bool(record.unsure)
        if record.configuration != 0:
            wins.append(round(100 * float(record.measurement["gain"]), 1))
    return {"wins": wins, "unsure": unsure, "seconds": sorted(medians)[len(medians) // 2]}


# -- the lines ---------------------------------------------------------------------------------------------------------


class Check:
    """A place for each line's caches, and processes to run there."""

    def __init__(self, root: Path, *, rehearse: bool) -> None:
        self.root = root
        self.rehearse = rehearse

    def start(self, **wanted: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, **wanted.pop("env", {}), "EJCACHE_LOCAL_DIR": str(self.root / "disk")}
        environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if self.rehearse:
            environment["JAX_PLATFORMS"] = "cpu"
        asked = json.dumps({"rehearse": self.rehearse, **wanted})
        command = [sys.executable, __file__, "--child", asked]
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def end(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=300)
        last = out.strip().splitlines()[-1:] or [""]
        if process.returncode or not last[0].startswith("{"):
            raise AssertionError(f"a process ended with {process.returncode}: {err.strip()[-600:]}")
        found: dict[str, Any] = json.loads(last[0])
        return found

    def run(self, **wanted: Any) -> dict[str, Any]:
        return self.end(self.start(**wanted))

    def url(self, name: str) -> str:
        return str(self.root / name)

    def entries(self, url: str) -> dict[str, list[str]]:
        """The keys of the program's entries, by variant; the rest under its kind."""
        import ejcache
        from ejcache.keys.key import is_profile_key, parse_key

        found: dict[str, list[str]] = {}
        with ejcache.open_store(url) as store:
            for info in store.entries():
                parts = parse_key(info.key)
                if is_profile_key(info.key) or (parts is not None and parts.name == "jit_step"):
                    found.setdefault(parts.variant if parts else "profiles", []).append(info.key)
        return found


def stored_and_loaded(check: Check) -> str:
    """What one process compiled, the next one loads, and computes the same."""
    first, second = (check.run(url=check.url("plain")) for _ in range(2))
    assert first["compiled"] == ["plain"], first
    assert second["compiled"] == [], second
    assert second["stats"]["hits"] >= 1, second
    assert abs(first["sum"] - second["sum"]) <= 1e-3 * abs(first["sum"]), (first["sum"], second["sum"])
    return f"{first['stats']['stores']} stored, {second['stats']['hits']} loaded"


def damage_is_a_miss(check: Check) -> str:
    """A flipped bit never reaches the driver."""
    import ejcache

    url = check.url("damage")
    check.run(url=url)
    (key,) = check.entries(url)["plain"]
    with ejcache.open_store(url) as store:
        data = bytearray(store.peek(key) or b"")
        data[len(data) // 2] ^= 1
        store.replace(key, bytes(data))
    seen = check.run(url=url)
    assert seen["compiled"] == ["plain"], seen
    assert seen["stats"]["corrupt"] == 1, seen
    assert check.run(url=url)["compiled"] == []
    return "counted, compiled anew, healed"


def profiles_are_collected(check: Check) -> str:
    """PGLE profiles the program, compiles it once more, and both variants are of one program."""
    seen = check.run(url=check.url("pgle"), pgle=True, calls=RUNS + 2)
    assert seen["compiled"] == ["first pass", "profile"], seen
    assert len(seen["profiled"]) == RUNS, seen
    assert min(seen["profiled"]) > 0, f"empty profiles: {seen['profiled']}"
    found = check.entries(check.url("pgle"))
    assert sorted(found) == ["pgle", "profiles", "profiling"], found
    programs = {re.split("-", key)[3] for variant in ("pgle", "profiling") for key in found[variant]}
    assert len(programs) == 1, found
    return f"profiles of {seen['profiled']} bytes"


def optimised_is_loaded(check: Check) -> str:
    """The next process neither profiles nor compiles."""
    seen = check.run(url=check.url("pgle"), pgle=True, calls=RUNS + 2)
    assert (seen["compiled"], seen["profiled"]) == ([], []), seen
    return f"{seen['stats']['hits']} loaded"


def optimised_is_expected(check: Check) -> str:
    """With PGLE off it is loaded where it is expected, and not where it is not."""
    seen = check.run(url=check.url("pgle"), expect=True, calls=2)
    assert (seen["compiled"], seen["profiled"]) == ([], []), seen
    other = check.run(url=check.url("pgle"), calls=2)
    assert other["compiled"] == ["plain"], other
    return "as documented"


def profile_is_reused(check: Check) -> str:
    """Without the optimised entry: one compilation, no profiling."""
    import ejcache

    url = check.url("pgle")
    with ejcache.open_store(url) as store:
        for key in check.entries(url)["pgle"]:
            assert store.delete(key)
    seen = check.run(url=url, pgle=True, calls=RUNS + 2)
    assert (seen["compiled"], seen["profiled"]) == (["profile"], []), seen
    again = check.run(url=url, pgle=True, calls=RUNS + 2)
    assert (again["compiled"], again["profiled"]) == ([], []), again
    return "1 compilation, 0 runs profiled"


def xla_results(check: Check, url: str, **wanted: Any) -> str:
    first = check.run(url=url, xla_caches="all", **wanted)
    assert first["compiled"] == ["plain"], first
    directory = first["paths"][0]
    assert directory, "XLA was given no directory"
    assert not Path(directory).exists(), f"{directory} was left behind"
    assert first["after"], "XLA found nothing that it keeps"
    second = check.run(url=url, xla_caches="all", settings={"namespace": "another"}, size=520, **wanted)
    third = check.run(url=url, xla_caches="all", size=520, **wanted)
    assert second["before"] == 0, "another namespace shares XLA's results"
    assert third["before"] > 0, "nothing that the first process found reached the third"
    return f"{third['before']} results reached another process"


def xla_caches_in_a_directory(check: Check) -> str:
    """XLA autotunes into a private directory, and the next process has the results before it compiles."""
    return xla_results(check, check.url("xla"))


def a_load_needs_no_directory(check: Check) -> str:
    """An executable loads although the directory in its options, of XLA's own caches, does not exist."""
    url = check.url("no-directory")
    first = check.run(url=url, xla_caches="all")
    second = check.run(url=url, xla_caches="all", no_directory=True)
    assert first["compiled"] == ["plain"], first
    assert second["compiled"] == [], second
    assert second["stats"]["hits"] >= 1, second
    assert abs(first["sum"] - second["sum"]) <= 1e-3 * abs(first["sum"]), (first["sum"], second["sum"])
    return "loaded: nothing has to be made for a hit"


def xla_caches_in_a_bucket(check: Check) -> str:
    """A gs:// URL does not abort XLA, and results go through it."""
    sys.path.insert(0, str(TOOLS))
    from gcs_server import GcsServerProcess

    with GcsServerProcess() as server:
        return xla_results(check, "gs://bucket/gpu", env={"STORAGE_EMULATOR_HOST": server.url})


def processes_at_once(check: Check) -> str:
    """Four processes with one cache and XLA's caches: none fails (sharing a directory, XLA does)."""
    url = check.url("at-once")
    processes = [check.start(url=url, xla_caches="all", size=400 + 8 * n) for n in range(4)]
    ended = [check.end(process) for process in processes]
    assert all(each["finite"] for each in ended), ended
    assert len({each["paths"][0] for each in ended}) == 4, "directories were shared"
    assert len(check.entries(url)["plain"]) == 4
    return "4 ended well"


def directory_is_no_part_of_the_key(check: Check) -> str:
    """With XLA's autotuning cache on or off, a program has one key."""
    names = "xla_gpu_per_fusion_autotune_cache_dir"
    url = check.url("key")
    check.run(url=url, xla_caches=names)
    seen = check.run(url=url, xla_caches="none")
    assert seen["compiled"] == [], seen
    return "loaded with the caches off"


def compiled_without_the_gpu(check: Check) -> str:
    """A process without a GPU compiles for the saved target, and the GPU runs that."""
    url = check.url("elsewhere")
    environment = {**os.environ, **({"JAX_PLATFORMS": "cpu"} if check.rehearse else {})}
    command = [sys.executable, "-m", "ejcache", "target"]
    subprocess.run([*command, "save", "here", "--dir", url], env=environment, capture_output=True, check=True)
    elsewhere = check.run(url=url, target="here", env={"JAX_PLATFORMS": "cpu"})
    assert elsewhere["warmed"]["outcome"] == "compiled", elsewhere
    found, plain = check.run(url=url), check.run(url=check.url("here"))
    assert found["compiled"] == [], found
    assert abs(found["sum"] - plain["sum"]) <= 1e-3 * abs(plain["sum"]), (found["sum"], plain["sum"])
    bits = "equal" if found["sum"] == plain["sum"] else f"{found['sum']!r} and {plain['sum']!r}"
    seconds = f"{elsewhere['warmed']['seconds']:.2f} s to compile there"
    return f"a hit, sums {bits}, {seconds}"


REUSING = """
import sys
import jax, jax.numpy as jnp, numpy as np
import ejcache

traced = []


@ejcache.ejit(reuse_lowering="six layers")
def step(x, w):
    traced.append(None)
    for _ in range(6):
        x = jax.nn.gelu(x @ w) + x.mean(axis=1, keepdims=True)
    return x, jnp.sort(x, axis=0), jax.random.normal(jax.random.key(3), x.shape)


x = jnp.asarray(np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32))
values = [np.asarray(each).tobytes() for each in step(x, x / 16)]
import hashlib, json
cache = ejcache.active()
cache.flush()
stats = cache.stats().to_dict()
print(json.dumps({"traced": len(traced), "bits": hashlib.sha256(b"".join(values)).hexdigest(), "hits": stats["hits"]}))
"""


def lowering_is_reused(check: Check) -> str:
    """The third start of a script takes the lowered program of the first, has its key, and computes the same bits."""
    place = check.root / "restarts"
    place.mkdir()
    (place / "train.py").write_text(REUSING)
    settings = {"EJCACHE": "1", "EJCACHE_DIR": str(check.root / "reused"), "EJCACHE_MIN_COMPILE_SECONDS": "0"}
    environment = {**os.environ, **settings, "EJCACHE_REUSE_FLOOR": "0", "EJCACHE_REUSE_CHECK_ONE_IN": "0"}
    environment |= {"JAX_PLATFORMS": "cpu"} if check.rehearse else {}
    found = []
    for _ in range(4):
        command = [sys.executable, str(place / "train.py")]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr[-600:]
        found.append(json.loads(ended.stdout.strip().splitlines()[-1]))
    assert [each["traced"] for each in found] == [1, 1, 0, 0], found
    assert len({each["bits"] for each in found}) == 1, found
    assert all(each["hits"] for each in found[1:]), found
    return "two starts traced, two did not; bits equal"


def kernel_is_tuned(check: Check) -> str:
    """A kernel of Pallas is measured once, a wrong block size never wins, and the next process measures nothing."""
    first, second = (check.run(task="tuned", url=check.url("tuned")) for _ in range(2))
    assert first["right"], first
    assert second["right"], second
    assert first["blocks"] == [256, 512, 1024, 2048], first
    assert len(second["blocks"]) == 1, second
    assert second["blocks"] != [512], second
    return f"block {second['blocks'][0]} of {first['blocks']}; failed: {first['failures']}; {first['facts']}"


def identical_programs(check: Check) -> str:
    """Of four programs that are the same, none is said to be faster."""
    found = check.run(task="raced", races=40)
    said = f"{len(found['wins'])} of 40 won, {found['unsure']} unsure, {1e6 * found['seconds']:.0f} us"
    assert len(found["wins"]) <= 1, f"{said}: gains {found['wins']} %"
    return said


LINES: list[Callable[[Check], str]] = [
    stored_and_loaded,
    damage_is_a_miss,
    profiles_are_collected,
    optimised_is_loaded,
    optimised_is_expected,
    profile_is_reused,
    xla_caches_in_a_directory,
    a_load_needs_no_directory,
    xla_caches_in_a_bucket,
    processes_at_once,
    directory_is_no_part_of_the_key,
    compiled_without_the_gpu,
    lowering_is_reused,
    kernel_is_tuned,
    identical_programs,
]


@contextlib.contextmanager
def place(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        yield Path(directory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = "only lines whose name has this in it; may be given again"
    parser.add_argument("--only", metavar="WORD", action="append", default=[], help=only)
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave the caches in this directory")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with made-up results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return 0
    failed = 0
    with place(options.keep) as root:
        check = Check(root, rehearse=options.rehearse)
        about = check.run(platform_only=True)
        print(f"{about['kind']} ({about['platform']}), JAX {about['jax']}, {about['version']}")
        if about["platform"] not in {"cuda", "gpu"} and not options.rehearse:
            print("there is no NVIDIA GPU here: nothing was checked")
            return 2
        if about["mismatches"]:
            print(f"FAIL this JAX is not built as expected: {about['mismatches']}")
            return 1
        for line in LINES:
            if options.only and not any(word in line.__name__ for word in options.only):
                continue
            try:
                result, said = "PASS", line(check)
            except Exception as exc:
                failed += 1
                result, said = "FAIL", f"{type(exc).__name__}: {exc}"
            print(f"{result} {line.__name__.replace('_', ' ')}: {said}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

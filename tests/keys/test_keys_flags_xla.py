"""The table of flags against the installed jaxlib: XLA itself says whether two lists of flags mean the same."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from capabilities import needs
from forking import Forked
from helpers import python_command, run_program

from ejcache.keys.flags import KINDS, Kind, canonical_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Flags are parsed once per process, so every list is parsed in a fork of a process that has only loaded jaxlib.
PARSER = """
import hashlib, json, os, sys
os.environ.pop("XLA_FLAGS", None)
from jaxlib import xla_client

def parse(flags):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.environ["XLA_FLAGS"] = flags
            os.write(writer, hashlib.sha256(xla_client.CompileOptions().SerializeAsString()).hexdigest().encode())
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(child, 0)
    return answer

for line in sys.stdin:
    print(json.dumps([parse(flags) for flags in json.loads(line)]), flush=True)
"""


@pytest.fixture(scope="module")
def parse_in_xla() -> Iterator[Callable[[list[str]], list[str]]]:
    """Digests of the compile options that XLA makes of some texts; empty where it refuses."""
    command = [sys.executable, "-c", PARSER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parser:

        def parse(texts: list[str]) -> list[str]:
            parser.stdin.write(json.dumps(texts) + "\n")
            parser.stdin.flush()
            return json.loads(parser.stdout.readline())

        yield parse


def flags_of(kind: Kind) -> list[str]:
    return sorted(name for name, k in KINDS.items() if k is kind and not name.startswith(("xla_tpu", "xla_sc_")))


@needs("linux")  # it forks a process that has loaded jaxlib
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_booleans_and_scalars_are_fields_of_their_own(parse_in_xla, every):
    """Each that jaxlib knows, or a part: no order matters, the last of two decides, and a bare boolean is true.

    XLA refuses a list with a flag that it does not know, so each is parsed alone, then all at once: the options have
    a field for each, and are the same only if every field is.
    """
    names = [*flags_of(Kind.BOOLEAN), *flags_of(Kind.SCALAR), *flags_of(Kind.FILE)][::every]
    texts = {n: f"--{n}=true" if KINDS[n] is Kind.BOOLEAN else f"--{n}=3" for n in names}
    known = [name for name, digest in zip(names, parse_in_xla([*texts.values()]), strict=True) if digest]
    assert len(known) > 200 // every
    plain = [texts[name] for name in known]
    opposite = [text.replace("=true", "=false").replace("=3", "=5") for text in plain]
    last = [f"--{name}" if KINDS[name] is Kind.BOOLEAN else texts[name] for name in known]
    forwards, backwards, twice, other = parse_in_xla(
        [" ".join(flags) for flags in (plain, reversed(plain), [*opposite, *last], opposite)]
    )
    assert forwards == backwards == twice != other != ""


@needs("linux")  # it forks a process that has loaded jaxlib
def test_lists_and_maps_mean_to_xla_what_their_normal_form_says(parse_in_xla):
    """Where a normal form of `MAP` flags changes the text, the compile options stay; `LIST` keeps its order."""
    texts = [
        "--xla_backend_extra_options=b=1,a=1 --xla_backend_extra_options=a=2",
        "--xla_gpu_analytical_latency_estimator_options=b=1,a=1,b=3",
        "--xla_gpu_experimental_cost_model_gemm_tiling_options=b=1,a=1,b=3",
        "--xla_cpu_max_isa='AVX2' --xla_cpu_enable_fast_math --xla_cpu_max_isa=AVX512",
        "--xla_gpu_ptx_compiler_extra_flags=b --xla_gpu_ptx_compiler_extra_flags=a",
        "--xla_gpu_ptx_file=b --xla_gpu_ptx_file=a",
    ]
    normal = [" ".join(canonical_flags(text.replace("'", "").split())) for text in texts]
    assert normal[:4] != texts[:4]
    plain = parse_in_xla(["", *texts])
    assert parse_in_xla(normal) == plain[1:]
    assert len(set(plain)) == len(plain)


NOT_COMPILED_WITH = (
    "xla_force_host_platform_device_count",  # says how many devices there are
    "xla_dump_emitter_re",  # with it jaxlib 0.10.2 itself crashes in three compilations of forty
)
COMPILE = """
import jax, jax.numpy as jnp
program = jax.jit(jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x) * jnp.sort(x))))
print("COMPILED", program.lower(jax.ShapeDtypeStruct((32, 32), jnp.float32)).compile().as_text())
"""


@needs("linux")  # it forks a process that has loaded jaxlib
def test_dropped_flags_leave_the_compiled_program_alone(parse_in_xla, tmp_path):
    """With every dump and log flag that this jaxlib knows, XLA makes the same code on the CPU."""
    dropped = [name for name in flags_of(Kind.DROPPED) if name not in NOT_COMPILED_WITH]
    candidates = [
        f"--{name}={value}"
        for name in dropped
        for value in (["true", str(tmp_path)] if not name.endswith("_re") else [".*"])
    ]
    accepted = [text for text, digest in zip(candidates, parse_in_xla(candidates), strict=True) if digest]
    flags = {text.partition("=")[0]: text for text in accepted}
    assert len(flags) > 20
    plain, dumped = (
        run_program(python_command(COMPILE), env={"XLA_FLAGS": text}, start=Forked).stdout.partition("COMPILED")[2]
        for text in ("", " ".join(flags.values()))
    )
    assert dumped == plain != ""
    assert any(tmp_path.iterdir())

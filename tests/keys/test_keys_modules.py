"""Module digests: numbering and trace history do not count, everything else does, and the module stays as it was."""

from __future__ import annotations

import base64
import io
import json
import sys

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxlib.mlir import ir

from ejcache.jax_integration.lowering import module_digest, private_functions
from ejcache.jax_integration.lowering.kernel_locations import strip_mosaic_config
from ejcache.jax_integration.lowering.module_digest import digest_module
from ejcache.jax_integration.lowering.private_functions import base_name, content_name, function_order
from ejcache.jax_integration.seam import kernel_dialects
from ejcache.jax_integration.seam.compiling import module_text
from ejcache.jax_integration.seam.parts import Part

MAIN = """
module @jit_f attributes {{mhlo.num_partitions = 1 : i32}} {{
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    {body}
  }}
  {functions}
}}
"""


def parse(text: str):
    """A module with all the dialects that JAX loads."""
    context = jax.jit(lambda x: x).lower(1.0).compiler_ir("stablehlo").context
    with context:
        return ir.Module.parse(text)


def function(name: str, value: float, *, attributes: str = "", visibility: str = "private", calls: str = "") -> str:
    call = (
        f"%c = func.call @{calls}(%x) : (tensor<4xf32>) -> tensor<4xf32>"
        if calls
        else "%c = stablehlo.abs %x : tensor<4xf32>"
    )
    return f"""
  func.func {visibility} @{name}(%x: tensor<4xf32>) -> tensor<4xf32> {attributes} {{
    {call}
    %k = stablehlo.constant dense<{value:e}> : tensor<4xf32>
    %r = stablehlo.add %c, %k : tensor<4xf32>
    return %r : tensor<4xf32>
  }}"""


def calling(*names: str, functions: tuple[str, ...]) -> str:
    """A module whose main calls these functions one after the other."""
    lines, last = [], "%x"
    for number, name in enumerate(names):
        lines.append(f"%{number} = func.call @{name}({last}) : (tensor<4xf32>) -> tensor<4xf32>")
        last = f"%{number}"
    return MAIN.format(body="\n    ".join([*lines, f"return {last} : tensor<4xf32>"]), functions="\n".join(functions))


def digest(text: str) -> str:
    return digest_module(parse(text)).digest


def test_numbering_order_repetition_and_dead_functions_do_not_count():
    """A helper is the same under every number, emitted once or twice, first or last, beside dead ones or not."""
    plain = digest(calling("f", "f", functions=(function("f", 1),)))
    assert digest(calling("f_7", "f_7", functions=(function("f_7", 1),))) == plain
    assert digest(calling("f", "f_0", functions=(function("f_0", 1), function("f", 1)))) == plain
    assert digest(calling("f", "f", functions=(function("f", 1), function("g", 2)))) == plain
    assert digest(calling("f", "f", functions=(function("g", 2, calls="f"), function("f", 1)))) == plain


def test_the_content_of_private_functions_counts_however_deep():
    """A constant in a helper's helper, the order of calls, a swap of two helpers' contents."""
    digests = [
        digest(calling("f", "g", functions=(function("f", 1), function("g", 2)))),
        digest(calling("g", "f", functions=(function("f", 1), function("g", 2)))),
        digest(calling("f", "g", functions=(function("f", 2), function("g", 1)))),
        digest(calling("f_1", "f_2", functions=(function("f_1", 1), function("f_2", 2)))),
        digest(calling("f_1", "f_2", functions=(function("f_1", 2), function("f_2", 1)))),
        digest(calling("f", functions=(function("f", 1, calls="h"), function("h", 2)))),
        digest(calling("f", functions=(function("f", 1, calls="h"), function("h", 3)))),
        digest(
            calling("f", functions=(function("f", 1, calls="h_0"), function("h_0", 2), function("h_1", 3, calls="h_0")))
        ),
    ]
    assert digests[-1] == digests[5]
    assert len(set(digests)) == len(digests) - 1


def test_names_attributes_and_visibility_of_functions_count():
    """The base name stays, as do a function's attributes; a public function is what its whole name says."""
    digests = {
        digest(calling("f", functions=(function("f", 1),))),
        digest(calling("g", functions=(function("g", 1),))),
        digest(calling("f", functions=(function("f", 1, attributes="attributes {no_inline}"),))),
        digest(calling("f", functions=(function("f", 1, attributes="attributes {mhlo.odd = 1 : i32}"),))),
        digest(calling("f", functions=(function("f", 1, visibility="public"),))),
        digest(calling("f_1", functions=(function("f_1", 1, visibility="public"),))),
        digest(calling("f", functions=("func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32>",))),
        digest(calling("f_1", functions=("func.func private @f_1(%x: tensor<4xf32>) -> tensor<4xf32>",))),
    }
    assert len(digests) == 8


OTHER_REFERENCES = {
    "composite": '%0 = stablehlo.composite "a.b" %x {{decomposition = @{name}}} : (tensor<4xf32>) -> tensor<4xf32>',
    "custom_call": (
        "%0 = stablehlo.custom_call @t(%x) {{called_computations = [@{name}]}} : (tensor<4xf32>) -> tensor<4xf32>"
    ),
}


@pytest.mark.parametrize("operation", OTHER_REFERENCES)
def test_functions_are_followed_wherever_stablehlo_refers_to_them(operation):
    """Composites and custom calls refer to functions too."""

    def module(name: str, value: float) -> str:
        body = OTHER_REFERENCES[operation].format(name=name) + "\n    return %0 : tensor<4xf32>"
        return MAIN.format(body=body, functions=function(name, value))

    assert digest(module("f_1", 1)) == digest(module("f_2", 1)) != digest(module("f_1", 2))


def test_plain_bytecode_names_no_operation_that_is_looked_at():
    """What is digested as it is has none of the operations that the canonical form changes or counts."""
    names = {name.rpartition(".")[2].encode() for name in private_functions.REFERENCES}
    assert set(module_digest.NAMES_IN_BYTECODE) == {b"private", *names}


@pytest.mark.parametrize("attribute", ["@{name}", "[@{name}]", "{{deep = [{{er = @{name}}}]}}"], ids=str)
def test_a_reference_from_an_unknown_place_makes_names_count(attribute):
    """Where an unknown attribute refers to a private function, its content counts under its number."""

    def module(name: str, value: float) -> str:
        attributes = "{odd.attribute = " + attribute.format(name=name) + "}"
        body = f"""%0 = func.call @{name}(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.abs %0 {attributes} : tensor<4xf32>
    return %1 : tensor<4xf32>"""
        return MAIN.format(body=body, functions=function(name, value) + function("unused", 9))

    assert len({digest(module(*arguments)) for arguments in (("f_1", 1), ("f_1", 2), ("f_2", 1))}) == 3


def test_a_string_that_looks_like_a_symbol_is_a_string():
    """Text is text: it counts as it stands, and does not keep the numbering of functions alive."""

    def module(name: str, text: str) -> str:
        body = f"""%0 = func.call @{name}(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.abs %0 {{odd.attribute = "{text}"}} : tensor<4xf32>
    return %1 : tensor<4xf32>"""
        return MAIN.format(body=body, functions=function(name, 1))

    assert digest(module("f_1", "@f_1")) == digest(module("f_2", "@f_1")) != digest(module("f_1", "@f_2"))


def test_recursion_and_nested_symbol_tables_make_names_count():
    """Of what the canonical form does not know, the names and numbers of functions count, and their content."""
    recursive = calling("f", functions=(function("f", 1, calls="g"), function("g", 2, calls="f")))
    others = (recursive.replace("@g", "@g_1"), recursive.replace(f"{2.0:e}", f"{3.0:e}"))
    assert len({digest(recursive), *map(digest, others)}) == 3
    nested = calling("f", functions=(function("f", 1), "module @inner {" + function("f", 2) + "}"))
    others = (nested.replace("@f", "@f_1"), nested.replace(f"{2.0:e}", f"{3.0:e}"))
    assert len({digest(nested), *map(digest, others)}) == 3


def test_everything_at_the_top_counts():
    """Module attributes, the module's name and meshes."""
    text = calling("f", functions=(function("f", 1),))
    mesh = text.replace("func.func public", 'sdy.mesh @mesh = <["x"=2]>\n  func.func public', 1)
    variants = [
        text,
        text.replace("@jit_f", "@jit_g"),
        text.replace("num_partitions = 1", "num_partitions = 2"),
        mesh,
        mesh.replace('"x"=2', '"x"=4'),
        mesh.replace("@mesh", "@mesh_0"),
    ]
    assert len({digest(variant) for variant in variants}) == len(variants)


def test_every_element_of_a_constant_counts():
    """Large constants and resources are hashed in full, not as people see them."""

    def lowered(last: float):
        return jax.jit(lambda x: x + constant(last)).lower(jnp.ones(20_000)).compiler_ir("stablehlo")

    def constant(last: float):
        return jnp.arange(20_000.0).at[-1].set(last)

    one, same, other = (
        digest_module(lowered_constant(value)).digest
        for lowered_constant, value in ((lowered, 1), (lowered, 1), (lowered, 2))
    )
    assert one == same != other
    resource = """
module @m {
  func.func public @main() -> tensor<2xf32> {
    %0 = func.call @f_1() : () -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func private @f_1() -> tensor<2xf32> {
    %0 = stablehlo.constant dense_resource<blob> : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
{-# dialect_resources: { builtin: { blob: "0x040000000000803F00000040" } } #-}
"""
    first = digest(resource)
    assert digest(resource.replace('00000040"', '00000041"')) != first


def test_the_module_is_left_as_it_was():
    """What goes to the compiler is untouched, byte for byte, locations and names included."""
    module = jax.jit(lambda x: jnp.clip(jnp.sort(x), 0, 1)).lower(jnp.ones(4)).compiler_ir("stablehlo")

    def bytecode() -> bytes:
        out = io.BytesIO()
        module.operation.write_bytecode(out)
        return out.getvalue()

    before = bytecode()
    digest_module(module)
    digest_module(module, metadata=True, ignore_custom_partitioning=True)
    assert bytecode() == before
    assert module.operation.verify()
    assert "@clip" in module_text(module)


def test_locations_count_only_with_metadata():
    """The same function two lines further down is the same, unless metadata is in the key."""
    source = "def f(x):\n    return jnp.clip(x, 0, 1) * 2\n"

    def lowered(text: str):
        scope = {"jnp": jnp}
        exec(compile(text, "/somewhere/model.py", "exec"), scope)
        return jax.jit(scope["f"]).lower(jnp.ones(4)).compiler_ir("stablehlo")

    here, there = lowered(source), lowered("\n\n" + source)
    assert digest_module(here).digest == digest_module(there).digest
    assert digest_module(here, metadata=True).digest != digest_module(there, metadata=True).digest


KERNEL = """
module @kernel {{
  func.func @k(%x: f32 loc("{place}")) -> f32 {{
    %k = arith.constant {value:e} : f32 loc("{place}")
    %0 = arith.addf %x, %k : f32 loc("{place}")
    return %0 : f32 loc("{place}")
  }} loc("{place}")
}} loc("{place}")
"""


def kernel_bytes(place: str, value: float) -> bytes:
    out = io.BytesIO()
    parse(KERNEL.format(place=place, value=value)).operation.write_bytecode(out)
    return out.getvalue()


def with_kernel(target: str, config, *, metadata: bool = False) -> str:
    """Digest of a module with one custom call of this target and configuration."""
    module = parse(
        MAIN.format(
            body=f"""%0 = stablehlo.custom_call @{target}(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>""",
            functions="",
        )
    )
    call = next(
        op for op in module.body.operations[0].regions[0].blocks[0].operations if "custom_call" in op.operation.name
    )
    with module.context:
        name = "mhlo.backend_config" if isinstance(config, dict) else "backend_config"
        call.attributes[name] = (
            ir.DictAttr.get({key: ir.StringAttr.get(value) for key, value in config.items()})
            if isinstance(config, dict)
            else ir.StringAttr.get(config)
        )
    return digest_module(module, metadata=metadata).digest


@pytest.mark.parametrize("target", ["__gpu$xla.gpu.triton", "mosaic_gpu_v2"])
def test_debug_locations_within_gpu_kernels_do_not_count(target):
    """A kernel's module is stripped like the program's, unless metadata count; its content and configuration count."""
    import hashlib

    field = "ir" if "triton" in target else "module"

    def config(place: str, value: float, **others: str) -> dict[str, object]:
        kernel = kernel_bytes(place, value)
        hashes = {} if field == "ir" else {"kernel_hash": hashlib.sha256(kernel).digest()}
        return {field: kernel, **hashes, **others}

    quoted = f'"{target}"' if "$" in target else target
    first = with_kernel(quoted, config("a.py", 1))
    assert with_kernel(quoted, config("b.py", 1)) == first
    assert len({with_kernel(quoted, config(place, 1), metadata=True) for place in ("a.py", "b.py")}) == 2
    different = [
        config("a.py", 2),
        config("a.py", 1, other="x"),
        {field: b"no module"},
        {field: b"no module either"},
        {field: kernel_bytes("a.py", 1), "kernel_hash": b"of something else"},
    ]
    assert len({first, *(with_kernel(quoted, d) for d in different)}) == len(different) + 1


def test_debug_locations_within_tpu_kernels_do_not_count():
    """In the kernel's body, and where newer JAX keeps them apart; a body that cannot be read counts as it stands."""

    def config(body: bytes, **others: object) -> str:
        encoded = {"body": base64.b64encode(body).decode(), **others}
        return json.dumps({"custom_call_config": encoded})

    first = with_kernel("tpu_custom_call", config(kernel_bytes("a.py", 1)))
    assert with_kernel("tpu_custom_call", config(kernel_bytes("b.py", 1))) == first
    bodies = [config(kernel_bytes(place, 1)) for place in ("a.py", "b.py")]
    assert len({with_kernel("tpu_custom_call", body, metadata=True) for body in bodies}) == 2
    apart = [config(kernel_bytes("a.py", 1), debug_locations=locations) for locations in ("AAAA", "BBBB")]
    assert with_kernel("tpu_custom_call", apart[0]) == with_kernel("tpu_custom_call", apart[1])
    different = [
        config(kernel_bytes("a.py", 2)),
        config(kernel_bytes("a.py", 1), needs_layout_passes=True),
        config(b"no module"),
        config(b"no module either"),
        "no JSON",
    ]
    assert len({first, *(with_kernel("tpu_custom_call", d) for d in different)}) == len(different) + 1


def test_a_jax_that_lacks_a_dialect_reads_the_kernels_of_the_others(monkeypatch):
    """JAX 0.4.38 has none of Mosaic's for GPUs."""
    monkeypatch.delattr("jaxlib.mosaic.python.mosaic_gpu")
    monkeypatch.setitem(sys.modules, "jaxlib.mosaic.python.mosaic_gpu", None)
    here, moved = (with_kernel("__gpu$xla.gpu.triton", {"ir": kernel_bytes(place, 1)}) for place in ("a.py", "b.py"))
    assert here == moved


def test_a_jax_that_does_not_let_kernels_be_read_gives_their_programs_keys(monkeypatch, caplog):
    """The lines of a kernel's source count then, which is said in one line."""
    needs = {"jax._src.interpreters.mlir": ("upstream_dialects_of_another_version",)}
    monkeypatch.setattr(kernel_dialects, "PART", Part(kernel_dialects.PART.gives, needs))
    here, again, moved, other = (
        with_kernel("__gpu$xla.gpu.triton", {"ir": kernel_bytes(place, value)})
        for place, value in (("a.py", 1), ("a.py", 1), ("b.py", 1), ("a.py", 2))
    )
    assert here == again
    assert len({here, moved, other}) == 3
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("ejcache")]
    assert "upstream_dialects_of_another_version is gone" in line


def test_a_pallas_kernel_that_moved_is_the_same():
    """A TPU kernel two lines further down, as this JAX lowers it."""
    from jax.experimental import pallas as pl

    source = "def kernel(x, o):\n    o[...] = x[...] * {factor}\n"

    def lowered(text: str):
        scope: dict = {}
        exec(compile(text, "/somewhere/kernels.py", "exec"), scope)
        shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        program = jax.jit(pl.pallas_call(scope["kernel"], out_shape=shape))
        return digest_module(program.trace(shape).lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")).digest

    here = lowered(source.format(factor=2))
    assert lowered("\n\n" + source.format(factor=2)) == here
    assert lowered(source.format(factor=3)) != here


def test_pointers_to_partitioners_count_unless_told_otherwise():
    """A pointer in the digest is reported, so that the caller can do without the cache."""

    def module(pointer: int):
        call = f'stablehlo.custom_call @CustomSPMDPartitioning(%x) {{backend_config = "{pointer}"}}'
        body = f"%0 = {call} : (tensor<4xf32>) -> tensor<4xf32>\n    return %0 : tensor<4xf32>"
        return parse(MAIN.format(body=body, functions=""))

    found = digest_module(module(1))
    assert found.custom_partitionings == 1
    assert found.digest != digest_module(module(2)).digest
    ignored = [digest_module(module(pointer), ignore_custom_partitioning=True) for pointer in (1, 2)]
    assert ignored[0] == ignored[1]


def test_code_for_the_host_is_noticed():
    """In main and in helpers: its key needs the CPU's features on every platform."""
    helper = function("f", 1)
    marked = helper.replace("add %c, %k", 'add %c, %k {mhlo.frontend_attributes = {_xla_compute_type = "host"}}')
    assert marked != helper
    assert digest_module(parse(calling("f", functions=(marked,)))).host_code
    assert digest_module(parse(calling("f", functions=(marked.replace("private", "public"),)))).host_code
    assert not digest_module(parse(calling("f", functions=(helper,)))).host_code


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef"))))
def test_functions_come_after_those_they_refer_to(graph):
    """The order puts every callee first; there is none exactly where there is a cycle."""
    order = function_order(graph)
    reachable = {name: set(callees) for name, callees in graph.items()}
    for _ in graph:
        for callees in reachable.values():
            callees |= {further for callee in callees for further in reachable.get(callee, ())}
    if any(name in callees for name, callees in reachable.items()):
        assert order is None
        return
    assert sorted(order) == sorted(graph)
    assert all(order.index(callee) < order.index(name) for name in graph for callee in graph[name] if callee in graph)


def test_content_names_are_base_names_and_digests():
    """Only the last number goes, a name that is all number stays, and one byte changes the name."""
    assert [base_name(n) for n in ("clip", "clip_1", "clip_1_2", "_where_10", "_1", "f_x")] == [
        "clip",
        "clip",
        "clip_1",
        "_where",
        "_1",
        "f_x",
    ]
    assert content_name("clip_1", b"x") == content_name("clip", b"x") != content_name("clip", b"y")


def test_a_mosaic_configuration_that_is_not_understood_stays():
    """Whatever is not the expected JSON is hashed as it stands."""
    for config in ("", "[]", "{}", '{"custom_call_config": {"body": "%"}}', '{"custom_call_config": 3}', "null"):
        assert strip_mosaic_config(config, lambda kernel: kernel) == config


def test_the_size_of_a_program_counts_its_private_functions():
    """A jit within a jit is a private function: with it taken out, a large program looked quick to compile."""
    bodies = tuple(function(f"f_{number}", number + 1.5) for number in range(40))
    large = digest_module(parse(calling(*(f"f_{number}" for number in range(40)), functions=bodies)))
    small = digest_module(parse(calling("f_0", functions=bodies[:1])))
    twice = digest_module(parse(calling("f_0", "f_1", functions=(bodies[0], bodies[0].replace("@f_0", "@f_1")))))

    assert large.size > 20 * (twice.size - small.size) + small.size
    assert large.size > 40 * 100
    assert twice.digest != small.digest

"""Trees, shardings, signatures and records as JSON, and what they refuse."""

from __future__ import annotations

import copy
import enum
import json
import sys
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import direct_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from direct_cases import Box, Hidden, Pair
from direct_driver import compiled_targets
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ejcache.direct.call.fastpath_format import decode_fastpath, difference_to_record, encode_fastpath
from ejcache.direct.call.shardings import Devices
from ejcache.direct.call.signature import call_signature
from ejcache.direct.call.trees.call_objects import CallObjects
from ejcache.direct.call.trees.encoding import decode_tree, encode_tree
from ejcache.direct.call.trees.names import MISSING, name_of, named
from ejcache.errors import EntryCorruptError
from ejcache.jax_integration.seam.direct.fastpath import (
    direct_function,
    fastpath_mismatches,
    parse_call,
    plain_miss,
)
from ejcache.jax_integration.seam.direct.plain_calls import why_plain
from ejcache.jax_integration.seam.direct.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.jax_integration.seam.direct.fastpath import ParsedCall


class Weights:
    """A value of a class of the user's."""

    __slots__ = ("__dict__", "first")

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and (self.first, self.second) == (other.first, other.second)

    def __hash__(self) -> int:
        return hash(self.second)

    def __repr__(self) -> str:
        return f"Weights({self.first!r}, {self.second!r})"


class Sentinel:
    """A class of which its module has one object."""


SENTINEL = Sentinel()


class Registered(NamedTuple):
    """A named tuple that is registered as a node of its own."""

    value: Any


jax.tree_util.register_pytree_node(Registered, lambda it: ((it.value,), ("data", 1)), lambda _, it: Registered(*it))


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


def dispatched(value: Any) -> Any:
    """The tree as C++ has it."""
    return jax.jit(lambda: value)._cache_miss()[1].out_pytree_def


def devices() -> Devices:
    return Devices(jax.devices()[0].client)


def there_and_back(tree: Any, objects: CallObjects | None = None) -> Any:
    brought = objects or CallObjects((), ())
    written = json.loads(json.dumps(encode_tree(tree, devices(), brought)))
    return decode_tree(written, devices(), brought)


def test_this_jax_has_what_direct_functions_need():
    """The seam's own check finds no difference."""
    assert fastpath_mismatches() == []


# -- trees ---------------------------------------------------------------------------------------------------------

ONE = np.float32(1)


def kind_of(value):
    """The name of a case, which is the same in every worker: no address is in it."""
    return type(value).__name__


@pytest.mark.parametrize(
    "value",
    [
        ONE,
        None,
        (),
        [],
        {},
        (ONE, [ONE, None], {"a": ONE, "b": (ONE,)}),
        {3: ONE, 1: ONE},
        OrderedDict(z=ONE, a=ONE),
        defaultdict(list, k=ONE),
        Pair(ONE, Pair(None, ONE)),
        Box(ONE, None),
        Box(ONE, (1, True, 1.0, -0.0, 2**80, 1j, b"x", "\ud800", None, ..., slice(1, None), range(3))),
        Box(ONE, [{"a": {1, 2}, (1, 2): frozenset({"x"})}, float("inf")]),
        Box(ONE, (jnp.tanh, jax.nn.relu, np.float32, jnp.bfloat16, np.dtype("int8"), jnp.add, len, Hidden, Colour.RED)),
        Box(ONE, (PartitionSpec("x", None, ("y", "z")), Pair(1, 2))),
        Box(ONE, (jax.tree.structure({"a": [1, None], "b": Box(1, "x")}), Weights({"a": 1}, None), SENTINEL)),
        Registered(ONE),
    ],
    ids=lambda value: str(jax.tree.structure(value))[:40],
)
def test_a_tree_comes_back_equal(value):
    """Written as JSON and read, a tree equals itself, with the exact types of what its nodes hold."""
    tree = dispatched(value)

    again = there_and_back(tree)

    assert again == tree
    assert repr(again) == repr(tree)


def test_objects_of_the_arguments_come_back_as_those_of_the_new_call():
    """A record refers to an object by its place, so another call gets its own."""
    first, second = Hidden(), Hidden()
    brought = CallObjects([dispatched(Box(ONE, (1, {"deep": [first]})))], [])
    written = encode_tree(dispatched({"x": Box(ONE, [first])}), devices(), brought)
    assert "ref" in json.dumps(written)

    again = decode_tree(written, devices(), CallObjects([dispatched(Box(ONE, (1, {"deep": [second]})))], []))

    assert again == dispatched({"x": Box(ONE, [second])})


def test_equal_numbers_of_other_types_are_no_reference():
    """1, True and 1.0 are equal to Python, and not the same to a program."""

    class Number(NamedTuple):
        value: object

    brought = CallObjects((), (Number(1),))

    assert brought.path_of(Number(1)) == [-1, 0]
    assert brought.path_of(Number(True)) is None
    assert brought.path_of(Number(1.0)) is None
    assert CallObjects((), (Number(0.0),)).path_of(Number(-0.0)) is None


@pytest.mark.parametrize("held", [Hidden(), lambda: 1, bytearray(b"x"), object()], ids=kind_of)
def test_what_no_argument_has_is_refused_with_its_place(held):
    """The sentence says where in the result the object is."""
    with pytest.raises(RefusedError, match=r"the data of the result\['x'\]\[0\] is a .*, which is in no argument"):
        there_and_back(dispatched({"x": (Box(ONE, held),)}))


def test_names_are_found_among_imported_modules_only():
    """Nothing is imported to find a name, no attribute is computed, and a name must be the object's own."""
    assert named("ctypes.macholib.dyld:dyld_find") is MISSING
    assert "ctypes.macholib.dyld" not in sys.modules
    assert named("jax.numpy:no_such") is MISSING
    assert named("os:system") is MISSING  # it calls itself posix:system
    assert named(name_of(jnp.tanh) or "") is jnp.tanh
    assert name_of(lambda: 1) is None
    assert name_of(Hidden()) is None


@pytest.mark.parametrize(
    "written",
    [
        1,
        "*",
        [],
        ["tuple", 1],
        ["unknown"],
        ["dict", ["a"]],
        ["dict", ["a", "a"], 0, 0],
        ["dict", [["list"]], 0],
        ["node", 5, None],
        ["node", ["name", "builtins:tuple"], ["tuple", 1], 0],
        ["node", ["name", "builtins:dict"], ["list", "a"], 0, 0],
        ["node", ["name", "collections:defaultdict"], 5, 0],
        ["node", ["name", "direct_cases:Pair"], None, 0],
        ["node", ["name", 5], None],
        ["default", None, "k", 0],
        ["node", ["name", "direct_cases:Box"], ["float", "x"], 0],
        ["node", ["name", "direct_cases:Box"], ["int", "zz"], 0],
        ["node", ["name", "direct_cases:Box"], ["frozenset", ["list"]], 0],
        ["node", ["name", "direct_cases:Box"], ["sharding", ["single", 99, None]], 0],
        ["node", ["name", "direct_cases:Box"], ["tuple of", ["name", "direct_cases:Pair"], 1], 0],
        ["node", ["name", "direct_cases:Box"], ["ref", "x", 1], 0],
    ],
    ids=repr,
)
def test_damage_in_a_tree_is_found(written):
    """What was not written so is corrupt, whatever it is."""
    with pytest.raises(EntryCorruptError):
        decode_tree(written, devices(), CallObjects((), ()))


@pytest.mark.parametrize(
    "written",
    [
        ["node", ["name", "direct_cases:Hidden"], None, 0],
        ["node", ["name", "no_such_module:Class"], None, 0],
        ["node", ["ref", 0, 0, -1], None, 0],
        ["node", ["name", "direct_cases:Box"], ["ref", 7, 7], 0],
        ["node", ["name", "direct_cases:Box"], ["enum", "direct_cases:Box", "X"], 0],
    ],
    ids=repr,
)
def test_what_this_process_does_not_have_is_refused(written):
    """A class that is not registered, a module that is not imported, an argument that is not there."""
    with pytest.raises(RefusedError):
        decode_tree(written, devices(), CallObjects((), ()))


def test_a_tree_too_deep_is_refused_and_no_crash():
    """Neither a deep tree nor a deep record overflows the stack."""
    deep: Any = ONE
    written: Any = 0
    for _ in range(400):
        deep, written = (deep,), ["tuple", written]
    with pytest.raises(RefusedError):
        there_and_back(dispatched(deep))
    with pytest.raises(EntryCorruptError):
        decode_tree(written, devices(), CallObjects((), ()))


# -- signatures ----------------------------------------------------------------------------------------------------


def signature(function: Any, *args: Any, **kwargs: Any) -> str:
    return call_signature(parse_call(function, args, kwargs), devices()).text


@jax.jit
def taken(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


F32 = np.ones(3, np.float32)
SAME: list[tuple[Any, Any]] = [
    (F32, jnp.asarray(F32)),
    (2.0, jnp.asarray(2.0)),
    (2, 3),
    (np.float32(2), jnp.float32(2)),
    ({"a": F32, "b": 1}, {"b": 5, "a": F32}),
    (jax.random.key(0), jax.random.key(1)),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (2.0, np.float32(2)),
    (2.0, 2),
    (F32, np.ones(4, np.float32)),
    (F32, np.ones(3, np.int32)),
    (F32, jax.device_put(F32, jax.devices()[0])),
    ({"a": F32}, {"b": F32}),
    ({"a": F32}, {1: F32}),
    ({1: F32}, {True: F32}),
    ({"a": F32}, OrderedDict(a=F32)),
    ((F32,), [F32]),
    ((F32, None), (F32,)),
    (Pair(F32, F32), (F32, F32)),
    (Box(F32, 1), Box(F32, 1.0)),
    (Box(F32, 0.0), Box(F32, -0.0)),
    (jax.random.key(0), jax.random.PRNGKey(0)),
    (jax.random.key(0), jax.random.key(0, impl="rbg")),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=kind_of)
def test_calls_that_jax_compiles_alike_have_one_signature(one, other):
    """NumPy, numbers and arrays that are bound to no device are one class; the order of keys does not count."""
    assert signature(taken, one) == signature(taken, other)
    assert signature(taken, key=one, more=1) == signature(taken, more=1, key=other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=kind_of)
def test_calls_that_jax_compiles_otherwise_have_other_signatures(one, other):
    """Types, shapes, weak types, places, structure and the exact content of nodes count."""
    assert signature(taken, one) != signature(taken, other)
    assert signature(taken, key=one) != signature(taken, key=other)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"donate_argnums": 0},
    {"donate_argnums": (0, 1)},
    {"static_argnums": 1},
    {"keep_unused": True},
    {"compiler_options": {"xla_embed_ir_in_executable": True}},
    {"in_shardings": NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec())},
    {"out_shardings": NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec())},
    {"out_shardings": NamedSharding(Mesh(np.array(jax.devices()), ("y",)), PartitionSpec())},
]


def test_each_option_of_jit_counts():
    """No two of these functions have one signature, and the same options have the same one."""

    def texts() -> list[str]:
        return [signature(jax.jit(lambda x, y: x, **options), F32, 3) for options in OPTIONS]

    assert len(set(texts())) == len(OPTIONS)
    assert texts() == texts()


SETTINGS: list[Callable[[], Any]] = [
    lambda: jax.enable_x64(True),
    lambda: jax.default_matmul_precision("float32"),
    lambda: jax.numpy_dtype_promotion("strict"),
    lambda: jax.default_prng_impl("rbg"),
    lambda: jax.threefry_partitionable(False),
    lambda: jax.default_device(jax.devices()[0]),
    lambda: jax.set_mesh(Mesh(np.array(jax.devices()), ("x",))),
    lambda: jax.set_mesh(Mesh(np.array(jax.devices()), ("z",))),
]


def test_settings_of_jax_count():
    """Every setting that changes a program gives another signature, which is the same again afterwards."""
    plain = signature(taken, F32)
    found = [plain]
    for setting in SETTINGS:
        with setting():
            found.append(signature(taken, F32))

    assert len(set(found)) == len(found)
    assert signature(taken, F32) == plain


def test_settings_without_effect_do_not_count(tmp_path):
    """Where the cache is and what is logged is no part of a program."""
    plain = signature(taken, F32)
    before = jax.config.jax_compilation_cache_dir, jax.config.jax_log_compiles
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        jax.config.update("jax_log_compiles", True)
        assert signature(taken, F32) == plain
    finally:
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_log_compiles", before[1])


def test_what_the_signature_does_not_describe_is_left_to_the_fingerprint():
    """Functions and objects in nodes are named by their places, the classes of nodes are listed."""
    made = Hidden()
    call = parse_call(taken, (Box(F32, (jnp.tanh, made, 3)),), {"more": Pair(F32, 1)})

    found = call_signature(call, devices())

    assert any(part is made for part in found.parts.values())
    assert any(part is jnp.tanh for part in found.parts.values())
    assert set(found.classes) == {Box, Pair}
    assert all(where.startswith(("the data of argument", "the class of argument")) for where in found.parts)


@pytest.mark.parametrize("text", ["a", object()], ids=kind_of)
def test_an_argument_that_is_no_array_is_plain_or_refused(text):
    """JAX raises its own error for it."""
    call = parse_call(taken, (text,), {})
    assert (why_plain(call) or "").startswith("an argument is a ")
    with pytest.raises(RefusedError):
        call_signature(call, devices())


# -- plain calls ---------------------------------------------------------------------------------------------------


class Watched:
    """A direct function whose miss notes why each call is plain."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.jitted = jax.jit(function, **options)
        self.said: list[str | None] = []
        self.direct = direct_function(self.jitted, self._miss)

    def _miss(self, *args: Any, **kwargs: Any) -> Any:
        self.said.append(why_plain(parse_call(self.jitted, args, kwargs)))
        return plain_miss(self.jitted)(*args, **kwargs)


def square(x: Any) -> Any:
    """x, multiplied by itself."""
    return (x * x).sum()


TRACED = "it is called while another function is traced"


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda f: f(F32), None),
        (lambda f: jax.grad(f)(F32), TRACED),
        (lambda f: jax.vmap(f)(np.ones((2, 3))), TRACED),
        (lambda f: jax.jit(lambda x: f(x) + f(F32))(F32), TRACED),
        (lambda f: jax.eval_shape(lambda x: f(x) + 0, F32), TRACED),
    ],
    ids=["plain", "grad", "vmap", "jit", "eval_shape"],
)
def test_a_direct_function_under_a_transformation_is_plain(use, why):
    """The result is that of `jax.jit`, and every miss inside says that it is traced."""
    watched = Watched(square)

    found = use(watched.direct)

    expected = use(jax.jit(square))
    if isinstance(expected, jax.Array):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected
    assert set(watched.said) == {why}


DEBUGGING = ["jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks", "jax_enable_checks", "jax_debug_key_reuse"]
DEBUGGING += ["jax_distributed_debug", "jax_explain_cache_misses", "jax_log_checkpoint_residuals"]


@pytest.mark.parametrize("flag", DEBUGGING)
def test_while_jax_is_debugged_calls_are_plain(flag):
    """A mode that watches tracing or running gets what it wants to watch."""
    call = parse_call(taken, (F32,), {})
    assert why_plain(call) is None
    before = getattr(jax.config, flag)
    jax.config.update(flag, True)
    try:
        assert why_plain(call) == f"{flag} is True"
    finally:
        jax.config.update(flag, before)


def test_a_donated_argument_and_subclasses_are_plain():
    """JAX raises its own error for an array that is gone, and treats subclasses in its own ways."""
    x = jnp.ones(3)
    x.delete()
    assert why_plain(parse_call(taken, (x,), {})) == "an argument was donated before"
    masked = np.ma.masked_array(F32)
    assert why_plain(parse_call(taken, (masked,), {})) == f"an argument is a {type(masked).__module__}.MaskedArray"


def test_a_direct_function_is_jaxs_own_type():
    """Its attributes, methods and transformations are those of `jax.jit`."""
    watched = Watched(square)
    direct, jitted = watched.direct, watched.jitted

    assert type(direct) is type(jitted)
    assert (direct.__name__, direct.__doc__, direct.__wrapped__) == ("square", square.__doc__, square)
    assert str(direct.lower(F32).as_text()) == str(jitted.lower(F32).as_text())
    assert direct.eval_shape(F32) == jitted.eval_shape(F32)
    assert str(direct.trace(F32).jaxpr) == str(jitted.trace(F32).jaxpr)
    assert watched.said == []

    class Model:
        method = direct

        def __init__(self) -> None:
            self.x = F32

    assert isinstance(Model().method, type(watched._miss))


def test_a_copy_without_the_options_of_jit_is_refused():
    """JAX leaves them out when it copies or pickles a function, so nobody can tell which arguments are static."""
    with pytest.raises(RefusedError, match="a copy from a pickle"):
        parse_call(copy.deepcopy(jax.jit(square)), (F32,), {})


def test_a_second_call_stays_in_cpp_until_the_cache_is_cleared():
    """The miss is asked once for each signature of C++, and again after `clear_cache`."""
    watched = Watched(lambda x: x + 1)  # JAX shares what it compiled for one function among all that compile it
    for _ in range(3):
        watched.direct(F32)
    assert watched.said == [None]

    watched.direct.clear_cache()
    watched.direct(F32)
    assert watched.said == [None, None]


# -- records -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> tuple[dict[str, Any], ParsedCall]:
    """A record, and the call that it is of."""
    targets = compiled_targets()
    jitted = jax.jit(lambda box, y: {"z": Box(box.value + y, box.held), "s": jnp.linalg.inv(y)})
    call = parse_call(jitted, (Box(np.ones((2, 2), np.float32), Hidden()), np.eye(2, dtype=np.float32)), {})
    box, y = (jax.tree.unflatten(tree, [leaf]) for tree, leaf in zip(call.trees, call.leaves, strict=True))
    _, data, _ = plain_miss(jitted)(box, y)
    record = encode_fastpath(data, targets[id(data.xla_executable)], call, devices())
    return json.loads(json.dumps(record)), call


def test_a_record_is_read_as_it_was_written(recorded):
    """The kernels that it calls are in it, and its options and devices are those of the executable."""
    record, call = recorded

    found = decode_fastpath(record, call, devices())

    assert found.parts.kept == (True, True)
    assert found.devices == (jax.devices()[0].id,)
    assert any(name.startswith("lapack_") for name in found.parts.kernels)


def variations(value: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """Changes of every part of a record: (what, how)."""
    strange = [None, -1, 10**9, 2**70, "x", [], {}, [[]], True, 0.5, ["ref", 0, 0], "\ud800"]
    found: list[tuple[str, Callable[[Any], Any]]] = []

    def visit(path: tuple[Any, ...], here: Any) -> None:
        for each in strange:
            found.append((f"{path} = {each!r}", lambda record, path=path, each=each: put(record, path, each)))
        if isinstance(here, (dict, list)):
            for key in list(here) if isinstance(here, dict) else range(len(here)):
                found.append((f"del {(*path, key)}", lambda record, path=(*path, key): remove(record, path)))
                visit((*path, key), here[key])

    visit((), value)
    return found


def put(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    holder = record
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return record


def remove(record: Any, path: tuple[Any, ...]) -> Any:
    holder = record
    for step in path[:-1]:
        holder = holder[step]
    del holder[path[-1]]
    return record


def test_every_changed_record_is_read_consistently_or_not_at_all(recorded):
    """Whatever is changed, reading raises one of two errors, or gives parts whose numbers agree."""
    record, call = recorded
    changes = variations(record)
    assert len(changes) > 300
    refused = 0
    for what, change in changes:
        changed = change(copy.deepcopy(record))
        try:
            parts = decode_fastpath(changed, call, devices()).parts
        except (EntryCorruptError, RefusedError):
            refused += 1
            continue
        assert parts.out_tree.num_leaves == len(parts.out_avals) == len(parts.out_shardings), what
        assert len(parts.kept) == len(call.leaves), what
        assert sum(parts.kept) == len(parts.in_shardings) == len(parts.in_layouts), what
    assert refused > len(changes) * 0.8


def test_results_of_another_structure_differ_from_the_record():
    """Two functions may have one program, and results that differ in what only their structure holds."""
    targets = compiled_targets()
    x = np.ones(7, np.float32)

    def run(held: str) -> Any:
        jitted = jax.jit(lambda x: Box(x + 1, held))
        call = parse_call(jitted, (x,), {})
        _, data, _ = plain_miss(jitted)(x)
        return data, targets[id(data.xla_executable)], call, devices()

    first, same, other = run("a"), run("a"), run("b")
    record = json.loads(json.dumps(encode_fastpath(*first)))

    assert difference_to_record(record, *same) is None
    assert difference_to_record(record, *other) == "its tree is not what was recorded"


def test_a_record_for_other_arguments_is_not_read(recorded):
    """The number of leaves is that of the call, and what it refers to is there."""
    record, _ = recorded
    with pytest.raises((EntryCorruptError, RefusedError)):
        decode_fastpath(record, parse_call(taken, (F32,), {}), devices())


def test_the_cases_are_all_named():
    """Each case of the two processes is in a list of their test."""
    from test_direct_fastpath import REFUSED, SERVED

    def is_case(value: Any) -> bool:
        return getattr(value, "__annotations__", {}).get("return") == "Case"

    assert {name for name, value in vars(direct_cases).items() if is_case(value)} == {*SERVED, *REFUSED}

"""Makes concrete inputs for a measurement: the caller's own arrays, or random ones where the caller is tracing.

This module may use only the shape and data type of a tracer. Any operation on it would become part of the caller's
program, and the measurement would time tracing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.value_kinds import is_array
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ejcache.jax_integration.seam.autotune.tracing import MappedAxis


_INTEGER_TOP: Final = 128


@dataclass(frozen=True)
class Inputs:
    """The leaves of a call, from which the call can be built again with other arrays.

    Attributes:
        leaves: of the arguments, arrays and others.
        dynamic: for each leaf, whether it is an array.
        treedef: the structure of `(args, kwargs)`.
        names: of the leaves.
        axes: over which `jax.vmap` maps the leaves. An array has one more dimension for each of its axes, in front.
        differentiated: the caller needs gradients of what it calls.
    """

    leaves: tuple[Any, ...]
    dynamic: tuple[bool, ...]
    treedef: Any
    names: tuple[str, ...]
    axes: tuple[MappedAxis, ...] = ()
    differentiated: bool = False

    def rebuild(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return `(args, kwargs)` with these arrays instead of the call's own."""
        import jax

        rest = iter(arrays)
        leaves = [
            next(rest) if is_dynamic else leaf for leaf, is_dynamic in zip(self.leaves, self.dynamic, strict=True)
        ]
        args, kwargs = jax.tree_util.tree_unflatten(self.treedef, leaves)
        return args, kwargs

    def call(self, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call `function` with these arrays instead of the call's own, mapped as the call is."""
        import jax

        def one(*elements: Any) -> Any:
            args, kwargs = self.rebuild(elements)
            return function(*args, **kwargs)

        call = one
        for axis in reversed(self.axes):
            mapped = [has for has, is_dynamic in zip(axis.mapped, self.dynamic, strict=True) if is_dynamic]
            in_axes = tuple(0 if has else None for has in mapped)
            call = jax.vmap(call, in_axes=in_axes, axis_size=axis.size, axis_name=axis.name)
        return call(*arrays)

    def concrete(self, *, seed: int = 0, initialisers: Mapping[str, Callable[..., Any]] | None = None) -> list[Any]:
        """Return an array for each dynamic leaf: the leaf itself if it has a value, or else a random one.

        Do not call this while JAX is tracing in this thread.

        Args:
            seed: of the random arrays. Floating-point values are standard normal and booleans are fair. Integers are
                uniform below 128 and below the smallest extent of all arrays, so that they are valid indices.
            initialisers: by argument name (`x`, or `x.field[0]` for a part of it), a function of
                `(shape, dtype, generator)` that returns an array; `generator` is a seeded generator of numpy's. The
                elements over which `jax.vmap` maps get equal arrays.
        """
        import jax.numpy as jnp
        import numpy as np

        extents = [size for _, _, array in self._arrays() for size in array.shape if size > 1]
        top = max(2, min([*extents, _INTEGER_TOP]))
        made = []
        for index, (place, name, array) in enumerate(self._arrays()):
            generator = np.random.default_rng([seed, index])
            batch = tuple(axis.size for axis in self.axes if axis.mapped[place])
            initialiser = _initialiser(name, initialisers or {})
            if initialiser is not None:
                value = _placed(initialiser(tuple(array.shape), array.dtype, generator), array.dtype)
                made.append(jnp.broadcast_to(value, (*batch, *value.shape)) if batch else value)
            elif _has_value(array):
                made.append(_placed(array, array.dtype))
            else:
                made.append(_made((*batch, *array.shape), array.dtype, generator, top))
        return made

    def given(
        self,
        arrays: Sequence[Any],
        check_inputs: Callable[..., Any],
        *,
        seed: int,
        run: Callable[[Callable[[], Any]], Any],
    ) -> list[list[Any]]:
        """Return the inputs that the author of an operation has candidates compared on; see `Tuner.check_inputs`.

        Args:
            arrays: of the call, or what stands for them.
            check_inputs: the author's function.
            seed: of the key that it gets.
            run: calls a function where arrays may be made: not in a trace.

        Raises:
            UsageError: what it returns are not lists of arguments of the same shapes.
        """
        return run(lambda: self._given(arrays, check_inputs, seed))  # type: ignore[no-any-return]

    def _given(self, arrays: Sequence[Any], check_inputs: Callable[..., Any], seed: int) -> list[list[Any]]:
        import jax

        # Under `jax.vmap` the author's function sees one element, as the operation does.
        batches = [tuple(axis.size for axis in self.axes if axis.mapped[place]) for place, _, _ in self._arrays()]
        elements = [array[(0,) * len(batch)] for array, batch in zip(arrays, batches, strict=True)]
        args, kwargs = self.rebuild(elements)
        found = []
        for each in check_inputs(*args, key=jax.random.key(seed), **kwargs):
            leaves, treedef = jax.tree_util.tree_flatten((tuple(each), kwargs))
            made = [leaf for leaf, is_dynamic in zip(leaves, self.dynamic, strict=False) if is_dynamic]
            alike = treedef == self.treedef and all(
                is_array(one) and (one.shape, one.dtype) == (other.shape, other.dtype)
                for one, other in zip(made, elements, strict=True)
            )
            if not alike:
                raise UsageError("check_inputs= returns other than lists of arguments like those of the call")
            placed = [_placed(one, one.dtype) for one in made]
            found.append([
                jax.numpy.broadcast_to(one, (*batch, *one.shape)) if batch else one
                for one, batch in zip(placed, batches, strict=True)
            ])  # fmt: skip
        return found

    def mapped(self) -> list[dict[str, Any]]:
        """Return for each axis over which `jax.vmap` maps the call its size and the arguments that have it."""
        return [
            {
                "size": axis.size,
                "arguments": sorted(name for name, has in zip(self.names, axis.mapped, strict=True) if has),
            }
            for axis in self.axes
        ]

    def fixed(self, initialisers: Mapping[str, Callable[..., Any]]) -> list[bool]:
        """Say for each array whether an initialiser says what it has to be."""
        return [_initialiser(name, initialisers) is not None for _, name, _ in self._arrays()]

    def _arrays(self) -> list[tuple[int, str, Any]]:
        """Return (position, name, leaf) of each array."""
        leaves = enumerate(zip(self.names, self.leaves, self.dynamic, strict=True))
        return [(place, name, leaf) for place, (name, leaf, is_dynamic) in leaves if is_dynamic]


def split_arguments(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str] = (),
    *,
    differentiated: bool | None = None,
) -> Inputs:
    """Split a call into its leaves.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        names: of the positional arguments.
        differentiated: the caller needs gradients; None to look at the tracers.
    """
    import jax

    from ejcache.jax_integration.seam.autotune.tracing import is_differentiated, mapped_axes  # JAX itself

    flat, treedef = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    leaves = tuple(leaf for _, leaf in flat)
    return Inputs(
        leaves=leaves,
        dynamic=tuple(is_array(leaf) for leaf in leaves),
        treedef=treedef,
        names=tuple(_name(path, names) for path, _ in flat),
        axes=mapped_axes(leaves),
        differentiated=is_differentiated(leaves) if differentiated is None else differentiated,
    )


def _name(path: tuple[Any, ...], names: Sequence[str]) -> str:
    import jax

    first, rest = path[1], path[2:]
    if hasattr(first, "idx"):
        name = names[first.idx] if first.idx < len(names) else f"argument {first.idx}"
    else:
        name = str(first.key)
    return f"{name}{jax.tree_util.keystr(tuple(rest))}"


def _initialiser(name: str, initialisers: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    if name in initialisers:
        return initialisers[name]
    return initialisers.get(name.split("[", maxsplit=1)[0].split(".", maxsplit=1)[0])


def _has_value(array: Any) -> bool:
    import jax
    import numpy as np

    if isinstance(array, np.ndarray):
        return True
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
        return False
    return bool(array.is_fully_addressable and not array.is_deleted())


def _placed(array: Any, dtype: Any) -> Any:
    import jax
    import numpy as np

    if isinstance(array, jax.Array):
        return array
    return jax.device_put(np.asarray(array, dtype=dtype))


def _made(shape: tuple[int, ...], dtype: Any, generator: Any, top: int) -> Any:
    import jax
    import jax.numpy as jnp
    import numpy as np

    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        count = int(np.prod(shape, dtype=np.int64))
        return jax.random.split(jax.random.key(0), count).reshape(shape) if shape else jax.random.key(0)
    if jnp.issubdtype(dtype, jnp.bool_):
        return jax.device_put(generator.integers(0, 2, shape).astype(bool))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real, imaginary = generator.standard_normal((2, *shape), dtype=np.float32)
        return jax.device_put((real + 1j * imaginary).astype(dtype))
    if jnp.issubdtype(dtype, jnp.integer):
        return jax.device_put(generator.integers(0, top, shape).astype(dtype))
    return jax.device_put(generator.standard_normal(shape, dtype=np.float32).astype(dtype))

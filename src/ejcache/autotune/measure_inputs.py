"""Concrete inputs for a measurement: the caller's own arrays where they are there, seeded ones where it traces.

Nothing here may touch a tracer beyond its shape and its data type: what is done with a tracer becomes part of the
caller's program, and what is timed then is tracing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Inputs", "is_array", "is_scalar", "one_level", "split_arguments"]

_INTEGER_TOP: Final = 128


def is_array(value: Any) -> bool:
    """Whether a value is an array to JAX, or stands for one."""
    import jax
    import numpy as np

    return isinstance(value, jax.Array | np.ndarray | jax.core.Tracer | jax.ShapeDtypeStruct)


def is_scalar(value: Any) -> bool:
    """Whether a value is one of numpy's scalars: a constant of the candidates, and no array, for all its shape."""
    import numpy as np

    return isinstance(value, np.generic)


def one_level(value: Any) -> tuple[list[Any], Any] | None:
    """What a pytree holds and what it says of itself beside that; None for what is no pytree to JAX."""
    import jax

    found = jax.tree_util.default_registry.flatten_one_level(value)
    return None if found is None else (list(found[0]), found[1])


@dataclass(frozen=True)
class Inputs:
    """A call taken apart: its arrays, and how to put it together again around others.

    Attributes:
        leaves: of the arguments, arrays and others.
        dynamic: which of them are arrays.
        treedef: how the leaves make `(args, kwargs)`.
        names: what to call each leaf.
    """

    leaves: tuple[Any, ...]
    dynamic: tuple[bool, ...]
    treedef: Any
    names: tuple[str, ...]

    def rebuild(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with these arrays in the places of the call's own."""
        import jax

        rest = iter(arrays)
        leaves = [
            next(rest) if is_dynamic else leaf for leaf, is_dynamic in zip(self.leaves, self.dynamic, strict=True)
        ]
        args, kwargs = jax.tree_util.tree_unflatten(self.treedef, leaves)
        return args, kwargs

    def concrete(self, *, seed: int = 0, initialisers: Mapping[str, Callable[..., Any]] | None = None) -> list[Any]:
        """An array for each dynamic leaf: the leaf itself where it has a value here, a made one where it has none.

        Args:
            seed: floating-point arrays are standard normal, integers uniform below the smallest extent of all arrays
                (so that they are indices into any of them) and at most 128, booleans are fair.
            initialisers: by the argument's name (`x`, or `x.field[0]` inside of one), a function of
                `(shape, dtype, generator)` that gives an array; the generator is numpy's, seeded.

        Must not be called while JAX is tracing in this thread.
        """
        import numpy as np

        arrays = [leaf for leaf, is_dynamic in zip(self.leaves, self.dynamic, strict=True) if is_dynamic]
        names = [name for name, is_dynamic in zip(self.names, self.dynamic, strict=True) if is_dynamic]
        extents = [size for array in arrays for size in array.shape if size > 1]
        top = max(2, min([*extents, _INTEGER_TOP]))
        made = []
        for index, (name, array) in enumerate(zip(names, arrays, strict=True)):
            generator = np.random.default_rng([seed, index])
            initialiser = _initialiser(name, initialisers or {})
            if initialiser is not None:
                made.append(_placed(initialiser(tuple(array.shape), array.dtype, generator), array.dtype))
            elif _has_value(array):
                made.append(_placed(array, array.dtype))
            else:
                made.append(_made(tuple(array.shape), array.dtype, generator, top))
        return made


def split_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()) -> Inputs:
    """Take a call apart.

    Args:
        args: positional.
        kwargs: by name.
        names: of the positional ones.
    """
    import jax

    flat, treedef = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    leaves = tuple(leaf for _, leaf in flat)
    return Inputs(
        leaves=leaves,
        dynamic=tuple(is_array(leaf) for leaf in leaves),
        treedef=treedef,
        names=tuple(_name(path, names) for path, _ in flat),
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

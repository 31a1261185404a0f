"""Calls with arguments of every kind, whose keys and documents at commit d7a4550 are in `tests/data/autotune`."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Mode(enum.Enum):
    CAUSAL = "causal"


@dataclasses.dataclass(frozen=True)
class Options:
    window: int = 4
    scale: float = 0.5
    dtype: object = jnp.bfloat16


def recordable_calls() -> dict[str, tuple[Any, ...]]:
    """Arguments by the name of the call; each has a form that another process can make again."""
    x = np.ones((4, 8), np.float32)
    return {
        "array": (x,),
        "stand-in": (jax.ShapeDtypeStruct((4, 8), jnp.bfloat16),),
        "random key": (jax.random.key(0),),
        "values": (x, 1, 2.5, True, None, "text", float("inf")),
        "scalars": (np.float32(1.5), np.int32(3)),
        "types": (jnp.float32, jnp.dtype("bfloat16"), np.int8),
        "containers": ([1, (2, 3)], {"a": [4.0]}),
        "classes": (Mode.CAUSAL, Options(), Options),
        "tree": ({"w": x, "b": [x, x]},),
    }


def other_calls() -> dict[str, tuple[Any, ...]]:
    """Arguments that have a key, but no form that another process can make again."""
    return {
        "complex": (1 + 2j,),
        "sets": ({4, 5}, frozenset({"x", "y"})),
        "sharding": (jax.sharding.PartitionSpec("a", None),),
        "builtins": (len, functools.partial(max, 1)),
    }

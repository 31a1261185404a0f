"""Findings about operations that JAX compiles one at a time, because nobody put them under a `jit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.advice.findings import ESTIMATED, SINGLE_OPERATIONS, Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.advice.evidence import Ask

_OPERATIONS: Final = 8
"""Programs of one operation from which on a function is advised."""
_MAKING: Final = frozenset({"__init__", "__call__", "setup"})
"""Methods of a model that are called to make its parameters, by a line that is to be jitted."""
_KEPT: Final = 0.25
"""The part of the seconds that one program of all of them costs, at least: it has all of their operations."""


def single_operations(asks: Sequence[Ask]) -> Iterator[Advice]:
    """Programs that JAX itself defines, called one after another by one function of the user's."""
    groups: dict[tuple[str, str], list[Ask]] = {}
    for ask in asks:
        if ask.is_of_jax and ask.caller.file and not ask.caller.is_library:
            groups.setdefault((ask.caller.file, ask.caller.function), []).append(ask)
    for (file, function), those in groups.items():
        programs = len({ask.program.key for ask in those})
        if programs < _OPERATIONS:
            continue
        lines = sorted({ask.caller.line for ask in those})
        seconds = sum(ask.seconds for ask in those)
        names = list(dict.fromkeys(ask.function for ask in those))
        shown = ", ".join(names[:4]) + ", \N{HORIZONTAL ELLIPSIS}" * (len(names) > 4)
        where = "the top level" if function == "<module>" else function
        span = f"lines {lines[0]} to {lines[-1]}" if len(lines) > 1 else f"line {lines[0]}"
        owner, _, method = function.rpartition(".")
        change = f"put {span} of {where} under one jax.jit"
        if method in _MAKING:
            made = f"jax.jit(model.init), or a jitted function that calls {owner}"
            change = f"make the model under one jax.jit ({made}), which runs {span} of {where}"
        called = f"jax.jit({where})(…)" if function != "<module>" else "prepare(…)"
        yield Advice(
            SINGLE_OPERATIONS,
            function,
            file,
            lines[0],
            programs=programs,
            calls=len(those),
            seconds=seconds,
            saves=seconds * (1 - max(_KEPT, 1 / programs)),
            basis=ESTIMATED,
            message=f"{change}: JAX compiles {programs} programs of one operation each there ({shown})",
            before="x = jnp.ones(shape)\ny = jnp.sin(x) * 2\nz = y / y.sum()",
            after=f"@jax.jit\ndef prepare(…):\n    …  # {span}\nz = {called}",
        )

"""Findings about operations that JAX compiles one at a time, because nobody put them under a `jit`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ejcache.advice.evidence import read_maker
from ejcache.advice.findings import ESTIMATED, SINGLE_OPERATIONS, Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.advice.evidence import Ask

_OPERATIONS: Final = 8
"""Programs of one operation from which on a function is advised."""
_KEPT: Final = 0.25
"""The part of the seconds that one program of all of them costs, at least: it has all of their operations."""


def single_operations(asks: Sequence[Ask]) -> Iterator[Advice]:
    """Programs that JAX itself defines, called one after another by one function of the user's.

    Those in the methods of a model count for the line that makes or calls it.
    """
    groups: dict[tuple[str, str, int], list[Ask]] = {}
    for ask in asks:
        if ask.is_of_jax and ask.caller.file and not ask.caller.is_library:
            maker = read_maker(ask.program.caller)
            place = maker if maker.file else ask.caller._replace(line=0)
            groups.setdefault((place.file, place.function, place.line), []).append(ask)
    for (file, function, line), those in groups.items():
        programs = len({ask.program.key for ask in those})
        if programs < _OPERATIONS:
            continue
        lines = sorted({ask.caller.line for ask in those})
        seconds = sum(ask.seconds for ask in those)
        names = list(dict.fromkeys(ask.function for ask in those))
        shown = ", ".join(names[:4]) + ", \N{HORIZONTAL ELLIPSIS}" * (len(names) > 4)
        where = "the top level" if function == "<module>" else function
        called = f"jax.jit({where})(…)" if function != "<module>" else "prepare(…)"
        span = f"lines {lines[0]} to {lines[-1]}" if len(lines) > 1 else f"line {lines[0]}"
        change = f"put {span} of {where} under one jax.jit"
        before = "x = jnp.ones(shape)\ny = jnp.sin(x) * 2\nz = y / y.sum()"
        after = f"@jax.jit\ndef prepare(…):\n    …  # {span}\nz = {called}"
        if line:
            methods = Counter(ask.caller.function for ask in those)
            main = methods.most_common(1)[0][0]
            more = f" and {len(methods) - 1} more" if len(methods) > 1 else ""
            owner, _, method = main.rpartition(".")
            if method == "__call__":
                made = "jax.jit(model.init) where it makes the parameters, or a jitted function that calls it"
                change = f"call the model under one jax.jit ({made}): this line runs {main}{more}"
                before, after = "y = model(x)", "@jax.jit\ndef apply(…):\n    return model(x)\ny = apply(…)"
            else:
                made = f"jax.jit(model.init), or a jitted function that calls {owner}"
                change = f"make the model under one jax.jit ({made}): this line runs {main}{more}"
                before = f"model = {owner}(…)"
                after = f"@jax.jit\ndef make(…):\n    return {owner}(…)\nmodel = make(…)"
        yield Advice(
            SINGLE_OPERATIONS,
            function,
            file,
            line or lines[0],
            programs=programs,
            calls=len(those),
            seconds=seconds,
            saves=seconds * (1 - max(_KEPT, 1 / programs)),
            basis=ESTIMATED,
            message=f"{change}: JAX compiles {programs} programs of one operation each there ({shown})",
            before=before,
            after=after,
        )

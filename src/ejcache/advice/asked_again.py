"""Findings about programs that one process asks for again: a function that is made anew, or called in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ejcache.advice.findings import COMPILED_TWICE, MADE_ANEW, MEASURED, Advice
from ejcache.misses.program_text import spell_types
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ejcache.advice.evidence import Ask, Texts
    from ejcache.advice.statements import Statements
    from ejcache.misses.program_text import ProgramText

_AGAIN: Final = 3
"""How often a program is asked for before the function counts as made anew."""
_TWICE: Final = 3
"""How many programs of a function at most count as one that is compiled twice."""
_SAME: Final = ("sharding", "donation", "layout_mode")


def made_anew(group: Sequence[Ask], texts: Texts, statements: Statements) -> Iterator[Advice]:
    """Find keys that one line asks for and traces again and again: the function is another object each time.

    The line to change is that of the definition, if that is within a function, or else the one that gives the jitted
    function its name there, or the one that calls it.
    """
    asked: dict[tuple[str, object], list[Ask]] = {}
    for ask in group:
        if ask.program.key and not ask.is_of_jax:
            asked.setdefault((ask.program.key, ask.caller), []).append(ask)
    repeated = [
        asks
        for asks in asked.values()
        if len(asks) >= _AGAIN and all(ask.traced > 0 for ask in asks[1:]) and asks[0].caller.file
    ]
    if not repeated:
        return
    first = max(repeated, key=lambda asks: sum(ask.seconds for ask in asks[1:]))[0]
    calls = sum(map(len, repeated))
    saves = sum(ask.seconds for asks in repeated for ask in asks[1:])
    definition, caller = first.definition, first.caller
    is_local = definition.is_lambda or "<locals>" in texts.qualified_name(first)
    is_there = first.is_of_user and is_local
    maker = caller.line if is_there else statements.maker(caller.file, caller.line) or caller.line
    file, line = (definition.file, definition.line) if is_there else (caller.file, maker)
    is_elsewhere = is_there or maker != caller.line
    where = f", called at {caller.file.rpartition('/')[2]}:{caller.line}" if is_elsewhere else ""
    name, made = ("a lambda", "lambda x: …") if definition.is_lambda else (first.function, "make_step()")
    yield Advice(
        MADE_ANEW,
        first.function,
        file,
        line,
        programs=len(repeated),
        calls=calls,
        seconds=sum(ask.seconds for asks in repeated for ask in asks),
        saves=saves,
        basis=MEASURED,
        message=f"make the jitted function once, outside of the loop or the method: {name} was made and traced "
        f"{calls} times for {plural(len(repeated), 'program')}{where}",
        before=f"for batch in batches:\n    step = jax.jit({made})\n    state = step(state, batch)",
        after=f"step = jax.jit({made})\nfor batch in batches:\n    state = step(state, batch)",
    )


def compiled_twice(group: Sequence[Ask], texts: Texts) -> Iterator[Advice]:
    """Yield two programs of one function that differ in how their arguments are placed, or do not differ at all.

    Where the key is the same and JAX had the trace, its own look-up of the executable failed: the arguments are
    committed to a device now, or are no longer.
    """
    if group[0].is_of_jax or not 2 <= len(group) <= _TWICE * 2:
        return
    keys = {ask.program.key for ask in group}
    first, second = group[0], group[-1]
    if len(keys) == 1 and len(group) <= _TWICE:
        if any(ask.traced > 0 for ask in group[1:]):
            return
        what = "its arguments are committed to a device in one call and not in the other"
        paths: list[str] = []
    elif len(keys) == 2:
        second = next(ask for ask in group if ask.program.key != first.program.key)
        if first.signature != second.signature or first.weak != second.weak:
            return
        one, other = texts.read(first), texts.read(second)
        changed = _placement(one, other) if one is not None and other is not None else []
        if not changed:
            return
        paths = [path for path, *_ in changed]
        path, kind, was, now = changed[0]
        more = f" and of {len(changed) - 1} more" if len(changed) > 1 else ""
        kind = {"layout_mode": "layout"}.get(kind, kind)
        what = f"the {kind} of {path}{more} is {was} in the first call and {now} in the second"
    else:
        return
    place = second.caller if second.caller.file else first.caller
    if not place.file or place.is_library:
        return
    spent = [ask for ask in group if ask.program.key == second.program.key][len(keys) == 1 :]
    state = paths[0] if paths else "state"
    yield Advice(
        COMPILED_TWICE,
        first.function,
        place.file,
        place.line,
        programs=2,
        calls=len(group),
        seconds=sum(ask.seconds for ask in group),
        saves=sum(ask.seconds for ask in spent),
        basis=MEASURED,
        message=f"make the arguments of the first call as {first.function} returns them: {what}",
        before=f"state = init()\nfor batch in batches:\n    state = {first.function}(state, batch)",
        after="state = jax.device_put(init(), sharding)  # as the step returns it, or out_shardings=\n"
        f"for batch in batches:\n    state = {first.function}(state, batch)  # {state}",
    )


def _placement(one: ProgramText, other: ProgramText) -> list[tuple[str, str, str, str]]:
    """Path, attribute, and both values of each argument that is placed otherwise; empty if anything else differs."""
    if [(line.name, line.constants) for line in one.lines if "sharding" not in line.name] != [
        (line.name, line.constants) for line in other.lines if "sharding" not in line.name
    ]:
        return []
    theirs = {argument.name: argument for argument in other.arguments}
    found = []
    for argument in one.arguments:
        if argument.name not in theirs or theirs[argument.name].type != argument.type:
            return []
        for key in _SAME:
            was, now = (each.attributes.get(key, "none").strip('"') for each in (argument, theirs[argument.name]))
            if was != now:
                found.append((spell_types(argument.name), key, was, now))
    return found

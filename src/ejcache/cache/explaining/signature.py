"""What changed in the arguments, results and meshes of a program: shapes, data types, shardings, donation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ejcache.cache.explaining.types import partition_spec
from ejcache.keys.difference import ARROW, Difference
from ejcache.util.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ejcache.cache.explaining.outline import Argument, Outline

__all__ = ["argument_changes", "changed_sizes", "mesh_changes", "result_changes"]

_STATE: Final = re.compile(
    r"^(self|params?|weights?|state|opt_?state|opt|model|variables?|theta|carry|train_state)\b", re.IGNORECASE
)
_OPTIMISER: Final = re.compile(
    r"\b(opt_?state|opt|optimi[sz]er)\b|\.(mu|nu|trace|count)\b|\['?(mu|nu|m|v)'?\]", re.IGNORECASE
)
_TYPE: Final = re.compile(r"^([\w]+)\[(.*)\]$")
_DONATED: Final = frozenset({"tf.aliasing_output", "jax.buffer_donor"})
_SHARDING: Final = frozenset({"sdy.sharding", "mhlo.sharding"})
_WORDS: Final = {"mhlo.memory_kind": "memory", "mhlo.layout_mode": "layout"}
_WIDE: Final = {("f32", "f64"), ("i32", "i64"), ("u32", "u64"), ("c64", "c128")}


def argument_changes(before: Outline, after: Outline, seen: Sequence[tuple[Argument, ...]] = ()) -> list[Difference]:
    """What changed in the arguments.

    Args:
        before: the nearest program.
        after: the compiled one.
        seen: the arguments of other programs of this function, for advice about sizes that vary.
    """
    pairs, added, removed = _paired(before.arguments, after.arguments)
    found = [*_count_changes(added, removed, pairs)]
    changed = [(old, new) for old, new in pairs if old.type != new.type and not _is_key(old.type, new.type)]
    if changed:
        found.append(_type_change(changed, after, seen))
    return found + _attribute_changes(pairs)


def result_changes(before: Outline, after: Outline) -> list[Difference]:
    """What changed in the results: for programs whose arguments are the same."""
    old, new = before.results, after.results
    if len(old) != len(new):
        more = tuple(f"{_named(r)}" for r in new[:6])
        return [Difference("signature", f"the function returns {plural(len(new), 'array')}, not {len(old)}", more=more)]
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a.type != b.type]
    if not pairs:
        return _attribute_changes(list(zip(old, new, strict=True)), what="result")
    a, b = pairs[0]
    what = "dtype" if all(_parts(a.type)[1] == _parts(b.type)[1] for a, b in pairs) else "shape"
    others = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
    advice = ""
    if what == "dtype":
        advice = "a Python scalar takes the dtype of the array beside it, an array scalar has its own (weak types)"
    return [Difference("signature", f"the {what} of the result changed: {a.type} {ARROW} {b.type}{others}", advice)]


def mesh_changes(before: Outline, after: Outline) -> list[Difference]:
    """What changed in the mesh of devices."""
    old = {text for text in before.meshes.values() if text}
    new = {text for text in after.meshes.values() if text}
    if old == new or not (old and new):
        return []
    was, now = ", ".join(sorted(old - new or old)), ", ".join(sorted(new - old or new))
    sizes = [re.findall(r"=(\d+)", text) for text in (was, now)]
    what = "the mesh's axes were renamed" if sizes[0] == sizes[1] else "the mesh changed"
    return [
        Difference("computation", f"{what}: {was} {ARROW} {now}", "keep one mesh, and one set of names for its axes")
    ]


def _paired(
    old: tuple[Argument, ...], new: tuple[Argument, ...]
) -> tuple[list[tuple[Argument, Argument]], list[Argument], list[Argument]]:
    """The arguments that are in both, and those that only the second, or only the first has."""
    names = [argument.name for argument in (*old, *new)]
    if len(old) == len(new) and ("" in names or {a.name for a in old} != {a.name for a in new}):
        return list(zip(old, new, strict=True)), [], []
    if "" not in names and len(set(names[: len(old)])) == len(old) and len(set(names[len(old) :])) == len(new):
        by_name = {argument.name: argument for argument in old}
        pairs = [(by_name[argument.name], argument) for argument in new if argument.name in by_name]
        kept = {argument.name for _, argument in pairs}
        return pairs, [a for a in new if a.name not in kept], [a for a in old if a.name not in kept]
    common = min(len(old), len(new))
    return list(zip(old[:common], new[:common], strict=True)), list(new[common:]), list(old[common:])


def _count_changes(
    added: Sequence[Argument], removed: Sequence[Argument], pairs: Sequence[tuple[Argument, Argument]]
) -> Iterable[Difference]:
    for arguments, verb in ((added, "added"), (removed, "removed")):
        if not arguments:
            continue
        shown = ", ".join(_named(a) for a in arguments[:3]) + (
            ", \N{HORIZONTAL ELLIPSIS}" if len(arguments) > 3 else ""
        )
        number = plural(len(arguments), "argument")
        was = f"{number} {'was' if len(arguments) == 1 else 'were'} {verb}"
        if all(_OPTIMISER.search(a.name) for a in arguments):
            was = f"the optimizer's state changed: {was}"
        elif all(_STATE.match(a.name) for a in arguments) and any(_STATE.match(a.name) for a, _ in pairs):
            was = f"layers or parameters were {verb}: {number} {'more' if verb == 'added' else 'fewer'}"
        yield Difference("signature", f"{was} ({shown})")


def _type_change(
    changed: list[tuple[Argument, Argument]], after: Outline, seen: Sequence[tuple[Argument, ...]]
) -> Difference:
    first = next((pair for pair in changed if not _STATE.match(pair[0].name)), changed[0])
    example = f"argument {_named(first[0], after)} {ARROW} {first[1].type}"
    if len(changed) > 1:
        example += f" and {len(changed) - 1} more"
    parts = [(_parts(old.type), _parts(new.type)) for old, new in changed]
    more = tuple(f"{_named(old)} {ARROW} {new.type}" for old, new in changed[:6]) if len(changed) > 1 else ()
    if all(old[1] == new[1] for old, new in parts):
        kinds = {(old[0], new[0]) for old, new in parts}
        dtypes = ", ".join(f"{old} {ARROW} {new}" for old, new in sorted(kinds))
        advice = "pass arguments of one dtype: x.astype(…) before the call"
        if kinds <= _WIDE or {(b, a) for a, b in kinds} <= _WIDE:
            advice = "64-bit types come from jax_enable_x64 or from NumPy's float64: use one of the two everywhere"
        return Difference("signature", f"the dtype changed {dtypes}: {example}", advice, more)
    if any(len(old[1]) != len(new[1]) for old, new in parts):
        return Difference("signature", f"the rank changed: {example}", "reshape before the call", more)
    moves = _size_moves(changed)
    sizes = {(old, new) for _, old, new in moves}
    places = {place for place, _, _ in moves}
    if len(sizes) == 1 and len(places) == 1 and not all(_STATE.match(old.name) for old, _ in changed):
        what = {0: "the batch size", 1: "the sequence length (second dimension)"}.get(
            next(iter(places)), f"dimension {next(iter(places))}"
        )
        return Difference("signature", f"{what} changed: {example}", _padding(changed, next(iter(places)), seen), more)
    shown = ", ".join(f"{old} {ARROW} {new}" for old, new in sorted(sizes)[:3])
    what = "the shape of the parameters changed" if all(_STATE.match(o.name) for o, _ in changed) else "shapes changed"
    return Difference("signature", f"{what} ({shown}): {example}", "", more)


def changed_sizes(before: Outline, after: Outline) -> set[tuple[str, str]]:
    """The sizes of dimensions of arguments that changed, before and after."""
    pairs, _, _ = _paired(before.arguments, after.arguments)
    return {(a, b) for _, a, b in _size_moves(pair for pair in pairs if not _is_key(pair[0].type, pair[1].type))}


def _is_key(old: str, new: str) -> bool:
    """Whether an argument is the key of two kinds of random number generators: u32[2], u32[4]."""
    kinds = {_parts(old), _parts(new)}
    return {dtype for dtype, _ in kinds} == {"u32"} and {sizes[-1:] for _, sizes in kinds} == {("2",), ("4",)}


def _size_moves(changed: Iterable[tuple[Argument, Argument]]) -> set[tuple[int, str, str]]:
    """The dimensions that changed: position, size before, size after."""
    return {
        (place, old, new)
        for before, after in changed
        for place, (old, new) in enumerate(zip(_parts(before.type)[1], _parts(after.type)[1], strict=False))
        if old != new
    }


def _padding(changed: list[tuple[Argument, Argument]], place: int, seen: Sequence[tuple[Argument, ...]]) -> str:
    """Advice to pad a dimension, with the sizes that were seen of it."""
    name = changed[0][1].name
    sizes = {size for pair in changed[:1] for a in pair if (size := _size(a.type, place)) is not None}
    for arguments in seen:
        sizes |= {size for a in arguments if a.name == name and (size := _size(a.type, place)) is not None}
    if len(sizes) < 2:
        return "pad it to one size"
    return f"pad it to one size: {min(sizes)}\N{HORIZONTAL ELLIPSIS}{max(sizes)} were seen ({len(sizes)} sizes)"


def _size(type_: str, place: int) -> int | None:
    sizes = _parts(type_)[1]
    return int(sizes[place]) if place < len(sizes) and sizes[place].isdigit() else None


def _attribute_changes(pairs: Sequence[tuple[Argument, Argument]], what: str = "argument") -> list[Difference]:
    groups: dict[tuple[str, str], list[str]] = {}
    for old, new in pairs:
        if any(key in _DONATED for key in old.attributes) != any(key in _DONATED for key in new.attributes):
            donated = any(key in _DONATED for key in new.attributes)
            text = "is donated now (donate_argnums)" if donated else "is no longer donated (donate_argnums)"
            groups.setdefault(("donation", text), []).append(new.name)
        for key in sorted(old.attributes.keys() | new.attributes.keys()):
            a, b = old.attributes.get(key, ""), new.attributes.get(key, "")
            if a == b or key in _DONATED or key == "jax.result_info":
                continue
            if key in _SHARDING:
                a, b = (partition_spec(text) if text else "none" for text in (a, b))
                if a != b:
                    groups.setdefault(("sharding", f"{a} {ARROW} {b}"), []).append(new.name)
            else:
                word = _WORDS.get(key, key)
                text = f"{a.strip(chr(34)) or 'default'} {ARROW} {b.strip(chr(34)) or 'default'}"
                groups.setdefault((word, text), []).append(new.name)
    found = []
    for (word, text), names in groups.items():
        who = f"{what} {_together(names)}".strip() if what == "argument" else f"the {what} {_together(names)}".strip()
        if word == "donation":
            found.append(Difference("computation", f"{who} {text}", "donate the same arguments everywhere"))
        else:
            found.append(Difference("computation", f"the {word} of {who} changed: {text}"))
    return found


def _together(names: list[str]) -> str:
    """Several arguments in few words: `x`, `params (6 arrays)`, `x and 2 more`."""
    if len(names) == 1:
        return names[0] if names[0] != "result" else ""
    roots = {match[0] if (match := re.match(r"\w+", name)) else "" for name in names}
    return f"{roots.pop()} ({len(names)} arrays)" if len(roots) == 1 else f"{names[0]} and {len(names) - 1} more"


def _named(argument: Argument, outline: Outline | None = None) -> str:
    if argument.name:
        return f"{argument.name} {argument.type}"
    number = [a is argument for a in outline.arguments].index(True) if outline and argument in outline.arguments else -1
    return f"{number} {argument.type}" if number >= 0 else argument.type


def _parts(type_: str) -> tuple[str, tuple[str, ...]]:
    match = _TYPE.match(type_)
    return (match[1], tuple(filter(None, match[2].split(",")))) if match else (type_, ())

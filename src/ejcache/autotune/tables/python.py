"""Tables in Python source: nested dictionaries, as tpu-inference and sglang-jax keep them.

    TUNED_BLOCK_SIZES = {'TPU v6e': {('bfloat16', 'bfloat16', 8, 1, 128, 16, 1024): (8, 32)}}

The forms are those of tpu_inference/kernels/*/tuned_block_sizes.py and tuned_params.py (vllm-project/tpu-inference,
commit b8692ff0) and of python/sgl_jax/srt/kernels/*/tuned_block_sizes.py (sgl-project/sglang-jax, commit cddbf6f1):
dictionaries of one to five levels, with tuples, texts, numbers or `TuningKey(…)` as keys. A template says how a record
becomes a key and a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.tables.expressions import Constructed, Expression, fields_of_record
from ejcache.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ejcache.autotune.records.record import Record
    from ejcache.autotune.records.store import Found

__all__ = ["Template", "entries_of", "python_source"]

_HEADING: Final = '"""Tuned configurations. Written by `ejcache autotune export --format python`."""'
_PLAIN: Final = (str, int, float, bool, type(None), Constructed)


@dataclass(frozen=True)
class Template:
    """How records become entries of a table.

    Attributes:
        keys: one expression for each level of the table.
        value: an expression.
    """

    keys: Sequence[Expression]
    value: Expression

    def entry(self, record: Record) -> tuple[tuple[Any, ...], Any]:
        """The keys and the value of a record; raises `UsageError` if the template does not fit it."""
        if not record.works:
            raise UsageError("no configuration works")
        fields = fields_of_record(record)
        keys = tuple(_literal(key.value(fields), key.text) for key in self.keys)
        return keys, _literal(self.value.value(fields), self.value.text)


def entries_of(found: Iterable[Found], template: Template) -> tuple[dict[tuple[Any, ...], Any], list[str]]:
    """The entries by keys, and a line for each record that the template does not fit or that has no configuration.

    Of records with the same keys the one with the strongest source counts, and of those the newest.
    """
    entries: dict[tuple[Any, ...], tuple[tuple[int, float], Any]] = {}
    problems: list[str] = []
    for item in found:
        record = item.record
        try:
            keys, value = template.entry(record)
        except UsageError as exc:
            problems.append(f"{record.key.digest[:12]} {record.key.operation}: {exc}")
            continue
        order = (item.source.rank, -record.created)
        if keys not in entries or order < entries[keys][0]:
            entries[keys] = (order, value)
    return {keys: value for keys, (_, value) in entries.items()}, problems


def python_source(name: str, entries: dict[tuple[Any, ...], Any]) -> str:
    """A module with the table `name`, the same for the same entries.

    Raises:
        UsageError: `name` is not a name of Python's.
    """
    if not name.isidentifier():
        raise UsageError(f"{name!r} is not a name for a table in Python")
    nested: dict[Any, Any] = {}
    for keys, value in sorted(entries.items(), key=lambda item: [repr(key) for key in item[0]]):
        level = nested
        for key in keys[:-1]:
            level = level.setdefault(key, {})
        level[keys[-1]] = _Leaf(value)
    return f"{_HEADING}\n\n{name} = {_text(nested)}\n"


@dataclass(frozen=True)
class _Leaf:
    """A value of a table, which may be a dictionary that is not a level."""

    value: Any


def _text(value: Any, indent: str = "") -> str:
    if isinstance(value, _Leaf):
        return repr(value.value)
    if not value:
        return "{}"
    inner = f"{indent}    "
    lines = "".join(f"{inner}{key!r}: {_text(item, inner)},\n" for key, item in value.items())
    return f"{{\n{lines}{indent}}}"


def _literal(value: Any, text: str) -> Any:
    """`value`, if Python's source can have it; raises `UsageError` for a part of a record that has several fields."""
    held: Any = ()
    if isinstance(value, tuple | list):
        held = value
    elif isinstance(value, dict):
        held = [*value, *value.values()]
    elif isinstance(value, Constructed):
        held = [*value.args, *(item for _, item in value.kwargs)]
    elif not isinstance(value, _PLAIN):
        raise UsageError(f"{text}: a table holds numbers, texts, tuples and dictionaries; name a field of this value")
    for item in held:
        _literal(item, text)
    return value

"""What a user declares besides the inputs that ejcache knows: callables, asked at each question, and paths.

reuse_lowering={"phase": lambda: trainer.phase, "vocabulary": Path("/data/vocabulary.json")}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ejcache.errors import UsageError
from ejcache.jax_integration.seam.reuse.refusal import RefusedError
from ejcache.reuse.inputs.files import content
from ejcache.reuse.values import kind_name, plain_text

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_declared(declared: Any) -> dict[str, Any] | None:
    """Return the declarations of `reuse_lowering`; None where it is True or False.

    Raises:
        UsageError: it is neither a boolean nor a mapping of names to callables and paths.
    """
    if isinstance(declared, bool):
        return None
    if not isinstance(declared, Mapping):
        raise UsageError(
            f"ejit: reuse_lowering is True, False, or a mapping of names to callables and paths, not {declared!r}"
        )
    for name, value in declared.items():
        if not isinstance(name, str) or not (isinstance(value, Path) or callable(value)):
            raise UsageError(
                f"ejit: reuse_lowering[{name!r}] is {kind_name(value)}; accepted are callables, which are asked at "
                "each question, and paths, whose content counts: a bare value would be read too early"
            )
    return dict(declared)


def declared_texts(declared: Mapping[str, Any]) -> dict[str, str]:
    """Write the declared values as texts, as they are now. Raises whatever a callable raises.

    Raises:
        RefusedError: a callable returned something else than a plain value.
    """
    found = {}
    for name, value in sorted(declared.items()):
        try:
            found[name] = "\n".join(_path(value)) if isinstance(value, Path) else plain_text(value())
        except RefusedError as exc:
            raise RefusedError(f"the declared {name!r} is not plain: {exc.reason}") from exc
    return found


def _path(path: Path) -> Iterator[str]:
    if not path.is_dir():
        yield content(str(path), largest=None)
        return
    seen: set[str] = set()
    for directory, names, files in os.walk(path, followlinks=True):
        names[:] = [] if os.path.realpath(directory) in seen else sorted(names)
        seen.add(os.path.realpath(directory))
        yield f"{os.path.relpath(directory, path)}/"
        for name in sorted(files):
            file = os.path.join(directory, name)  # noqa: PTH118
            yield f"{os.path.relpath(file, path)} {content(file, largest=None)}"

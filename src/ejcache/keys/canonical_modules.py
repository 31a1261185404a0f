"""The normal form of a module's private functions and kernel payloads, on plain values.

Only its own module can refer to a private function, so its name is only a label: JAX numbers it by what else was
lowered (`@clip_0`, `@clip_1`) and emits it once or twice depending on what was traced before. Here a private function
is identified by its content: its own bytes, in which each reference to another private function is replaced by that
function's identity.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_NUMBERED: Final = r"(.+?)_\d+"


def base_name(symbol: str) -> str:
    """Return the name that a private symbol had before it was numbered: `clip` of `clip_1`."""
    match = re.fullmatch(_NUMBERED, symbol)
    return match[1] if match else symbol


def content_name(symbol: str, content: bytes) -> str:
    """Return the name of a private function by its content: equal for functions of equal base name and bytes.

    Args:
        symbol: the function's name.
        content: its bytes, with its own name as `base_name(symbol)` and those it refers to by their content names.
    """
    return f"{base_name(symbol)}.{hashlib.sha256(content).hexdigest()}"


def module_digest(content: bytes, *, form: str) -> str:
    """Digest (hex) of a module's bytes; modules in different canonical forms (`form`) never have the same one."""
    hasher = hashlib.sha256(f"ejcache module, {form}\n".encode())
    hasher.update(content)
    return hasher.hexdigest()


def function_order(references: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Order the functions of `references`, each after those that it refers to; None if they refer in a circle."""
    order: list[str] = []
    done: dict[str, bool] = {}  # False while the function's own references are being placed
    for root in references:
        stack = [(root, iter(references[root]))] if root not in done else []
        done.setdefault(root, False)
        while stack:
            name, following = stack[-1]
            for callee in following:
                if callee not in done:
                    done[callee] = False
                    stack.append((callee, iter(references.get(callee, ()))))
                    break
                if not done[callee]:
                    return None
            else:
                stack.pop()
                done[name] = True
                if name in references:
                    order.append(name)
    return order

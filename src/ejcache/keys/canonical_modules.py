"""The normal form of a module's private functions and kernel payloads, on plain values.

Only its own module can refer to a private function, so its name is only a label: JAX numbers it by what else was
lowered (`@clip_0`, `@clip_1`) and emits it once or twice depending on what was traced before. Here a private function
is identified by its content: its own bytes, in which each reference to another private function is replaced by that
function's identity.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from ejcache.errors import MALFORMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


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


def strip_mosaic_config(config: str, strip: Callable[[bytes], bytes | None]) -> str:
    """Return the `backend_config` of a `tpu_custom_call` without debug locations; unchanged if it has another form.

    Args:
        config: JSON text; `custom_call_config.body` is a kernel in base64, `custom_call_config.debug_locations` holds
            its locations where JAX has taken them out of it (0.11 and newer).
        strip: a kernel without its debug locations, or None if it cannot be read.
    """
    try:
        parsed: Any = json.loads(config)
        call = parsed["custom_call_config"]
        body = base64.b64decode(call["body"], validate=True)
    except MALFORMED:
        return config
    if call.pop("debug_locations", None) is None and (stripped := strip(body)) is not None:
        call["body"] = base64.b64encode(stripped).decode()
    return json.dumps(parsed, separators=(",", ":"), sort_keys=True)

"""`jax_share_binary_between_hosts`: one process compiles a program that spans several, the others take what it made."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, Final

from ejcache import entry
from ejcache.jaxside import seam

if TYPE_CHECKING:
    from collections.abc import Callable

    from ejcache.jaxside.request import Request

__all__ = ["Sharing"]

_SECONDS: Final = 300.0
"""How long a process waits for another's compilation; then it compiles itself."""


class Sharing:
    """What was shared, under the key and the ordered device ids.

    JAX keeps it under the key alone; a permuted mesh has the same key where the device assignment is stripped from it,
    and got the other mesh's executable.
    """

    def __init__(self, *, trouble: Callable[[str, Exception], None]) -> None:
        self._trouble = trouble
        self._shared: dict[tuple[str, tuple[int, ...]], Any] = {}

    def run(
        self,
        request: Request,
        *,
        client: Any,
        first_process: int,
        compile_here: Callable[[], Any],
        received: Callable[[Any, bytes, float], None],
    ) -> Any:
        """The executable; compiled here on the first process, and wherever its bytes do not come in time.

        `received` is called with an executable that came, its bytes, and the seconds that it took to compile. They
        travel in an entry's envelope, so that what the service damages is not loaded.
        """
        key, ids = str(request.key), request.target.device_ids
        memo = (key, ids)
        if memo in self._shared:
            return self._shared[memo]
        name = f"ejcache/share/{key}/{hashlib.sha256(repr(ids).encode()).hexdigest()[:16]}"
        if seam.process_index() == first_process:
            started = time.monotonic()
            executable = compile_here()
            header = entry.Header(key=name, compile_seconds=time.monotonic() - started)
            try:
                client.key_value_set_bytes(name, entry.encode(header, seam.serialize_executable(executable)))
            except Exception as exc:
                self._trouble("hand an executable to the other processes", exc)
        else:
            try:
                came = entry.decode(client.blocking_key_value_get_bytes(name, int(_SECONDS * 1000)), key=name)
                executable = seam.load_executable(came.raw, request.target)
            except Exception as exc:
                self._trouble("take an executable from another process", exc)
                executable = compile_here()
            else:
                received(executable, came.raw, came.header.compile_seconds)
        self._shared[memo] = executable
        return executable

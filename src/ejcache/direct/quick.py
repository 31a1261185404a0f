"""The functions that are traced so quickly that they stay plain, remembered beside the records, for each cache.

payload := JSON, an object of: version, functions: an object: name → digest of its code
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final

import jax

from ejcache import entry
from ejcache.direct.records import DIRECT_RECORD_KIND
from ejcache.keys.key import direct_record_key
from ejcache.util.log import log

if TYPE_CHECKING:
    from ejcache.cache.policy import CachePolicy
    from ejcache.settings.table import Settings

__all__ = ["QuickFunctions"]

_VERSION: Final = 2
_MAX_PAYLOAD: Final = 1 << 20
_MOST: Final = 5_000
_KEY: Final = direct_record_key("quick", jax.__version__)


class QuickFunctions:
    """Those of one cache.

    Args:
        policy: of the cache.
        settings: the current ones.
        at_most: seconds of a trace that is quick.
    """

    _known: ClassVar[dict[tuple[int, float], QuickFunctions]] = {}
    """By the cache, which each of them keeps alive, and the limit."""

    @classmethod
    def of(cls, policy: CachePolicy, settings: Settings, *, at_most: float) -> QuickFunctions:
        """Those of this cache; its document is read once in a process."""
        key = (id(policy), at_most)
        if key not in cls._known:
            cls._known[key] = QuickFunctions(policy, settings, at_most=at_most)
        return cls._known[key]

    def __init__(self, policy: CachePolicy, settings: Settings, *, at_most: float) -> None:
        self._policy = policy
        self._settings = settings
        self._at_most = at_most
        self._lock = threading.Lock()
        self._functions: dict[str, str] = self._read() if at_most > 0 else {}

    def has(self, name: str, code: str) -> bool:
        """Whether a function of this name and code was traced quickly."""
        return self._functions.get(name) == code

    def note(self, name: str, code: str, seconds: float | None) -> bool:
        """Note how long a trace took; whether the function is one of these from now on.

        Args:
            name: of the function.
            code: digest of its code.
            seconds: None if JAX needed no trace.
        """
        if seconds is None or self._at_most <= 0:
            return False
        quick = seconds < self._at_most
        if quick != self.has(name, code):
            with self._lock:
                self._functions.pop(name, None)
                if quick and len(self._functions) < _MOST:
                    self._functions[name] = code
            self._write()
        return quick

    def _read(self) -> dict[str, str]:
        try:
            raw = self._policy.read_beside(_KEY, DIRECT_RECORD_KIND, self._settings, max_size=_MAX_PAYLOAD)
            about: Any = json.loads(raw) if raw is not None else {}
            functions = about["functions"] if about.get("version") == _VERSION else {}
            return {str(name): str(code) for name, code in functions.items()}
        except Exception as exc:
            log.debug("ejcache: the list of quick functions cannot be read: %s", exc)
            return {}

    def _write(self) -> None:
        payload = json.dumps({"version": _VERSION, "functions": self._functions}).encode()
        header = entry.Header(key=_KEY, kind=DIRECT_RECORD_KIND, name="quick", jax=jax.__version__)
        self._policy.write_beside(header, payload, self._settings)

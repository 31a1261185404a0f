"""Faults by rule: which requests, how often, and what happens to them."""

from __future__ import annotations

import random
import re
import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ACTIONS", "Fault", "FaultRules"]

ACTIONS: Final = {
    "latency": "wait `seconds`, give or take `jitter`, then go on (later rules apply too)",
    "status": "answer with `status`, `headers` and `message` (a page as it is, if it begins with `<`) and do nothing",
    "reset": "reset the connection and do nothing",
    "drop_after": "do it, then reset the connection without an answer",
    "stall": "wait `seconds`, then reset the connection and do nothing",
    "stall_after": "do it, wait `seconds`, then reset the connection without an answer",
    "stall_body": "do it, answer with half of the body, wait `seconds`, then reset the connection",
    "truncate": "do it, announce the whole body, send half of it, then reset the connection",
    "shorten": "do it, send half of the body as if it were the whole",
    "corrupt": "do it, flip one bit of the body",
    "corrupt_upload": "flip one bit in the middle of the request's body, then do it",
}


@dataclass(slots=True)
class Fault:
    """One rule.

    Attributes:
        action: one of `ACTIONS`.
        method, path, query: regular expressions that are searched for in the method, the decoded path and the query.
        count: how many requests it befalls; -1 for all.
        skip: how many requests it spares first.
        probability: with which it befalls a request that it matches.
        hits: how many requests it has befallen.
    """

    action: str
    method: str = ""
    path: str = ""
    query: str = ""
    count: int = -1
    skip: int = 0
    probability: float = 1.0
    status: int = 503
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 3600.0
    jitter: float = 0.0
    hits: int = 0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"there is no fault {self.action!r}; there are {', '.join(ACTIONS)}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class FaultRules:
    """The rules in force, in order; added and cleared from any thread."""

    def __init__(self, *, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self._rules: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._rules.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def to_list(self) -> list[dict[str, Any]]:
        with self._lock:
            return [rule.to_dict() for rule in self._rules]

    def strike(self, method: str, path: str, query: Mapping[str, str]) -> tuple[float, Fault | None]:
        """Seconds to wait, and the fault that befalls this request, if any."""
        delay = 0.0
        if not self._rules:
            return delay, None
        text = "&".join(f"{name}={value}" for name, value in query.items())
        with self._lock:
            for rule in self._rules:
                if (
                    rule.count == 0
                    or not re.search(rule.method, method)
                    or not re.search(rule.path, path)
                    or not re.search(rule.query, text)
                ):
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                    continue
                if rule.probability < 1.0 and self.random.random() >= rule.probability:
                    continue
                if rule.count > 0:
                    rule.count -= 1
                rule.hits += 1
                if rule.action != "latency":
                    return delay, rule
                delay += max(0.0, rule.seconds + self.random.uniform(-rule.jitter, rule.jitter))
        return delay, None

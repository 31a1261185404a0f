"""Which connections to SQLite a test has opened."""

from __future__ import annotations

import _sqlite3
import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["opened_connections"]


def opened_connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections that this process opens from now on, the latest last."""
    opened, connect = [], sqlite3.connect

    def noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    for module in (sqlite3, _sqlite3):  # diskcache and our index
        monkeypatch.setattr(module, "connect", noted)
    return opened

"""Writing down what operations are called with, to tune it later or elsewhere: `record()` or `EJKERNEL_OPS_RECORD`."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.calls import UnrecordableError, decode_call, encode_call
from ejcache.autotune.key import slug
from ejcache.autotune.layer import warn_once
from ejcache.errors import EjcacheError, EntryError, StoreError
from ejcache.settings import environment, resolve
from ejcache.stores.documents import open_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ejcache.autotune.key import RecordKey
    from ejcache.autotune.store import AutotuneStore
    from ejcache.stores.documents import DocumentStore

__all__ = ["RECORDED", "Recorded", "note", "record", "recorded_calls", "recording"]

RECORDED: Final = "autotune-recorded/"

_places: Final[ContextVar[DocumentStore | None]] = ContextVar("ejcache_autotune_recording", default=None)
_PAUSE_SECONDS: Final = 30.0
_noted: Final[dict[tuple[str, str], bool]] = {}
"""Whether a call could be recorded in a place; neither is tried again."""
_failing: Final[dict[str, float]] = {}
"""Places that failed a moment ago, and until when they are left alone: each call would wait for them."""
_lock: Final = threading.Lock()


@contextlib.contextmanager
def record(url: str | None = None) -> Iterator[None]:
    """Write down every kind of call of tuned operations in this context, once each and without data.

    Args:
        url: where, a directory or URL; by default where this process's own records are.

    Raises:
        UsageError: `url` is none.
    """
    from ejcache.autotune.store import default_store

    documents = default_store().layers[0].documents if url is None else open_documents(url)
    token = _places.set(documents)
    try:
        yield
    finally:
        _places.reset(token)


def recording() -> bool:
    """Whether calls are written down now."""
    if _places.get() is not None:
        return True
    # Read raw first: this is asked at every call, and the variable is hardly ever there.
    return environment().get("EJKERNEL_OPS_RECORD") is not None and bool(resolve().autotune_record)


def note(key: RecordKey, describe: Callable[[], dict[str, Any]], store: AutotuneStore) -> bool:
    """Write the call down if it has not been; False if it cannot be.

    Args:
        key: of the call.
        describe: gives `how`, `args` and `kwargs`; raises `UnrecordableError`.
        store: where, unless `record` says so.
    """
    documents = _places.get() or store.layers[0].documents
    with _lock:
        noted = _noted.get((documents.url, key.digest))
        if noted is not None:
            return noted
        if time.monotonic() < _failing.get(documents.url, 0.0):
            return False
    call: dict[str, Any] = {"operation": key.operation, "version": key.version, "key": key.text, "digest": key.digest}
    call |= {"device": key.device, "environment": dict(key.environment), "call": dict(key.call)}
    call |= {"created": time.time(), "host": socket.gethostname()}
    recordable = False
    try:
        documents.create(f"{RECORDED}{slug(key.operation)}/{key.digest}.json", encode_call(call | describe()))
    except UnrecordableError as exc:
        warn_once(f"recording {key.operation}", "a call of %s is not recorded: %s", key.operation, exc)
    except StoreError as exc:
        warn_once(f"recording to {documents.url}", "calls are not recorded: %s", exc)
        with _lock:
            _failing[documents.url] = time.monotonic() + _PAUSE_SECONDS
        return False
    except (EjcacheError, RecursionError, TypeError, ValueError) as exc:
        warn_once(f"recording {key.operation}", "a call of %s is not recorded: %r", key.operation, exc)
    else:
        recordable = True
    with _lock:
        _noted[documents.url, key.digest] = recordable
    return recordable


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded call.

    Attributes:
        path: of its document.
        call: what it holds, or None if it cannot be read.
        problem: why not.
    """

    path: str
    call: dict[str, Any] | None
    problem: str = ""


def recorded_calls(documents: DocumentStore) -> Iterator[Recorded]:
    """Every recorded call in a place, ordered by path; raises `StoreError` if it cannot be listed."""
    for path in sorted(documents.list(RECORDED)):
        data = documents.read(path)
        if data is None:
            continue
        try:
            yield Recorded(path, decode_call(data))
        except EntryError as exc:
            yield Recorded(path, None, str(exc))

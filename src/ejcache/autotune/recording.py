"""Records the calls of operations, so that they are tuned later or on another machine.

`record()` or `EJCACHE_AUTOTUNE_RECORD` switches it on. `each_call()` tells of them in this process alone.
"""

from __future__ import annotations

import contextlib
import socket
import time
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from ejcache.autotune.call_documents import MAX_CALL_BYTES, decode_call, encode_call
from ejcache.autotune.log import warn_once
from ejcache.autotune.records.record_key import slug
from ejcache.autotune.records.store import default_store, is_held_back
from ejcache.errors import MALFORMED, EjcacheError, EntryError
from ejcache.settings.environment import environment_variable
from ejcache.settings.resolve import settings_in_use
from ejcache.stores.documents import open_documents
from ejcache.stores.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ejcache.autotune.call import Call
    from ejcache.autotune.records.store import AutotuneStore
    from ejcache.stores.documents import Documents


RECORDED: Final = "autotune-recorded/"
_MOST_NOTED: Final = 10_000
_ELSEWHERE: Final = "EJCACHE_AUTOTUNE_RECORD can name another directory or bucket"

_documents: Final[ContextVar[Documents | None]] = ContextVar("ejcache_autotune_recording", default=None)
_noted: Final[dict[tuple[str, str], bool]] = {}
"""By URL and key: whether the call could be recorded. It is not tried again."""


@contextlib.contextmanager
def record(url: str | None = None) -> Iterator[None]:
    """Record each kind of call of tuned operations in this block once, without its data.

    With the setting `read_only`, nothing is recorded in the cache.

    Args:
        url: a directory or the URL of a bucket; by default that of this process's own records.

    Raises:
        UsageError: `url` has no known form.
    """
    token = _documents.set(default_store().layers[0].documents if url is None else _opened(url))
    try:
        yield
    finally:
        _documents.reset(token)


def recording() -> bool:
    """True if calls are recorded now."""
    if _documents.get() is not None:
        return True
    # This runs at each call. Looking for the variable is quicker than resolving all settings.
    if environment_variable("EJCACHE_AUTOTUNE_RECORD") is None and environment_variable("EJKERNEL_OPS_RECORD") is None:
        return False
    return bool(settings_in_use().autotune_record)


def _place(store: AutotuneStore) -> Documents:
    """Find the documents that hold recorded calls: of `record`, of the variable, or of the store's first layer."""
    held = _documents.get()
    if held is not None:
        return held
    wanted = settings_in_use().autotune_record
    return _opened_once(wanted) if isinstance(wanted, str) else store.layers[0].documents


def _opened(url: str) -> Documents:
    place = Location.parse(url).url
    return open_documents(place, read_only=partial(is_held_back, place))


_opened_once: Final = cache(_opened)


def note(call: Call) -> bool:
    """Record the call unless it was recorded before; False if it cannot be recorded."""
    key = call.key
    try:
        documents = _place(call.store())
        place = (documents.url, key.digest)
        if place in _noted:
            return _noted[place]
        if documents.read_only:
            warn_once("recording", "calls are not recorded: %s is only read; %s", documents.url, _ELSEWHERE)
            return False
        body: dict[str, Any] = {
            "operation": key.operation,
            "version": key.version,
            "key": key.text,
            "digest": key.digest,
        }
        body |= {"device": key.device, "environment": dict(key.environment), "call": dict(key.call)}
        body |= {"created": time.time(), "host": socket.gethostname()}
        document = _document(body, call)
        if document is not None:
            documents.create(f"{RECORDED}{slug(key.operation)}/{key.digest}.json", document)
    except EjcacheError as exc:
        # The storage may work again later, so the call is not noted.
        warn_once("recording", "calls are not recorded: %s", exc)
        return False
    if len(_noted) >= _MOST_NOTED:
        _noted.clear()
    _noted[place] = document is not None
    return _noted[place]


def _document(body: dict[str, Any], call: Call) -> bytes | None:
    """Return the document of a call, which `body` begins; None if another process could not make the call."""
    try:
        return encode_call(body | call.described())
    except (EjcacheError, *MALFORMED) as exc:
        warn_once(f"recording {call.key.operation}", "a call of %s is not recorded: %s", call.key.operation, exc)
        return None


def recorded_calls(documents: Documents) -> Iterator[tuple[str, dict[str, Any] | EntryError]]:
    """Yield the path of each recorded call, in order, and its document or what is wrong with that.

    Raises:
        StoreError: they cannot be listed.
    """
    for path in sorted(documents.list(RECORDED)):
        data = documents.read(path, max_size=MAX_CALL_BYTES)
        if data is not None:
            try:
                yield path, decode_call(data)
            except EntryError as exc:
                yield path, exc

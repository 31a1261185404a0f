"""A store that is dropped without being closed leaves nothing behind that Python would warn of."""

from __future__ import annotations

import gc
import warnings

from ejcache.stores.local.store import LocalStore


def test_a_dropped_store_closes_its_index(tmp_path):
    """Also as part of a reference cycle, as a store held by a program's own objects often is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for cyclic in (False, True):
            store = LocalStore(tmp_path)
            store.put("k", b"v")
            if cyclic:
                store.itself = store
            del store
            gc.collect()
            assert list((tmp_path / "v1/local/present").iterdir()) == []
        assert LocalStore(tmp_path).get("k") == b"v"
        gc.collect()

    assert [str(warning.message) for warning in caught] == []

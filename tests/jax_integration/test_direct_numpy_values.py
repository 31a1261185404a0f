"""NumPy's functions in the fingerprint of a function."""

import functools

import numpy as np

from ejcache.direct.describing.values import describe_value
from ejcache.direct.describing.walk import walk


def masked(x):
    return np.tril(np.concatenate([x, x]))


def test_functions_that_numpy_dispatches_are_read(monkeypatch):
    """A function may use NumPy's functions that other array types can override; another one in their place is seen."""
    digest = functools.partial(walk, {"masked": masked}, describe=describe_value)
    before = digest().digest
    assert digest().digest == before
    monkeypatch.setattr(np, "tril", np.triu)
    assert digest().digest != before
